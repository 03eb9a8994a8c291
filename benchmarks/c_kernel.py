"""Compile a P-SGD pass in C, for comparison with the solver's kernels."""

import ctypes
import os
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np

from dpfact_flower.solver.kernels.sgd import Step
from dpfact_flower.tensor.arrays import Array

_SOURCE = Path(__file__).with_name("psgd.c")
_FLAGS = (
    "-O3", "-march=native", "-shared", "-fPIC",
    # The components of -ffast-math. The option itself would also link start-up code that makes the
    # whole process treat tiny numbers as zero.
    "-fassociative-math", "-freciprocal-math", "-ffinite-math-only", "-fno-signed-zeros",
    "-fno-trapping-math", "-fno-math-errno",
    # By default, compilers leave half of an AVX-512 register unused.
    *(("-mprefer-vector-width=512",) if platform.machine() in {"x86_64", "AMD64"} else ()),
)  # fmt: skip


class MissingCompilerError(RuntimeError):
    """Raised when there is no C compiler or the compiler failed."""


class CKernel:
    """`psgd.c`, compiled for one padded rank.

    Parameters
    ----------
    columns : int
        Number of columns in the stack.
    folder : Path
        Folder for the compiled library.

    Raises
    ------
    MissingCompilerError
        If there is no compiler, or if it fails. The error contains the compiler's message.
    """

    def __init__(self, columns: int, folder: Path) -> None:
        wanted = (os.environ.get("CC"), "cc", "gcc", "clang")
        compiler = next(filter(None, (shutil.which(name) for name in wanted if name)), None)
        if compiler is None:
            raise MissingCompilerError("no C compiler: neither $CC nor cc, gcc or clang is there")
        library = folder / f"psgd-{columns}.so"
        done = subprocess.run(
            [compiler, *_FLAGS, f"-DCOLUMNS={columns}", "-o", str(library), str(_SOURCE)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise MissingCompilerError(f"{compiler} failed: {done.stderr[-300:]}")
        self._library = ctypes.CDLL(str(library))

    def visit(self, stack: Array, anchors: Array, rows: Array, counts: Array, step: Step) -> None:
        """Take joint steps at the non-zeros of three modes, as in the kernels' `visit`."""
        visits, eta = ctypes.c_long(len(counts)), ctypes.c_float(step.eta)
        if step.gamma > 0:
            self._library.joint_elastic(
                _pointer(stack), _pointer(anchors), ctypes.c_long(len(stack) - len(anchors)),
                _pointer(rows), _pointer(counts), visits, eta, ctypes.c_float(step.gamma),
            )  # fmt: skip
        else:
            self._library.joint(_pointer(stack), _pointer(rows), _pointer(counts), visits, eta)


def _pointer(array: Array) -> ctypes.c_void_p:
    if not array.flags.c_contiguous or array.dtype not in (np.float32, np.int32):
        raise ValueError("C takes C-contiguous arrays of 32 bits")
    return ctypes.c_void_p(array.ctypes.data)
