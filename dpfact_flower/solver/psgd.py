"""Permutation SGD, the paper's local solver (Algorithm 1), with a step size that adapts by itself.

What a pass descends
    The pull to the anchors acts at every visit of a feature row, eq. (bj), so over a pass it weighs
    gamma times the row's number of visits, not gamma as in eq. (norm). It is left out at sampled
    zero cells: the weight is then the row's number of non-zeros, whatever `zero_ratio` is, and
    sampling zeros changes nothing but the squared error, whose gradient over the pass is an
    unbiased estimate of that over all cells (Kolda & Hong 2020; where they are drawn, and why, is
    in `dpfact_flower.solver.kernels.zero_cells`).

Step control (bold driver)
    A pass after which both eq. (norm) and what the pass descends have risen, or are not finite, is
    undone and tried again at half the step size; a pass that stands raises it by 5 %. One of the
    two is enough, because a small step lowers the second but need not lower the first when the
    anchors are far away. Whatever happens, no more than tau passes stand, and no step size
    exceeds `settings.eta`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpfact_flower.errors import DivergenceError
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver.kernels.order import entries_by_row, first_entries, visits, zero_visits
from dpfact_flower.solver.kernels.sgd import squares as squares_of
from dpfact_flower.solver.kernels.sgd import visit
from dpfact_flower.solver.kernels.step import Step
from dpfact_flower.solver.objective import LocalResult, elastic, group_norm, loss
from dpfact_flower.solver.prox import shrink_columns
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.arrays import Array
from dpfact_flower.tensor.cp import gram
from dpfact_flower.tensor.error import SquaredError
from dpfact_flower.tensor.stack import row_offsets, stack_factors

_GROWTH = 1.05
_MAX_HALVINGS = 40


@dataclass(frozen=True)
class Value:
    """Where the factors stand.

    Attributes
    ----------
    squares, inner : float
        Squared error over the non-zeros, and <X, M>.
    patients : ndarray of float64, shape (R, R)
        Gram matrix of A.
    loss, objective, descended : float
        Half the squared error that is fitted, eq. (norm), and what a pass descends.
    """

    squares: float
    inner: float
    patients: Array
    loss: float
    objective: float
    descended: float


def psgd(
    tensor: SparseTensor,
    factors: Factors,
    anchors: Factors,
    settings: SolverSettings,
    rng: np.random.Generator,
    *,
    eta: float | None = None,
) -> LocalResult:
    """`settings.tau` passes of permutation SGD on eq. (norm).

    Arguments are those of `dpfact_flower.solver.solve`, which checks them. A phenotype that the
    proximal step, eq. (an2), switched off comes back only through its own gradient: the next pass
    moves the column away from zero by more than eta * mu.

    Raises
    ------
    DivergenceError
        Naming the step sizes tried.
    """
    site = _Site(tensor, anchors, settings)
    stack = stack_factors(factors)
    np.maximum(stack, np.float32(site.floor), out=stack)
    filled, padding = stack[:, : settings.rank], stack[:, settings.rank :]
    before = np.empty_like(filled)
    values = [site.value(stack)]
    # The privacy bound 2 * tau * L * eta relies on this: settings.eta is never exceeded.
    step_size = settings.eta if eta is None else min(eta, settings.eta)
    rollbacks = 0
    for _ in range(settings.tau):
        before[:], first = filled, step_size
        while True:
            site.run_pass(stack, before, step_size, rng)
            now = site.value(stack)
            if site.stands(now, values[-1]):
                break
            if step_size < first * 0.5**_MAX_HALVINGS:
                raise DivergenceError(
                    f"psgd: the objective rises at every step size from {first:g} "
                    f"down to {step_size:g}"
                )
            filled[:], padding[:] = before, 0.0  # a pass that is not finite reaches padding too
            step_size /= 2
            rollbacks += 1
        values.append(now)
        step_size = min(step_size * _GROWTH, settings.eta)
    del before  # its memory is as much as the result takes
    result = tuple(np.ascontiguousarray(factor) for factor in site.factors(stack))
    grams = (values[-1].patients, *map(gram, result[1:]))
    trace = tuple(value.objective for value in values)
    return LocalResult(result, trace, step_size, rollbacks, grams, site.error(values[-1], grams))


class _Site:
    """What stays the same from pass to pass."""

    def __init__(self, tensor: SparseTensor, anchors: Factors, settings: SolverSettings) -> None:
        self.tensor, self.anchors, self.settings = tensor, anchors, settings
        self.floor = 0.0 if settings.nonnegative else -math.inf
        self.offsets = row_offsets(tensor.shape)
        self.anchor_stack = stack_factors(anchors)
        self.zeros = zero_visits(tensor, settings)
        often = entries_by_row(tensor)
        self.starts, self.visits = first_entries(often[0]), often[1:]
        self.norm_squared = tensor.norm_squared()
        # A clipped gradient is not that of the objective, which may rise at any step size; then
        # only what fits worse than no model at all is refused.
        self.tolerated = 0.5 * self.norm_squared if settings.clip > 0 else -math.inf

    def factors(self, stack: Array) -> Factors:
        """Views of the stack, without its padding."""
        parts = np.split(stack[:, : self.settings.rank], self.offsets[1:-1])
        return tuple(parts)

    def run_pass(self, stack: Array, model: Array, eta: float, rng: np.random.Generator) -> None:
        """Visit everything once, then take the proximal step; Algorithm 1, lines 4 to 9.

        `model` is a copy of the stack, by which zero cells are drawn.
        """
        settings, tensor = self.settings, self.tensor
        step = Step(
            eta=eta,
            gamma=settings.gamma,
            clip=settings.clip,
            floor=self.floor,
            sequential=settings.update == "sequential",
        )
        for rows, counts in visits(tensor, self.zeros, rng, model, self.starts):
            visit(stack, self.anchor_stack, rows, counts, step)
            del rows, counts  # before the next block is drawn
        if settings.mu > 0:
            A = stack[: tensor.n_patients]
            shrink_columns(A, eta * settings.mu, out=A)

    def value(self, stack: Array) -> Value:
        """Everything the step control compares."""
        tensor, settings, factors = self.tensor, self.settings, self.factors(stack)
        with np.errstate(over="ignore", invalid="ignore"):
            patients = gram(factors[0])
            squares, inner = squares_of(stack, tensor.indices, tensor.values, self.offsets)
            if settings.zeros == "none":
                error = 0.5 * squares
            else:
                error = loss(self.norm_squared, inner, [patients, *map(gram, factors[1:])])
            rest = error + settings.mu * group_norm(patients)
            return Value(
                squares,
                inner,
                patients,
                error,
                rest + settings.gamma * elastic(factors, self.anchors),
                rest + settings.gamma * elastic(factors, self.anchors, self.visits),
            )

    def error(self, value: Value, grams: Sequence[Array]) -> SquaredError:
        """All that is measured about factors, from their value and Gram matrices."""
        everywhere = 2 * loss(self.norm_squared, value.inner, grams)
        return SquaredError(
            all_cells=max(everywhere, value.squares),  # rounding alone can make it the smaller one
            nonzeros=value.squares,
            data=self.norm_squared,
            cells=self.tensor.cells,
            nnz=self.tensor.nnz,
        )

    def stands(self, now: Value, before: Value) -> bool:
        """Whether a pass is to be kept."""
        return math.isfinite(now.descended) and (
            now.objective <= before.objective
            or now.descended <= before.descended
            or now.loss <= self.tolerated
        )
