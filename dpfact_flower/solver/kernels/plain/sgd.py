"""Stochastic gradient steps in plain loops, which numba vectorises as it sees fit.

See `dpfact_flower.solver.kernels.sgd`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpfact_flower.machine.compiled import FAST, compiled
from dpfact_flower.solver.kernels.step import Step
from dpfact_flower.tensor.arrays import Array
from dpfact_flower.tensor.stack import stacked_values

_PART = 1 << 16
"""Entries whose model values are held in float64 at a time."""

_ZERO = np.float32(0)
_ONE = np.float32(1)


def visit(stack: Array, anchors: Array, rows: Array, counts: Array, step: Step) -> None:
    """See `dpfact_flower.solver.kernels.sgd.visit`."""
    if rows.shape[1] == 3 and not step.sequential:
        _visit_three(stack, anchors, rows, counts, *step.numbers())
    else:
        _visit_any(stack, anchors, rows, counts, step.sequential, *step.numbers())


def squares(stack: Array, indices: Array, values: Array, offsets: Array) -> tuple[float, float]:
    """See `dpfact_flower.solver.kernels.sgd.squares`."""
    squares, inner = 0.0, 0.0
    for first in range(0, len(values), _PART):
        part = slice(first, first + _PART)
        model = stacked_values(indices[part], stack, offsets)
        with np.errstate(over="ignore", invalid="ignore"):
            squares += float(np.square(values[part] - model).sum())
            inner += float(values[part] @ model)
    return squares, inner


@compiled(**FAST)
def _visit_three(
    stack: Array,
    anchors: Array,
    rows: Array,
    counts: Array,
    eta: np.float32,
    gamma: np.float32,
    clip: np.float32,
    floor: np.float32,
) -> None:
    """`_visit_any`, joint, for three modes: a third of its time."""
    patients = len(stack) - len(anchors)
    for s in range(len(counts)):
        a, b, c = stack[rows[s, 0]], stack[rows[s, 1]], stack[rows[s, 2]]
        model = _ZERO
        for r in range(len(a)):
            model += a[r] * (b[r] * c[r])
        at_entry = counts[s] > _ZERO
        gradient = model - counts[s] if at_entry else -counts[s] * model
        pull = eta * gamma if at_entry else _ZERO
        for_a = for_b = for_c = gradient
        if clip > _ZERO:
            for_a = _clipped_pair(gradient, b, c, clip)
            for_b = _clipped_pair(gradient, a, c, clip)
            for_c = _clipped_pair(gradient, a, b, clip)
        anchor_b, anchor_c = anchors[rows[s, 1] - patients], anchors[rows[s, 2] - patients]
        _move_three(a, b, c, anchor_b, anchor_c, eta * for_a, eta * for_b, eta * for_c, pull, floor)


@compiled(**FAST)
def _move_three(
    a: Array,
    b: Array,
    c: Array,
    anchor_b: Array,
    anchor_c: Array,
    step_a: np.float32,
    step_b: np.float32,
    step_c: np.float32,
    pull: np.float32,
    floor: np.float32,
) -> None:
    keep = _ONE - pull
    for r in range(len(a)):
        ar, br, cr = a[r], b[r], c[r]
        new = ar - step_a * (br * cr)
        a[r] = floor if new < floor else new  # in this form a NaN stays one
        new = keep * br + pull * anchor_b[r] - step_b * (ar * cr)
        b[r] = floor if new < floor else new
        new = keep * cr + pull * anchor_c[r] - step_c * (ar * br)
        c[r] = floor if new < floor else new


@compiled(**FAST)
def _visit_any(
    stack: Array,
    anchors: Array,
    rows: Array,
    counts: Array,
    sequential: bool,
    eta: np.float32,
    gamma: np.float32,
    clip: np.float32,
    floor: np.float32,
) -> None:
    visits, modes = rows.shape
    patients = len(stack) - len(anchors)
    others = np.empty((modes, stack.shape[1]), np.float32)
    for s in range(visits):
        at_entry = counts[s] > _ZERO
        weight, count = (_ONE, counts[s]) if at_entry else (-counts[s], _ZERO)
        for n in range(1 if sequential else modes):
            _hadamard(stack, rows, s, n, others)
        model = _ZERO
        for r in range(stack.shape[1]):
            model += stack[rows[s, 0], r] * others[0, r]
        for n in range(modes):
            if sequential and n > 0:
                _hadamard(stack, rows, s, n, others)
            step = eta * _clipped(weight * (model - count), others, n, clip)
            pull = eta * gamma if at_entry and n > 0 else _ZERO
            anchor = rows[s, n] - patients if n > 0 else 0
            moved = _move(stack, rows[s, n], others, n, anchors, anchor, step, pull, floor)
            if sequential:
                model = moved


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
    stack: Array,
    row: int,
    others: Array,
    mode: int,
    anchors: Array,
    anchor: int,
    step: np.float32,
    pull: np.float32,
    floor: np.float32,
) -> np.float32:
    """Step a row of the stack; returns the model's value with the new row."""
    keep, model = _ONE - pull, _ZERO
    for r in range(stack.shape[1]):
        direction = others[mode, r]
        new = keep * stack[row, r] + pull * anchors[anchor, r] - step * direction
        new = floor if new < floor else new  # in this form a NaN stays one
        stack[row, r] = new
        model += new * direction
    return model


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


@compiled(**FAST)
def _clipped_pair(gradient: np.float32, first: Array, second: Array, clip: np.float32) -> Any:
    """`gradient`, scaled so that ||gradient * first * second|| is at most `clip`."""
    total = _ZERO
    for r in range(len(first)):
        total += (first[r] * second[r]) * (first[r] * second[r])
    norm = abs(gradient) * np.sqrt(total)
    return gradient * (clip / norm) if norm > clip else gradient
