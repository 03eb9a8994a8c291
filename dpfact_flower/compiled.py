"""How kernels are compiled: numba's `njit`, with its machine code kept on disk where that works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

_Function = TypeVar("_Function", bound=Callable[..., Any])

FAST: dict[str, Any] = {
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
}
"""Options that let sums be reordered but leave NaN and infinity their meaning."""


def compiled(**options: Any) -> Callable[[_Function], _Function]:
    """Decorate a kernel; `options` are those of `numba.njit`. It runs without the GIL."""

    def decorate(function: _Function) -> _Function:
        try:
            return cast(_Function, njit(nogil=True, cache=True, **options)(function))
        except RuntimeError:  # no folder numba may write to: compile in every process instead
            return cast(_Function, njit(nogil=True, **options)(function))

    return decorate
