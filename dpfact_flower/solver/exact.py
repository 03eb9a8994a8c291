"""Minimise the local objective by exact updates over all cells, without sampling or step sizes.

One iteration updates each factor once. Every update minimises the objective over one column or one
factor, so the objective never rises. Each update uses the MTTKRP of the factor's mode (`product`),
the Hadamard product of the other factors' Gram matrices (`q`), and the smallest allowed value
(`floor`). The floor is 0 for non-negative factors, and minus infinity otherwise.

If a phenotype's column of the patients' factor A becomes zero, the phenotype's feature columns
depend only on the anchors (the global factors), and no longer on the data. A zero column of A stays
zero unless the norm of the column's gradient exceeds the l2,1 weight (mu).
"""

import math

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dpfact_flower.errors import DivergenceError
from dpfact_flower.machine.compiled import compiled
from dpfact_flower.machine.threads import one_blas_thread
from dpfact_flower.solver.kernels.patients import LEAST_CURVATURE, update_rows
from dpfact_flower.solver.mttkrp import Fibres, mttkrp, stacked_mttkrp
from dpfact_flower.solver.objective import (
    LocalProblem,
    LocalResult,
    elastic,
    group_norm,
    squared_loss,
)
from dpfact_flower.tensor import Array, Factors, SparseTensor, SquaredError
from dpfact_flower.tensor.cp import gram, hadamard
from dpfact_flower.tensor.stack import stack_factors

_SWEEPS = 2
"""Number of column sweeps over a feature factor per MTTKRP, which takes far longer than a sweep."""
_PATIENT_SWEEPS = 4
"""Number of column sweeps over A per MTTKRP. With fewer sweeps, A stays far from its optimum, and
the feature factors may split one phenotype into several."""
_REFIT_SWEEPS = 30
"""Number of column sweeps over A that suffice for convergence if the feature factors are fixed."""
_PANEL = 8  # number of columns whose gradients are computed by one matrix product
_RTOL = 1e-6
"""Eigenvalues below this fraction of a Gram matrix's largest eigenvalue are treated as 0, because
sums in float32 have no higher precision."""


def exact(problem: LocalProblem) -> LocalResult:
    """Solve a local problem by block coordinate descent."""
    state = _State(problem)
    trace, after = [state.objective(0.0)], 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for iteration in range(problem.settings.tau):
            before, after = state.iterate()
            if iteration == 0:  # trace[0] was computed with <X, M> = 0
                trace[0] -= before
            trace.append(state.objective(after))
            if not math.isfinite(trace[0]) or not math.isfinite(trace[-1]):
                raise DivergenceError(
                    f"exact: the objective is not finite after {iteration + 1} iterations; "
                    "the factors are too large for float32"
                )
    factors = tuple(factor.copy() for factor in state.factors)
    # Errors on the non-zeros would cost another pass.
    everywhere = 2 * squared_loss(state.norm_squared, after, state.grams)
    error = SquaredError.on(problem.tensor, everywhere, None, state.norm_squared)
    return LocalResult(factors, tuple(trace), problem.step_size, 0, tuple(state.grams), error)


class _State:
    """The data, factors, Gram matrices and constants of one call of `exact`."""

    def __init__(self, problem: LocalProblem) -> None:
        self.anchors, self.settings = problem.anchors, problem.settings
        self.floor = 0.0 if self.settings.nonnegative else -math.inf
        self.fibres = Fibres.of(problem.tensor)
        self.norm_squared = problem.tensor.norm_squared()
        self.stack = stack_factors(problem.factors)
        np.maximum(self.stack, np.float32(self.floor), out=self.stack)
        self.factors = np.split(self.stack[:, : self.settings.rank], self.fibres.offsets[1:-1])
        self.grams = [gram(factor) for factor in self.factors]

    def objective(self, inner: float) -> float:
        """Return the objective. `inner` is the inner product of the data and the model."""
        value = squared_loss(self.norm_squared, inner, self.grams)
        value += self.settings.mu * group_norm(self.grams[0])
        return value + self.settings.gamma * elastic(self.factors, self.anchors)

    def iterate(self) -> tuple[float, float]:
        """Update every factor. Return the data's inner products with the old and the new model."""
        product, before = self._patients()
        for n, factor in enumerate(self.factors[1:], start=1):
            if n > 1:
                product = self._mttkrp(n)
            anchor, gamma = self.anchors[n - 1], self.settings.gamma
            factor[:] = update_features(factor, product, self._others(n), anchor, gamma, self.floor)
            self.grams[n] = gram(factor)
        return before, _inner(product, self.factors[-1])

    def _patients(self) -> tuple[Array, float]:
        """Update A. Return mode 1's new MTTKRP, and the data's inner product with the old model."""
        mu, q = self.settings.mu, self._others(0)
        if mu == 0:
            product, before, self.grams[0] = update_rows(
                self.fibres, self.stack, q, floor=self.floor, sweeps=_PATIENT_SWEEPS
            )
            if len(self.factors) > 2:
                return product[:, : len(q)], before
        else:
            A, product = self.factors[0], self._mttkrp(0)
            before = _inner(product, A)
            A[:] = update_patients(A, product, q, mu, self.floor, sweeps=_PATIENT_SWEEPS)
            self.grams[0] = gram(A)
        return self._mttkrp(1), before

    def _mttkrp(self, mode: int) -> Array:
        return stacked_mttkrp(self.fibres, self.stack, mode)[:, : self.settings.rank]

    def _others(self, mode: int) -> NDArray[np.float64]:
        return hadamard(self.grams[:mode] + self.grams[mode + 1 :])


