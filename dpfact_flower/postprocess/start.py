"""The server's start: feature factors from the sites' noisy co-occurrences.

Every site's matrix is fitted at once, ``P_t ~ F diag(d_t) F^T`` beside the diagonal, with F the
feature factors of all modes stacked and d_t >= 0 the site's usage. Noise is alike at all sites and
phenotypes are not: least squares over all sites weighs each site by its usage, so a phenotype of
one site is learned from one site's noise. The diagonal is not released and not needed.

The problem is not convex, and two ways into it are tried. *Random*: dense random factors, fitted
to the sites' sum, then to every site. *Grown*: factors are added two at a time, each where the
residual holds most, and all are refitted in between. Growth finds clear-cut phenotypes that random
starts merge; where phenotypes are below the noise it follows the noise. So candidates are judged by
data that they have not seen: with fresh noise z like that of the releases, P + z / 2 and P - 2 z
have independent noises, and what was fitted to the first is tested on the second.
docs/explanation/start.md has the figures.

All of it is post-processing of what was released.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from dpfact_flower.compiled import compiled
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.tensor import Factors

Floats = NDArray[np.float64]

_logger = logging.getLogger(__name__)
_RESTARTS = 3
_POOLED, _JOINT, _LAST = 120, 40, 30
"""Iterations: on the sites' sum, on all sites without a threshold, and with it."""
_THRESHOLD = 1.0
"""Soft threshold of the last iterations, in standard deviations of a factor's noise. 2 loses faint
phenotypes of real data, which then are wanting in the refinement too."""
_SPLIT = 0.5
"""Fresh noise that candidates are fitted with, relative to the releases' own; half of it makes that
1.12 times as large. The data that they are tested on have its inverse."""
_GROWTH_THRESHOLDS = (1.0, 2.0)
"""Soft thresholds of growth: the first suits faint phenotypes, the second clear-cut ones under much
noise. Without noise they are the same, and growth is done once."""
_STEP, _SWEEPS = 2, 4
"""Growth: factors added at a time, and iterations on all of them in between."""
_LOWERED = (1.0, 0.7, 0.5, 0.35, 0.25, 0.0)
"""Shares of growth's threshold, until one leaves anything of a new factor."""
_TRIES, _POWER = 4, 15
"""Growth: random directions beside one for each site, and iterations on each."""
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Start:
    """What the co-occurrences say.

    Attributes
    ----------
    factors : tuple of ndarray of float32, each of shape (I_n, R)
        Non-negative, columns of norm 1.
    usage : ndarray of float64, shape (T, R)
        How much of its matrix each site has of each phenotype, 0 or more.
    """

    factors: Factors
    usage: Floats


def start_factors(
    releases: Sequence[NDArray[Any]],
    sizes: Sequence[int],
    rank: int,
    sigma: float,
    rng: np.random.Generator,
    *,
    restarts: int = _RESTARTS,
) -> Start:
    """Fit all sites' co-occurrences at once.

    Parameters
    ----------
    releases : sequence of ndarray, one a site
        As `dpfact_flower.privacy.statistics.cooccurrence` packs them, with noise.
    sizes : sequence of int
        Number of codes of each feature mode.
    rank : int
    sigma : float
        Standard deviation of the noise on each released value.
    rng : numpy.random.Generator
        Of the random starts, then of growth.
    restarts : int
        Random starts.

    Raises
    ------
    DataError
        If there are no releases, or one is not finite or of another size.
    SettingsError
        If rank, sigma or restarts are out of range.
    """
    if rank < 1 or restarts < 1 or not 0 <= sigma < math.inf:
        raise SettingsError(
            f"start: need rank and restarts of 1 or more and a finite sigma; got {rank}, "
            f"{restarts}, {sigma!r}"
        )
    codes = sum(sizes)
    sites = np.array([unpack(release, codes) for release in _checked(releases, codes)])
    noise = sigma / math.sqrt(2)
    with threadpool_limits(1, user_api="blas"):  # sums must not depend on the machine
        best, usage = _best_candidate(sites, rank, noise, rng, restarts)
        best, usage = _fit(sites, best, usage, 0.0, _JOINT)
        F, usage = _fit(sites, best, usage, _THRESHOLD * noise, _LAST)
    F = np.where(F.sum(axis=0) > 0, F, best)  # nothing above the noise: as it was
    parts = np.split(F + 1e-6, np.cumsum(sizes)[:-1])
    factors = tuple((part / np.linalg.norm(part, axis=0)).astype(np.float32) for part in parts)
    return Start(factors, usage)


