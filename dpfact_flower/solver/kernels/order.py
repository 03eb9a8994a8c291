"""Choose the cells that `psgd` visits: all non-zero cells (entries) and a sample of zero cells.

A sparse tensor has far more zero cells than one pass over the data can visit. Uniformly drawn cells
would need large weights in the gradient, and a step size that is safe for large weights is too
small for non-zero cells. Most zero cells are therefore drawn in proportion to the model's values at
the beginning of the pass. Each draw first selects a phenotype with a probability proportional to
the phenotype's sum over all cells. The draw then selects a row of each mode with a probability
proportional to the row's value in that phenotype.

A fixed fraction of the draws is uniform over all cells. In the gradient, the weight of a drawn cell
is the inverse of the cell's expected number of draws, so the gradient is unbiased (importance
sampling). A draw of a non-zero cell is ignored (weight 0).
"""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.machine.compiled import FAST, compiled
from dpfact_flower.settings import SolverSettings
from dpfact_flower.tensor import Array, SparseTensor
from dpfact_flower.tensor.stack import row_offsets, stacked_values

_BLOCK = 512
"""Number of patients whose entries are shuffled together, so that the rows fit into the cache."""
_UNIFORM = 0.2
"""Fraction of draws that are uniform if the model is not zero."""
_LEAST_MASS = 1e-200
"""Limit below which a sum of model values counts as 0. Division by a smaller sum may overflow."""
_WHOLE = 2**31 - 1
"""Threshold of a position that a draw always keeps; see `_table`."""
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio

Visits = tuple[NDArray[np.int32], NDArray[np.float32]]


def zero_visits(tensor: SparseTensor, settings: SolverSettings) -> int:
    """Return the number of zero cells to sample per pass."""
    if settings.zeros == "none" or tensor.cells == tensor.nnz:
        return 0
    return max(1, round(settings.zero_ratio * tensor.nnz))


def entries_by_row(tensor: SparseTensor) -> list[NDArray[np.int64]]:
    """Return the number of non-zero cells in each row of each mode."""
    counts = [np.zeros(size, np.int64) for size in tensor.shape]
    for part in tensor.parts():  # `bincount` copies its argument
        for n, column in enumerate(tensor.indices[part].T):
            counts[n] += np.bincount(column, minlength=tensor.shape[n])
    return counts


def visits(
    tensor: SparseTensor, zeros: int, rng: np.random.Generator, model: Array | None = None
) -> Iterator[Visits]:
    """Yield one pass's visits in random order: every non-zero cell once, and `zeros` zero cells.

    Blocks of neighbouring patients are visited in random order, and so are the cells within each
    block. Shuffling within blocks works as well as a full permutation and takes far less time.

    The draws of zero cells depend on `model`, one array with the rows of all factors. If `zeros` is
    0, no `model` is needed. A visit consists of a count and, for each mode, the number of a row in
    `model`. The count is a non-zero cell's value, a zero cell's negated weight, or 0 if a draw
    found a non-zero cell.
    """
    patients = np.arange(tensor.n_patients + 1, dtype=np.int32)
    starts = np.searchsorted(tensor.indices[:, 0], patients)  # first entry of each patient
    first = np.arange(0, tensor.n_patients, _BLOCK)
    bounds = np.append(first, tensor.n_patients)
    cells = _ZeroCells(tensor, zeros, bounds, model) if zeros and model is not None else None
    zeros_in = cells.spread(rng) if cells else np.zeros_like(first)
    offsets = tuple(row_offsets(tensor.shape).tolist())  # a tuple: numba unrolls loops over modes
    for b in rng.permutation(len(first)).tolist():
        entries = starts[bounds[b] : bounds[b + 1] + 1]
        size, number = int(entries[-1] - entries[0] + zeros_in[b]), 0
        rows, counts = np.empty((size, tensor.ndim), np.int32), np.empty(size, np.float32)
        places = np.arange(entries[-1] - entries[0], dtype=np.int32)
        seed = rng.integers(2**64, dtype=np.uint64)
        if cells and zeros_in[b]:
            number = _draw_zero_cells(
                tensor.indices, offsets, first[b], entries, seed, places, rows, counts,
                *cells.arguments(b),
            )  # fmt: skip
        _draw_entries(
            tensor.indices, tensor.values, offsets, entries[0], seed, number, places, rows, counts
        )
        if cells:
            cells.weigh(rows, counts)
        yield rows, counts


