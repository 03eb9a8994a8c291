"""Permutation SGD, the DPFact paper's local solver (Algorithm 1), with an adaptive step size.

Every visit to an entry (a non-zero cell) pulls the entry's feature rows towards the anchors (the
global factors). In the objective of a pass, a row's elastic term is therefore weighted by gamma
times the number of entries in that row. In the local objective, each elastic term has weight gamma.

A pass is undone if both the local objective and the objective of the pass rise, or if the objective
of the pass is not finite. With a positive `clip`, a pass is accepted despite higher objectives if
its loss does not exceed a constant model's loss (`Loss.of_nothing`). The solver repeats an undone
pass with half the step size. After an accepted pass, the step size grows by 5 %. A small step
lowers the objective of the pass, but may raise the local objective far from the anchors.

For squared errors, the loss over all cells is computed from Gram matrices. For other losses, the
loss over non-zero cells is computed exactly. Over zero cells, the loss's linear term is computed
exactly, and its other terms are estimated from a sample that `psgd` draws once.

If `clip` is 0, the solver limits and scales the steps for losses other than squared errors.
Gradients of losses with a logarithm are large where the model is close to zero. Each row's step is
therefore limited to sqrt(eta), the length of an implicit gradient step from 0 with step size eta.
Patients' rows are longer than feature rows and are visited less often. The solver therefore
lengthens the steps of patients' rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpfact_flower.errors import DivergenceError
from dpfact_flower.solver.kernels import sgd
from dpfact_flower.solver.kernels.order import Visits, entries_by_row, visits, zero_visits
from dpfact_flower.solver.kernels.sgd import Step
from dpfact_flower.solver.losses import Loss, losses
from dpfact_flower.solver.mttkrp import entry_sums
from dpfact_flower.solver.objective import (
    LocalProblem,
    LocalResult,
    elastic,
    group_norm,
    squared_loss,
)
from dpfact_flower.tensor import Array, SquaredError
from dpfact_flower.tensor.cp import gram
from dpfact_flower.tensor.stack import row_offsets, stack_factors, stacked_values

_GROWTH = 1.05
_MAX_HALVINGS = 40
_PART = 1 << 16  # number of cells whose losses are summed at a time


@dataclass(frozen=True)
class Value:
    """Objective values at the current factors."""

    squares: float  # over the non-zeros; `squares` and `inner` are set for squared errors only
    inner: float  # <X, M>
    patients_gram: Array  # of the patients' factor A
    loss: float  # the fitted loss
    objective: float  # eq. (norm)
    pass_objective: float  # with elastic terms weighted by visits


def psgd(problem: LocalProblem) -> LocalResult:
    """Solve a local problem by permutation SGD.

    The proximal step can set a column of the patients' factor to zero. A zero column stays zero
    unless a pass's gradient steps move it by more than eta * mu (step size times l2,1 weight).
    """
    settings = problem.settings
    state = _State(problem)
    np.maximum(state.stack, np.float32(state.floor), out=state.stack)
    filled, padding = np.split(state.stack, [settings.rank], axis=1)
    before = np.empty_like(filled)
    values = [state.value()]
    step_size, rollbacks = problem.step_size, 0
    for _ in range(settings.tau):
        before[:], first = filled, step_size
        while True:
            with np.errstate(over="ignore", invalid="ignore"):  # a diverged pass is undone
                state.run_pass(before, step_size)
            now = state.value()
            if state.accepts(now, values[-1]):
                break
            if step_size < first * 0.5**_MAX_HALVINGS:
                raise DivergenceError(
                    f"psgd: the objective rises at every step size from {first:g} "
                    f"down to {step_size:g}"
                )
            filled[:], padding[:] = before, 0.0  # a diverged pass changes the padding too
            step_size /= 2
            rollbacks += 1
        values.append(now)
        step_size = min(step_size * _GROWTH, settings.eta)
    del before  # free this memory, because the result needs the same amount
    result = tuple(np.ascontiguousarray(factor) for factor in state.factors)
    grams = (values[-1].patients_gram, *map(gram, result[1:]))
    trace = tuple(value.objective for value in values)
    return LocalResult(result, trace, step_size, rollbacks, grams, state.error(values[-1], grams))


class _State:
    """The data, factors and constants of a site's passes. The factors are views of `stack`."""

    def __init__(self, problem: LocalProblem) -> None:
        self.tensor, self.settings = tensor, settings = problem.tensor, problem.settings
        self.anchors, self.rng = problem.anchors, problem.rng
        self.loss = losses.find(settings.loss)
        self.floor = 0.0 if settings.nonnegative else -math.inf
        self.offsets = row_offsets(tensor.shape)
        self.stack, self.anchor_stack = stack_factors(problem.factors), stack_factors(self.anchors)
        self.factors = np.split(self.stack[:, : settings.rank], self.offsets[1:-1])
        self.zeros = zero_visits(tensor, settings)
        entries = entries_by_row(tensor)
        self.visits = entries[1:]
        self.norm_squared = tensor.norm_squared()
        # A clipped gradient is not the objective's gradient, so the objective may rise at any step
        # size. With clipping, a pass is also accepted if its loss is at most a constant model's.
        self.tolerated = self.loss.of_nothing(tensor) if settings.clip > 0 else -math.inf
        self.patients, self.bounded = 1.0, not (self.loss.is_squared or settings.clip)
        if self.bounded:
            lengths = [_length(*pair) for pair in zip(self.factors, entries, strict=True)]
            others = math.prod(lengths[1:]) ** (1 / len(lengths[1:]))
            self.patients = max(1.0, lengths[0] / others) if others > 0 else 1.0
        if not self.loss.is_squared:
            model = self.stack[:, : settings.rank].copy()
            self.sample = [*visits(tensor, self.zeros, self.rng, model)]

    def run_pass(self, model: Array, eta: float) -> None:
        """Visit all entries and a sample of zero cells, and then shrink patients' columns."""
        settings, tensor = self.settings, self.tensor
        step = Step(
            eta=eta,
            gamma=settings.gamma,
            clip=eta**-0.5 if self.bounded else settings.clip,
            floor=self.floor,
            patients=self.patients,
            loss=self.loss,
        )
        for rows, counts in visits(tensor, self.zeros, self.rng, model):
            sgd.visit(self.stack, self.anchor_stack, rows, counts, step)
            del rows, counts  # before the next block is drawn
        if settings.mu > 0:
            shrink_columns(self.stack[: tensor.n_patients], eta * settings.mu)

    def value(self) -> Value:
        """Compute the objective values at the current factors."""
        tensor, settings = self.tensor, self.settings
        stack, factors = self.stack, self.factors
        with np.errstate(over="ignore", invalid="ignore"):
            patients, squares, inner = gram(factors[0]), 0.0, 0.0
            if not self.loss.is_squared:
                error = _sampled_loss(self.loss, self.sample, stack, factors, zeros=self.zeros > 0)
            else:
                squares, inner, _ = entry_sums(stack, tensor.indices, tensor.values, self.offsets)
                error = 0.5 * squares
                if settings.zeros != "none":
                    grams = [patients, *map(gram, factors[1:])]
                    error = squared_loss(self.norm_squared, inner, grams)
            rest = error + settings.mu * group_norm(patients)
            objective = rest + settings.gamma * elastic(factors, self.anchors)
            pass_objective = rest + settings.gamma * elastic(factors, self.anchors, self.visits)
            return Value(squares, inner, patients, error, objective, pass_objective)

    def error(self, value: Value, grams: Sequence[Array]) -> SquaredError | None:
        """Return the squared error, or None if the solver minimises another loss."""
        if not self.loss.is_squared:
            return None
        everywhere = 2 * squared_loss(self.norm_squared, value.inner, grams)
        return SquaredError.on(self.tensor, everywhere, value.squares, self.norm_squared)

    def accepts(self, now: Value, before: Value) -> bool:
        """Return whether to accept a pass that changed the values from `before` to `now`."""
        return math.isfinite(now.pass_objective) and (
            now.objective <= before.objective
            or now.pass_objective <= before.pass_objective
            or now.loss <= self.tolerated
        )


