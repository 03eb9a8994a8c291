"""The order of a pass of psgd: blocks of patients shuffled, and the visits within a block."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.machine.compiled import FAST, compiled
from dpfact_flower.settings import SolverSettings
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.arrays import Array
from dpfact_flower.tensor.stack import row_offsets

_BLOCK = 512
"""Patients whose entries are shuffled together: their rows stay in the cache."""

_SPARSE = 64  # places of a table for each entry
_SIX_BITS = np.uint64(63)  # place within a word of 64
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
    seed = rng.integers(2**64, dtype=np.uint64)
    _draw(tensor.indices, tensor.values, offsets, first, starts, seed, rows, counts)
    return rows, counts


@compiled(**FAST)
def _count(indices: Array, offsets: Array, counts: Array) -> None:
    for s in range(len(indices)):
        for n in range(indices.shape[1]):
            counts[offsets[n] + indices[s, n]] += 1


@compiled(**FAST)
def _draw(
    indices: Array,
    values: Array,
    offsets: tuple[int, ...],
    first: int,
    starts: Array,
    seed: np.uint64,
    rows: Array,
    counts: Array,
) -> None:
    """Find places for the entries, fill the others with zero cells, then write the entries.

    Zero cells are alike, so it is enough to shuffle the entries among their places. They are read
    as they lie and written at random: what is written stays in the cache, what is read may not.
    """
    entries, modes = starts[-1] - starts[0], len(offsets) - 1
    places = np.empty(entries, np.int32)
    number = _zero_cells(indices, offsets, first, starts, seed, rows, counts, places)
    for s in range(entries - 1, 0, -1):  # Fisher-Yates
        other = np.int64(_uniform(seed, number + s) * (s + 1))
        places[s], places[other] = places[other], places[s]
    for s in range(entries):
        place = places[s]
        for n in range(modes):
            rows[place, n] = offsets[n] + indices[starts[0] + s, n]
        counts[place] = values[starts[0] + s]


@compiled(**FAST)
def _zero_cells(
    indices: Array,
    offsets: tuple[int, ...],
    first: int,
    starts: Array,
    seed: np.uint64,
    rows: Array,
    counts: Array,
    places: Array,
) -> int:
    """Draw the zero cells; `places` are what they leave, ascending. How many numbers it took."""
    modes, patients, entries = len(offsets) - 1, len(starts) - 1, len(places)
    if entries == len(counts):
        for s in range(entries):
            places[s] = s
        return 0
    seen = _seen(indices, starts[0], starts[-1])
    number, taken = 0, 0
    for s in range(len(counts)):
        number += 1
        if _uniform(seed, number) * (len(counts) - s) < entries - taken:
            places[taken] = s
            taken += 1
            continue
        while True:
            for n in range(modes):
                number += 1
                size = patients if n == 0 else offsets[n + 1] - offsets[n]
                rows[s, n] = np.int64(_uniform(seed, number) * size)
            patient = rows[s, 0]
            rows[s, 0] += first
            if not _is_in(seen, _mixed(rows, s)):
                break
            if not _occurs(indices, starts[patient], starts[patient + 1], rows[s]):
                break
        for n in range(modes):
            rows[s, n] += offsets[n]
        counts[s] = 0
    return number + 1


@compiled(**FAST)
def _uniform(seed: np.uint64, number: int) -> float:
    """The `number`-th of SplitMix64 (Steele, Lea & Flood 2014), as a float of [0, 1).

    A zero cell takes four of them; called from here, NumPy's generators need longer for these than
    the gradient step does.
    """
    z = seed + np.uint64(number) * _ODD
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.float64((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


@compiled(**FAST)
def _seen(indices: Array, low: int, high: int) -> Array:
    """A bit for each place that one of the entries low..high-1 has, for `_is_in`.

    Few places have one, so nearly every zero cell is told from the entries by one look.
    """
    words = 1
    while 64 * words < _SPARSE * (high - low):
        words *= 2
    seen = np.zeros(words, np.uint64)
    for s in range(low, high):
        mixed = _mixed(indices, s)
        seen[_word(seen, mixed)] |= np.uint64(1) << (mixed & _SIX_BITS)
    return seen


@compiled(**FAST)
def _is_in(seen: Array, mixed: np.uint64) -> bool:
    """Whether the place of a cell has its bit: never false for an entry's."""
    return bool((seen[_word(seen, mixed)] >> (mixed & _SIX_BITS)) & np.uint64(1))


@compiled(**FAST)
def _word(seen: Array, mixed: np.uint64) -> np.int64:
    return np.int64((mixed >> np.uint64(6)) & np.uint64(len(seen) - 1))


@compiled(**FAST)
def _mixed(cells: Array, s: int) -> np.uint64:
    """A number that cells seldom share."""
    mixed = np.uint64(0)
    for n in range(cells.shape[1]):
        mixed = (mixed + np.uint64(cells[s, n])) * _ODD
    return mixed >> np.uint64(32)


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
