"""The local objective, and the input and output of a solver.

Labels such as (norm) name equations of the DPFact paper. The local objective is the paper's
equation (norm): the loss, plus mu times the `group_norm`, plus gamma times the `elastic` term.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpfact_flower.settings import SolverSettings
from dpfact_flower.tensor import Array, Factors, SparseTensor, SquaredError
from dpfact_flower.tensor.cp import hadamard


@dataclass(frozen=True, eq=False)
class LocalProblem:
    """A solver's read-only input, checked by `dpfact_flower.solver.solvers.solve`.

    `factors` holds the starting values, with the patients' factor first. `anchors` holds the global
    feature factors. The solver psgd uses `rng` to order visits and to draw zero cells. `eta` is the
    step size from the previous round.
    """

    tensor: SparseTensor
    factors: Factors
    anchors: Factors
    settings: SolverSettings
    rng: np.random.Generator
    eta: float | None = None

    @property
    def step_size(self) -> float:
        """Initial step size: the previous round's step size, but at most `settings.eta`."""
        return self.settings.eta if self.eta is None else min(self.eta, self.settings.eta)


@dataclass(frozen=True)
class LocalResult:
    """A solver's output at one site."""

    factors: Factors
    """C-contiguous factor matrices, the patients' factor first."""
    objective: tuple[float, ...]
    """Values of equation (norm) at the start (with negative entries set to 0 if `nonnegative`) and
    after each pass or iteration. If ``zeros="none"``, psgd's loss covers only the non-zero cells.
    For losses other than the squared loss, the sum over zero cells is estimated; see `psgd`."""
    eta: float
    """Step size for the next round. The exact solver neither uses nor changes the step size."""
    rollbacks: int = 0
    """Number of psgd passes that were undone and repeated with half the step size."""
    grams: tuple[Array, ...] = ()
    """Gram matrix of every factor, if known; see `dpfact_flower.tensor.cp.gram`."""
    error: SquaredError | None = None
    """Squared error, accurate to 1e-6 times ||X||^2. psgd returns an error only for the squared
    loss. The exact solver's error covers all cells, but not the non-zero cells separately."""


def squared_loss(norm_squared: float, inner: float, grams: Sequence[Array]) -> float:
    """Return ``1/2 ||X - M||^2`` for data X and a model M, given ||X||^2, <X, M> and `grams`."""
    return 0.5 * (norm_squared - 2 * inner + float(hadamard(grams).sum()))


def elastic(
    factors: Sequence[Array], anchors: Sequence[Array], visits: Sequence[Array] | None = None
) -> float:
    """Return half the squared distance of feature factors from anchors, weighted by `visits`."""
    total = 0.0
    for n, (factor, anchor) in enumerate(zip(factors[1:], anchors, strict=True)):
        rows = np.square(factor.astype(np.float64) - anchor).sum(axis=1)
        total += float(rows.sum() if visits is None else rows @ visits[n])
    return 0.5 * total


def curvature(factors: Sequence[Array]) -> float:
    """Return the mean curvature of the squared error with respect to a row of a feature factor.

    The mean is taken over phenotypes and feature modes. In mode n, the curvature for phenotype r is
    the product of the squared norms of column r in the other modes.
    """
    squares = [np.einsum("ir,ir->r", factor, factor, dtype=np.float64) for factor in factors]
    others = [
        np.prod(squares[:mode] + squares[mode + 1 :], axis=0) for mode in range(1, len(factors))
    ]
    return float(np.mean(others))


def group_norm(patients_gram: Array) -> float:
    """Return the sum of a factor's column norms, equation (l21), given the factor's Gram matrix."""
    return float(np.sqrt(np.diag(patients_gram)).sum())