def usage_of(release: NDArray[Any], factors: Factors, sigma: float) -> tuple[Floats, Floats]:
    """How much of one site's released co-occurrences each phenotype explains, and its noise.

    Parameters
    ----------
    release : ndarray
        Of one site, as in `start_factors`.
    factors : tuple of ndarray, each of shape (I_n, R)
        Global factors; of each mode's columns, the direction alone counts.
    sigma : float

    Returns
    -------
    usage, spread : ndarray of float64, shape (R,)
        Non-negative least squares, and the standard deviation that noise alone gives each value.
    """
    units = [np.asarray(f, np.float64) for f in factors]
    units = [f / np.maximum(np.linalg.norm(f, axis=0), _TINY) for f in units]
    stacked = np.concatenate(units) / math.sqrt(len(units))
    (packed,) = _checked([release], len(stacked))
    with threadpool_limits(1, user_api="blas"):
        matrix = unpack(packed, len(stacked))[None]
        system = _pairs_gram(stacked)
        usage = np.zeros((1, stacked.shape[1]))
        _usages(matrix, stacked, usage, system, 50)
    return usage[0], sigma / np.sqrt(np.maximum(np.diag(system), _TINY))


def unpack(packed: NDArray[Any], codes: int) -> Floats:
    """Symmetric matrix with a diagonal of zeros, from its packed strict upper triangle."""
    matrix = np.zeros((codes, codes))
    matrix[np.triu_indices(codes, 1)] = np.asarray(packed, np.float64) / math.sqrt(2)
    return matrix + matrix.T


