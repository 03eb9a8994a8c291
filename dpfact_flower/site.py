"""One round at a site, as a function: data, state and a request in; new state and release out.

Nothing here reads a disk or knows of Flower; `client` unpacks, calls, packs. Without noise the
result depends on the arguments alone.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.cp import norm_squared
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.errors import DataError, DivergenceError
from dpfact_flower.privacy import (
    BoundedFactors,
    Noise,
    Release,
    ReleaseEvent,
    paper_rho,
    perturb,
    planned_events,
    release_unprotected,
)
from dpfact_flower.protocol import RoundRequest
from dpfact_flower.residuals import squared_error
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver import LocalResult, solve
from dpfact_flower.state import RoundMeasures, SiteState
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.threads import one_blas_thread


@dataclass(frozen=True, eq=False)
class RoundOutcome:
    """What a round leaves behind: a release for the server, state and measures for the site.

    State and measures are None where a round makes none.
    """

    release: Release
    state: SiteState | None = None
    measures: RoundMeasures | None = None


class Kept(Protocol):
    """What a site kept of a job's earlier rounds."""

    def state(self) -> SiteState | None:
        """Its factors after the last round; None before the first."""

    def release(self, round_number: int) -> Release | None:
        """What it released in a round; None where it did not answer."""


class RoundWork(Protocol):
    """A privacy mode's part of a round at a site.

    Making one touches no patient's data, and refuses a request that does not fit the site.
    """

    reach: str
    """What `cost` covers, in words."""

    def cost(self) -> tuple[ReleaseEvent, ...]:
        """What has to fit the budget, from public facts."""

    def run(self, kept: Kept) -> RoundOutcome:
        """Compute the round."""


class LocalRound:
    """A round of privacy "none" or "paper": `run_round` as `RoundWork`."""

    reach = "this round"

    def __init__(
        self, data: SiteData, request: RoundRequest, *, site: str, simulation: bool
    ) -> None:
        check_fits(data.tensor, request.anchors)
        self._tensor = data.tensor
        self._modes = [vocabulary.name for vocabulary in data.vocabularies]
        self._request, self._site, self._simulation = request, site, simulation

    def cost(self) -> tuple[ReleaseEvent, ...]:
        """The releases of this round."""
        return planned(self._request, self._modes, simulation=self._simulation)

    def run(self, kept: Kept) -> RoundOutcome:
        """Factorise on from the last round."""
        return run_round(
            self._tensor,
            kept.state(),
            self._request,
            site=self._site,
            modes=self._modes,
            simulation=self._simulation,
        )


def run_round(
    tensor: SparseTensor,
    state: SiteState | None,
    request: RoundRequest,
    *,
    site: str,
    modes: Sequence[str],
    simulation: bool,
) -> RoundOutcome:
    """Factorise locally, perturb the feature factors, and say what to send (Algorithm 1, site).

    Parameters
    ----------
    tensor : SparseTensor
        The site's data.
    state : SiteState or None
        The site after its last round; None starts from the global factors.
    request : RoundRequest
    site : str
        The site's name; with the request's public seed it fixes start and visiting order, so that
        a run without noise gives the same numbers whatever runs it.
    modes : sequence of str
        Names of the feature modes, for the record of releases.
    simulation : bool
        Whether seeded noise is allowed.

    Raises
    ------
    DataError
        If the site has no non-zeros, or its modes are not the request's.
    DivergenceError
        If no step size makes the objective fall.
    PrivacyRefusedError
        If seeded noise is asked of a real site.
    """
    check_fits(tensor, request.anchors)
    tensor = scaled(tensor, request.solver)
    numbers = stream(request, site)
    rng = np.random.default_rng(numbers)
    began = time.perf_counter()
    solver = local_settings(tensor, request)
    start = state or initial_state(tensor, request, rng)
    local = solved(tensor, start, request, solver, rng, site=site)
    seconds = time.perf_counter() - began
    noise = Noise.from_settings(request.privacy, stream=numbers, simulation=simulation)
    return RoundOutcome(
        make_release(local.factors[1:], request, noise, modes),
        SiteState(request.round, local.factors, local.eta),
        measure(tensor, local, request.round, seconds),
    )


def solved(
    tensor: SparseTensor,
    start: SiteState,
    request: RoundRequest,
    solver: SolverSettings,
    rng: np.random.Generator,
    *,
    site: str,
) -> LocalResult:
    """Run the solver around the request's global factors.

    Raises
    ------
    DivergenceError
        Naming site and round.
    """
    try:
        # One BLAS thread: with more, the last bits depend on how many a machine happens to have.
        with one_blas_thread:
            return solve(tensor, start.factors, request.anchors, solver, rng, eta=start.eta)
    except DivergenceError as error:
        raise DivergenceError(f"site {site}, round {request.round}: {error}") from None


