"""Growth: factors added where the residual of the factors so far is largest.

A new factor f with usages d_t is to take as much as it can from the sites' residuals,
``max sum_t d_t f^T R_t f`` for a unit f >= 0: exact updates of f and d in turn, from several
directions at once. A soft threshold on f keeps it from following the noise.
"""

from __future__ import annotations

import numpy as np

from dpfact_flower.estimation.pair_fit import TINY, Model, Sites, fit, times
from dpfact_flower.tensor import Floats

_STEP, _SWEEPS = 2, 4
"""Most factors added at a time, and iterations on all of them in between."""
_THRESHOLD, _LOWER = 2.0, 0.7
"""Soft threshold in standard deviations of an entry's noise: it suits clear-cut phenotypes under
much noise. And by how much it is lowered where it leaves nothing new: faint ones need that."""
_LOWERED = (1.0, 0.7, 0.5, 0.35, 0.25, 0.0)
"""Shares of the threshold, until one leaves anything of a new factor."""
_TRIES, _POWER = 4, 15
"""Random directions beside one for each site, and most iterations on them."""
_SETTLED = 0.01
"""A search ends when no direction's gain changes by more than this share of the largest."""
_UNLIKE = 0.5
"""Largest cosine of two factors that one search may add."""


def grown(sites: Sites, rank: int, noise: float, rng: np.random.Generator) -> Model | None:
    """Add factors where the residual is largest, until there are `rank`.

    The threshold may remove all of a factor: it is dropped, and another is looked for. When a step
    leaves no more factors than there were, the threshold is lowered for all that follows. `noise`
    is its standard deviation on an entry. None if there are fewer factors after `rank` steps: not
    that many stand above the noise.
    """
    codes, count, _ = sites.shape
    model = Model(np.zeros((codes, 0)), np.zeros((count, 0)))
    threshold = _THRESHOLD * noise
    for _ in range(rank):
        before = model.F.shape[1]
        new = greedy_init(sites, model, threshold, min(_STEP, rank - before), rng)
        model = Model(np.hstack([model.F, new.F]), np.hstack([model.d, new.d]))
        model = _alive(fit(sites, model, threshold=threshold, iterations=_SWEEPS))
        if model.F.shape[1] == rank:
            return model
        if model.F.shape[1] <= before:
            threshold *= _LOWER
    return None


def greedy_init(
    sites: Sites, model: Model, threshold: float, most: int, rng: np.random.Generator
) -> Model:
    """Unit f >= 0 and usages d >= 0 with which ``d_t f f^T`` takes most from the residual.

    From the residual of `model`, that is. The threshold, as for `pair_fit.fit`, is lowered as far
    as it must be for anything to be left. At least one factor, and as many as `most`, the one that
    takes most first; no two are alike.
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
    """Directions, usages and gains where power iterations from random directions end.

    Some begin for all sites alike, one for each site.
    """
    codes, count, _ = sites.shape
    usage = np.hstack([np.ones((count, _TRIES)), np.eye(count)])
    F = rng.random((codes, usage.shape[1])) ** 4
    before = np.zeros(usage.shape[1])
    for step in range(_POWER + 1):
        F /= np.maximum(np.linalg.norm(F, axis=0), TINY)
        products = residual_times(sites, model, F)
        if step > 0:
            usage = np.maximum(np.einsum("tjm,jm->tm", products, F), 0) / _beside(F)
        energy = np.square(usage).sum(axis=0)
        gain = energy * _beside(F)
        if step == _POWER or np.abs(gain - before).max() <= _SETTLED * gain.max():
            break
        before = gain
        energy = np.maximum(energy, TINY)
        rest = np.maximum(1 - F * F, 0.25)
        F = np.einsum("tjm,tm->jm", products, usage) - threshold * np.sqrt(energy * rest)
        F = np.maximum(F / (energy * rest), 0)
    gain[(F > 0).sum(axis=0) < 2] = 0
    return F, usage, gain


def residual_times(sites: Sites, model: Model, X: Floats) -> Sites:
    """``(P_t - F diag(d_t) F^T) X`` of every site, diagonals left out; (T, codes, columns)."""
    products = times(sites, X)
    F, d = model
    inner, squares = F.T @ X, F * F
    for t, usage in enumerate(d):
        products[t] -= (F * usage) @ inner - (squares @ usage)[:, None] * X
    return products


def _alive(model: Model) -> Model:
    """The factors of which something is left."""
    alive = (model.F.sum(axis=0) > 0) & (model.d.sum(axis=0) > 0)
    return Model(np.ascontiguousarray(model.F[:, alive]), np.ascontiguousarray(model.d[:, alive]))


def _beside(F: Floats) -> Floats:
    """Squared norms of f f^T without its diagonal, f being unit columns."""
    return np.asarray(np.maximum(1 - np.square(F * F).sum(axis=0), 1e-3))
