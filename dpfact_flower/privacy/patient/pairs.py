"""Compute each patient's contribution to the co-occurrence sums from which a run starts.

A contribution has a block for each mode and each pair of modes. Block (n, n) is the off-diagonal
part of X X^T, where X is the patient's slice of the tensor, unfolded along mode n. Block (m, n) is
the patient's slice, summed over all modes except m and n. Each block (m, n) is scaled to norm 1,
and then multiplied by `CROSS` if m and n differ. Finally, the contribution is scaled to norm 1.

A contribution depends only on the patient's own cells. The cells are sorted before they are added,
so their order in the data does not affect rounding.
"""

import math

import numpy as np

from dpfact_flower.machine.compiled import compiled
from dpfact_flower.tensor.arrays import Array
from dpfact_flower.tensor.triangle import CROSS, strict_row, strict_size

_row, _size = compiled()(strict_row), compiled()(strict_size)


@compiled()
def add_pairs(
    starts: Array, indices: Array, values: Array, offsets: Array, scale: float, total: Array
) -> None:
    """Scale each patient's contribution to norm `scale`, truncate it, and add it to `total`.

    `starts` lists the index of each patient's first cell, followed by the index after the last
    cell. `offsets` lists the index of each mode's first code, followed by the index after the last
    code. `total` holds, row by row, the strict upper triangle of a matrix with one row per code.
    """
    modes = len(offsets) - 1
    for patient in range(len(starts) - 1):
        begin, end = starts[patient], starts[patient + 1]
        if begin == end:
            continue
        codes, bounds, places = _numbered_codes(indices[begin:end], offsets)
        counts = values[begin:end].astype(np.float64)
        counts /= counts.max()
        pairs = np.zeros(_size(len(codes)))
        _cross(counts, places, len(codes), pairs)
        for mode in range(modes):
            _gram(counts, places, _sorted_by_column(places, mode), mode, len(codes), pairs)
        _add(pairs, bounds, _block_scales(pairs, bounds, scale), codes, offsets[-1], total)


@compiled()
def _numbered_codes(indices: Array, offsets: Array) -> tuple[Array, Array, Array]:
    """Number a patient's distinct codes from 0, mode by mode and in ascending order.

    The first returned array lists the codes, each increased by `offsets[mode]`. The second array
    lists the number given to each mode's first code, followed by the count of all codes. The third
    array, of shape (cells, modes), lists the numbers given to each cell's codes.
    """
    modes = len(offsets) - 1
    bounds, places = np.zeros(modes + 1, np.int64), np.empty((len(indices), modes), np.int64)
    codes = np.empty(0, np.int64)
    for mode in range(modes):
        of_cells = offsets[mode] + indices[:, mode + 1]
        distinct = np.unique(of_cells)
        places[:, mode] = len(codes) + np.searchsorted(distinct, of_cells)
        codes = np.append(codes, distinct)
        bounds[mode + 1] = len(codes)
    return codes, bounds, places


@compiled()
def _cross(counts: Array, places: Array, count: int, pairs: Array) -> None:
    """For each pair of modes, sum counts over the other modes, and add the sums to `pairs`."""
    cells, modes = places.shape
    for cell in range(cells):
        for mode in range(modes):
            row = _row(places[cell, mode], count)
            for other in range(mode + 1, modes):
                pairs[row + places[cell, other]] += counts[cell]


@compiled()
def _sorted_by_column(places: Array, mode: int) -> Array:
    """Return a permutation that groups the cells by their column in the unfolding along `mode`."""
    cells, modes = places.shape
    # Stable sorts keep the cells of each column in ascending order of `mode`.
    order = np.arange(cells)
    for other in range(modes - 1, -1, -1):
        if other != mode:
            order = order[np.argsort(places[order, other], kind="mergesort")]
    return order


@compiled()
def _same_column(places: Array, one: int, another: int, mode: int) -> bool:
    for other in range(places.shape[1]):
        if other != mode and places[one, other] != places[another, other]:
            return False
    return True


@compiled()
def _gram(counts: Array, places: Array, order: Array, mode: int, count: int, pairs: Array) -> None:
    """For any two cells in one column of the unfolding, add their counts' product to `pairs`."""
    cells, begin = len(order), 0
    while begin < cells:
        end = begin + 1
        while end < cells and _same_column(places, order[begin], order[end], mode):
            end += 1
        for low in range(begin, end):
            row, weight = _row(places[order[low], mode], count), counts[order[low]]
            for high in range(low + 1, end):
                cell = order[high]
                pairs[row + places[cell, mode]] += weight * counts[cell]
        begin = end


@compiled()
def _block_scales(pairs: Array, bounds: Array, scale: float) -> Array:
    """Return each block's scale factor, which is 0 for an empty block."""
    modes = len(bounds) - 1
    blocks, squares = np.zeros((modes, modes)), 0.0
    for mode in range(modes):
        for other in range(mode, modes):
            norm = _block_norm(pairs, bounds, mode, other)
            if norm > 0.0:
                weight = 1.0 if mode == other else CROSS
                squares += weight * weight
                blocks[mode, other] = weight / norm
    if squares > 0.0:
        blocks *= scale / math.sqrt(squares)
    return blocks


@compiled()
def _block_norm(pairs: Array, bounds: Array, mode: int, other: int) -> float:
    # Division by the largest value prevents harmful underflow. Row sums limit rounding errors.
    count = bounds[-1]
    largest, squares = 0.0, 0.0
    for low in range(bounds[mode], bounds[mode + 1]):
        row = _row(low, count)
        for high in range(max(low + 1, bounds[other]), bounds[other + 1]):
            largest = max(largest, pairs[row + high])
    if largest == 0.0:
        return 0.0
    for low in range(bounds[mode], bounds[mode + 1]):
        row, of_row = _row(low, count), 0.0
        for high in range(max(low + 1, bounds[other]), bounds[other + 1]):
            share = pairs[row + high] / largest
            of_row += share * share
        squares += of_row
    return largest * math.sqrt(squares)


@compiled()
def _add(
    pairs: Array, bounds: Array, blocks: Array, codes: Array, everything: int, total: Array
) -> None:
    """Truncate one patient's contribution toward zero, and add the result to `total`."""
    count, modes = bounds[-1], len(bounds) - 1
    for mode in range(modes):
        for low in range(bounds[mode], bounds[mode + 1]):
            row, into = _row(low, count), _row(codes[low], everything)
            for other in range(mode, modes):
                factor = blocks[mode, other]
                for high in range(max(low + 1, bounds[other]), bounds[other + 1]):
                    if pairs[row + high] > 0.0:
                        total[into + codes[high]] += int(factor * pairs[row + high])