def scaled(tensor: SparseTensor, settings: SolverSettings) -> SparseTensor:
    """The tensor that is factorised: counts, or each patient's scaled to norm 1."""
    return _unit_patients(tensor) if settings.scale == "patient" else tensor


@lru_cache(maxsize=16)  # one process may play many sites; round after round it is the same tensor
def _unit_patients(tensor: SparseTensor) -> SparseTensor:
    return tensor.scaled_to_unit_patients()


@lru_cache(maxsize=16)
def _norm_squared(tensor: SparseTensor) -> float:
    return tensor.norm_squared()


def local_settings(tensor: SparseTensor, request: RoundRequest) -> SolverSettings:
    """Solver settings as they hold at this site in this round: `pull`, `off`, `mu_from_round`."""
    solver = request.solver
    if solver.solver == "exact":
        share = _norm_squared(tensor) / solver.rank  # what a phenotype has of the data, on average
        if solver.pull > 0:
            solver = replace(solver, gamma=solver.pull * share)
        if solver.off > 0:
            solver = replace(solver, mu=solver.off * math.sqrt(share))
    if request.round < solver.mu_from_round:
        solver = replace(solver, mu=0.0)
    return solver


def initial_state(
    tensor: SparseTensor, request: RoundRequest, rng: np.random.Generator
) -> SiteState:
    """Patient factors uniform on (0, 1), scaled to the data; feature factors the global ones.

    The scale makes the model's squared norm that of the data, so that the first pass neither
    has to find it nor blows up.
    """
    patients = rng.random((tensor.n_patients, request.solver.rank), dtype=np.float32) + 1e-3
    norm = norm_squared((patients, *request.anchors))
    patients *= np.float32(
        math.sqrt(_norm_squared(tensor) / max(norm, float(np.finfo(np.float32).tiny)))
    )
    return SiteState(0, (patients, *request.anchors), request.solver.eta)


def planned(
    request: RoundRequest, modes: Sequence[str], *, simulation: bool
) -> tuple[ReleaseEvent, ...]:
    """What answering the request will cost, from public facts alone; for "none" and "paper".

    Raises
    ------
    SettingsError
        If the mode has no sensitivity for the solver.
    PrivacyRefusedError
        If seeded noise is asked of a real site.
    """
    if request.privacy.privacy == "none":
        return ()
    request.privacy.check_solver(request.solver)
    noise = Noise.from_settings(request.privacy, stream=[0], simulation=simulation)
    sizes = {mode: anchor.size for mode, anchor in zip(modes, request.anchors, strict=True)}
    rho = paper_rho(request.privacy, request.rounds, len(modes))
    return planned_events(
        request.solver, rho, sizes, round_number=request.round, seeded=noise.seeded
    )


def make_release(
    features: Factors, request: RoundRequest, noise: Noise, modes: Sequence[str]
) -> Release:
    """Pass feature factors through the one door, in the mode that is asked for."""
    if request.privacy.privacy == "none":
        return release_unprotected(features)
    return perturb(
        BoundedFactors(features, request.solver),
        paper_rho(request.privacy, request.rounds, len(features)),
        noise,
        round_number=request.round,
        modes=modes,
    )


def measure(
    tensor: SparseTensor, local: LocalResult, round_number: int, seconds: float
) -> RoundMeasures:
    """What the site notes for itself about its own factors; never sent."""
    return RoundMeasures(
        round=round_number,
        objective=local.objective,
        error=local.error or squared_error(tensor, local.factors, local.grams),
        column_norms=tuple(np.sqrt(np.diag(local.grams[0])).tolist()),
        eta=local.eta,
        rollbacks=local.rollbacks,
        seconds=seconds,
    )


def check_fits(tensor: SparseTensor, anchors: Sequence[NDArray[np.float32]]) -> None:
    """Refuse a tensor without non-zeros, or of other feature modes than the global factors.

    Raises
    ------
    DataError
        Naming the sizes.
    """
    if tensor.nnz == 0:
        raise DataError("the site's tensor has no non-zeros: nothing can be learned from it")
    check_shapes(tensor, anchors)


def check_shapes(tensor: SparseTensor, anchors: Sequence[NDArray[np.float32]]) -> None:
    """Refuse a tensor of other feature modes than the global factors: a public matter.

    Raises
    ------
    DataError
        Naming the sizes.
    """
    asked = tuple(len(anchor) for anchor in anchors)
    if asked != tensor.feature_shape:
        raise DataError(
            f"the run's feature modes have sizes {asked}, this site's {tensor.feature_shape}: "
            "the vocabularies differ"
        )


def stream(request: RoundRequest, site: str) -> list[int]:
    """What tells the random numbers of this site and round from all others; public values only."""
    name = int.from_bytes(hashlib.sha256(site.encode()).digest()[:8], "big")
    return [request.seed, name, request.round]
