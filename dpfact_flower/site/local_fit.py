"""Fit a site's own model in a round of mode "none" or "paper", or after a run in patient mode."""

import math
import time
from dataclasses import replace

import numpy as np

from dpfact_flower.machine.threads import one_blas_thread
from dpfact_flower.settings import SolverSettings
from dpfact_flower.site.store import RoundMeasures, SiteState
from dpfact_flower.solver import solve
from dpfact_flower.solver.losses import losses
from dpfact_flower.solver.mttkrp import squared_error
from dpfact_flower.solver.objective import curvature
from dpfact_flower.solver.solvers import solvers
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.wire.protocol import RoundRequest

_MEASURED_FIRST, _MEASURED_EVERY = 2, 10


def solved(
    tensor: SparseTensor,
    start: SiteState,
    request: RoundRequest,
    solver: SolverSettings,
    rng: np.random.Generator,
    began: float,
) -> tuple[SiteState, RoundMeasures]:
    """Fit a site's factors with `solve`, and measure the error and the time.

    `began` is the value of `time.perf_counter` at the start of the fit.
    """
    # Use one BLAS thread, because the result's last bits depend on the number of threads.
    with one_blas_thread:
        local = solve(tensor, start.factors, request.anchors, solver, rng, eta=start.eta)
    seconds = time.perf_counter() - began
    number, error = request.round, local.error
    # Only some rounds measure the error over the non-zero cells, which takes an additional pass.
    is_first, is_last = number <= _MEASURED_FIRST, number == request.rounds
    is_measured = is_first or is_last or number % _MEASURED_EVERY == 0
    if error is None or (error.nonzeros is None and is_measured):
        data = error.data if error else None  # another sum of squares would need more memory
        error = squared_error(tensor, local.factors, local.grams, data)
    return SiteState(number, local.factors, local.eta), RoundMeasures(number, error, seconds)


def scaled(tensor: SparseTensor, settings: SolverSettings) -> SparseTensor:
    """Set counts to 1 for binary losses. Scale each patient to norm 1 if `scale` is "patient"."""
    tensor = losses.find(settings.loss).prepared(tensor)
    return tensor.scaled_to_unit_patients() if settings.scale == "patient" else tensor


def local_settings(request: RoundRequest, start: Factors) -> SolverSettings:
    """Return a round's solver settings. Use `start` to compute `mu` from a relative l2,1 weight."""
    solver = request.solver
    if not solvers.find(solver.solver).steps and solver.relative_l21 > 0:
        mu = solver.relative_l21 * math.sqrt(curvature(start))
        solver = replace(solver, mu=mu, relative_l21=0.0)
    if solver.mu and request.round < (solver.mu_from_round or request.rounds // 2 + 1):
        solver = replace(solver, mu=0.0)
    return solver
