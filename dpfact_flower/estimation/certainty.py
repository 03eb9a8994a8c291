"""How likely a phenotype is real, from the noise that one run has paid for.

With fresh noise z of the releases' own deviation, P + z and P - z have independent noises: the
covariance of n + z and n - z is that of n less that of z. So what is fitted to the one half and to
the other agrees where the patients say so, not where the noise does; and several fits, each from a
beginning of its own, differ where the patients leave a choice. A phenotype that returns in them is
likely to be found in other patients too.

All of it is post-processing of what was released, which the server holds: it costs no privacy.
docs/explanation/certainty.md has how far the figures can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.estimation.pair_fit import Model, fit, unpack
from dpfact_flower.estimation.start import random_model
from dpfact_flower.estimation.surrogates import code_counts, likely_pairs, surrogate_patients
from dpfact_flower.machine.threads import one_blas_thread
from dpfact_flower.tensor import Factors, Floats, SparseTensor
from dpfact_flower.tensor.match import column_cosines, match_columns

SPLITS = 6
"""Draws of z."""
_SURROGATES = 10_000
"""Patients drawn of each half."""
_MOST_CELLS = 16.0
"""Cells of a typical surrogate, at most: codes of every mode are fewer where patients have more."""
_STEEP, _MIDDLE = 6.5, 2.7
"""Of the logistic curve from `returns` to the chance of being absent in other patients: fitted to
quarters of three cohorts (docs/explanation/certainty.md)."""
_ALIKE, _MANY_CELLS, _EVEN = 0.97, 4.0, 0.5
"""Likeness without one mode from which a phenotype may be a part of another, cells of a typical
patient above which this is doubted, and the chance that it then has at least."""
_ITERATIONS = 20
"""Of the fit to a half's co-occurrences."""


class Half(NamedTuple):
    """One half of a split: the sites' sum, with noise of deviation `noise` on an entry."""

    total: NDArray[np.float32]
    noise: float


def typical_counts(
    releases: Sequence[NDArray[Any]], sizes: Sequence[int], cross: float
) -> list[float]:
    """Codes of each mode that a typical patient has; none where pairs say too little.

    `releases` are packed; `cross` is the weight of a block of two modes relative to that of one.
    """
    if len(sizes) == 1:  # without another mode, nothing tells how many codes a patient has
        return []
    total = unpack([_sum(releases)], sum(sizes))[:, 0]
    counts = code_counts(total, sizes, cross)
    return counts if math.isfinite(math.prod(counts)) else []


def halves(
    releases: Sequence[NDArray[Any]], codes: int, sigma: float, rng: np.random.Generator
) -> Iterator[Half]:
    """Of `SPLITS` draws two halves each, whose noises are independent.

    `releases` are packed, with noise of deviation `sigma` on each value.
    """
    total = _sum(releases)
    deviation = sigma * math.sqrt(len(releases))
    for _ in range(SPLITS):
        fresh = deviation * rng.standard_normal(total.shape)
        for half in (total + fresh, total - fresh):
            # A half's value has sqrt(2) times the noise of a sum's, an entry 1 / sqrt(2) of it.
            yield Half(unpack([half], codes)[:, 0], deviation)


def half_patients(
    half: Half, counts: Sequence[float], sizes: Sequence[int], rank: int, rng: np.random.Generator
) -> SparseTensor:
    """Surrogate patients of one half: as `surrogates_of`, of a fit from one random beginning.

    They have as many codes as `typical_counts` says, fewer where those make too many cells.
    """
    fewer = min(1.0, _MOST_CELLS / math.prod(counts)) ** (1 / len(counts))
    counts = [max(1.0, fewer * count) for count in counts]
    sites = half.total[:, None, :]
    with one_blas_thread:  # no result depends on the number of threads
        begun = random_model(sites, 1, rank, rng)
        found = fit(sites, begun, threshold=half.noise, iterations=_ITERATIONS)
        pairs = likely_pairs(half.total, _pairs_of(found), half.noise)
    return surrogate_patients(pairs, counts, sizes, _SURROGATES, rng)


def _sum(releases: Sequence[NDArray[Any]]) -> Floats:
    return np.asarray(np.sum(releases, axis=0, dtype=np.float64))


def _pairs_of(model: Model) -> NDArray[np.float32]:
    pairs = (model.F * model.d[0]).astype(np.float32) @ model.F.T.astype(np.float32)
    return np.asarray(pairs)


def returns(factors: Factors, fits: Factors) -> Floats:
    """How alike each phenotype is to its partner in fits to the halves, on average: 0 to 1.

    `fits` has a factor for each mode, of shape (fits, codes, R); the likeness of two phenotypes is
    the product of their cosines over the modes.
    """
    found = np.zeros((len(fits[0]), factors[0].shape[1]))
    for likeness, *fitted in zip(found, *fits, strict=True):
        match = match_columns(factors, fitted)
        likeness[match.estimate] = match.cosines
    return np.asarray(found.mean(axis=0))


def parts(factors: Factors) -> NDArray[np.bool_]:
    """Whether each phenotype is like another but for one mode, and so may be a part of one."""
    cosines = [column_cosines(f.astype(float), f.astype(float)) for f in factors]
    but_one = [
        reduce(np.multiply, cosines[:mode] + cosines[mode + 1 :]) for mode, _ in enumerate(cosines)
    ]
    alike = np.max(but_one, axis=0)
    np.fill_diagonal(alike, 0)
    return np.asarray(alike.max(axis=0) >= _ALIKE)


def false_discovery(factors: Factors, fits: Factors, cells: float) -> tuple[float, ...]:
    """The chance that other patients' phenotypes, fitted without noise, lack each phenotype.

    `fits` are as `returns` has them, and `cells` those of a typical patient. Where a patient has
    many, phenotypes that differ in one mode alone may be one that was divided: then the chance is
    taken to be even at least.
    """
    with one_blas_thread:  # the same on every machine
        chance = 1 / (1 + np.exp(_STEEP * returns(factors, fits) - _MIDDLE))
        doubted = parts(factors) & (cells > _MANY_CELLS)
    chance[doubted] = np.maximum(chance[doubted], _EVEN)
    return tuple(round(float(each), 3) for each in chance)
