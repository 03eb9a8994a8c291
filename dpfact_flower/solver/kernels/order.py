"""The order of a pass of psgd: shuffled blocks of patients, and shuffled visits within a block."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.machine.compiled import FAST, compiled
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver.kernels.zero_cells import ZeroCells, draw_zero_cells, random_number
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.arrays import Array
from dpfact_flower.tensor.stack import row_offsets

_BLOCK = 512
"""Number of patients whose entries are shuffled together. Their rows stay in the cache."""

Visits = tuple[NDArray[np.int32], NDArray[np.float32]]


def zero_visits(tensor: SparseTensor, settings: SolverSettings) -> int:
    """Return the number of zero cells to sample per pass."""
    if settings.zeros == "none" or tensor.cells == tensor.nnz:
        return 0
    return max(1, round(settings.zero_ratio * tensor.nnz))


def entries_by_row(tensor: SparseTensor) -> list[NDArray[np.int64]]:
    """Return the number of entries in each row of each mode."""
    counts = [np.zeros(size, np.int64) for size in tensor.shape]
    for part in tensor.parts():  # `bincount` copies its argument
        for n, column in enumerate(tensor.indices[part].T):
            counts[n] += np.bincount(column, minlength=tensor.shape[n])
    return counts


def visits(
    tensor: SparseTensor,
    zeros: int,
    rng: np.random.Generator,
    model: NDArray[np.float32] | None = None,
) -> Iterator[Visits]:
    """Yield one pass in random order: every non-zero once, and `zeros` draws of zero cells.

    Blocks of neighbouring patients come in random order, and so do the visits within a block. This
    order works as well as a full permutation and takes far less time.

    Zero cells are drawn from `model`, see `ZeroCells`. Each yielded block holds rows of the factor
    stack, and counts. The count of a zero cell is minus its weight. The count of a draw that hit a
    non-zero cell is 0.
    """
    starts = np.append(0, np.cumsum(entries_by_row(tensor)[0]))  # first entry of each patient
    first = np.arange(0, tensor.n_patients, _BLOCK)
    bounds = np.append(first, tensor.n_patients)
    cells = ZeroCells(tensor, zeros, bounds, model) if zeros else None
    zeros_in = cells.spread(rng) if cells else np.zeros_like(first)
    offsets = tuple(row_offsets(tensor.shape).tolist())  # a tuple: numba unrolls loops over modes
    for b in rng.permutation(len(first)).tolist():
        entries = starts[bounds[b] : bounds[b + 1] + 1]
        size, number = int(entries[-1] - entries[0] + zeros_in[b]), 0
        rows, counts = np.empty((size, tensor.ndim), np.int32), np.empty(size, np.float32)
        places = np.arange(entries[-1] - entries[0], dtype=np.int32)
        seed = rng.integers(2**64, dtype=np.uint64)
        if cells and zeros_in[b]:
            number = draw_zero_cells(
                tensor.indices, offsets, first[b], entries, seed, places, rows, counts,
                *cells.terms(b),
            )  # fmt: skip
        _draw_entries(
            tensor.indices, tensor.values, offsets, entries[0], seed, number, places, rows, counts
        )
        if cells:
            cells.weigh(rows, counts)
        yield rows, counts


@compiled(**FAST)
def _draw_entries(
    indices: Array,
    values: Array,
    offsets: tuple[int, ...],
    start: int,
    seed: np.uint64,
    number: int,
    places: Array,
    rows: Array,
    counts: Array,
) -> None:
    """Write a block's entries in random order to the places without zero cells.

    Entries are read in sequence and written in random order, because the output stays in the cache,
    while the input may not.
    """
    modes = len(offsets) - 1
    for s in range(len(places) - 1, 0, -1):  # Fisher-Yates
        other = np.int64(random_number(seed, number + s) * (s + 1))
        places[s], places[other] = places[other], places[s]
    for s in range(len(places)):
        place = places[s]
        for n in range(modes):
            rows[place, n] = offsets[n] + indices[start + s, n]
        counts[place] = values[start + s]
