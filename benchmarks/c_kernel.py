"""A P-SGD pass in C, compiled on the spot, to compare the solver's kernels with."""

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
    # What -ffast-math is made of. By its own name it would also link start-up code that lets the
    # whole process take tiny numbers for zero.
    "-fassociative-math", "-freciprocal-math", "-ffinite-math-only", "-fno-signed-zeros",
    "-fno-trapping-math", "-fno-math-errno",
    # Compilers leave half of an AVX-512 register unused unless they are asked.
    *(("-mprefer-vector-width=512",) if platform.machine() in {"x86_64", "AMD64"} else ()),
)  # fmt: skip


class MissingCompilerError(RuntimeError):
    """There is no C compiler, or it failed."""


class CKernel:
    """`psgd.c`, compiled for one padded rank.

    Parameters
    ----------
    columns : int
        Columns of the stack.
    folder : Path
        Where the library goes.

    Raises
    ------
    MissingCompilerError
        With the missing program, or the compiler's message.
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
        """Like the kernels' `visit`, for joint steps at non-zeros of three modes."""
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
