"""Refine one mode's global factor from the sites' noisy least-squares statistics.

Each site releases two matrices, M and G, with added noise. M is the MTTKRP: the product of the
site's data and the factors of all modes except the refined mode. G is the Gram matrix of the
patient factor. Both matrices are weighted sums over patients. From the two matrices, the server
computes how the site's squared error depends on the refined factor. Refinement minimises all sites'
total squared error, and spends no privacy budget.

For each phenotype, each site is weighted by its estimated usage of the phenotype. With equal
weights, the other sites' noise would hide a phenotype that occurs at only one site. An elastic term
pulls the factor toward the previous global factor. The objective (see `Quadratic`) is minimised one
column at a time, with a soft threshold proportional to the noise.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.machine.compiled import compiled
from dpfact_flower.machine.threads import one_blas_thread
from dpfact_flower.tensor import Array, Factors, Floats
from dpfact_flower.tensor.triangle import ROOT2, unpack_whole

_LEAST_WEIGHT = 0.02
"""Relative weight of a site that does not seem to use a phenotype."""
_FLOOR = 500.0
"""Smallest pull toward the previous factor, in standard deviations of the noise in a column's
energy (total usage). With this pull, a noisy statistic moves a weak phenotype only a little, so
that several rounds average out the noise."""
_LEAST = 1e-9  # smallest column energy or norm to divide by


class Quadratic(NamedTuple):
    """The convex objective that `_passes` minimises over all non-negative factors.

    The matrices `curvature` and `target` define a squared error. For each column, `pull` is the
    weight of an elastic term toward `previous`, and `shrink` is the weight of an l1 penalty.
    """

    target: Floats
    curvature: Floats
    previous: Floats
    pull: Floats
    shrink: Floats


def m_and_g(release: NDArray[Any], size: int, rank: int) -> tuple[Floats, Floats]:
    """Split a release into the matrix M (stored by rows) and the matrix G (an upper triangle)."""
    vector = np.asarray(release, np.float64)
    return vector[: size * rank].reshape(size, rank), unpack_whole(vector[size * rank :], rank)


def first_columns(releases: Array, size: int, rank: int, kept: int) -> Array:
    """Keep only the values of the first `kept` phenotypes in each site's release."""
    columns = np.concatenate([np.tile(np.arange(rank), size), np.triu_indices(rank)[1]])
    return releases[:, columns < kept]


def refine_factor(
    releases: Sequence[NDArray[Any]],
    factors: Factors,
    mode: int,
    *,
    sigma: float,
    shrink: float,
    tau: int,
    pull: float,
) -> Factors:
    """Update a mode's global factor from all sites' releases. The new factor's columns have norm 1.

    The sites computed `releases` from `factors`, and added noise of standard deviation `sigma`.
    `shrink` is the soft threshold, in standard deviations of the noise in the sum over sites. `tau`
    is the number of passes over the columns. A phenotype's elastic term has weight `pull` times the
    phenotype's total usage, plus a floor (`_FLOOR`). Columns that would become zero stay unchanged.
    """
    problem = pooled(releases, factors, mode, sigma=sigma, shrink=shrink, pull=pull)
    found = problem.previous.copy()
    _passes(found, *problem, tau)
    norms = np.sqrt(np.square(found).sum(axis=0))
    alive = norms > _LEAST
    found = np.where(alive, found / np.where(alive, norms, 1.0), problem.previous)
    return (*factors[:mode], found.astype(np.float32), *factors[mode + 1 :])


def pooled(
    releases: Sequence[NDArray[Any]], factors: Factors, mode: int, *,
    sigma: float, shrink: float, pull: float,
) -> Quadratic:  # fmt: skip
    """Combine the sites' least-squares problems into one convex problem (see `refine_factor`).

    A site's residual is the released matrix M minus the M that the previous factor predicts. The
    target is the sum of the predictions for all sites, plus a weighted sum of the residuals (see
    `site_weights`). Each phenotype's weighted sum is scaled up to compensate for weights below 1.
    """
    previous = np.asarray(factors[mode], np.float64)
    size, rank = previous.shape
    products, grams = zip(*(m_and_g(release, size, rank) for release in releases), strict=True)
    wide = [np.asarray(f, np.float64) for n, f in enumerate(factors) if n != mode]
    others = np.asarray(np.prod([_product(columns.T, columns) for columns in wide], axis=0))

    usage = plausible_usage(np.array([np.diag(gram) for gram in grams]), sigma)
    weights = site_weights(usage, size * sigma**2)
    noise = sigma * np.sqrt(np.square(weights).sum(axis=0))
    weighted = sum(np.diag(gram) * u for gram, u in zip(grams, weights, strict=True))
    weighted = np.maximum(weighted, ROOT2 * noise + _LEAST)
    energy = np.maximum(usage.sum(axis=0), weighted)
    curvature = _curvature(sum(grams), energy, others, sigma * np.sqrt(len(releases)))

    scale = energy / weighted
    target = _product(previous, curvature)
    for product, gram, weight in zip(products, grams, weights, strict=True):
        target += (product - _product(previous, gram * others)) * (weight * scale)
    noise = noise * scale
    return Quadratic(target, curvature, previous, pull * energy + _FLOOR * noise, shrink * noise)


