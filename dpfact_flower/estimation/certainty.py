"""Estimate, from a run's releases, how likely each phenotype is to exist in other patients.

The server draws fresh noise that is as strong as the noise in the sum of the sites' releases. The
*halves* (the sum plus the fresh noise, and the sum minus the fresh noise) have independent noise. A
phenotype found in both halves is therefore unlikely to be noise. A phenotype that is found in most
halves of many splits is probably real (docs/explanation/certainty.md).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from dpfact_flower.estimation import surrogate_fit
from dpfact_flower.estimation.pair_fit import fit_pairs, matrices_of, summed
from dpfact_flower.estimation.start import positive_columns, random_model
from dpfact_flower.estimation.surrogates import likely_pairs, mean_codes, surrogate_patients
from dpfact_flower.machine.threads import in_order, one_blas_thread
from dpfact_flower.tensor import Factors, Floats, SparseTensor
from dpfact_flower.tensor.cp import alike, chance_cosines, match_columns

SPLITS = 6
"""Number of times that fresh noise is drawn (see `halves`)."""
_SURROGATES = 10_000
"""Number of surrogate patients drawn for each of the `halves`."""
_MOST_CELLS = 16.0
"""Maximum number of cells in a typical surrogate patient. If real patients have more cells,
surrogates get fewer codes in every mode."""
_SLOPE, _OFFSET = 6.5, 2.7
"""Numbers in the logistic curve that maps mean `similarities` to the chance of absence in other
patients. Both numbers were fitted to quarters of three cohorts (docs/explanation/certainty.md)."""
_MANY_CELLS, EVEN = 4.0, 0.5
"""Of two phenotypes that are `alike`, one may be part of the other. If a typical patient has more
than `_MANY_CELLS` cells, such a phenotype's chance of absence is at least `EVEN`."""
_USUAL = 0.35
"""Share of phenotypes absent from other patients for which the curve (see `_SLOPE`) was fitted."""
_CLEAR = 0.75
"""A phenotype must match at least this share of `fits` better than by chance. Otherwise, its codes
may be merely frequent, and its chance of absence is at least `EVEN`."""
_ITERATIONS, _PASSES = 20, 30
"""Numbers of iterations in a fit to one of the `halves`, and to patients drawn from that half."""


def typical_counts(releases: Sequence[NDArray[Any]], sizes: Sequence[int]) -> list[float]:
    """Return a typical patient's estimated number of codes per mode, or [] if unknown."""
    if len(sizes) == 1:  # a single mode does not show how many codes a patient has
        return []
    counts = mean_codes(matrices_of([summed(releases)], sum(sizes))[:, 0], sizes)
    return counts if math.isfinite(math.prod(counts)) else []


def halves(
    releases: Sequence[NDArray[Any]], codes: int, noise: float, rng: np.random.Generator
) -> Iterator[NDArray[np.float32]]:
    """Draw noise `SPLITS` times. Each time, yield the releases' sum plus the noise, then minus it.

    Each value in the releases' sum has noise of standard deviation `noise`. The noise in each half
    has the same standard deviation, because `matrices_of` divides all values by sqrt(2).
    """
    total = summed(releases)
    for _ in range(SPLITS):
        fresh = noise * rng.standard_normal(total.shape)
        for half in (total + fresh, total - fresh):
            yield matrices_of([half], codes)[:, 0]


def half_patients(
    half: NDArray[np.float32], noise: float, counts: Sequence[float], sizes: Sequence[int],
    rank: int, rng: np.random.Generator,
) -> SparseTensor:  # fmt: skip
    """Fit a model to one of the `halves`, from a random start. Draw patients from the model."""
    fewer = min(1.0, _MOST_CELLS / math.prod(counts)) ** (1 / len(counts))
    counts = [max(1.0, fewer * count) for count in counts]
    sites = half[:, None, :]
    begun = random_model(sites, 1, rank, rng)
    found = fit_pairs(sites, begun, threshold=noise, iterations=_ITERATIONS)
    model = (found.F * found.d[0]).astype(np.float32) @ found.F.T.astype(np.float32)
    return surrogate_patients(likely_pairs(half, model, noise), counts, sizes, _SURROGATES, rng)


