"""Surrogate patients: drawn at the server from what the noisy co-occurrences say of pairs.

Factors that explain co-occurrences are not those that explain patients of few codes; refinement
gets from the one to the other in tens of rounds, each of which is paid for, and fitting patients
who do not exist is free. A surrogate has as many codes of each mode as patients typically have,
which the masses of the blocks tell. Codes are drawn one after another, each given all that are
there as if these were independent given it (naive Bayes), but that some have nothing to do with
each other. Of patients with very many codes pairs say too little: then none are drawn.
docs/explanation/start.md has why, and figures. All of it is post-processing of what was released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.estimation.pair_fit import TINY, unpack
from dpfact_flower.estimation.start import Start
from dpfact_flower.machine.threads import one_blas_thread
from dpfact_flower.tensor import SparseTensor

_FEW_CELLS, _DOUBTED = 16.0, 40.0
"""Cells of a typical patient up to which pairs say enough of them: as counted, and by a count that
is `_DEVIATIONS` of the noise higher."""
_DEVIATIONS = 2.0
_THRESHOLD = 0.75
"""Soft threshold on what the start leaves unexplained, in standard deviations of its noise."""
_UNRELATED = 0.5
"""Chance that a code of a patient with very many has nothing to do with another of them."""
_CHUNK = 2_000
"""Surrogates that are drawn at a time: so many times the number of codes in memory."""
_MOST_CELLS, _MOST_CODES = 64, 8
"""Of one surrogate: cells in all, and codes of one mode."""
_SETTLING = 50


def surrogates_of(
    releases: Sequence[NDArray[Any]], start: Start, sigma: float, cross: float,
    rng: np.random.Generator, *, number: int,
) -> SparseTensor | None:  # fmt: skip
    """Patients like those that the sites' co-occurrences are of; None where pairs say too little.

    Where the start explains pairs there is no noise to follow, and what it leaves counts as far as
    it stands out: pairs are the model's, and the residuals behind a soft threshold.

    `releases` are those that `start` was made of, with noise of deviation `sigma` on each value;
    `cross` is the weight of a block of two modes relative to that of one.
    """
    sizes = [len(factor) for factor in start.factors]
    if len(sizes) == 1:  # without another mode, nothing tells how many codes a patient has
        return None
    summed = np.zeros(releases[0].shape)
    for release in releases:
        summed += release
    total = unpack([summed], sum(sizes))[:, 0]
    noise = sigma * math.sqrt(len(releases) / 2)
    counts = code_counts(total, sizes, cross)
    most = code_counts(total, sizes, cross, raised=_DEVIATIONS * noise)
    if not (math.prod(counts) <= _FEW_CELLS and math.prod(most) <= _DOUBTED):
        return None  # also where masses are beyond any number, and counts are none
    used = start.stacked * start.usage.sum(axis=0)
    with one_blas_thread:  # no result depends on the number of threads
        model = used.astype(np.float32) @ start.stacked.T.astype(np.float32)
    found = surrogate_patients(likely_pairs(total, model, noise), counts, sizes, number, rng)
    return found if found.nnz else None


def likely_pairs(
    total: NDArray[np.floating[Any]], model: NDArray[np.floating[Any]], noise: float
) -> NDArray[np.floating[Any]]:
    """How often codes go together: a model, and what stands out of the noise beside it.

    Of the arguments' type; at least 0, zeros on the diagonal. `noise` is the deviation on an entry.
    """
    rest = total - model
    rest -= np.clip(rest, -_THRESHOLD * noise, _THRESHOLD * noise)
    rest += model
    np.maximum(rest, 0, out=rest)
    np.fill_diagonal(rest, 0)
    return rest


def surrogate_patients(
    pairs: NDArray[np.floating[Any]], counts: Sequence[float], sizes: Sequence[int], number: int,
    rng: np.random.Generator,
) -> SparseTensor:  # fmt: skip
    """Draw patients whose pairs of codes occur as told.

    `pairs` says how often codes of all modes go together: symmetric, zeros on the diagonal. Cells
    are of value 1: each patient's codes of the modes in all combinations. Patients that no pair
    leads to a code of every mode have none.
    """
    offsets = np.cumsum([0, *sizes])
    frequency, given = _conditionals(pairs, offsets, unrelated(counts))
    most = max(1, min(_MOST_CODES, math.floor(_MOST_CELLS ** (1 / len(sizes)) + TINY)))
    found = []
    for first in range(0, number, _CHUNK):
        size = min(_CHUNK, number - first)
        codes = _drawn(frequency, given, offsets, counts, most, size, rng)
        cells = _cells(codes)
        cells[:, 0] += first
        found.append(cells)
    index = np.concatenate(found)
    return SparseTensor.from_coo(index, np.ones(len(index)), (number, *sizes))


def code_counts(
    total: NDArray[Any], sizes: Sequence[int], cross: float, *, raised: float = 0.0
) -> list[float]:
    """Mean number of codes of each mode of a patient, from the masses of co-occurrences' blocks.

    A patient with k_n codes of each mode in all combinations has a block of two modes of mass
    ``cross sqrt(k_m k_n)`` and one of mode n alone of mass ``sqrt(k_n (k_n - 1) / 2)``, whatever
    they are scaled by together. So ``k_n = 1 + 2 (cross q)^2 k_m`` with q their quotient.

    `total` holds noisy co-occurrences of all sites: sums over many pairs have little noise. Each
    mass is taken to be off by `raised` units of an entry's noise, in the direction of more codes:
    with its standard deviation, counts are those one deviation up. From 1 to `_MOST_CODES`.
    """
    bounds = np.cumsum([0, *sizes])
    blocks = [slice(*each) for each in pairwise(bounds)]
    mass = np.array([[float(total[a, b].sum(dtype=np.float64)) for b in blocks] for a in blocks])
    codes_of = np.asarray(sizes, np.float64)
    alone = np.diag(mass) / 2 + raised * np.sqrt(codes_of * (codes_of - 1) / 2)
    mass -= raised * np.sqrt(np.outer(codes_of, codes_of))
    counts = np.ones(len(sizes))
    quotients = np.maximum(alone[:, None] / np.maximum(mass, TINY), 0)
    others = ~np.eye(len(sizes), dtype=bool)
    for _ in range(_SETTLING):
        codes = 1 + 2 * np.square(cross * quotients) * counts[None, :]
        counts = np.array([row[other].mean() for row, other in zip(codes, others, strict=True)])
        counts = np.minimum(counts, _MOST_CODES)
    return [float(count) for count in counts]


def unrelated(counts: Sequence[float]) -> float:
    """Chance that two codes of a patient have nothing to do with each other.

    Whoever has many codes has several things, and naive Bayes takes each code that is there for a
    witness of all others. With this chance a witness says no more than how frequent its code is, so
    none can rule a code out. Of patients with one code of each mode all pairs are as released.
    """
    return _UNRELATED * (1 - 1 / math.sqrt(math.prod(counts)))


def _conditionals(
    pairs: NDArray[np.floating[Any]], offsets: NDArray[Any], chance: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """How frequent codes are, by their pairs with other modes; and P(row's code | column's).

    With so much chance the row's code has nothing to do with the column's.
    """
    given = np.array(pairs, np.float32)
    frequency = np.zeros(len(given))
    for begin, end in pairwise(offsets):
        sums = given[begin:end].sum(axis=0, dtype=np.float64)
        frequency += sums
        frequency[begin:end] -= sums[begin:end]
        given[begin:end] /= np.maximum(sums, TINY).astype(np.float32)
    if chance:
        given *= np.float32(1 - chance)
        for begin, end in pairwise(offsets):
            among = frequency[begin:end] / max(float(frequency[begin:end].sum()), TINY)
            given[begin:end] += (chance * among).astype(np.float32)[:, None]
        np.fill_diagonal(given, 0)  # no code is drawn twice
    return frequency.astype(np.float32), given


def _drawn(
    frequency: NDArray[np.float32], given: NDArray[np.float32], offsets: NDArray[Any],
    counts: Sequence[float], most: int, number: int, rng: np.random.Generator,
) -> list[NDArray[np.int64]]:  # fmt: skip
    """Codes of each mode, (number, most) each, -1 where there are no more."""
    score = np.tile(frequency, (number, 1))
    codes = [np.full((number, most), -1, np.int64) for _ in counts]
    wanted = [1 + rng.poisson(count - 1, number) for count in counts]
    for place in range(most):
        for mode, (begin, end) in enumerate(pairwise(offsets)):
            who = np.flatnonzero(wanted[mode] > place)
            sums = np.cumsum(score[who, begin:end], axis=1, dtype=np.float64)
            drawn = (sums <= (rng.random(len(who)) * sums[:, -1])[:, None]).sum(axis=1)
            possible = sums[:, -1] > 0
            who, drawn = who[possible], np.minimum(drawn[possible], end - begin - 1)
            codes[mode][who, place] = drawn
            score[who] *= given[begin + drawn]
    return codes


def _cells(codes: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Patient, then a code of each mode: all combinations of each patient's."""
    number, most = codes[0].shape
    places = np.indices((most,) * len(codes)).reshape(len(codes), -1)
    columns = [each[:, place] for each, place in zip(codes, places, strict=True)]
    patients = np.broadcast_to(np.arange(number)[:, None], columns[0].shape)
    index = np.stack([patients, *columns], axis=-1).reshape(-1, len(codes) + 1)
    return np.asarray(index[(index >= 0).all(axis=1)])