def plausible_usage(noisy: Floats, sigma: float) -> Floats:
    """Estimate each site's usage of each phenotype from noisy Gram diagonals (empirical Bayes).

    Each estimate is a weighted mean of the noisy value and the value expected if phenotypes were
    equally common at all sites. Expected values have more weight at smaller sites.
    """
    share = np.maximum(noisy.sum(axis=1), 0)
    share = share / share.sum() if share.sum() > 0 else np.full(len(noisy), 1 / len(noisy))
    total = np.maximum((noisy * share[:, None]).sum(axis=0) / np.square(share).sum(), 0)
    likely = np.outer(share, total)
    spread = np.outer(np.square(share), np.full(len(total), np.square(total).mean()))
    unexplained = np.square(noisy - likely).sum() - noisy.size * sigma**2
    variance = spread * max(unexplained, 0.0) / max(spread.sum(), np.finfo(float).tiny)
    trust = variance / np.maximum(variance + sigma**2, np.finfo(float).tiny)
    return np.asarray(np.maximum(likely + trust * (noisy - likely), 0))


def site_weights(usage: Floats, noise: float) -> Floats:
    """Return each site's weight in (0, 1] for each phenotype, for use in `pooled`.

    The weights maximise the signal-to-noise ratio of the sites' weighted sum. If noise is strong,
    weights are proportional to usage (a matched filter). If there is no noise, all weights are 1.
    `noise` is the variance of the noise added to a value of M, times the number of rows of M.
    """
    raised = usage + _LEAST_WEIGHT * usage.max(axis=0) + _LEAST
    weights = raised / (raised + noise)
    return np.asarray(weights / weights.max(axis=0))


def _curvature(gram: Floats, energy: Floats, others: Floats, noise: float) -> Floats:
    """Return the positive semi-definite curvature. Set entries of `gram` below their noise to 0."""
    gram = np.where(gram < noise / ROOT2, 0.0, gram)
    np.fill_diagonal(gram, energy)
    with one_blas_thread:  # no result depends on the number of threads
        values, vectors = np.linalg.eigh(gram * others)
    psd = _product(vectors * np.maximum(values, 0), vectors.T)
    psd = (psd + psd.T) / 2
    np.fill_diagonal(psd, np.maximum(np.diag(psd), _LEAST))
    return np.asarray(psd)


def _product(left: Floats, right: Floats) -> Floats:
    """Multiply two matrices without BLAS, because BLAS sums depend on the number of threads."""
    return np.asarray(np.einsum("ir,rs->is", left, right))


@compiled()
def _passes(
    factor: Any, target: Any, curvature: Any, previous: Any, pull: Any, shrink: Any, tau: int
) -> None:
    """Minimise the `Quadratic` over one column at a time, in `tau` passes over all columns."""
    size, rank = factor.shape
    for _ in range(tau):
        for r in range(rank):
            steep = curvature[r, r] + pull[r]
            for j in range(size):
                slope = target[j, r] + pull[r] * previous[j, r] - shrink[r]
                for s in range(rank):
                    if s != r:
                        slope -= factor[j, s] * curvature[s, r]
                factor[j, r] = max(0.0, slope / steep)


class Average(NamedTuple):
    """One mode's releases, averaged over rounds, with noise of standard deviation `sigma`."""

    sites: tuple[str, ...]
    values: NDArray[np.float32]
    sigma: float


def averaged(before: Average | None, newest: Average, share: float) -> Average:
    """Return the moving average of a mode's releases, in which `before` has weight `share`.

    Rounds have independent noise, and late rounds hardly change the factors. An average of late
    releases thus has the same signal as a single late release, but less noise. If the sites have
    changed, `before` is ignored, because all sites need equal noise.
    """
    if before is None or before.sites != newest.sites:
        return newest
    old, new = share, 1 - share
    values = np.float32(old) * before.values + np.float32(new) * newest.values
    return Average(newest.sites, values, math.hypot(old * before.sigma, new * newest.sigma))
