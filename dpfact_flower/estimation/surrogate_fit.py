"""Improve a run's initial factors by fitting them to surrogate patients.

The server draws surrogate patients from released counts, so the fits have no privacy cost.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.estimation.start import Start, positive_columns
from dpfact_flower.estimation.surrogates import surrogates_of
from dpfact_flower.machine.threads import in_order
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver import solve
from dpfact_flower.solver.losses import losses
from dpfact_flower.tensor import Array, Factors, SparseTensor

_logger = logging.getLogger(__name__)
_FEW, _MANY = 40_000, 60_000
"""Number of surrogate patients for comparing initial factors, and number for the final fit."""
_PASSES = 40  # of the solver, in a fit
_NORM = 2.0
"""Norm of initial columns for likelihoods. A norm of 1 fitted worse on Diabetes-130 and NHDS."""
_RANDOM, _RANDOM_OF_LIKELIHOOD = 16, 2
"""Numbers of random initial factors also tried, for squared errors and for likelihoods."""
LEAST_SQUARES = SolverSettings(gamma=0.0)


def fit_settings(solver: SolverSettings) -> SolverSettings:
    """Return the solver settings for fits to surrogate patients."""
    if losses.find(solver.loss).is_squared:
        return LEAST_SQUARES
    return replace(solver, solver="psgd", scale="counts", gamma=0.0, mu=0.0)


def fitted_to_surrogates(
    start: Start, releases: Sequence[NDArray[np.float32]], sigma: float, rng: np.random.Generator,
    by: SolverSettings = LEAST_SQUARES,
) -> Factors:  # fmt: skip
    """Return factors fitted to surrogate patients, or `start.factors` if there are no surrogates.

    `start` was computed from `releases`, which has one release per site. Each released value has
    noise of standard deviation `sigma`. The result has positive entries and columns of norm 1.
    """
    # For squared errors, draw no surrogates if patients have many cells: fits would not help.
    squared = losses.find(by.loss).is_squared
    surrogates = surrogates_of(releases, start, sigma, rng, number=_MANY, any_cells=not squared)
    if surrogates is None:
        return start.factors
    few = solver_input(surrogates, _FEW, by)
    shapes = [factor.shape for factor in start.factors]
    beginnings = [start.factors]
    number = _RANDOM if squared else _RANDOM_OF_LIKELIHOOD
    beginnings += [positive_columns([rng.random(shape) for shape in shapes]) for _ in range(number)]
    seeded = list(zip(beginnings, rng.spawn(len(beginnings)), strict=True))
    fits = list(in_order(lambda initial: fit_factors(few, *initial, by), seeded))
    best, explained = max(fits, key=lambda fitted: fitted[1])  # the first, if several are equal
    _logger.info(
        "start: fitted to surrogate patients; explains %.4g of them, other attempts %s",
        explained, ", ".join(f"{other:.4g}" for factors, other in fits if factors is not best),
    )  # fmt: skip
    return fit_factors(solver_input(surrogates, _MANY, by), best, rng, by)[0]


def solver_input(surrogates: SparseTensor, number: int, by: SolverSettings) -> SparseTensor:
    """Return the solver's input: the first `number` surrogate patients with a non-zero cell."""
    alive = np.unique(surrogates.indices[:, 0])[:number]
    tensor = losses.find(by.loss).prepared(surrogates.select_patients(alive))
    return tensor.scaled_to_unit_patients() if by.scale == "patient" else tensor


def _lengthened(tensor: SparseTensor, patients: Array, factors: Factors) -> Factors:
    """Raise tiny values of `factors`, and scale `patients` to match the row sums of `tensor`."""
    wide = [factor / factor.sum(axis=0) + 1 / len(factor) for factor in factors]
    wide = [_NORM * factor / np.linalg.norm(factor, axis=0) for factor in wide]
    mass = patients @ np.prod([factor.sum(axis=0) for factor in wide], axis=0)
    sums = np.bincount(tensor.indices[:, 0], tensor.values, tensor.n_patients)
    return (patients * (sums / mass)[:, None], *wide)


def fit_factors(
    tensor: SparseTensor, factors: Factors, rng: np.random.Generator, by: SolverSettings,
    passes: int = _PASSES,
) -> tuple[Factors, float]:  # fmt: skip
    """Return fitted feature factors, and 1 - (their loss) / (a constant model's loss)."""
    rank = factors[0].shape[1]
    patients = rng.random((tensor.n_patients, rank), dtype=np.float32)
    loss, initial = losses.find(by.loss), (patients, *factors)
    if not loss.is_squared:
        initial = _lengthened(tensor, patients, factors)
    result = solve(tensor, initial, initial[1:], replace(by, rank=rank, tau=passes), rng)
    return positive_columns(result.factors[1:]), 1 - result.objective[-1] / loss.of_nothing(tensor)