def fitted_to_halves(
    releases: Sequence[NDArray[np.float32]], counts: Sequence[float], sizes: Sequence[int],
    rank: int, sigma: float, rng: np.random.Generator,
) -> Factors:  # fmt: skip
    """Fit a model to each of the `halves`, starting from random factors.

    For each mode, return an array of shape (models, codes, rank). `counts` contains a typical
    patient's number of codes in each mode.
    """
    noise = sigma * math.sqrt(len(releases))

    def fitted(seeded: tuple[NDArray[np.float32], np.random.Generator]) -> Factors:
        half, own = seeded
        begun = positive_columns([own.random((size, rank)) for size in sizes])
        patients = half_patients(half, noise, counts, sizes, rank, own)
        if not patients.nnz:
            return begun
        settings = surrogate_fit.LEAST_SQUARES
        patients = surrogate_fit.solver_input(patients, patients.n_patients, settings)
        return surrogate_fit.fit_factors(patients, begun, own, settings, _PASSES)[0]

    seeded = ((half, rng.spawn(1)[0]) for half in halves(releases, sum(sizes), noise, rng))
    with one_blas_thread:  # no result depends on the number of threads
        models = list(in_order(fitted, seeded))
    return tuple(np.stack(factors) for factors in zip(*models, strict=True))


def similarities(factors: Factors, fits: Factors) -> Floats:
    """Return the similarity (0 to 1) of each phenotype to its match in each fit: a row per fit.

    `fits` contains the factors fitted to all `halves`: one array per mode, of shape (fits, codes,
    phenotypes). The similarity of two phenotypes is the product of their cosines over all modes.
    """
    similar = np.zeros((len(fits[0]), factors[0].shape[1]))
    for row, *fitted in zip(similar, *fits, strict=True):
        match = match_columns(factors, fitted)
        row[match.estimate] = match.cosines
    return similar


def distinct_number(factors: Factors, fits: Factors, cells: float) -> int:
    """Return the number (at least 1) of distinct phenotypes that probably exist in other patients.

    For the arguments, see `false_discovery`. If `cells` exceeds `_MANY_CELLS`, phenotypes that are
    `alike` count as one.
    """
    with one_blas_thread:
        real = np.flatnonzero(_chance(similarities(factors, fits).mean(axis=0)) <= EVEN)
        same = alike(factors)[np.ix_(real, real)] & (cells > _MANY_CELLS)
    return max(1, int(connected_components(same, directed=False)[0]))


def false_discovery(factors: Factors, fits: Factors, cells: float) -> tuple[float, ...]:
    """Return each phenotype's probability of being absent from a noiseless fit to other patients.

    See `similarities` for `fits`. `cells` is a typical patient's number of cells. The
    probability is at least one half if a phenotype's codes may be merely frequent (see `_CLEAR`).
    If `cells` exceeds `_MANY_CELLS`, the same limit holds for phenotypes that are `alike`.
    """
    with one_blas_thread:  # sums must not depend on the machine
        similar = similarities(factors, fits)
        chance = _chance(similar.mean(axis=0))
        doubted = alike(factors).any(axis=0) & (cells > _MANY_CELLS)
        chance[doubted] = np.maximum(chance[doubted], EVEN)
        chance = np.maximum(chance, np.minimum(_for_share(chance), EVEN))
        by_chance = [chance_cosines(factors, fitted) for fitted in zip(*fits, strict=True)]
        least = np.where((similar > by_chance).mean(axis=0) >= _CLEAR, 0.0, EVEN)
    return tuple(round(float(each), 3) for each in np.maximum(chance, least))


def _chance(similarity: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(_SLOPE * similarity - _OFFSET)))


def _for_share(chance: Floats) -> Floats:
    """Raise all chances of absence if many phenotypes seem to be absent (Saerens et al., 2002)."""
    odds, share = chance / (1 - chance) * (1 - _USUAL) / _USUAL, _USUAL
    for _ in range(1000):
        corrected = odds * share / (1 - share + odds * share)
        share = max(_USUAL, corrected.mean())
    return np.asarray(corrected)
