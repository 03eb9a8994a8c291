"""The local objective, eq. (norm), and what a solver is given and returns."""

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
    """What a solver is given, checked by `dpfact_flower.solver.solvers.solve`; it is left alone.

    `factors` is where to start, patients first, and `anchors` are the global feature factors. `rng`
    orders psgd's visits and draws its zero cells; exact draws nothing. `eta` is the step size that
    the previous round ended with.
    """

    tensor: SparseTensor
    factors: Factors
    anchors: Factors
    settings: SolverSettings
    rng: np.random.Generator
    eta: float | None = None

    @property
    def step_size(self) -> float:
        """Step size to start from: never above `settings.eta`, on which the paper's bound rests."""
        return self.settings.eta if self.eta is None else min(self.eta, self.settings.eta)


@dataclass(frozen=True)
class LocalResult:
    """Outcome of a solver's call at one site."""

    factors: Factors
    """C-contiguous, patients first."""
    objective: tuple[float, ...]
    """Eq. (norm) at the start and after each of tau passes or iterations. The start is taken after
    negative values are set to 0 when `nonnegative` asks for it. With ``zeros="none"`` the loss is
    that of the non-zero cells alone, because psgd then fits no others. Of losses but the squared
    one, the part of zero cells is estimated from a sample, see `psgd`."""
    eta: float
    """psgd: the step size to continue with. exact: what it was given, since it takes no steps."""
    rollbacks: int
    """Passes of psgd that were undone and tried again with half the step size."""
    grams: tuple[Array, ...]
    """`gram` of every factor."""
    error: SquaredError | None = None
    """Of the factors, to 1e-6 of the data's ||X||^2, where the solver knows it: psgd does where it
    minimises it, exact of all cells alone."""


def loss(norm_squared: float, inner: float, grams: Sequence[Array]) -> float:
    """``1/2 ||X - M||^2`` over all cells, from ||X||^2, <X, M> and every factor's `gram`."""
    return 0.5 * (norm_squared - 2 * inner + float(hadamard(grams).sum()))


def elastic(
    factors: Sequence[Array], anchors: Sequence[Array], visits: Sequence[Array] | None = None
) -> float:
    """``1/2 sum_n ||F[n] - F^[n]||^2``, each row weighted by `visits` where given."""
    total = 0.0
    for n, (factor, anchor) in enumerate(zip(factors[1:], anchors, strict=True)):
        rows = np.square(factor.astype(np.float64) - anchor).sum(axis=1)
        total += float(rows.sum() if visits is None else rows @ visits[n])
    return 0.5 * total


def curvature(factors: Sequence[Array]) -> float:
    """How steeply the squared error rises with a feature's row: mean over phenotypes and modes.

    In mode n it is Q_rr, the product of the squared norms of the other modes' columns r. That is
    what an elastic weight is up against. Beside ||X||^2 / R, which knows no model, it is the part
    of the data that the model has: on long lists a few in a million before phenotypes have formed.
    """
    squares = [np.einsum("ir,ir->r", factor, factor, dtype=np.float64) for factor in factors]
    others = [
        np.prod(squares[:mode] + squares[mode + 1 :], axis=0) for mode in range(1, len(factors))
    ]
    return float(np.mean(others))


def group_norm(patients_gram: Array) -> float:
    """``||A^T||_{2,1}``, eq. (l21), from the Gram matrix of A."""
    return float(np.sqrt(np.diag(patients_gram)).sum())
