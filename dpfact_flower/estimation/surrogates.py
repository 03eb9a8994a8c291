"""Draw surrogate patients on the server from noisy co-occurrences.

If patients have few codes, a fit to co-occurrences and a fit to patients find different factors.
Refinement could correct the factors, but only in dozens of rounds, each with a privacy cost. A fit
to surrogate patients corrects the factors at no privacy cost (docs/explanation/start.md). A
surrogate patient has a typical number of codes in each mode. The probability of drawing a code
depends on the codes already drawn (naive Bayes).
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.estimation.pair_fit import TINY, matrices_of, summed
from dpfact_flower.estimation.start import Start
from dpfact_flower.machine.threads import one_blas_thread
from dpfact_flower.tensor import Array, SparseTensor
from dpfact_flower.tensor.triangle import CROSS

_FEW_CELLS, _DOUBTED = 24.0, 40.0
"""Surrogates are drawn only if a typical patient has at most `_FEW_CELLS` cells, and at most
`_DOUBTED` cells if noise has lowered this estimate by `_DEVIATIONS` standard deviations."""
_DEVIATIONS = 2.0
_THRESHOLD = 0.75
"""Soft threshold for the start's residuals, in standard deviations of their noise."""
_UNRELATED = 0.5
"""Chance, for patients with very many codes, that a code is drawn by frequency only."""
_CHUNK = 2_000
"""Number of surrogates drawn at a time, and thus the number of values in memory per code."""
_MOST_CELLS, _MOST_CODES = 64, 8
"""Maximum numbers of a surrogate's cells, and of a surrogate's codes in each mode."""
_SETTLING = 50


def surrogates_of(
    releases: Sequence[NDArray[Any]], start: Start, sigma: float,
    rng: np.random.Generator, *, number: int, any_cells: bool = False,
) -> SparseTensor | None:  # fmt: skip
    """Draw surrogate patients, or return None if a fit to surrogate patients would not help.

    None is returned if patients have too many codes (unless `any_cells` is true), if there is only
    one mode, or if no cell was drawn. `start` was computed from `releases`, which have noise of
    standard deviation `sigma`.
    """
    sizes = [len(factor) for factor in start.factors]
    if len(sizes) == 1:  # a single mode does not show how many codes a patient has
        return None
    total = matrices_of([summed(releases)], sum(sizes))[:, 0]
    noise = sigma * math.sqrt(len(releases) / 2)
    counts = mean_codes(total, sizes)
    most = mean_codes(total, sizes, raised=_DEVIATIONS * noise)
    limits = (math.inf, math.inf) if any_cells else (_FEW_CELLS, _DOUBTED)
    if not (math.prod(counts) <= limits[0] and math.prod(most) <= limits[1]):
        return None  # also if masses overflow or counts are NaN
    used = start.stacked * start.usage.sum(axis=0)
    with one_blas_thread:  # no result depends on the number of threads
        model = used.astype(np.float32) @ start.stacked.T.astype(np.float32)
    found = surrogate_patients(likely_pairs(total, model, noise), counts, sizes, number, rng)
    return found if found.nnz else None


def likely_pairs(total: Array, model: Array, noise: float) -> Array:
    """Add soft-thresholded residuals to a model's co-occurrences, and set the diagonal to zero."""
    rest: Array = total - model
    rest -= np.clip(rest, -_THRESHOLD * noise, _THRESHOLD * noise)
    rest += model
    np.maximum(rest, 0, out=rest)
    np.fill_diagonal(rest, 0)
    return rest


def surrogate_patients(
    pairs: NDArray[np.floating[Any]], counts: Sequence[float], sizes: Sequence[int], number: int,
    rng: np.random.Generator,
) -> SparseTensor:  # fmt: skip
    """Draw patients whose co-occurrences follow `pairs`, a symmetric matrix with a zero diagonal.

    Each patient has a cell of value 1 for every combination of the patient's codes, one per mode.
    """
    offsets = np.cumsum([0, *sizes])
    # With probability `chance`, a code is drawn by frequency only, so that no code excludes
    # another. Naive Bayes relates all codes, but a patient with many codes has several conditions.
    chance = _UNRELATED * (1 - 1 / math.sqrt(math.prod(counts)))
    frequency, given = _conditionals(pairs, offsets, chance)
    most = max(1, min(_MOST_CODES, math.floor(_MOST_CELLS ** (1 / len(sizes)) + TINY)))
    found = []
    for first in range(0, number, _CHUNK):
        codes = _drawn(frequency, given, offsets, counts, most, min(_CHUNK, number - first), rng)
        cells = _cells(codes)
        cells[:, 0] += first
        found.append(cells)
    index = np.concatenate(found)
    return SparseTensor.from_coo(index, np.ones(len(index)), (number, *sizes))


def mean_codes(total: NDArray[Any], sizes: Sequence[int], *, raised: float = 0.0) -> list[float]:
    """Estimate each mode's mean number of codes per patient from the co-occurrences `total`.

    The sum of co-occurrences within a mode is compared with the sums between this mode and other
    modes. Suppose that every patient has k codes in one mode, m codes in another mode, and a cell
    for each combination. Then the sum is proportional to ``sqrt(k (k - 1) / 2)`` within the first
    mode, and to ``CROSS sqrt(k m)`` between the modes. Estimates range from 1 to `_MOST_CODES`. For
    an upper estimate, pass the standard deviation of an entry's noise as `raised`. Sums within
    modes then rise, and sums between modes fall, by one standard deviation of the sum's noise.
    """
    blocks = [slice(*each) for each in pairwise(np.cumsum([0, *sizes]))]
    mass = np.array([[float(total[a, b].sum(dtype=np.float64)) for b in blocks] for a in blocks])
    codes_of = np.asarray(sizes, np.float64)
    alone = np.diag(mass) / 2 + raised * np.sqrt(codes_of * (codes_of - 1) / 2)
    mass -= raised * np.sqrt(np.outer(codes_of, codes_of))
    counts = np.ones(len(sizes))
    quotients = np.maximum(alone[:, None] / np.maximum(mass, TINY), 0)
    others = ~np.eye(len(sizes), dtype=bool)
    for _ in range(_SETTLING):
        codes = 1 + 2 * np.square(CROSS * quotients) * counts[None, :]
        counts = np.array([row[other].mean() for row, other in zip(codes, others, strict=True)])
        counts = np.minimum(counts, _MOST_CODES)
    return [float(count) for count in counts]


def _conditionals(pairs: Array, offsets: Array, chance: float) -> tuple[Array, Array]:
    """Return each code's frequency, and the probability of a row's code given a column's code."""
    given = np.array(pairs, np.float32)
    frequency = np.zeros(len(given))
    for begin, end in pairwise(offsets):
        sums = given[begin:end].sum(axis=0, dtype=np.float64)
        frequency += sums
        frequency[begin:end] -= sums[begin:end]
        given[begin:end] /= np.maximum(sums, TINY).astype(np.float32)
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
    """Draw each mode's codes as an array of shape (number, most), padded with -1."""
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
    """Return a row (patient, then one code per mode) for each combination of a patient's codes."""
    number, most = codes[0].shape
    places = np.indices((most,) * len(codes)).reshape(len(codes), -1)
    columns = [each[:, place] for each, place in zip(codes, places, strict=True)]
    patients = np.broadcast_to(np.arange(number)[:, None], columns[0].shape)
    index = np.stack([patients, *columns], axis=-1).reshape(-1, len(codes) + 1)
    return np.asarray(index[(index >= 0).all(axis=1)])
