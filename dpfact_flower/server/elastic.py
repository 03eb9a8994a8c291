"""Modes none and paper at the server: elastic averaging, eq. (global)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import SettingsError
from dpfact_flower.privacy import ReleaseEvent, paper_rho, planned_events
from dpfact_flower.server.rule import factor_arrays, initial_factors, restored_factors
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.tensor import Factors
from dpfact_flower.tensor.arrays import Selection
from dpfact_flower.wire.protocol import SiteReply


class ElasticRule:
    """Elastic averaging of the sites' factors, every round alike: eq. (global)."""

    name = "elastic"
    selection: Selection = ()

    def __init__(
        self,
        feature_shape: Sequence[int],
        solver: SolverSettings,
        privacy: PrivacySettings,
        run: RunSettings,
    ) -> None:
        if privacy.privacy == "patient":
            raise SettingsError("rule 'elastic': privacy 'patient' has a rule of its own")
        self.rounds = run.rounds
        self.privacy = privacy
        self.factors: Factors = initial_factors(feature_shape, solver.rank, run.seed)
        self._solver = solver
        self._step = run.elastic_step

    def anchors(self, round_number: int) -> Factors:
        """Global factors, in every round."""
        return self.factors

    def reply_shapes(self, round_number: int) -> list[tuple[int, ...]]:
        """Those of the global factors."""
        return [factor.shape for factor in self.factors]

    def planned_events(self, round_number: int) -> tuple[ReleaseEvent, ...]:
        """In paper mode one release per factor; without noise none."""
        if self.privacy.privacy == "none":
            return ()
        sizes = {f"mode {mode}": f.size for mode, f in enumerate(self.factors, start=1)}
        return planned_events(
            self._solver,
            paper_rho(self.privacy, self.rounds, len(sizes)),
            sizes,
            round_number=round_number,
            seeded=self.privacy.noise_seed >= 0,
        )

    def check_sites(self, sites: int) -> None:
        """Refuse more sites than the elastic step is stable for."""
        elastic_step(self._solver, self._step, max(sites, 1))

    def needs_quorum(self, round_number: int) -> bool:
        """No: a missed round leaves the model as it was."""
        return False

    def update(self, round_number: int, replies: Sequence[SiteReply]) -> None:
        """Pull the global factors toward the sites'."""
        # Sites that joined after the first round may be more than the step is stable for.
        step = min(elastic_step(self._solver, self._step, 1), 1 / len(replies))
        self.factors = elastic_average(self.factors, [reply.arrays for reply in replies], step)

    def state(self) -> dict[str, NDArray[Any]]:
        """The global factors."""
        return factor_arrays(self.factors)

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over the factors of a checkpoint."""
        self.factors = restored_factors(arrays, self.factors)


def elastic_step(settings: SolverSettings, step: float, sites: int) -> float:
    """Step per site of the elastic pull.

    Parameters
    ----------
    settings : SolverSettings
    step : float
        As the run asks for; 0 stands for eta * gamma with psgd, as in eq. (global), and for
        1 / sites with others, which have no step size: the global factors become the sites' mean.
    sites : int
        Number of sites that pull, at least 1.

    Raises
    ------
    SettingsError
        If the server would never move, or the pull of all sites together exceeds 1: it would
        overshoot their mean.
    """
    if step == 0 and settings.solver != "psgd":
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
    replies : sequence of the same, one per site
        In a fixed order (by site name): floating-point sums depend on the order, results must not.
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
