"""Compiled loops over the entries of a sparse tensor.

The kernels take the factor matrices as one *stack*: the rows of all modes, one mode after the
other, in a single two-dimensional array. An entry is then N row numbers, and no kernel knows how
many modes there are. Rows are padded with zero columns to whole vector registers; a zero column
stays zero under every update here.

The fast-math flags leave NaN and infinity their meaning: that is how divergence is noticed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.compiled import FAST, compiled

Array = NDArray[Any]
LANES = 8
"""Float32 values in a 256-bit register; rows of a stack are padded to a multiple of it."""

_LINE = 64  # bytes of a cache line


def stack_factors(factors: Sequence[Array]) -> Array:
    """Rows of all modes in one array, padded with zero columns.

    Parameters
    ----------
    factors : sequence of ndarray, each (I_n, R), all of one dtype

    Returns
    -------
    ndarray, shape (sum of I_n, R rounded up to a multiple of 8), C-contiguous
        It begins where a cache line does.
    """
    rank, dtype = factors[0].shape[1], factors[0].dtype
    shape = sum(map(len, factors)), -(-rank // LANES) * LANES
    memory = np.zeros(math.prod(shape) * dtype.itemsize + _LINE, np.uint8)
    first = -memory.ctypes.data % _LINE
    stack = memory[first : first + memory.size - _LINE].view(dtype).reshape(shape)
    np.concatenate(factors, out=stack[:, :rank])
    return stack


def row_offsets(sizes: Sequence[int]) -> NDArray[np.int64]:
    """First row of each mode in the stack, then the number of rows; shape (N + 1,)."""
    return np.cumsum([0, *sizes], dtype=np.int64)


def model_values(indices: NDArray[np.int32], factors: Sequence[Array]) -> NDArray[np.float64]:
    """Value of the CP model at the given cells.

    Parameters
    ----------
    indices : ndarray of int32, shape (cells, N)
    factors : sequence of N ndarrays of float32 or float64, each (I_n, R)

    Returns
    -------
    ndarray of float64, shape (cells,)
        Each a sum over the R components in the factors' own precision.
    """
    offsets = row_offsets([len(factor) for factor in factors])
    return stacked_values(indices, stack_factors(factors), offsets)


def stacked_values(indices: Array, stack: Array, offsets: Array) -> NDArray[np.float64]:
    """`model_values` for factors that are stacked already; `offsets` as of `row_offsets`."""
    values = np.empty(len(indices))
    if indices.shape[1] == 3:
        _values_three(indices, stack, offsets, values)
    else:
        _values_any(indices, stack, offsets, values)
    return values


@compiled(**FAST)
def _values_three(indices: Array, stack: Array, offsets: Array, values: Array) -> None:
    for s in range(len(indices)):
        a, b = stack[indices[s, 0]], stack[offsets[1] + indices[s, 1]]
        c = stack[offsets[2] + indices[s, 2]]
        total = stack.dtype.type(0)
        for r in range(len(a)):
            total += a[r] * (b[r] * c[r])
        values[s] = total


@compiled(**FAST)
def _values_any(indices: Array, stack: Array, offsets: Array, values: Array) -> None:
    entries, modes = indices.shape
    columns = stack.shape[1]
    product = np.empty(columns, stack.dtype)
    for s in range(entries):
        product[:] = stack[indices[s, 0]]
        for n in range(1, modes - 1):
            row = stack[offsets[n] + indices[s, n]]
            for r in range(columns):
                product[r] *= row[r]
        row = stack[offsets[modes - 1] + indices[s, modes - 1]]
        total = stack.dtype.type(0)
        for r in range(columns):
            total += product[r] * row[r]
        values[s] = total
