"""The registry of local solvers, and `solve`, which checks a solver's input and runs the solver."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.machine.registry import Registry
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver.exact import exact
from dpfact_flower.solver.losses import Loss, losses
from dpfact_flower.solver.objective import LocalProblem, LocalResult, curvature
from dpfact_flower.solver.psgd import psgd
from dpfact_flower.tensor import Factors, SparseTensor

_SGD_PULL = 0.3
"""Fraction of `relative_elastic` that psgd applies. One pass of psgd moves the factors less than an
exact update does, so the full weight would be too strong. The fraction was tuned on the synthetic
demo data and on half of the eICU demo data."""


@dataclass(frozen=True)
class Solver:
    """A local solver, with the options that the solver supports."""

    compute: Callable[[LocalProblem], LocalResult]
    any_loss: bool = False
    """Whether the solver accepts losses other than squared errors."""
    steps: bool = False
    """Whether the solver takes a step of size eta at every visit to a cell. If so, the elastic
    weight applies to every visit to a row, and the DPFact paper's equation (global) gives the
    server's step. If not, `relative_l21` replaces `mu` as the l2,1 weight."""
    clips: bool = False
    """Whether `clip` bounds an entry's gradient for each factor, as paper mode requires."""
    pull: float = 1.0
    """Fraction of the relative elastic weight that the solver applies."""

    def check(self, settings: SolverSettings) -> None:
        """Refuse settings that the solver cannot use."""
        loss, name = losses.find(settings.loss), settings.solver
        if not (self.any_loss or loss.is_squared):
            raise SettingsError(
                f"loss: solver {name!r} minimises squared errors only; set solver to 'psgd' for "
                f"{settings.loss!r}"
            )
        loss.check(settings)
        if self.steps and settings.eta * settings.gamma >= 1:
            raise SettingsError(
                "eta * gamma must be below 1 for stable steps; "
                f"got {settings.eta:g} * {settings.gamma:g}"
            )
        if not self.steps and settings.mu > 0 and settings.relative_l21 > 0:
            raise SettingsError(
                f"mu: with solver {name!r}, relative-l21 = {settings.relative_l21:g} replaces mu; "
                "set one of the two to 0"
            )
        if settings.clip > 0 and not self.clips:
            raise SettingsError(f"clip: applies to psgd alone; set it to 0 with solver {name!r}")

    def elastic_weight(
        self, tensor: SparseTensor, factors: Factors, settings: SolverSettings
    ) -> float:
        """Return gamma, the weight of the local objective's elastic term.

        A relative weight is multiplied by the curvature of the loss. If the solver takes gradient
        steps and the loss is squared, the weight is also divided by the mean number of visits per
        row. With gradient steps of size eta, the weight is at most 1 / (2 eta).
        """
        if not settings.is_relative:
            return settings.gamma
        loss = losses.find(settings.loss)
        share = settings.relative_elastic * self.pull
        if not loss.is_squared:
            weight = share * _steepness(loss, tensor, factors)
        else:
            weight = share * curvature(factors)
            if not self.steps:
                return weight
            weight /= tensor.nnz / float(np.mean(tensor.feature_shape))
        return min(weight, 0.5 / settings.eta)


def _steepness(loss: Loss, tensor: SparseTensor, factors: Factors) -> float:
    """Return the mean curvature of a non-zero cell's loss with respect to a feature factor's row.

    The mean over phenotypes assumes that a single phenotype explains each cell exactly.
    """
    x, by = tensor.values.astype(np.float64), 1e-3
    slope = np.vectorize(loss.gradient, otypes=[float])  # a gradient takes only numbers
    counts, places = np.unique(x, return_inverse=True)  # few distinct counts, so `slope` is fast
    rise = (slope(counts, counts * (1 + by)) - slope(counts, counts * (1 - by)))[places]
    along = float(np.mean(rise * x)) / (2 * by)
    rows = [
        np.square(factor, dtype=np.float64).sum(axis=1)[tensor.indices[:, n]].mean()
        for n, factor in enumerate(factors) if n > 0
    ]  # fmt: skip
    return along / max(len(factors[0].T) * float(np.mean(rows)), float(np.finfo(np.float32).tiny))


solvers: Registry[Solver] = Registry(
    "solver",
    "dpfact_flower.solver.solvers",
    exact=Solver(exact),
    psgd=Solver(psgd, any_loss=True, steps=True, clips=True, pull=_SGD_PULL),
)
"""Solvers that a run config can name. A site can use only the solvers installed at the site."""


def solve(
    tensor: SparseTensor,
    factors: Factors,
    anchors: Factors,
    settings: SolverSettings,
    rng: np.random.Generator,
    *,
    eta: float | None = None,
) -> LocalResult:
    """Reduce a site's local objective in `settings.tau` passes.

    `LocalProblem` explains the arguments. `factors` and `anchors` may have any float type. Raise a
    `DivergenceError` if no step size reduces the objective.
    """
    if tensor.nnz == 0:
        raise DataError("tensor: holds no non-zero cells, so there is nothing to fit")
    start = _checked("factors", factors, tensor.shape, settings.rank)
    pulled_to = _checked("anchors", anchors, tensor.feature_shape, settings.rank)
    solver = solvers.find(settings.solver)
    solver.check(settings)
    settings = replace(settings, gamma=solver.elastic_weight(tensor, start, settings))
    return solver.compute(LocalProblem(tensor, start, pulled_to, settings, rng, eta))


def _checked(
    name: str, matrices: Sequence[NDArray[np.float32]], sizes: tuple[int, ...], rank: int
) -> Factors:
    needed, shapes = [(size, rank) for size in sizes], [np.shape(matrix) for matrix in matrices]
    if shapes != needed:
        raise DataError(f"{name}: need shapes {needed}, got {shapes}")
    with np.errstate(over="ignore"):
        checked = tuple(np.asarray(matrix, np.float32) for matrix in matrices)
    if not all(np.isfinite(matrix).all() for matrix in checked):
        raise DataError(f"{name}: not all values are finite (float32)")
    return checked
