"""The order of a pass of psgd: blocks of patients shuffled, and the visits within a block."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.compiled import FAST, compiled
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver.kernels import Array, row_offsets
from dpfact_flower.tensor import SparseTensor

_BLOCK = 512
"""Patients whose entries are shuffled together: their rows stay in the cache."""

_SPARSE = 8  # places of a table for each entry
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: spreads what it multiplies

Visits = tuple[NDArray[np.int32], NDArray[np.float32]]


def zero_visits(tensor: SparseTensor, settings: SolverSettings) -> int:
    """Zero cells to sample per pass; 0 if none are wanted, or there are none."""
    if settings.zeros == "none" or tensor.cells == tensor.nnz:
        return 0
    return max(1, round(settings.zero_ratio * tensor.nnz))


def entries_by_row(tensor: SparseTensor) -> list[NDArray[np.int64]]:
    """Number of entries in each row of each mode; N arrays of shapes (I_n,)."""
    offsets = row_offsets(tensor.shape)
    counts = np.zeros(offsets[-1], np.int64)
    _count(tensor.indices, offsets, counts)
    return np.split(counts, offsets[1:-1])


def first_entries(often: NDArray[np.int64]) -> NDArray[np.int64]:
    """First entry of each patient, then the number of entries; from the patients' numbers."""
    return np.concatenate([[0], np.cumsum(often)])


def visits(
    tensor: SparseTensor,
    zeros: int,
    rng: np.random.Generator,
    starts: NDArray[np.int64] | None = None,
) -> Iterator[Visits]:
    """One pass: every non-zero once, and `zeros` zero cells, in random order.

    Blocks of neighbouring patients come in random order, and so do the visits within a block; that
    is as good as a full permutation at a fraction of its cost. The zero cells are independent and
    uniform over all zero cells of the tensor: each block's number of them is multinomial.
    `starts` is what `first_entries` gives, for who has it already.

    Yields
    ------
    rows : ndarray of int32, shape (visits, N)
        Rows of the factor stack.
    counts : ndarray of float32, shape (visits,)
        0 for a zero cell.
    """
    starts = first_entries(entries_by_row(tensor)[0]) if starts is None else starts
    first = np.arange(0, tensor.n_patients, _BLOCK)
    last = np.minimum(first + _BLOCK, tensor.n_patients)
    entries = starts[last] - starts[first]
    share = (last - first) * float(math.prod(tensor.feature_shape)) - entries
    zeros_in = rng.multinomial(zeros, share / share.sum()) if zeros else np.zeros_like(entries)
    for b in rng.permutation(len(first)).tolist():
        patients = starts[first[b] : last[b] + 1]
        yield draw_visits(tensor, int(first[b]), patients, int(zeros_in[b]), rng)


def draw_visits(
    tensor: SparseTensor,
    first: int,
    starts: NDArray[np.int64],
    zeros: int,
    rng: np.random.Generator,
) -> Visits:
    """A block's entries and sampled zero cells, in random order.

    Parameters
    ----------
    tensor : SparseTensor
    first : int
        First patient of the block.
    starts : ndarray of int64, shape (patients in the block + 1,)
        First entry of each patient of the block, then the end of the last.
    zeros : int
        Cells to draw, each uniform among the block's zero cells and independent of the others.
        There must be one if any is wanted.
    rng : numpy.random.Generator

    Returns
    -------
    As `visits` yields.
    """
    size = int(starts[-1] - starts[0]) + zeros
    rows, counts = np.empty((size, tensor.ndim), np.int32), np.empty(size, np.float32)
    offsets = tuple(row_offsets(tensor.shape).tolist())  # a tuple: loops over modes are unrolled
    _scatter(
        tensor.indices, tensor.values, offsets, first, starts, rng.random(size), rows, counts, rng
    )
    return rows, counts


@compiled(**FAST)
def _count(indices: Array, offsets: Array, counts: Array) -> None:
    for s in range(len(indices)):
        for n in range(indices.shape[1]):
            counts[offsets[n] + indices[s, n]] += 1


@compiled(**FAST)
def _scatter(
    indices: Array,
    values: Array,
    offsets: tuple[int, ...],
    first: int,
    starts: Array,
    uniform: Array,
    rows: Array,
    counts: Array,
    rng: np.random.Generator,
) -> None:
    """Read the entries as they lie, and write each, then each zero cell, to a random place."""
    modes, patients, entries = len(offsets) - 1, len(starts) - 1, starts[-1] - starts[0]
    order, places = np.empty(len(counts), np.int32), np.empty(len(counts), np.int32)
    for s in range(len(counts)):
        # Fisher-Yates, inside out: the newcomer takes a random place, whoever is there moves to s.
        place = np.int64(uniform[s] * (s + 1))
        order[s] = order[place]
        order[place] = s
    for s in range(len(counts)):
        places[order[s]] = s
    for s in range(entries):
        place = places[s]
        for n in range(modes):
            rows[place, n] = offsets[n] + indices[starts[0] + s, n]
        counts[place] = values[starts[0] + s]
    if entries == len(counts):
        return
    seen, cell = _seen(indices, starts[0], starts[-1]), np.empty((1, modes), np.int32)
    for s in range(entries, len(counts)):
        while True:
            patient = int(rng.random() * patients)
            cell[0, 0] = first + patient
            for n in range(1, modes):
                cell[0, n] = int(rng.random() * (offsets[n + 1] - offsets[n]))
            if not seen[_place(cell, 0, modes, len(seen))]:
                break
            if not _occurs(indices, starts[patient], starts[patient + 1], cell[0]):
                break
        place = places[s]
        for n in range(modes):
            rows[place, n] = offsets[n] + cell[0, n]
        counts[place] = 0


@compiled(**FAST)
def _seen(indices: Array, low: int, high: int) -> Array:
    """Whether a place belongs to one of the entries low..high-1, for `_place` of their cells.

    Few places do, so nearly every zero cell is told from the entries by one look.
    """
    size = 1
    while size < _SPARSE * (high - low):
        size *= 2
    seen = np.zeros(size, np.bool_)
    for s in range(low, high):
        seen[_place(indices, s, indices.shape[1], size)] = True
    return seen


@compiled(**FAST)
def _place(cells: Array, s: int, modes: int, size: int) -> np.int64:
    """A number below `size`, which is a power of two, that cells seldom share."""
    mixed = np.uint64(0)
    for n in range(modes):
        mixed = (mixed + np.uint64(cells[s, n])) * _ODD
    return np.int64((mixed >> np.uint64(32)) & np.uint64(size - 1))


@compiled(**FAST)
def _occurs(indices: Array, low: int, high: int, cell: Array) -> bool:
    """Whether `cell` is among the sorted rows low..high-1 of `indices` (binary search)."""
    modes = len(cell)
    while low < high:
        middle = (low + high) // 2
        order = 0
        for n in range(modes):
            order = indices[middle, n] - cell[n]
            if order != 0:
                break
        if order == 0:
            return True
        if order < 0:
            low = middle + 1
        else:
            high = middle
    return False