def _inner(product: Array, factor: Array) -> float:
    return float(np.einsum("ir,ir->", product, factor, dtype=np.float64))


def update_patients(
    A: Array, product: Array, q: Array, mu: float, floor: float, *, sweeps: int = 1
) -> NDArray[np.float32]:
    """Minimise the objective over each column of the patients' factor A in turn, `sweeps` times."""
    columns = np.array(A.T, np.float32, order="C")
    target, weights = np.array(product.T, np.float32, order="C"), q.astype(np.float32)
    for _ in range(sweeps):
        descend(columns, target, weights, mu, floor)
    return np.array(columns.T, np.float32, order="C")


def fitted_patients(
    tensor: SparseTensor, features: Factors, *, nonnegative: bool = True
) -> NDArray[np.float32]:
    """Fit all patients' rows by least squares, with the feature factors fixed."""
    patients = np.zeros((tensor.n_patients, features[0].shape[1]), np.float32)
    floor = 0.0 if nonnegative else -np.inf
    with one_blas_thread:
        product = mttkrp(tensor, (patients, *features), 0)
        weights = hadamard([gram(factor) for factor in features])
        return update_patients(patients, product, weights, 0.0, floor, sweeps=_REFIT_SWEEPS)


def update_features(
    factor: Array, product: Array, q: Array, anchor: Array, gamma: float, floor: float
) -> NDArray[np.float32]:
    """Minimise the objective over one feature factor.

    If `floor` is 0, minimise over one column at a time. If `floor` is minus infinity, compute the
    ridge solution as a correction to `factor`. If the linear system is singular, the correction
    leaves the part of `factor` in the system's null space unchanged.
    """
    target = product + gamma * anchor
    system = q + gamma * np.eye(len(q))
    if not math.isfinite(floor):
        F = factor.astype(np.float64)
        if np.isfinite(system).all():
            F += (target - F @ system) @ scipy.linalg.pinvh(system, rtol=_RTOL)
        return F.astype(np.float32)
    columns = np.array(factor.T, np.float64, order="C")
    target = np.array(target.T, order="C")
    for _ in range(_SWEEPS):
        descend(columns, target, system, 0.0, floor)
    return np.array(columns.T, np.float32, order="C")


def descend(columns: Array, target: Array, q: Array, mu: float, floor: float) -> None:
    """Reduce the objective, as a function of one factor, in one sweep over the factor's columns.

    The objective has curvature `q`, gradient ``-target`` at 0, and an l2,1 penalty with weight
    `mu`. Each row of `columns` and `target` belongs to one column of the factor. `columns` is
    updated in place. All arrays are float32, or all are float64. Each step finds the exact minimum
    over one column. One matrix product gives the gradients of a panel (a group of columns). Each
    step then corrects the gradients of the panel's remaining columns.

    If a diagonal entry of `q` is almost 0, the column has no effect on the model. The column then
    becomes zero if `mu` is positive, and stays unchanged if `mu` is 0.
    """
    for first in range(0, len(columns), _PANEL):
        panel = slice(first, first + _PANEL)
        gradient = q[panel] @ columns
        np.subtract(target[panel], gradient, out=gradient)
        _descend_panel(columns, gradient, q, first, mu, floor)


@compiled(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def _descend_panel(
    columns: Array, gradient: Array, q: Array, first: int, mu: float, floor: float
) -> None:
    """Update a panel. `gradient` must contain the panel's rows of ``target - q @ columns``."""
    real = columns.dtype.type
    rows = columns.shape[1]
    least = real(floor)
    for here in range(len(gradient)):
        r = first + here
        step = real(0)
        if q[r, r] > LEAST_CURVATURE:
            step = real(1 / q[r, r])
        elif mu <= 0:
            continue
        squares = 0.0
        for p in range(rows):
            best = columns[r, p] + step * gradient[here, p]
            best = least if best < least else best  # this form keeps NaN
            gradient[here, p] = best  # the gradient is no longer needed; keep the column here
            squares += np.float64(best * best)
        keep = real(1)
        if mu > 0:  # eq. (an2)
            norm = np.sqrt(squares)
            keep = real(max(norm - mu / q[r, r], 0.0) / norm) if step > 0 and norm > 0 else real(0)
        for p in range(rows):
            new = keep * gradient[here, p]
            gradient[here, p] = new - columns[r, p]
            columns[r, p] = new
        for later in range(here + 1, len(gradient)):
            pull = q[first + later, r]
            for p in range(rows):
                gradient[later, p] -= pull * gradient[here, p]
