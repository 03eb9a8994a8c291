"""Compute patient mode's statistics, which are sums of the patients' bounded contributions.

The unit of privacy is one patient, that is, all of that patient's cells in the tensor. Neighbouring
data sets differ by one added or removed patient. Each kind of release has its own statistic
(`code_counts`, `cooccurrence` or `refinement`).

A contribution depends only on the patient's own cells and on public values (settings and earlier
releases). A contribution's L2 norm is at most the sensitivity, and truncation toward zero to an
integer grid cannot increase this norm. Integers are added exactly, so adding a patient changes the
total by exactly that patient's contribution. Before truncation, contributions are multiplied by
1 - 1e-9, so that rounding errors cannot raise a norm above the sensitivity.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.machine.compiled import compiled
from dpfact_flower.machine.threads import in_order, thread_count
from dpfact_flower.privacy.noise import SIGMA
from dpfact_flower.privacy.patient.pairs import add_pairs
from dpfact_flower.privacy.release import positive
from dpfact_flower.tensor import Array, Factors, SparseTensor
from dpfact_flower.tensor.stack import row_offsets
from dpfact_flower.tensor.triangle import strict_size, whole_size

_SAFETY = 1 - 1e-9
_SWEEPS = 30
"""Maximum number of coordinate-descent sweeps over one patient's factor."""
_SETTLED = 1e-6
"""Coordinate descent stops when no entry (of scale 1) changes this much in a sweep."""
_LEAST_ENTRY, _LEAST_CHANGE, _LEAST_PRODUCT = 1e-20, 1e-40, 1e-200
"""Limits below which numbers count as 0, for entries of factors, changes in a patient's factor, and
entries of Gram matrices and ridges. Products of smaller numbers could be subnormal, and operations
on subnormal numbers take a hundred times as long. A server could then choose factors for which the
duration of a round reveals whether a given patient is present."""
_MOST_RIDGE = 1e100
"""Larger ridges count as infinite. Dividing by a larger ridge would also give subnormal numbers."""
MOST_REFINED = 16_000_000
"""Largest size of a refinement: codes times phenotypes, plus phenotypes squared. Up to this size,
`_SAFETY` outweighs rounding errors in the norm of a patient's contribution."""
MAX_PATIENTS = 2**27
"""Maximum number of patients at a site. Up to this number, no sum can overflow. Checks of sigma use
this constant and not the true number, so a refusal reveals nothing about the patients."""
_MOST_UNITS = 2.0**62
_MOST_SHARED = 4_000_000  # largest sum for which every thread keeps a copy


@dataclass(frozen=True, eq=False, repr=False)
class BoundedSum:
    """An exact sum over a site's patients, to which noise can be added.

    `total` is a vector of integers in units of `grid`. `total` has no noise and must not leave the
    site. `sensitivity` bounds the L2 norm of each patient's contribution, and therefore the effect
    of adding or removing a patient. `sigma` is the standard deviation of the noise to be added.
    """

    total: NDArray[np.int64]
    sensitivity: float
    sigma: float

    @property
    def grid(self) -> float:
        """The value that one unit of `total` represents."""
        return self.sigma / SIGMA


def code_counts(tensor: SparseTensor, *, sigma: float) -> BoundedSum:
    """For each code, compute a weighted count of the patients who have this code.

    A patient's contribution is 1 for each of the patient's codes and 0 for all other codes, and is
    then scaled to norm 1. Adding or removing a patient changes the sum by at most 1 in L2 norm.
    """
    offsets = row_offsets(tensor.feature_shape)
    scale = _units(1.0, sigma)
    total = _summed(tensor, int(offsets[-1]), _count_codes, tensor.indices, offsets, scale)
    return BoundedSum(total, 1.0, sigma)


def cooccurrence(tensor: SparseTensor, *, sigma: float) -> BoundedSum:
    """Sum the patients' co-occurrences of all pairs of codes, as defined in the module `pairs`.

    The sum is stored as the strict upper triangle of a matrix. Adding or removing a patient changes
    the sum by at most 1 in L2 norm.
    """
    offsets = row_offsets(tensor.feature_shape)
    size = strict_size(int(offsets[-1]))
    scale = _units(1.0, sigma)
    total = _summed(tensor, size, add_pairs, tensor.indices, tensor.values, offsets, scale)
    return BoundedSum(total, 1.0, sigma)