@compiled(**FAST)
def _draw_entries(
    indices: Array, values: Array, offsets: tuple[int, ...], start: int, seed: np.uint64,
    number: int, places: Array, rows: Array, counts: Array,
) -> None:  # fmt: skip
    """Write a block's non-zero cells to the positions in `places`, in random order."""
    modes = len(offsets) - 1
    for s in range(len(places) - 1, 0, -1):  # Fisher-Yates
        other = np.int64(random_number(seed, number + s) * (s + 1))
        places[s], places[other] = places[other], places[s]
    for s in range(len(places)):  # read in sequence: the input may not fit into the cache
        place = places[s]
        for n in range(modes):
            rows[place, n] = offsets[n] + indices[start + s, n]
        counts[place] = values[start + s]


class _ZeroCells:
    """The probabilities for drawing zero cells in blocks of neighbouring patients.

    `bounds` holds the first patient of each block and, at the end, the number of patients. `model`
    holds the rows of all factors at the start of the pass, and must not change. The draws use the
    factors' absolute values. Every draw is uniform if the model is 0.
    """

    def __init__(self, tensor: SparseTensor, number: int, bounds: Array, model: Array) -> None:
        offsets = row_offsets(tensor.shape)
        self.number, self._bounds = number, bounds
        self._sizes = np.abs(model) if model.min() < 0 else model
        modes = np.split(self._sizes[tensor.n_patients :], offsets[2:-1] - tensor.n_patients)
        self._features = np.concatenate([_table(mode) for mode in modes], axis=1)
        other_masses = np.prod([mode.sum(axis=0, dtype=np.float64) for mode in modes], axis=0)
        own = [self._sizes[a:b].sum(axis=0, dtype=np.float64) for a, b in pairwise(bounds)]
        self._masses = np.array(own) * other_masses
        total = float(self._masses.sum())
        uniform = _UNIFORM if _LEAST_MASS < total < math.inf else 1.0
        self._even = uniform * np.diff(bounds) / tensor.n_patients
        self._of_model = (1 - uniform) / total if uniform < 1 else 0.0
        self._per_cell = uniform / float(tensor.cells)

    def spread(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw the number of zero cells for each block from a multinomial distribution."""
        share = self._even + self._of_model * self._masses.sum(axis=1)
        return rng.multinomial(self.number, share / share.sum())

    def arguments(self, block: int) -> tuple[float, Array, Array, Array]:
        """Return the last four arguments of `_draw_zero_cells` for a block."""
        first, last = self._bounds[block : block + 2]
        even, masses = self._even[block], self._masses[block]
        of_model = self._of_model * float(masses.sum())
        return (
            even / (even + of_model),
            _table(masses[:, np.newaxis]),
            _table(self._sizes[first:last]),
            self._features,
        )

    def weigh(self, rows: NDArray[np.int32], counts: NDArray[np.float32]) -> None:
        """Replace each -1 in `counts`, which marks a zero cell, with the cell's negated weight."""
        values = stacked_values(rows, self._sizes, np.zeros(rows.shape[1] + 1, np.int64))
        _weigh(counts, values, self.number * self._per_cell, self.number * self._of_model)


@compiled(**FAST)
def _table(sizes: Array) -> Array:
    """Build a table for draws in proportion to `sizes` by Walker's alias method (after Vose).

    A draw first picks a position uniformly. The draw keeps the position with a probability called
    the threshold, and otherwise takes the position's alternative. `sizes` has shape (positions,
    columns), and the result has shape (columns, positions, 2). The last axis holds a position's
    threshold (scaled to an integer) and alternative. If a column is all 0, draws are uniform.
    """
    places, columns = sizes.shape
    table = np.empty((columns, places, 2), np.int32)
    share, waiting = np.empty(places), np.empty(places, np.int32)
    for r in range(columns):
        total = 0.0
        for place in range(places):
            total += sizes[place, r]
        # Positions below the average fill `waiting` from its start, and the others from its end.
        less, more = 0, places
        for place in range(places):
            share[place] = sizes[place, r] * places / total if total > 0 else 1.0
            table[r, place, 0], table[r, place, 1] = _WHOLE, place
            if share[place] < 1:
                waiting[less] = place
                less += 1
            else:
                more -= 1
                waiting[more] = place
        while less > 0 and more < places:
            less -= 1
            low, high = waiting[less], waiting[more]
            table[r, low, 0], table[r, low, 1] = np.int32(share[low] * _WHOLE), high
            share[high] -= 1 - share[low]
            if share[high] < 1:
                more += 1
                waiting[less] = high
                less += 1
    return table


@compiled(**FAST)
def _draw_zero_cells(
    indices: Array, offsets: tuple[int, ...], first: int, starts: Array, seed: np.uint64,
    places: Array, rows: Array, counts: Array, uniform: float, masses: Array, patients: Array,
    features: Array,
) -> int:  # fmt: skip
    """Write zero cells to random positions. Return the next unused `number` of `random_number`.

    Mark zero cells with -1 in `counts`. Fill `places` with the positions left for non-zero cells. A
    draw is uniform with probability `uniform`. Other draws use `masses`, `patients` and `features`,
    which are tables made by `_table`.
    """
    modes, own, entries = len(offsets) - 1, len(starts) - 1, len(places)
    number, taken = 0, 0
    for s in range(len(counts)):
        number += 1
        if random_number(seed, number) * (len(counts) - s) < entries - taken:
            places[taken] = s
            taken += 1
            continue
        number += 1
        anywhere = random_number(seed, number) < uniform
        r = 0
        if not anywhere:
            number += 1
            r = _drawn(masses, 0, 0, masses.shape[1], random_number(seed, number))
        for n in range(modes):
            number += 1
            share = random_number(seed, number)
            if anywhere:
                size = own if n == 0 else offsets[n + 1] - offsets[n]
                rows[s, n] = np.int64(share * size)
            elif n == 0:
                rows[s, n] = _drawn(patients, r, 0, own, share)
            else:
                low, high = offsets[n] - offsets[1], offsets[n + 1] - offsets[1]
                rows[s, n] = _drawn(features, r, low, high, share)
        patient = rows[s, 0]
        rows[s, 0] += first
        zero = not _occurs(indices, starts[patient], starts[patient + 1], rows[s])
        for n in range(modes):
            rows[s, n] += offsets[n]
        counts[s] = -1 if zero else 0
    return number + 1


@compiled(**FAST)
def _weigh(counts: Array, values: Array, per_cell: float, of_model: float) -> None:
    for s in range(len(counts)):
        if counts[s] < 0:
            counts[s] = -1 / (per_cell + of_model * values[s])


@compiled(**FAST)
def random_number(seed: np.uint64, number: int) -> float:
    """Return the `number`-th value of SplitMix64 (Steele, Lea & Flood 2014) as a float in [0, 1).

    A NumPy generator is not used, because calling it would take longer than a gradient step.
    """
    z = seed + np.uint64(number) * _ODD
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.float64((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


@compiled(**FAST)
def _drawn(table: Array, r: int, low: int, high: int, share: float) -> int:
    """Draw a position in [low, high) from row `r` of `table`, given a random `share` in [0, 1)."""
    places = high - low
    place = np.int64(share * places)
    kept, other = table[r, low + place, 0], table[r, low + place, 1]
    return int(place if (share * places - place) * _WHOLE < kept else other)


@compiled(**FAST)
def _occurs(indices: Array, low: int, high: int, cell: Array) -> bool:
    """Return whether `cell` is among the sorted rows of `indices` from `low` to ``high - 1``."""
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
