"""Compute a patient's part of the start (the co-occurrences of codes) in compiled code.

X is the patient's slice of the tensor, and X_(n) is the unfolding of X along mode n. Block (n, n)
is the off-diagonal part of X_(n) X_(n)^T. It shows which codes of mode n occur with the same codes
of the other modes. Block (m, n) is X summed over all modes except m and n. Each block is scaled to
norm 1 and weighted. Then all blocks together are scaled to norm 1.

Only the total and the work space persist between patients, and the work space is reset for each
patient. Cells are sorted, so sums do not depend on the order of the data.
"""

import math

import numpy as np

from dpfact_flower.machine.compiled import compiled
from dpfact_flower.tensor.arrays import Array
from dpfact_flower.tensor.triangle import strict_row, strict_size

_row, _size = compiled()(strict_row), compiled()(strict_size)
CROSS = 2.0
"""Weight of a block for two modes, relative to a block for one mode (docs/explanation/start.md)."""


@compiled()
def add_pairs(
    starts: Array, indices: Array, values: Array, offsets: Array, scale: float, total: Array
) -> None:
    """Add each patient's part, scaled to norm `scale` and truncated toward zero, to `total`.

    `starts` lists each patient's first cell, and `offsets` lists each feature mode's first code.
    Both lists end with the index after the last cell or code. `total` is the strict upper triangle
    over all codes, row by row.
    """
    modes, everything = len(offsets) - 1, offsets[-1]
    most = 0
    for patient in range(len(starts) - 1):
        most = max(most, starts[patient + 1] - starts[patient])
    counts = np.empty(most)
    places = np.empty((most, modes), np.int64)
    order, spare = np.empty(most, np.int64), np.empty(most, np.int64)
    slot, heads = np.full(everything, -1, np.int64), np.empty(everything + 1, np.int64)
    codes, bounds = np.empty(everything, np.int64), np.empty(modes + 1, np.int64)
    blocks = np.empty((modes, modes))
    pairs = np.empty(0)
    for patient in range(len(starts) - 1):
        begin, end = starts[patient], starts[patient + 1]
        if begin == end:
            continue
        _number_codes(begin, end, indices, offsets, slot, codes, bounds, places)
        count, cells = bounds[modes], end - begin
        size = _size(count)
        if size > len(pairs):
            pairs = np.empty(max(size, 2 * len(pairs)))
        pairs[:size] = 0.0
        largest = np.float64(values[begin])
        for entry in range(begin, end):
            largest = max(largest, np.float64(values[entry]))
        for cell in range(cells):
            counts[cell] = np.float64(values[begin + cell]) / largest
        _cross(counts, places, cells, count, pairs)
        for mode in range(modes):
            _sort_by_column(places, cells, bounds, mode, order, spare, heads)
            _gram(counts, places, cells, order, mode, count, pairs)
        _scale_blocks(pairs, bounds, scale, blocks)
        _add(pairs, bounds, blocks, codes, everything, total)


@compiled()
def _number_codes(
    begin: int, end: int, indices: Array, offsets: Array, slot: Array, codes: Array, bounds: Array,
    places: Array,
) -> None:  # fmt: skip
    """Give numbers to one patient's distinct codes, mode by mode, in ascending order.

    Fill three arrays. `codes` lists the distinct codes, as positions among the codes of all modes.
    `bounds` lists each mode's first number and ends with the number of codes. `places` lists the
    numbers of each cell's codes. All entries of `slot` are -1 before and after the call.
    """
    count = 0
    for mode in range(len(offsets) - 1):
        bounds[mode] = count
        for entry in range(begin, end):
            code = offsets[mode] + indices[entry, mode + 1]
            if slot[code] < 0:
                slot[code] = 0
                codes[count] = code
                count += 1
        codes[bounds[mode] : count].sort()
        for place in range(bounds[mode], count):
            slot[codes[place]] = place
        for entry in range(begin, end):
            places[entry - begin, mode] = slot[offsets[mode] + indices[entry, mode + 1]]
    bounds[len(offsets) - 1] = count
    for place in range(count):
        slot[codes[place]] = -1


@compiled()
def _cross(counts: Array, places: Array, cells: int, count: int, pairs: Array) -> None:
    """For each pair of modes, sum the counts over all other modes."""
    modes = places.shape[1]
    for cell in range(cells):
        for mode in range(modes):
            row = _row(places[cell, mode], count)
            for other in range(mode + 1, modes):
                pairs[row + places[cell, other]] += counts[cell]


@compiled()
def _sort_by_column(
    places: Array, cells: int, bounds: Array, mode: int, order: Array, spare: Array, heads: Array
) -> None:
    """Sort the cells so that each column of the unfolding along `mode` is contiguous.

    The cells go through a stable counting sort for each other mode, last mode first. Within a
    column, cells keep their original order, which is ascending in `mode`.
    """
    for cell in range(cells):
        order[cell] = cell
    for other in range(places.shape[1] - 1, -1, -1):
        if other == mode:
            continue
        first, size = bounds[other], bounds[other + 1] - bounds[other]
        heads[: size + 1] = 0
        for cell in range(cells):
            heads[places[cell, other] - first + 1] += 1
        for place in range(size):
            heads[place + 1] += heads[place]
        for position in range(cells):
            cell = order[position]
            place = places[cell, other] - first
            spare[heads[place]] = cell
            heads[place] += 1
        order[:cells] = spare[:cells]


@compiled()
def _same_column(places: Array, one: int, another: int, mode: int) -> bool:
    for other in range(places.shape[1]):
        if other != mode and places[one, other] != places[another, other]:
            return False
    return True


@compiled()
def _gram(
    counts: Array, places: Array, cells: int, order: Array, mode: int, count: int, pairs: Array
) -> None:
    """For each pair of cells in the same column, add the product of their counts to `pairs`."""
    begin = 0
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
def _scale_blocks(pairs: Array, bounds: Array, scale: float, blocks: Array) -> None:
    """Compute each block's scale factor, which is 0 for an empty block."""
    modes = len(bounds) - 1
    squares = 0.0
    for mode in range(modes):
        for other in range(mode, modes):
            norm = _block_norm(pairs, bounds, mode, other)
            weight = (1.0 if mode == other else CROSS) if norm > 0.0 else 0.0
            squares += weight * weight
            blocks[mode, other] = weight / norm if norm > 0.0 else 0.0
    if squares > 0.0:
        blocks *= scale / math.sqrt(squares)


@compiled()
def _block_norm(pairs: Array, bounds: Array, mode: int, other: int) -> float:
    """Return the norm of a block.

    Values are divided by the largest, so a square that underflows is negligible. Squares are summed
    row by row, so rounding errors grow with the number of codes, not with the number of pairs.
    """
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
    """Add one patient's part to `total`, truncated toward zero."""
    count, modes = bounds[-1], len(bounds) - 1
    for mode in range(modes):
        for low in range(bounds[mode], bounds[mode + 1]):
            row, into = _row(low, count), _row(codes[low], everything)
            for other in range(mode, modes):
                factor = blocks[mode, other]
                for high in range(max(low + 1, bounds[other]), bounds[other + 1]):
                    if pairs[row + high] > 0.0:
                        total[into + codes[high]] += int(factor * pairs[row + high])