def refinement(
    tensor: SparseTensor,
    factors: Factors,
    mode: int,
    *,
    ridge: NDArray[np.float64],
    bound: float,
    sigma: float,
) -> BoundedSum:
    """Compute sufficient statistics for a least-squares update of one mode's factor.

    A patient's slice of the tensor is scaled to norm 1. The patient's loadings (one non-negative
    value per phenotype) are fitted to the slice by ridge regression. Each patient contributes two
    matrices. The first matrix is the slice's MTTKRP for `mode` (see `solver.mttkrp`), with columns
    multiplied by the patient's loadings. The second matrix is the outer product of the loadings
    with themselves. If the matrices' joint norm exceeds `bound`, both matrices are scaled by the
    same factor, so the update remains a weighted least-squares problem. The sum holds the rows of
    the first matrix, then the second matrix's upper triangle (see `tensor.triangle`). Adding or
    removing a patient changes the sum by at most `bound` in L2 norm.

    `factors` (one array per mode) and `ridge` (one penalty per phenotype) are public or released. A
    phenotype with an infinite penalty is not fitted. The sum has at most `MOST_REFINED` elements.
    """
    whole = [_without_least(np.asarray(factor, np.float64), _LEAST_ENTRY) for factor in factors]
    stack = np.concatenate(whole)
    rank = stack.shape[1]
    # The data file may have changed since the request was checked.
    if [len(factor) for factor in factors] != list(tensor.feature_shape):
        raise DataError("factors: do not match the tensor's feature modes")
    gram = np.ones((rank, rank))
    for columns in whole:
        # BLAS is not used here, because its rounding depends on the threads and on the processor.
        gram *= np.einsum("ir,is->rs", columns, columns)
    gram = _without_least(gram, _LEAST_PRODUCT)
    scale = _units(positive("bound", bound), sigma)
    penalties = _without_least(ridge.astype(np.float64), _LEAST_PRODUCT)
    penalties[penalties > _MOST_RIDGE] = math.inf
    total = _summed(
        tensor, len(factors[mode]) * rank + whole_size(rank), _refine,
        tensor.indices, tensor.values, row_offsets(tensor.feature_shape), stack, mode + 1, gram,
        penalties, bound, scale,
    )  # fmt: skip
    return BoundedSum(total, bound, sigma)


def _without_least(values: NDArray[np.float64], least: float) -> NDArray[np.float64]:
    return np.where(np.abs(values) < least, 0.0, values)


def _units(sensitivity: float, sigma: float) -> float:
    """Return the factor that converts values to integers. Refuse sums that could overflow."""
    scale = SIGMA / positive("sigma", sigma) * _SAFETY
    if sensitivity * scale * MAX_PATIENTS > _MOST_UNITS:
        raise SettingsError(f"sigma: {sigma:g} is too small for a sensitivity of {sensitivity:g}")
    return scale


def sum_threads(size: int) -> int:
    """Return the number of threads for a sum of `size` values, regardless of patients' data."""
    return thread_count() if size <= _MOST_SHARED else 1


def _summed(
    tensor: SparseTensor, size: int, add_up: Callable[..., None], *arguments: object
) -> NDArray[np.int64]:
    """Sum patients' contributions in several threads, and add up the threads' totals.

    Integers are added exactly, so the number of threads does not affect the result.
    ``add_up(starts, *arguments, total)`` adds some patients' contributions to `total`. `starts`
    holds the index of each patient's first cell, and ends with the index after the last cell.
    """
    if tensor.n_patients > MAX_PATIENTS:
        raise DataError(f"the site has more than {MAX_PATIENTS} patients: split it")
    starts = np.zeros(tensor.n_patients + 1, np.int64)
    np.cumsum(np.bincount(tensor.indices[:, 0], minlength=tensor.n_patients), out=starts[1:])
    threads = sum_threads(size)
    cuts = np.searchsorted(starts, np.linspace(0, starts[-1], threads + 1))
    cuts[-1] = tensor.n_patients  # the last patients may have no cells

    def part(number: int) -> NDArray[np.int64]:
        total = np.zeros(size, np.int64)
        add_up(starts[cuts[number] : cuts[number + 1] + 1], *arguments, total)
        return total

    return reduce(np.add, in_order(part, range(threads)))


@compiled()
def _count_codes(starts: Array, indices: Array, offsets: Array, scale: float, total: Array) -> None:
    counted = np.zeros(len(total), np.bool_)
    codes = np.empty(len(total), np.int64)
    for patient in range(len(starts) - 1):
        count = 0
        for entry in range(starts[patient], starts[patient + 1]):
            for mode in range(len(offsets) - 1):
                code = offsets[mode] + indices[entry, mode + 1]
                if not counted[code]:
                    counted[code] = True
                    codes[count] = code
                    count += 1
        if count:
            units = int(scale / math.sqrt(count))
            for place in range(count):
                counted[codes[place]] = False
                total[codes[place]] += units


