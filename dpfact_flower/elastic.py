"""The server's arithmetic: the start, and the elastic pull toward the sites (eq. global)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpfact_flower.errors import SettingsError
from dpfact_flower.settings import SolverSettings
from dpfact_flower.tensor import Factors


def initial_factors(feature_shape: Sequence[int], rank: int, seed: int) -> Factors:
    """Global feature factors before round 1: uniform on (0, 1), columns of unit norm.

    They depend on public numbers only. The sites' patient factors carry the scale.
    """
    rng = np.random.default_rng([seed, rank, *feature_shape])
    factors = (rng.random((size, rank)) + 1e-3 for size in feature_shape)
    return tuple((f / np.linalg.norm(f, axis=0)).astype(np.float32) for f in factors)


def elastic_step(settings: SolverSettings, step: float, sites: int) -> float:
    """Step per site of the elastic pull.

    Parameters
    ----------
    settings : SolverSettings
    step : float
        As the run asks; 0 stands for eta * gamma with psgd, as in eq. (global), and for
        1 / sites with exact, which has no step size: the global factors become the sites' mean.
    sites : int
        Number of sites that pull, at least 1.

    Raises
    ------
    SettingsError
        If the server would never move, or the pull of all sites together exceeds 1: it would
        overshoot their mean.
    """
    if step == 0 and settings.solver == "exact":
        return 1 / sites
    chosen = step or settings.eta * settings.gamma
    if chosen == 0:
        raise SettingsError(
            "gamma = 0 and elastic-step = 0: the global factors would never move; set elastic-step"
        )
    if chosen * sites > 1 + 1e-9:
        raise SettingsError(
            "elastic-step * sites (elastic-step defaults to eta * gamma) must be at most 1 for "
            f"the server's pull to be stable; got {chosen:g} * {sites} = {chosen * sites:g}"
        )
    return chosen


def elastic_average(anchors: Factors, replies: Sequence[Factors], step: float) -> Factors:
    """One elastic pull, ``F^ += step * sum_t (F~_t - F^)``: eq. (global), step = eta * gamma.

    Sites that did not answer are left out of the sum: an elastic pull needs no re-weighting.

    Parameters
    ----------
    anchors : tuple of ndarray of float32
        Global factors.
    replies : sequence of the same, one a site
        In a fixed order (by site name): floating-point sums depend on it, results must not.
    step : float
        At most 1 / number of sites.
    """
    moved = []
    for mode, anchor in enumerate(anchors):
        pull, difference = np.zeros(anchor.shape), np.empty(anchor.shape)
        for reply in replies:
            pull += np.subtract(reply[mode], anchor, out=difference, dtype=np.float64)
        moved.append((anchor + step * pull).astype(np.float32))
    return tuple(moved)