def _checked(releases: Sequence[NDArray[Any]], codes: int) -> list[NDArray[Any]]:
    if not releases:
        raise DataError("start: there are no releases")
    for release in releases:
        if release.shape != (codes * (codes - 1) // 2,) or not np.isfinite(release).all():
            raise DataError(f"start: need finite co-occurrences of {codes} codes, packed")
    return list(releases)


def _best_candidate(
    sites: Floats, rank: int, noise: float, rng: np.random.Generator, restarts: int
) -> tuple[Floats, Floats]:
    """The candidate that predicts best what it was not fitted to; without noise, that fits best."""
    fresh = noise * rng.standard_normal(sites.shape)
    fresh = np.tril(fresh, -1) + np.tril(fresh, -1).transpose(0, 2, 1)
    seen, unseen = sites + _SPLIT * fresh, sites - fresh / _SPLIT
    found, errors = None, []
    for begun in _candidates(seen, rank, noise * math.hypot(1, _SPLIT), rng, restarts):
        F, d = _fit(seen, *begun, 0.0, _JOINT)
        errors.append(_error(unseen, F, d))
        if errors[-1] == min(errors):
            found = F, d
    _logger.info(
        "start: best of %d candidates; error on fresh noise %.4g, the others' %s",
        len(errors), min(errors), ", ".join(f"{error:.4g}" for error in sorted(errors)[1:]),
    )  # fmt: skip
    assert found is not None  # there is at least one random start
    return found


def _candidates(
    sites: Floats, rank: int, noise: float, rng: np.random.Generator, restarts: int
) -> Iterator[tuple[Floats, Floats]]:
    """Factors and usages to go on from: `restarts` random ones, then those that growth finds."""
    total = sites.sum(axis=0)
    for _ in range(restarts):
        F, d = _fit(total[None], _random_start(total, rank, rng), np.ones((1, rank)), 0.0, _POOLED)
        yield F, np.repeat(d / len(sites), len(sites), axis=0)
    for threshold in _GROWTH_THRESHOLDS if noise > 0 else (0.0,):
        grown = _grown(sites, rank, threshold * noise, rng)
        if grown is not None:
            yield grown


def _random_start(total: Floats, rank: int, rng: np.random.Generator) -> Floats:
    """Uniform factors whose model is about as large as the data."""
    size = math.sqrt(max(float(total.mean()), 1e-9) / rank)
    return 2 * size * rng.random((len(total), rank))


def _grown(
    sites: Floats, rank: int, threshold: float, rng: np.random.Generator
) -> tuple[Floats, Floats] | None:
    """Add factors where the residual holds most, until there are `rank`.

    The soft threshold may take all of a factor: it goes, and another is looked for. None if that
    happens to half of them and more: then there are not as many phenotypes above the noise.
    """
    F, d = np.zeros((sites.shape[1], 0)), np.zeros((len(sites), 0))
    for _ in range(rank):
        residual = sites - _model(F, d)
        for _ in range(min(_STEP, rank - F.shape[1])):
            f, of_sites = _strongest(residual, threshold, rng)
            residual -= _model(f[:, None], of_sites[:, None])
            F, d = np.column_stack([F, f]), np.column_stack([d, of_sites])
        F, d = _fit(sites, F, d, threshold, _SWEEPS)
        alive = (F.sum(axis=0) > 0) & (d.sum(axis=0) > 0)
        F, d = np.ascontiguousarray(F[:, alive]), np.ascontiguousarray(d[:, alive])
        if F.shape[1] == rank:
            return F, d
    return None


def _strongest(
    residual: Floats, threshold: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Unit f >= 0 and usages d >= 0 with which ``d_t f f^T`` takes most from the residual.

    Exact updates of f and d by turns, from random directions for all sites and one for each. The
    threshold is lowered as far as it must be for anything to be left.
    """
    for share in _LOWERED:
        usage = np.hstack([np.ones((len(residual), _TRIES)), np.eye(len(residual))])
        F = rng.random((residual.shape[1], usage.shape[1])) ** 4
        for step in range(_POWER):
            F /= np.maximum(np.linalg.norm(F, axis=0), _TINY)
            products = residual @ F
            if step > 0:
                usage = np.maximum((products * F).sum(axis=1), 0) / _beside(F)
            energy = np.maximum(np.square(usage).sum(axis=0), _TINY)
            rest = np.maximum(1 - F * F, 0.25)
            F = np.einsum("tjm,tm->jm", products, usage) - share * threshold * np.sqrt(
                energy * rest
            )
            F = np.maximum(F / (energy * rest), 0)
        F /= np.maximum(np.linalg.norm(F, axis=0), _TINY)
        usage = np.maximum(((residual @ F) * F).sum(axis=1), 0) / _beside(F)
        gain = np.square(usage).sum(axis=0) * _beside(F)
        gain[(F > 0).sum(axis=0) < 2] = 0
        most = int(gain.argmax())
        if gain[most] > 0 or threshold == 0:
            break
    return F[:, most], usage[:, most]


def _beside(F: Floats) -> Floats:
    """Squared norms of f f^T without its diagonal, f being unit columns."""
    return np.asarray(np.maximum(1 - np.square(F * F).sum(axis=0), 1e-3))


def _model(F: Floats, d: Floats) -> Floats:
    """``F diag(d_t) F^T`` of every site, its diagonal left out."""
    model = np.array([(F * of_site) @ F.T for of_site in d])
    model[:, np.arange(len(F)), np.arange(len(F))] = 0
    return model


def _fit(
    sites: Floats, factor: Floats, usage: Floats, threshold: float, iterations: int
) -> tuple[Floats, Floats]:
    """Exact updates of one row of F after the other, then of the usages, again and again."""
    F, d = factor.copy(), usage.copy()
    for _ in range(iterations):
        norms = np.linalg.norm(F, axis=0)
        norms[norms < _TINY] = 1.0
        F, d = F / norms, d * norms**2
        _rows(sites, F, d, threshold)
        _usages(sites, F, d, _pairs_gram(F), 3)
    return F, d


def _usages(sites: Floats, F: Floats, d: Floats, system: Floats, sweeps: int) -> None:
    """Non-negative least squares of each site's usage, in place."""
    for t, matrix in enumerate(sites):
        _descend(d[t], np.einsum("jr,jr->r", matrix @ F, F), system, sweeps)


def _pairs_gram(F: Floats) -> Floats:
    """Inner products of the f_r f_r^T, their diagonals left out."""
    gram, squares = F.T @ F, F * F
    return np.asarray(gram * gram - squares.T @ squares)


def _error(sites: Floats, F: Floats, d: Floats) -> float:
    """Squared error beside the diagonals."""
    system = _pairs_gram(F)
    inner = np.array([np.einsum("jr,jr->r", matrix @ F, F) for matrix in sites])
    return float(np.square(sites).sum() - 2 * (inner * d).sum() + ((d @ system) * d).sum())


@compiled()
def _descend(x: Any, target: Any, system: Any, sweeps: int) -> None:
    """Coordinate descent on ``x Q x / 2 - <target, x>`` over x >= 0, in place."""
    for _ in range(sweeps):
        for r in range(len(x)):
            if system[r, r] > 1e-12:
                step = target[r]
                for s in range(len(x)):
                    step -= system[r, s] * x[s]
                x[r] = max(0.0, x[r] + step / system[r, r])
            else:
                x[r] = 0.0


@compiled()
def _rows(sites: Any, F: Any, d: Any, threshold: float) -> None:
    """Minimise over one row of F after the other; the diagonals have no say.

    `threshold` is the standard deviation of an entry's noise times the soft threshold's factor.
    """
    codes, rank = F.shape
    gram = F.T @ F
    weights = d.T @ d
    target = np.empty(rank)
    system = np.empty((rank, rank))
    for j in range(codes):
        row = F[j]
        for r in range(rank):
            for s in range(rank):
                gram[r, s] -= row[r] * row[s]
        target[:] = 0.0
        for t in range(len(sites)):
            products = sites[t, j] @ F
            for r in range(rank):
                target[r] += d[t, r] * products[r]
        for r in range(rank):
            for s in range(rank):
                system[r, s] = weights[r, s] * gram[r, s]
            target[r] -= threshold * math.sqrt(max(system[r, r], 0.0))
        _descend(row, target, system, 2)
        for r in range(rank):
            for s in range(rank):
                gram[r, s] += row[r] * row[s]
