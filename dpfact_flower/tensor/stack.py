"""Stack factor matrices in one array, and compute the model's values at given cells.

The *stack* is an array with the rows of all factors, one mode after another. Each row is padded
with zeros to fill whole vector registers. If all values are finite, solvers leave the padding
unchanged. Compiled functions preserve NaN and infinity, so that callers can detect divergence.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.machine.compiled import FAST, WIDTH, compiled
from dpfact_flower.tensor.arrays import Array

_MOST = 8  # registers per slice; a slice and its operands then fit in sixteen registers
_LINE = 64  # bytes in a cache line


def slices(rank: int) -> tuple[tuple[int, ...], int]:
    """Divide a row of `rank` values into slices that fit the processor's registers.

    Return a tuple with one zero for each register of a slice, and the padded length of a row. The
    module `dpfact_flower.solver.kernels.instructions` explains the tuple of zeros.
    """
    whole = -(-rank // WIDTH)
    count = -(-whole // _MOST)
    registers = -(-whole // count)
    return (0,) * registers, WIDTH * registers * count


def aligned_zeros(rows: int, columns: int, dtype: Any = np.float32) -> Array:
    """Return an array of zeros, aligned to a cache line."""
    size = np.dtype(dtype).itemsize * rows * columns
    memory = np.zeros(size + _LINE, np.uint8)
    first = -memory.ctypes.data % _LINE
    zeros: Array = memory[first : first + size].view(dtype).reshape(rows, columns)
    return zeros


def stack_factors(factors: Sequence[Array]) -> Array:
    """Stack factors of the same dtype, and pad their rows with zeros (see `slices`)."""
    rank = factors[0].shape[1]
    stack = aligned_zeros(sum(map(len, factors)), slices(rank)[1], factors[0].dtype)
    np.concatenate(factors, out=stack[:, :rank])
    return stack


def row_offsets(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Return each mode's first row in the stack, followed by the total number of rows."""
    return np.cumsum([0, *sizes], dtype=np.int64)


def stacked_values(indices: Array, stack: Array, offsets: Array) -> NDArray[np.float64]:
    """Return a CP model's value at each row of `indices`, computed in the stack's precision."""
    values = np.empty(len(indices))
    _fill_values(indices, stack, tuple(offsets[: indices.shape[1]].tolist()), values)
    return values


@compiled(**FAST)
def _fill_values(indices: Array, stack: Array, offsets: tuple[int, ...], values: Array) -> None:
    for s in range(len(indices)):
        total = stack.dtype.type(0)
        for r in range(stack.shape[1]):
            product = stack[indices[s, 0], r]
            for n in range(1, len(offsets)):  # unrolled, because a tuple's length is compiled in
                product *= stack[offsets[n] + indices[s, n], r]
            total += product
        values[s] = total