def _length(factor: Array, weights: Array) -> float:
    """Return the weighted mean of the squared lengths of a factor's rows."""
    squares = np.square(factor, dtype=np.float64).sum(axis=1)
    return float(squares @ weights) / max(int(weights.sum()), 1)


def _sampled_loss(
    loss: Loss, sample: Sequence[Visits], stack: Array, factors: Sequence[Array], *, zeros: bool
) -> float:
    """Estimate the loss from a sample. If `zeros` is false, exclude the zero cells."""
    slope, total = (float(loss.gradient(0.0, 0.0)) if zeros else 0.0), 0.0
    for rows, counts in sample:
        for first in range(0, len(counts), _PART):
            part = slice(first, first + _PART)
            x, nowhere = counts[part].astype(np.float64), np.zeros(len(factors), np.int64)
            model = stacked_values(rows[part], stack, nowhere)
            rest = loss.value(np.maximum(x, 0), model) - slope * model
            total += float(np.where(x > 0, 1.0, -x) @ rest)
    masses = [factor.sum(axis=0, dtype=np.float64) for factor in factors]
    return total + slope * float(np.prod(masses, axis=0).sum())


def shrink_columns(A: Array, threshold: float) -> None:
    """Reduce each column's norm by `threshold`, but not below 0, in place.

    The result is the proximal operator of `threshold` times the l2,1 norm, equation (an2). After a
    gradient step of size eta, the threshold is eta * mu, not mu as in the DPFact paper's equation
    (prox). For non-negative factors, first set negative entries to 0. The result is then the
    proximal operator of the penalty plus the non-negativity constraint.
    """
    norms = np.sqrt(np.einsum("ir,ir->r", A, A, dtype=np.float64))
    shares = np.maximum(norms - threshold, 0) / np.where(norms > 0, norms, 1)
    A *= shares.astype(A.dtype)
