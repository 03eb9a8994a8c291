"""The local objective, eq. (norm), and a solver's input and output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpfact_flower.settings import SolverSettings
from dpfact_flower.tensor import Array, Factors, SparseTensor
from dpfact_flower.tensor.cp import hadamard
from dpfact_flower.tensor.error import SquaredError


@dataclass(frozen=True, eq=False)
class LocalProblem:
    """A solver's read-only input, checked by `dpfact_flower.solver.solvers.solve`.

    `factors` are the starting values, patients first, and `anchors` the global feature factors.
    `rng` orders psgd's visits and draws its zero cells; the exact solver draws nothing. `eta` is
    the step size at the end of the previous round.
    """

    tensor: SparseTensor
    factors: Factors
    anchors: Factors
    settings: SolverSettings
    rng: np.random.Generator
    eta: float | None = None

    @property
    def step_size(self) -> float:
        """Initial step size: never above `settings.eta`, which the paper's bound assumes."""
        return self.settings.eta if self.eta is None else min(self.eta, self.settings.eta)


@dataclass(frozen=True)
class LocalResult:
    """A solver's output at one site."""

    factors: Factors
    """C-contiguous, patients first."""
    objective: tuple[float, ...]
    """Eq. (norm) at the start and after each of tau passes or iterations. With `nonnegative`, the
    start is taken after negative values are set to 0. With ``zeros="none"``, the loss covers the
    non-zero cells alone, because psgd then fits no others. For losses other than the squared one,
    the part of zero cells is estimated from a sample, see `psgd`."""
    eta: float
    """psgd: the next step size. exact: the given step size, which the solver does not use."""
    rollbacks: int
    """Passes of psgd that were undone and repeated with half the step size."""
    grams: tuple[Array, ...]
    """`gram` of every factor."""
    error: SquaredError | None = None
    """The factors' error, to 1e-6 of the data's ||X||^2, if the solver knows the error. psgd knows
    the error for squared losses only; exact knows only the error over all cells."""


def loss(norm_squared: float, inner: float, grams: Sequence[Array]) -> float:
    """``1/2 ||X - M||^2`` over all cells, from ||X||^2, <X, M> and every factor's `gram`."""
    return 0.5 * (norm_squared - 2 * inner + float(hadamard(grams).sum()))


def elastic(
    factors: Sequence[Array], anchors: Sequence[Array], visits: Sequence[Array] | None = None
) -> float:
    """``1/2 sum_n ||F[n] - F^[n]||^2``, with each row weighted by `visits` if given."""
    total = 0.0
    for n, (factor, anchor) in enumerate(zip(factors[1:], anchors, strict=True)):
        rows = np.square(factor.astype(np.float64) - anchor).sum(axis=1)
        total += float(rows.sum() if visits is None else rows @ visits[n])
    return 0.5 * total


def curvature(factors: Sequence[Array]) -> float:
    """Mean curvature of the squared error along a feature's row, over phenotypes and modes.

    In mode n the curvature is Q_rr, the product of the squared norms of the other modes' columns r.
    An elastic weight competes with this curvature. Unlike ||X||^2 / R, which ignores the model, the
    curvature is near 0 before phenotypes have formed: on long code lists a few millionths of
    ||X||^2 / R.
    """
    squares = [np.einsum("ir,ir->r", factor, factor, dtype=np.float64) for factor in factors]
    others = [
        np.prod(squares[:mode] + squares[mode + 1 :], axis=0) for mode in range(1, len(factors))
    ]
    return float(np.mean(others))


def group_norm(patients_gram: Array) -> float:
    """``||A^T||_{2,1}``, eq. (l21), from the Gram matrix of A."""
    return float(np.sqrt(np.diag(patients_gram)).sum())
