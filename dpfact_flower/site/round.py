"""Functions and types for a site's rounds in all privacy modes."""

import hashlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.errors import MessageError, shown
from dpfact_flower.machine.threads import one_blas_thread
from dpfact_flower.privacy import Release, ReleaseEvent, Share
from dpfact_flower.privacy.patient.releases import PlannedRelease
from dpfact_flower.settings import SolverSettings
from dpfact_flower.site.store import RoundMeasures, SiteState
from dpfact_flower.solver import solve
from dpfact_flower.solver.losses import losses
from dpfact_flower.solver.mttkrp import squared_error
from dpfact_flower.solver.objective import curvature
from dpfact_flower.solver.solvers import solvers
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.wire.protocol import RoundRequest

_ALL_FIRST, _ONE_OF = 2, 10


@dataclass(frozen=True, eq=False)
class RoundOutcome:
    """A round's result. Only the field `release` may leave the site."""

    release: Release | Share
    state: SiteState | None = None
    measures: RoundMeasures | None = None


@dataclass(frozen=True, eq=False, repr=False)
class JobState:
    """The data that a site has kept from a job's earlier rounds.

    `state` holds the site's factors after the latest round. `release` is a function that returns
    the site's release in a given round, or None if the ledger holds no values of that round.
    """

    state: SiteState | None = None
    release: Callable[[int], Release | None] = lambda _: None


class RoundWork(ABC):
    """A site's work in one round. Each federation rule has a subclass."""

    charged_rounds: int
    """Number of charged rounds left in the run, including this round."""
    is_final: bool = False
    """Whether the round is the run's last, in which the site only stores the public request."""
    planned: PlannedRelease | None = None
    """The release of a round in patient mode, which may need a secure sum."""

    @abstractmethod
    def cost(self) -> tuple[ReleaseEvent, ...]:
        """Return the privacy costs of this round and all later rounds. Use only public values."""

    @abstractmethod
    def run(self, data: SiteData, kept: JobState) -> RoundOutcome:
        """Return the round's outcome. Implementations must not keep references to `data`."""


def solved(
    tensor: SparseTensor,
    start: SiteState,
    request: RoundRequest,
    solver: SolverSettings,
    rng: np.random.Generator,
    began: float,
) -> tuple[SiteState, RoundMeasures]:
    """Fit a site's factors with `solve`, and measure the error and the time.

    `began` is the value of `time.perf_counter` when the site began its fit.
    """
    # Use one BLAS thread, because the result's last bits depend on the number of threads.
    with one_blas_thread:
        local = solve(tensor, start.factors, request.anchors, solver, rng, eta=start.eta)
    seconds = time.perf_counter() - began
    number, error = request.round, local.error
    # Only some rounds measure the error over the non-zero cells, which takes an additional pass.
    is_measured = number <= _ALL_FIRST or number % _ONE_OF == 0 or number == request.rounds
    if error is None or (error.nonzeros is None and is_measured):
        error = squared_error(tensor, local.factors, local.grams)
    return SiteState(number, local.factors, local.eta), RoundMeasures(number, error, seconds)


def scaled(tensor: SparseTensor, settings: SolverSettings) -> SparseTensor:
    """Set counts to 1 if the loss is binary. Scale patients to norm 1 if `scale` is "patient"."""
    tensor = losses.find(settings.loss).prepared(tensor)
    return tensor.scaled_to_unit_patients() if settings.scale == "patient" else tensor


def local_settings(request: RoundRequest, start: Factors) -> SolverSettings:
    """Return a round's solver settings. Convert a relative l2,1 weight to `mu`, using `start`."""
    solver = request.solver
    if not solvers.find(solver.solver).steps and solver.relative_l21 > 0:
        # Feature columns have norm 1, so the curvature is the patient columns' mean squared norm.
        mu = solver.relative_l21 * math.sqrt(curvature(start))
        solver = replace(solver, mu=mu, relative_l21=0.0)
    if solver.mu and request.round < (solver.mu_from_round or request.rounds // 2 + 1):
        solver = replace(solver, mu=0.0)
    return solver


def check_modes(request: RoundRequest, sizes: Sequence[int]) -> None:
    """Refuse a request with codes outside the vocabularies or with factors of the wrong size."""
    for mode, (positions, size) in enumerate(zip(request.selection, sizes, strict=False), start=1):
        if positions[-1] >= size:
            raise MessageError(f"selection: mode {mode} needs positions in [0, {size})")
    sizes_in_use = tuple(len(positions) for positions in request.selection) or tuple(sizes)
    received = tuple(len(anchor) for anchor in request.anchors)
    if received and received != sizes_in_use:
        raise MessageError(
            f"the run's feature modes have sizes {shown(received)}, this site's {sizes_in_use}: "
            "the vocabularies differ"
        )


def stream(request: RoundRequest, site: str) -> list[int]:
    """Derive a seed sequence for a site and round, using only public values."""
    name = int.from_bytes(hashlib.sha256(site.encode()).digest()[:8], "big")
    return [request.seed, name, request.round]
