"""Compute the server's first feature factors from the sites' noisy co-occurrences.

All sites' co-occurrence matrices are fitted jointly (`pair_fit`). Because the problem is not
convex, the server compares several candidates. A *random* candidate is first fitted to the sum of
the sites' matrices and then to the separate matrices. To make the *grown* candidate, the server
repeatedly adds the factors that explain most of the residual. Candidates are fitted to one noisy
copy of the releases, and compared on a copy with independent noise (docs/explanation/start.md).
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.estimation.pair_fit import (
    TINY,
    Model,
    Sites,
    explained,
    fit_pairs,
    inner,
    matrices_of,
    pairs_gram,
    solve_usages,
    times,
)
from dpfact_flower.machine.threads import in_order, one_blas_thread
from dpfact_flower.tensor import Factors, Floats
from dpfact_flower.tensor.cp import unit_columns

_logger = logging.getLogger(__name__)
MOST_SEPARATE = 20
"""Maximum number of sites that are fitted separately. The releases of more sites are summed in this
many groups, which limits time and memory (docs/explanation/start.md)."""
_RESTARTS = 6  # random candidates
_POOLED, _JOINT, _LAST = 20, 10, 30
"""Maximum numbers of iterations in three fits: of a random candidate to the sum over sites, of any
candidate to all sites, and of the best candidate to the releases."""
_SETTLED = 1e-4
"""The last fit ends when an iteration changes `explained` by less than this fraction."""
_THRESHOLD = 1.0
"""Soft threshold in a fit to all sites, in standard deviations of an entry's noise. With a
threshold of 2, faint phenotypes in real data are lost, and refinement cannot restore them."""
_SPLIT = 0.5
"""Standard deviation of the fresh noise relative to the releases' noise, in the data to which
candidates are fitted. A ratio of 0.5 makes the total noise 1.12 times as large. In the data on
which candidates are compared, the ratio is the inverse."""
_LEAST = 1e-6
"""Value added to every entry of a factor, so that no column is empty."""
_USAGE_SWEEPS = 50

_Candidate = Callable[[np.random.Generator], Model | None]


@dataclass(frozen=True, eq=False)
class Start:
    """A run's first factors, which are non-negative and have columns of norm 1.

    `stacked` contains the factors before scaling. Off the diagonal, site t's co-occurrence matrix
    is about ``stacked diag(usage[t]) stacked.T``. With more than `MOST_SEPARATE` sites, each row of
    `usage` belongs to a group of sites.
    """

    factors: Factors
    usage: Floats
    stacked: Floats


def start_factors(
    releases: Sequence[NDArray[Any]],
    sizes: Sequence[int],
    rank: int,
    sigma: float,
    rng: np.random.Generator,
) -> Start:
    """Fit factors to the released co-occurrences, whose noise has standard deviation `sigma`."""
    codes, noise = sum(sizes), sigma / math.sqrt(2)
    packed, roots = _pooled(releases)
    with one_blas_thread:  # sums must not depend on the machine
        best = _best_candidate(packed, codes, rank, sigma, rng)
        sites = matrices_of(packed, codes)
        threshold = _THRESHOLD * noise
        fitted = fit_pairs(sites, best, threshold=threshold, iterations=_LAST, settled=_SETTLED)
    parts = np.split(_restore_empty(fitted, best).F, np.cumsum(sizes)[:-1])
    return Start(positive_columns(parts), fitted.d * roots[:, None], fitted.F)


def positive_columns(factors: Sequence[NDArray[np.floating[Any]]]) -> Factors:
    """Make all entries positive, and scale each column to norm 1."""
    positive = (factor.astype(np.float64) + _LEAST for factor in factors)
    return tuple(unit_columns(factor).astype(np.float32) for factor in positive)


def usage_of(release: NDArray[Any], factors: Factors, sigma: float) -> tuple[Floats, Floats]:
    """Return a site's estimated usage of each phenotype, and the estimates' standard deviations.

    Usages are fitted by non-negative least squares. The factors' columns are scaled to norm 1.
    """
    units = [unit_columns(np.asarray(factor, np.float64)) for factor in factors]
    F = np.concatenate(units) / math.sqrt(len(units))
    with one_blas_thread:
        site = matrices_of([release], len(F))
        usage, system = np.zeros((1, F.shape[1])), pairs_gram(F)
        solve_usages(usage, inner(times(site, F), F), system, _USAGE_SWEEPS)
    return usage[0], sigma / np.sqrt(np.maximum(np.diag(system), TINY))


def _pooled(releases: Sequence[NDArray[Any]]) -> tuple[list[NDArray[Any]], Floats]:
    """Form at most `MOST_SEPARATE` groups of releases. Return the groups' scaled sums and scales.

    Each sum is divided by its scale, ``sqrt(group size)``, to be as noisy as one release.
    """
    groups = np.array_split(np.arange(len(releases)), min(len(releases), MOST_SEPARATE))
    sums = [reduce(add, (releases[t] for t in group)) for group in groups]
    roots = [math.sqrt(len(group)) for group in groups]
    alike = [total / root if root > 1 else total for total, root in zip(sums, roots, strict=True)]
    return alike, np.array(roots)


def _best_candidate(
    packed: Sequence[NDArray[Any]], codes: int, rank: int, sigma: float, rng: np.random.Generator
) -> Model:
    """Fit candidates to one noisy copy of `packed`. Return the one that best fits another copy."""
    before, seen = deepcopy(rng), np.empty((codes, len(packed), codes), np.float32)
    for t, (own, z) in enumerate(_with_fresh(packed, sigma, rng)):
        seen[:, t] = matrices_of([own + _SPLIT * z], codes)[:, 0]
    noise = sigma / math.sqrt(2) * math.hypot(1, _SPLIT)

    def judged(begin: Callable[[], Model | None]) -> tuple[Model, float] | None:
        begun = begin()
        if begun is None:
            return None
        model = fit_pairs(seen, begun, threshold=_THRESHOLD * noise, iterations=_JOINT)
        again = _with_fresh(packed, sigma, deepcopy(before))
        return _restore_empty(model, begun), sum(
            explained(matrices_of([own - z / _SPLIT], codes), Model(model.F, d[None]))
            for (own, z), d in zip(again, model.d, strict=True)
        )

    candidates = _candidates(seen, rank, noise)
    rngs = rng.spawn(len(candidates))
    seeded = [partial(begin, own) for begin, own in zip(candidates, rngs, strict=True)]
    fits = [fit for fit in in_order(judged, seeded) if fit]
    best, score = max(fits, key=lambda fit: fit[1])  # the first of equal scores
    _logger.info(
        "start: best of %d candidates; explains %.6g of held-out data, the others %s",
        len(fits), score, ", ".join(f"{other:.6g}" for _, other in fits if other < score),
    )  # fmt: skip
    return best


def _with_fresh(
    packed: Sequence[NDArray[Any]], sigma: float, rng: np.random.Generator
) -> Iterator[tuple[NDArray[Any], NDArray[np.float32]]]:
    """Yield (release, fresh noise) pairs. An `rng` in the same state draws the same noise."""
    for own in packed:
        yield own, np.float32(sigma) * rng.standard_normal(own.shape, np.float32)


def _candidates(sites: Sites, rank: int, noise: float) -> list[_Candidate]:
    total = sites.sum(axis=1, keepdims=True)
    random: _Candidate = partial(random_model, total, sites.shape[1], rank)
    growth: _Candidate = partial(grown, sites, rank, noise)
    return [growth] + [random] * _RESTARTS  # the slowest comes first


def random_model(total: Sites, sites: int, rank: int, rng: np.random.Generator) -> Model:
    """Draw random factors on the data's scale, and fit them to the sum of the sites' matrices."""
    size = math.sqrt(max(float(total.mean()), 1e-9) / rank)
    F = 2 * size * rng.random((len(total), rank))
    F, d = fit_pairs(total, Model(F, np.ones((1, rank))), threshold=0.0, iterations=_POOLED)
    return Model(F, np.repeat(d / sites, sites, axis=0))


def _restore_empty(fitted: Model, before: Model) -> Model:
    """Replace each all-zero factor of `fitted` by the factor in the same position in `before`."""
    gone = fitted.F.sum(axis=0) == 0
    return Model(np.where(gone, before.F, fitted.F), np.where(gone, before.d, fitted.d))


# Growth: a new unit factor f >= 0 with usages d_t maximises ``sum_t d_t f^T R_t f`` for the
# residuals R_t, under a soft threshold. Several parallel searches update f and d alternately.

_STEP, _SWEEPS = 2, 4
"""Maximum number of factors added per step, and number of iterations that then fit all factors."""
_GROWTH_THRESHOLD, _LOWER = 2.0, 0.7
"""Soft threshold in standard deviations of an entry's noise, and its multiplier after a step that
finds no new factor. A threshold of 2 suits distinct phenotypes in strong noise."""
_LOWERED = (1.0, 0.7, 0.5, 0.35, 0.25, 0.0)
"""Fractions of the threshold, tried in order until a new factor is not empty."""
_TRIES, _POWER = 4, 15
"""Number of searches in addition to one per site, and maximum number of iterations per search."""
_POWER_SETTLED = 0.01
"""Searches end when no error reduction changes by more than this fraction of the largest one."""
_UNLIKE = 0.5
"""Largest cosine between two factors that one step may add."""


def grown(sites: Sites, rank: int, noise: float, rng: np.random.Generator) -> Model | None:
    """Add factors to a model in steps. Return None if fewer than `rank` factors are found."""
    codes, count, _ = sites.shape
    model = Model(np.zeros((codes, 0)), np.zeros((count, 0)))
    threshold = _GROWTH_THRESHOLD * noise
    for _ in range(rank):
        before = model.F.shape[1]
        new = greedy_init(sites, model, threshold, min(_STEP, rank - before), rng)
        model = Model(np.hstack([model.F, new.F]), np.hstack([model.d, new.d]))
        F, d = fit_pairs(sites, model, threshold=threshold, iterations=_SWEEPS)
        alive = (F.sum(axis=0) > 0) & (d.sum(axis=0) > 0)
        model = Model(np.ascontiguousarray(F[:, alive]), np.ascontiguousarray(d[:, alive]))
        if model.F.shape[1] == rank:
            return model
        if model.F.shape[1] <= before:
            threshold *= _LOWER
    return None


def greedy_init(
    sites: Sites, model: Model, threshold: float, most: int, rng: np.random.Generator
) -> Model:
    """Find non-negative usages and factors (of norm 1) that best explain the sites' residuals.

    Return between one and `most` dissimilar factors, best first. For `threshold`, see `fit_pairs`.
    """
    for share in _LOWERED:
        F, usage, gain = _power_iterations(sites, model, share * threshold, rng)
        if gain.max() > 0 or threshold == 0:
            break
    chosen = [int(gain.argmax())]
    alike = F.T @ F
    for column in np.argsort(-gain):
        if len(chosen) < most and gain[column] > 0 and alike[column, chosen].max() < _UNLIKE:
            chosen.append(int(column))
    return Model(F[:, chosen], usage[:, chosen])


def _power_iterations(
    sites: Sites, model: Model, threshold: float, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Search for factors by power iterations. Return factors, usages and reductions in error.

    The first `_TRIES` searches start with equal usage at all sites. For each site, one more search
    starts with usage at that site alone.
    """
    codes, count, _ = sites.shape
    usage = np.hstack([np.ones((count, _TRIES)), np.eye(count)])
    F = rng.random((codes, usage.shape[1])) ** 4
    before = np.zeros(usage.shape[1])
    for step in range(_POWER + 1):
        F /= np.maximum(np.linalg.norm(F, axis=0), TINY)
        products = residual_times(sites, model, F)
        if step > 0:
            usage = np.maximum(np.einsum("tjm,jm->tm", products, F), 0) / _off_diagonal(F)
        energy = np.square(usage).sum(axis=0)
        gain = energy * _off_diagonal(F)
        if step == _POWER or np.abs(gain - before).max() <= _POWER_SETTLED * gain.max():
            break
        before = gain
        energy = np.maximum(energy, TINY)
        rest = np.maximum(1 - F * F, 0.25)
        F = np.einsum("tjm,tm->jm", products, usage) - threshold * np.sqrt(energy * rest)
        F = np.maximum(F / (energy * rest), 0)
    gain[(F > 0).sum(axis=0) < 2] = 0
    return F, usage, gain


def residual_times(sites: Sites, model: Model, X: Floats) -> Sites:
    """Multiply each site's residual (data minus model, with a zero diagonal) by the matrix X."""
    products = times(sites, X)
    F, d = model
    inner, squares = F.T @ X, F * F
    for t, usage in enumerate(d):
        products[t] -= (F * usage) @ inner - (squares @ usage)[:, None] * X
    return products


def _off_diagonal(F: Floats) -> Floats:
    """For each unit column f of F, return the sum of squared off-diagonal entries of f f^T."""
    return np.asarray(np.maximum(1 - np.square(F * F).sum(axis=0), 1e-3))
