"""Grow a model by adding factors where the residual of the current factors is largest.

A new unit factor f >= 0 with usages d_t maximises ``sum_t d_t f^T R_t f`` over the sites' residuals
R_t, under a soft threshold. Exact updates of f and d alternate, from several directions at once.
"""

from __future__ import annotations

import numpy as np

from dpfact_flower.estimation.pair_fit import TINY, Model, Sites, fit, times
from dpfact_flower.tensor import Floats

_STEP, _SWEEPS = 2, 4
"""Largest number of factors added in a step, and iterations on all factors after a step."""
_THRESHOLD, _LOWER = 2.0, 0.7
"""Soft threshold in standard deviations of an entry's noise, for distinct phenotypes under much
noise, and the factor that lowers the threshold for faint phenotypes when a step finds no new
factor."""
_LOWERED = (1.0, 0.7, 0.5, 0.35, 0.25, 0.0)
"""Shares of the threshold, tried in order until a new factor is not empty."""
_TRIES, _POWER = 4, 15
"""Number of random directions in addition to one for each site, and largest number of
iterations."""
_SETTLED = 0.01
"""A search ends when no direction's gain changes by more than this share of the largest."""
_UNLIKE = 0.5
"""Largest cosine between two factors that one search may add."""


def grown(sites: Sites, rank: int, noise: float, rng: np.random.Generator) -> Model | None:
    """Add factors where the residual is largest, or return None if too few exceed the noise.

    When all new factors of a step are below the threshold, the threshold is lowered for all later
    steps. `noise` is the standard deviation on an entry.
    """
    codes, count, _ = sites.shape
    model = Model(np.zeros((codes, 0)), np.zeros((count, 0)))
    threshold = _THRESHOLD * noise
    for _ in range(rank):
        before = model.F.shape[1]
        new = greedy_init(sites, model, threshold, min(_STEP, rank - before), rng)
        model = Model(np.hstack([model.F, new.F]), np.hstack([model.d, new.d]))
        F, d = fit(sites, model, threshold=threshold, iterations=_SWEEPS)
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
    """Find unit f >= 0 and usages d >= 0 for which ``d_t f f^T`` explains most of the residual.

    The threshold, as for `pair_fit.fit`, is lowered until a factor remains. Return one to `most`
    dissimilar factors, the best first.
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
    """Return directions, usages and gains of power iterations from random directions.

    Some directions start with equal usages, and one per site starts with usage at that site only.
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
    """Return ``(P_t - F diag(d_t) F^T) X`` of every site, (T, codes, columns), off the diagonal."""
    products = times(sites, X)
    F, d = model
    inner, squares = F.T @ X, F * F
    for t, usage in enumerate(d):
        products[t] -= (F * usage) @ inner - (squares @ usage)[:, None] * X
    return products


def _beside(F: Floats) -> Floats:
    """Return the squared norm of f f^T without its diagonal, for each unit column f of F."""
    return np.asarray(np.maximum(1 - np.square(F * F).sum(axis=0), 1e-3))
