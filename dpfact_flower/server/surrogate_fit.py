"""Fit of the start's factors to surrogate patients, from several sets of initial factors.

Surrogates are made up from noisy counts, so the fit costs no privacy (docs/explanation/start.md).
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.estimation.certainty import Half, half_patients, halves
from dpfact_flower.estimation.start import Start
from dpfact_flower.estimation.surrogates import surrogates_of
from dpfact_flower.machine.threads import in_order, thread_count
from dpfact_flower.privacy.patient.pairs import CROSS
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver import solve
from dpfact_flower.tensor import Factors, SparseTensor

_logger = logging.getLogger(__name__)
_RANDOM = 16
"""Number of random initial factors, in addition to the start's factors."""
_FEW, _MANY = 40_000, 60_000
"""Number of surrogates for comparing initial factors, and for the last fit."""
_PASSES, _HALF_PASSES = 40, 30
"""Passes of the solver for the comparison and the last fit, and for one half of a split."""
_LEAST = 1e-6
"""Value added to every entry, so that no column is empty."""


def fitted_to_surrogates(
    start: Start, releases: Sequence[NDArray[np.float32]], sigma: float, rng: np.random.Generator
) -> Factors:
    """Return the factors that explain surrogates best, or the start's without surrogates.

    `start` was computed from `releases`, one release per site, with noise of standard deviation
    `sigma` on each value. Factors are positive, and their columns have norm 1.
    """
    surrogates = surrogates_of(releases, start, sigma, CROSS, rng, number=_MANY)
    if surrogates is None:
        return start.factors
    few = _scaled(surrogates, _FEW)
    shapes = [factor.shape for factor in start.factors]
    beginnings = [start.factors]
    beginnings += [_unit([rng.random(shape) for shape in shapes]) for _ in range(_RANDOM)]
    seeded = list(zip(beginnings, rng.spawn(len(beginnings)), strict=True))
    fits = list(in_order(lambda initial: _fit(few, *initial), seeded, threads=thread_count()))
    best, explained = max(fits, key=lambda fitted: fitted[1])  # the first, if several are equal
    _logger.info(
        "start: fitted to surrogate patients; explains %.4g of them, other attempts %s",
        explained, ", ".join(f"{other:.4g}" for factors, other in fits if factors is not best),
    )  # fmt: skip
    return _fit(_scaled(surrogates, _MANY), best, rng)[0]


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
    `counts` are the `typical_counts`.
    """

    def fitted(seeded: tuple[Half, np.random.Generator]) -> Factors:
        half, own = seeded
        begun = _unit([own.random((size, rank)) for size in sizes])
        patients = half_patients(half, counts, sizes, rank, own)
        if not patients.nnz:
            return begun
        return _fit(_scaled(patients, patients.n_patients), begun, own, _HALF_PASSES)[0]

    found = halves(releases, sum(sizes), sigma, rng)
    seeded = ((half, rng.spawn(1)[0]) for half in found)
    models = list(in_order(fitted, seeded, threads=thread_count()))
    return tuple(np.stack(factors) for factors in zip(*models, strict=True))


def _scaled(surrogates: SparseTensor, number: int) -> SparseTensor:
    """Return the first `number` surrogates that have cells, each scaled to norm 1."""
    alive = np.unique(surrogates.indices[:, 0])[:number]
    return surrogates.select_patients(alive).scaled_to_unit_patients()


def _fit(
    tensor: SparseTensor, factors: Factors, rng: np.random.Generator, passes: int = _PASSES
) -> tuple[Factors, float]:
    """Fit feature factors. Return the factors and the share of the tensor that they explain."""
    rank = factors[0].shape[1]
    patients = rng.random((tensor.n_patients, rank), dtype=np.float32)
    settings = SolverSettings(rank=rank, tau=passes, gamma=0.0)
    result = solve(tensor, (patients, *factors), factors, settings, rng)
    return _unit(result.factors[1:]), 1 - 2 * result.objective[-1] / tensor.norm_squared()


def _unit(factors: Sequence[NDArray[np.floating[Any]]]) -> Factors:
    positive = [factor.astype(np.float64) + _LEAST for factor in factors]
    return tuple((f / np.linalg.norm(f, axis=0)).astype(np.float32) for f in positive)
