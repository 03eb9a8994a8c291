"""Compilation of kernels: numba's `njit` with a register width and a cache on disk."""

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

from llvmlite.binding import get_host_cpu_features
from numba import config, njit

from dpfact_flower.errors import SettingsError

VARIABLE = "DPFACT_REGISTER_BITS"
"""Environment variable for the register width in bits. The variable is read on import."""

_Function = TypeVar("_Function", bound=Callable[..., Any])

FAST: dict[str, Any] = {"error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz", "arcp"}}
"""Compiler options that allow sums to be reordered but keep the meaning of NaN and infinity."""


def compiled(tag: str = "", **options: Any) -> Callable[[_Function], _Function]:
    """Return a decorator that compiles a kernel, which then runs without the GIL.

    `options` are options of `numba.njit`. Use different tags for kernels that are made from the
    same function but inline different functions.
    """

    def decorate(function: _Function) -> _Function:
        # numba finds cached code by name, signature and processor. `WIDTH` is a constant in the
        # machine code, so the name includes it.
        function.__qualname__ += f".{BITS}bit{tag and '.'}{tag}"
        try:
            return cast(_Function, njit(nogil=True, cache=True, **options)(function))
        except RuntimeError:  # no writable cache folder: compile in every process
            return cast(_Function, njit(nogil=True, **options)(function))

    return decorate


def _has_avx512() -> bool:
    """Return whether numba compiles for a processor with registers of 512 bits."""
    asked_for = getattr(config, "CPU_FEATURES", None)  # NUMBA_CPU_FEATURES
    if asked_for is not None:
        return "+avx512f" in asked_for.split(",")
    try:
        return bool(get_host_cpu_features().get("avx512f", False))
    except RuntimeError:  # a processor unknown to LLVM
        return False


def _register_bits() -> int:
    """Return the register width in bits: from the environment, or else the widest useful one."""
    widest = "512" if _has_avx512() else "256"  # LLVM combines two registers of 128 bits
    asked_for = os.environ.get(VARIABLE, widest)
    if asked_for not in {"128", "256", widest}:
        raise SettingsError(
            f"{VARIABLE}: must be 128, 256 or, on processors with AVX-512, 512; got {asked_for!r}"
        )
    return int(asked_for)


BITS = _register_bits()
"""Register width in bits. If the processor's registers are narrower, LLVM combines several."""

WIDTH = BITS // 32
"""Number of float32 values per register. Rows of a stack are padded to a multiple of `WIDTH`."""

REGISTERS = 32 if BITS == 512 else 16
"""Number of vector registers."""
