"""Stochastic gradient steps in plain loops, which numba vectorises as it sees fit.

See `choice.SgdKernels`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from dpfact_flower.machine.compiled import FAST, compiled, inlined
from dpfact_flower.solver.kernels.step import Step
from dpfact_flower.solver.losses import Loss
from dpfact_flower.tensor.arrays import Array
from dpfact_flower.tensor.stack import stacked_values

_PART = 1 << 16
"""Entries whose model values are held in float64 at a time."""

_ZERO = np.float32(0)
_ONE = np.float32(1)


def visit(stack: Array, anchors: Array, rows: Array, counts: Array, step: Step) -> None:
    """See `choice.SgdKernels`."""
    _visits(step.loss)(stack, anchors, rows, counts, *step.numbers())


def squares(stack: Array, indices: Array, values: Array, offsets: Array) -> tuple[float, float]:
    """See `choice.SgdKernels`."""
    squares, inner = 0.0, 0.0
    for first in range(0, len(values), _PART):
        part = slice(first, first + _PART)
        model = stacked_values(indices[part], stack, offsets)
        with np.errstate(over="ignore", invalid="ignore"):
            squares += float(np.square(values[part] - model).sum())
            inner += float(values[part] @ model)
    return squares, inner


@functools.cache
def _visits(loss: Loss) -> Callable[..., None]:
    gradient = inlined(loss.gradient)

    @compiled(loss.tag, **FAST)
    def visits(
        stack: Array, anchors: Array, rows: Array, counts: Array, eta: np.float32,
        gamma: np.float32, clip: np.float32, floor: np.float32, patients: np.float32,
    ) -> None:  # fmt: skip
        number, modes = rows.shape
        first = len(stack) - len(anchors)
        others = np.empty((modes, stack.shape[1]), np.float32)
        for s in range(number):
            at_entry = counts[s] > _ZERO
            weight, count = (_ONE, counts[s]) if at_entry else (-counts[s], _ZERO)
            for n in range(modes):
                _hadamard(stack, rows, s, n, others)
            model = _ZERO
            for r in range(stack.shape[1]):
                model += stack[rows[s, 0], r] * others[0, r]
            slope = weight * np.float32(gradient(count, model))
            for n in range(modes):
                far = patients if n == 0 else _ONE
                step = eta * _clipped(far * slope, others, n, np.sqrt(far) * clip)
                pull = eta * gamma if at_entry and n > 0 else _ZERO
                anchor = rows[s, n] - first if n > 0 else 0
                _move(stack, rows[s, n], others, n, anchors, anchor, step, pull, floor)

    return visits


# The helpers below take arrays and row numbers, not rows: a row handed from function to function
# costs numba an atomic reference count each time.


@compiled(**FAST)
def _hadamard(stack: Array, rows: Array, s: int, mode: int, others: Array) -> None:
    """Write to row `mode` of `others` the product of visit s's rows of all other modes."""
    first = 1 if mode == 0 else 0
    row = rows[s, first]
    for r in range(stack.shape[1]):
        others[mode, r] = stack[row, r]
    for n in range(first + 1, rows.shape[1]):
        if n != mode:
            row = rows[s, n]
            for r in range(stack.shape[1]):
                others[mode, r] *= stack[row, r]


@compiled(**FAST)
def _move(
    stack: Array, row: int, others: Array, mode: int, anchors: Array, anchor: int,
    step: np.float32, pull: np.float32, floor: np.float32,
) -> None:  # fmt: skip
    """Step a row of the stack."""
    keep = _ONE - pull
    for r in range(stack.shape[1]):
        new = keep * stack[row, r] + pull * anchors[anchor, r] - step * others[mode, r]
        stack[row, r] = floor if new < floor else new  # in this form a NaN stays one


@compiled(**FAST)
def _clipped(gradient: np.float32, others: Array, mode: int, clip: np.float32) -> Any:
    """`gradient`, scaled so that ||gradient * others[mode]|| <= `clip`; 0 is no bound."""
    if clip > _ZERO:
        total = _ZERO
        for r in range(others.shape[1]):
            total += others[mode, r] * others[mode, r]
        norm = abs(gradient) * np.sqrt(total)
        if norm > clip:
            return gradient * (clip / norm)
    return gradient