@compiled()
def _refit(score: Array, gram: Array, ridge: Array, a: Array, pull: Array) -> None:
    """Fit one patient's loadings `a` by coordinate descent, and store ``gram @ a`` in `pull`."""
    rank = len(a)
    a[:] = 0.0
    pull[:] = 0.0
    for _ in range(_SWEEPS):
        largest = 0.0
        for r in range(rank):
            if a[r] == 0.0 and score[r] <= pull[r]:  # most entries stay 0, so skip the division
                continue
            curvature = gram[r, r] + ridge[r]
            if not 0 < curvature < math.inf:
                continue
            best = max(0.0, a[r] + (score[r] - pull[r] - ridge[r] * a[r]) / curvature)
            change = best - a[r]
            if abs(change) > _LEAST_CHANGE:
                a[r] = best
                for s in range(rank):
                    pull[s] += gram[r, s] * change
                largest = max(largest, abs(change))
        if largest < _SETTLED:
            break


@compiled()
def _products(
    begin: int, end: int, norm: float, indices: Array, values: Array, offsets: Array, stack: Array,
    mode: int, slot: Array, rows: Array, product: Array, score: Array, column: Array,
) -> int:  # fmt: skip
    """Multiply a patient's slice by the factors. Return the patient's number of codes in `mode`.

    Store the codes of `mode` in `rows`, and the slice's inner product with each phenotype in
    `score`. Store the slice's product with the other modes' factors (MTTKRP) in `product`. All
    entries of `slot` are -1 before and after the call.
    """
    rank, used = len(score), 0
    score[:] = 0.0
    for entry in range(begin, end):
        row = indices[entry, mode]
        if slot[row] < 0:
            slot[row] = used
            rows[used] = row
            product[used, :] = 0.0
            used += 1
        column[:] = values[entry] / norm
        for other in range(1, indices.shape[1]):
            if other != mode:
                code = offsets[other - 1] + indices[entry, other]
                for r in range(rank):
                    column[r] *= stack[code, r]
        position = offsets[mode - 1] + row
        for r in range(rank):
            product[slot[row], r] += column[r]
            score[r] += column[r] * stack[position, r]
    for place in range(used):
        slot[rows[place]] = -1
    return used


@compiled()
def _joint_norm(product: Array, used: int, a: Array) -> float:
    """Scale columns of `product` by the positive loadings `a`. Return the contribution's norm."""
    squares, energy = 0.0, 0.0
    for r in range(len(a)):
        if a[r] == 0.0:  # most entries are 0; `_add_part` also skips zeros
            continue
        energy += a[r] * a[r]
        for place in range(used):
            product[place, r] *= a[r]
            squares += product[place, r] * product[place, r]
    return math.sqrt(squares + energy * energy)


@compiled()
def _add_part(
    product: Array, rows: Array, used: int, a: Array, weight: float, size: int, total: Array
) -> None:
    """Truncate one patient's contribution to integers, and add the integers to `total`."""
    rank = len(a)
    for place in range(used):
        for r in range(rank):
            if a[r] > 0.0:
                total[rows[place] * rank + r] += int(weight * product[place, r])
    position = size * rank
    for r in range(rank):
        if a[r] > 0.0:
            for s in range(r, rank):
                if a[s] > 0.0:
                    beside = 1.0 if r == s else math.sqrt(2.0)
                    total[position + s - r] += int(weight * beside * a[r] * a[s])
        position += rank - r


@compiled()
def _refine(
    starts: Array, indices: Array, values: Array, offsets: Array, stack: Array, mode: int,
    gram: Array, ridge: Array, bound: float, scale: float, total: Array,
) -> None:  # fmt: skip
    rank = stack.shape[1]
    size = offsets[mode] - offsets[mode - 1]
    slot = np.full(size, -1, np.int64)
    rows = np.empty(size, np.int64)
    product = np.empty((size, rank))
    score, a, pull, column = np.empty(rank), np.empty(rank), np.empty(rank), np.empty(rank)
    for patient in range(len(starts) - 1):
        begin, end = starts[patient], starts[patient + 1]
        square = 0.0
        for entry in range(begin, end):
            square += np.float64(values[entry]) * np.float64(values[entry])
        if square == 0.0:
            continue
        used = _products(
            begin, end, math.sqrt(square), indices, values, offsets, stack, mode, slot, rows,
            product, score, column,
        )  # fmt: skip
        _refit(score, gram, ridge, a, pull)
        norm = _joint_norm(product, used, a)
        if 0.0 < norm < math.inf:
            weight = scale * min(1.0, bound / norm)
            _add_part(product, rows, used, a, weight, size, total)
