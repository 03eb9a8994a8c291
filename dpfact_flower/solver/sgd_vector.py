"""Stochastic gradient steps in vector instructions; see `dpfact_flower.solver.sgd`.

A row is as many registers as `registers` has elements, see `dpfact_flower.solver.vector`: numba
compiles one kernel per padded rank. That is a fifth faster than a rank known at run time alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpfact_flower.compiled import FAST, compiled
from dpfact_flower.solver.kernels import WIDTH, Array
from dpfact_flower.solver.sgd import Step
from dpfact_flower.solver.vector import (
    at_least,
    fma,
    load,
    mul,
    pointer,
    prefetch,
    store,
    total,
)

_AHEAD = 8
"""Visits between asking for a row and using it: not all are in the cache."""

_ZERO = np.float32(0)
_ONE = np.float32(1)

Registers = tuple[int, ...]
Pointer = Any
Vector = Any
Float = Any  # numba's float32


def visit(stack: Array, anchors: Array, rows: Array, counts: Array, step: Step) -> None:
    """See `dpfact_flower.solver.sgd.visit`."""
    registers = (0,) * (stack.shape[1] // WIDTH)
    numbers: Any = step.numbers()
    if rows.shape[1] != 3:
        _any(registers, stack, anchors, rows, counts, step.sequential, *numbers)
    else:
        _three(registers, stack, anchors, rows, counts, step.sequential, *numbers)


def fit(stack: Array, indices: Array, values: Array, offsets: Array) -> tuple[float, float]:
    """See `dpfact_flower.solver.sgd.fit`."""
    registers = (0,) * (stack.shape[1] // WIDTH)
    found: tuple[float, float] = _fit(registers, stack, indices, values, tuple(offsets.tolist()))
    return found


@compiled(**FAST)
def _fit(
    registers: Registers, stack: Array, indices: Array, values: Array, offsets: tuple[int, ...]
) -> tuple[float, float]:
    columns, modes = stack.shape[1], len(offsets) - 1
    factors = pointer(stack)
    squares, inner = 0.0, 0.0
    for s in range(len(values)):
        product = load(registers, factors, indices[s, 0] * columns)
        for n in range(1, modes):
            row = offsets[n] + indices[s, n]
            product = mul(product, load(registers, factors, row * columns))
        model, value = np.float64(total(product)), np.float64(values[s])
        squares += (value - model) * (value - model)
        inner += value * model
    return squares, inner


@compiled(**FAST)
def _three(
    registers: Registers, stack: Array, anchors: Array, rows: Array, counts: Array,
    sequential: bool, eta: Float, gamma: Float, clip: Float, zero_weight: Float, floor: Float,
) -> None:  # fmt: skip
    """`_any` for three modes: all rows of a visit stay in registers."""
    columns, first = stack.shape[1], len(stack) - len(anchors)
    factors, pulled_to = pointer(stack), pointer(anchors)
    keep, pull, longest = _ONE - eta * gamma, eta * gamma, eta * clip
    for s in range(len(counts)):
        _expect(registers, factors, columns, rows, s)
        i, j, k = rows[s, 0] * columns, rows[s, 1] * columns, rows[s, 2] * columns
        a, b = load(registers, factors, i), load(registers, factors, j)
        c = load(registers, factors, k)
        count, old_b, old_c, shift = counts[s], b, c, first * columns
        scale = -eta if count > _ZERO else -eta * zero_weight
        if count > _ZERO and gamma > _ZERO:
            old_b = fma(keep, b, mul(pull, load(registers, pulled_to, j - shift)))
            old_c = fma(keep, c, mul(pull, load(registers, pulled_to, k - shift)))
        along = mul(b, c)
        step = scale * (total(mul(a, along)) - count)
        new = _stepped(a, along, step, longest, floor)
        store(factors, i, new)
        if sequential:
            a = new
            step = scale * (total(mul(new, along)) - count)
        along = mul(a, c)
        new = _stepped(old_b, along, step, longest, floor)
        store(factors, j, new)
        if sequential:
            b = new
            step = scale * (total(mul(new, along)) - count)
        store(factors, k, _stepped(old_c, mul(a, b), step, longest, floor))


@compiled(**FAST)
def _any(
    registers: Registers, stack: Array, anchors: Array, rows: Array, counts: Array,
    sequential: bool, eta: Float, gamma: Float, clip: Float, zero_weight: Float, floor: Float,
) -> None:  # fmt: skip
    """Any number of modes: for each, the product of all other rows, then the step along it."""
    columns, first, modes = stack.shape[1], len(stack) - len(anchors), rows.shape[1]
    factors, pulled_to = pointer(stack), pointer(anchors)
    keep, pull, longest = _ONE - eta * gamma, eta * gamma, eta * clip
    products = np.empty((modes, columns), np.float32)
    for s in range(len(counts)):
        _expect(registers, factors, columns, rows, s)
        count = counts[s]
        scale = -eta if count > _ZERO else -eta * zero_weight
        step = _ZERO
        for n in range(1 if sequential else modes):
            _multiply(registers, factors, columns, rows, s, n, products)
        for n in range(modes):
            place = rows[s, n] * columns
            if sequential and n > 0:
                _multiply(registers, factors, columns, rows, s, n, products)
            row = load(registers, factors, place)
            along = load(registers, pointer(products), n * columns)
            if sequential or n == 0:
                step = scale * (total(mul(row, along)) - count)
            if count > _ZERO and gamma > _ZERO and n > 0:
                anchor = load(registers, pulled_to, place - first * columns)
                row = fma(keep, row, mul(pull, anchor))
            store(factors, place, _stepped(row, along, step, longest, floor))


@compiled(**FAST)
def _multiply(
    registers: Registers, factors: Pointer, columns: int, rows: Array, s: int, mode: int,
    products: Array,
) -> None:  # fmt: skip
    """Write to row `mode` of `products` the product of visit s's rows of all other modes."""
    first = 1 if mode == 0 else 0
    product = load(registers, factors, rows[s, first] * columns)
    for n in range(first + 1, rows.shape[1]):
        if n != mode:
            product = mul(product, load(registers, factors, rows[s, n] * columns))
    store(pointer(products), mode * columns, product)


@compiled(forceinline=True, **FAST)
def _stepped(row: Vector, along: Vector, step: Float, longest: Float, floor: Float) -> Vector:
    """A row after a step along `along`, cut to 2-norm `longest` where that is not 0."""
    if longest > _ZERO:
        norm = abs(step) * np.sqrt(total(mul(along, along)))
        step = step * (longest / norm) if norm > longest else step
    return at_least(fma(step, along, row), floor)


@compiled(forceinline=True, **FAST)
def _expect(registers: Registers, factors: Pointer, columns: int, rows: Array, s: int) -> None:
    """Ask for the rows of a visit to come."""
    ahead = min(s + _AHEAD, len(rows) - 1)
    for n in range(rows.shape[1]):
        prefetch(registers, factors, rows[ahead, n] * columns)
