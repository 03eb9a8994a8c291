"""Compile kernels with numba, cache them on disk, and find the width of vector registers."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import config, njit
from numba.core.codegen import get_host_cpu_features

_Function = TypeVar("_Function", bound=Callable[..., Any])

FAST: dict[str, Any] = {"error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz", "arcp"}}
"""Compiler options that let sums be reordered but preserve the meaning of NaN and infinity."""


def compiled(tag: str = "", **options: Any) -> Callable[[_Function], _Function]:
    """Return a decorator that compiles a function, which then runs without the GIL.

    `options` are passed to `numba.njit`. Numba caches kernels by name. If a function is compiled
    several times with different inlined functions, give each compilation its own `tag`. If an
    inlined function belongs to another module, set ``cache=False``, because numba does not notice
    changes in other modules.
    """

    def decorate(function: _Function) -> _Function:
        if tag:
            function.__qualname__ += f".{tag}"  # numba finds cached code by name
        try:
            return cast(_Function, njit(nogil=True, **{"cache": True} | options)(function))
        except RuntimeError:  # no writable cache folder, so compile in every process
            return cast(_Function, njit(nogil=True, **options)(function))

    return decorate


# Compiled code may contain `WIDTH`, because numba's cache separates processors by their features.
_features: str | None = getattr(config, "CPU_FEATURES", None)
if _features is None:
    _features = cast(str, get_host_cpu_features())  # type: ignore[no-untyped-call]

WIDTH = 16 if "+avx512f" in _features.split(",") else 8
"""Number of float32 values per register. `tensor.stack` pads rows to a multiple of `WIDTH`.

If the processor's registers are narrower than 256 bits, LLVM combines several registers.
"""
REGISTERS = 32 if WIDTH == 16 else 16
"""Number of vector registers."""
