"""Improve the first factors of a run by fitting them to surrogate patients.

Surrogates are generated from noisy counts, so the fit costs no privacy (docs/explanation/start.md).
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.estimation.certainty import Half, half_patients, halves
from dpfact_flower.estimation.start import Start
from dpfact_flower.estimation.surrogates import surrogates_of
from dpfact_flower.machine.threads import in_order, thread_count
from dpfact_flower.privacy.patient.pairs import CROSS
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver import solve
from dpfact_flower.solver.losses import losses
from dpfact_flower.tensor import Array, Factors, SparseTensor

_logger = logging.getLogger(__name__)
_FEW, _MANY = 40_000, 60_000
"""Number of surrogates for comparing initial factors, and for the last fit."""
_PASSES, _HALF_PASSES = 40, 30
"""Passes of the solver for the comparison and the last fit, and for one half of a split."""
_NORM = 2.0
"""Norm of a likelihood's initial columns. Norms of 1 fit Diabetes-130 and NHDS worse."""
_LEAST = 1e-6
"""Value added to every entry, so that no column is empty."""


class LeastSquares:
    """A fit by exact updates. Each surrogate is scaled to norm 1."""

    settings = SolverSettings(gamma=0.0)
    random = 16
    """Number of random initial factors, in addition to the start's factors."""
    any_cells = False
    """Whether patients may have any number of cells. With many cells, the start is good enough."""

    def prepared(self, surrogates: SparseTensor) -> SparseTensor:
        """Return the tensor to which the factors are fitted."""
        return surrogates.scaled_to_unit_patients()

    def initial(self, tensor: SparseTensor, patients: Array, factors: Factors) -> Factors:
        """Return initial factors, given random `patients` and `factors` with columns of norm 1."""
        return (patients, *factors)


class Likelihood:
    """A fit by psgd, with any loss. Surrogates are not scaled."""

    random = 2
    any_cells = True

    def __init__(self, solver: SolverSettings) -> None:
        self.settings = replace(solver, solver="psgd", scale="counts", gamma=0.0, mu=0.0)

    def prepared(self, surrogates: SparseTensor) -> SparseTensor:
        """Return the tensor to which the factors are fitted."""
        return losses.find(self.settings.loss).prepared(surrogates)

    def initial(self, tensor: SparseTensor, patients: Array, factors: Factors) -> Factors:
        """Return factors without tiny entries. The model has the same patient sums as `tensor`.

        Columns have norm `_NORM`, because psgd's steps work well for factors of similar lengths.
        """
        wide = [factor / factor.sum(axis=0) + 1 / len(factor) for factor in factors]
        wide = [_NORM * factor / np.linalg.norm(factor, axis=0) for factor in wide]
        mass = patients @ np.prod([factor.sum(axis=0) for factor in wide], axis=0)
        sums = np.bincount(tensor.indices[:, 0], tensor.values, tensor.n_patients)
        return (patients * (sums / mass)[:, None], *wide)


Fit: TypeAlias = LeastSquares | Likelihood
_LEAST_SQUARES = LeastSquares()


def fit_of(solver: SolverSettings) -> Fit:
    """Return the fit for the loss in the settings."""
    return _LEAST_SQUARES if losses.find(solver.loss).is_squared else Likelihood(solver)


def fitted_to_surrogates(
    start: Start, releases: Sequence[NDArray[np.float32]], sigma: float, rng: np.random.Generator,
    by: Fit = _LEAST_SQUARES,
) -> Factors:  # fmt: skip
    """Return the factors that best explain the surrogates, or `start.factors` if there are none.

    `start` was computed from `releases`, one release per site. The noise on each value has standard
    deviation `sigma`. Factors are positive, and their columns have norm 1.
    """
    surrogates = surrogates_of(
        releases, start, sigma, CROSS, rng, number=_MANY, any_cells=by.any_cells
    )
    if surrogates is None:
        return start.factors
    few = _prepared(surrogates, _FEW, by)
    shapes = [factor.shape for factor in start.factors]
    beginnings = [start.factors]
    beginnings += [_unit([rng.random(shape) for shape in shapes]) for _ in range(by.random)]
    seeded = list(zip(beginnings, rng.spawn(len(beginnings)), strict=True))
    fits = list(in_order(lambda initial: _fit(few, *initial, by), seeded, threads=thread_count()))
    best, explained = max(fits, key=lambda fitted: fitted[1])  # the first, if several are equal
    _logger.info(
        "start: fitted to surrogate patients; explains %.4g of them, other attempts %s",
        explained, ", ".join(f"{other:.4g}" for factors, other in fits if factors is not best),
    )  # fmt: skip
    return _fit(_prepared(surrogates, _MANY, by), best, rng, by)[0]


def fitted_to_halves(
    releases: Sequence[NDArray[np.float32]],
    counts: Sequence[float],
    sizes: Sequence[int],
    rank: int,
    sigma: float,
    rng: np.random.Generator,
) -> Factors:
    """Fit a model to each half of the releases, from random initial factors.

    The halves have independent noise. The result has one array per mode, of shape (fits, codes, R).
    `counts` is the result of `typical_counts`.
    """

    def fitted(seeded: tuple[Half, np.random.Generator]) -> Factors:
        half, own = seeded
        begun = _unit([own.random((size, rank)) for size in sizes])
        patients = half_patients(half, counts, sizes, rank, own)
        if not patients.nnz:
            return begun
        patients = _prepared(patients, patients.n_patients, _LEAST_SQUARES)
        return _fit(patients, begun, own, _LEAST_SQUARES, _HALF_PASSES)[0]

    found = halves(releases, sum(sizes), sigma, rng)
    seeded = ((half, rng.spawn(1)[0]) for half in found)
    models = list(in_order(fitted, seeded, threads=thread_count()))
    return tuple(np.stack(factors) for factors in zip(*models, strict=True))


def _prepared(surrogates: SparseTensor, number: int, by: Fit) -> SparseTensor:
    """Prepare the first `number` surrogates with at least one non-zero cell."""
    alive = np.unique(surrogates.indices[:, 0])[:number]
    return by.prepared(surrogates.select_patients(alive))


def _fit(
    tensor: SparseTensor, factors: Factors, rng: np.random.Generator, by: Fit,
    passes: int = _PASSES,
) -> tuple[Factors, float]:  # fmt: skip
    """Fit feature factors. Also return the fraction by which they lower a constant model's loss."""
    rank = factors[0].shape[1]
    patients = rng.random((tensor.n_patients, rank), dtype=np.float32)
    settings = replace(by.settings, rank=rank, tau=passes)
    initial = by.initial(tensor, patients, factors)
    result = solve(tensor, initial, initial[1:], settings, rng)
    nothing = losses.find(settings.loss).of_nothing(tensor)
    return _unit(result.factors[1:]), 1 - result.objective[-1] / nothing


def _unit(factors: Sequence[NDArray[np.floating[Any]]]) -> Factors:
    positive = [factor.astype(np.float64) + _LEAST for factor in factors]
    return tuple((f / np.linalg.norm(f, axis=0)).astype(np.float32) for f in positive)
