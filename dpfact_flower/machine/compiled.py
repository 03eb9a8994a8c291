"""How kernels are compiled: numba's `njit`, for which registers, with its code kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from llvmlite.binding import get_host_cpu_features
from numba import config, njit

_Function = TypeVar("_Function", bound=Callable[..., Any])

FAST: dict[str, Any] = {
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
}
"""Options that allow sums to be reordered but keep the meaning of NaN and infinity."""


def compiled(**options: Any) -> Callable[[_Function], _Function]:
    """Decorate a kernel; `options` are those of `numba.njit`. It runs without the GIL."""

    def decorate(function: _Function) -> _Function:
        try:
            return cast(_Function, njit(nogil=True, cache=True, **options)(function))
        except RuntimeError:  # no folder that numba may write to: compile in every process instead
            return cast(_Function, njit(nogil=True, **options)(function))

    return decorate


def _widest() -> int:
    """Float32 values in a register of the processor that numba compiles for."""
    asked_for = getattr(config, "CPU_FEATURES", None)  # NUMBA_CPU_FEATURES
    if asked_for is not None:
        return 16 if "+avx512f" in asked_for.split(",") else 8
    try:
        return 16 if get_host_cpu_features().get("avx512f", False) else 8
    except RuntimeError:  # a processor that LLVM says nothing about
        return 8


WIDTH = _widest()
"""Float32 values in a register; rows of a stack are padded to a multiple of it."""
