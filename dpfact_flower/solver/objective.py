"""The local objective, eq. (norm), and what a solver returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpfact_flower.tensor import Array, Factors
from dpfact_flower.tensor.cp import hadamard
from dpfact_flower.tensor.error import SquaredError


@dataclass(frozen=True)
class LocalResult:
    """Outcome of a solver's call at one site.

    Attributes
    ----------
    factors : tuple of N ndarrays of float32, each (I_n, R), C-contiguous
        Patients first. New arrays; what went in is left alone.
    objective : tuple of float, length tau + 1
        Eq. (norm) at the start and after each pass or iteration, in float64. The start is taken
        after negative values are set to 0 when `nonnegative` asks for it. With ``zeros="none"`` the
        squared error is that of the non-zero cells alone, because psgd then fits no others.
    eta : float
        psgd: the step size to continue with. exact: what it was given, since it takes no steps.
    rollbacks : int
        Passes of psgd that were undone and tried again with half the step size.
    grams : tuple of N ndarrays of float64, each (R, R)
        `gram` of every factor.
    error : SquaredError or None
        Of the factors, to 1e-6 of the data's ||X||^2, where the solver knows it: psgd does, exact
        would need another pass.
    """

    factors: Factors
    objective: tuple[float, ...]
    eta: float
    rollbacks: int
    grams: tuple[Array, ...]
    error: SquaredError | None = None


def loss(norm_squared: float, inner: float, grams: Sequence[Array]) -> float:
    """``1/2 ||X - M||^2`` over all cells.

    Parameters
    ----------
    norm_squared, inner : float
        ||X||^2 and <X, M>.
    grams : sequence of N ndarrays, each (R, R)
        `gram` of every factor.
    """
    return 0.5 * (norm_squared - 2 * inner + float(hadamard(grams).sum()))


def elastic(
    factors: Sequence[Array], anchors: Sequence[Array], visits: Sequence[Array] | None = None
) -> float:
    """``1/2 sum_n ||F[n] - F^[n]||^2``, each row weighted by `visits` where given.

    Parameters
    ----------
    factors : sequence of N ndarrays, patients first
    anchors : sequence of N - 1 ndarrays
    visits : sequence of N - 1 ndarrays, each (I_n,)
    """
    total = 0.0
    for n, (factor, anchor) in enumerate(zip(factors[1:], anchors, strict=True)):
        rows = np.square(factor.astype(np.float64) - anchor).sum(axis=1)
        total += float(rows.sum() if visits is None else rows @ visits[n])
    return 0.5 * total


def group_norm(patients_gram: Array) -> float:
    """``||A^T||_{2,1}``, eq. (l21), from the Gram matrix of A."""
    return float(np.sqrt(np.diag(patients_gram)).sum())
