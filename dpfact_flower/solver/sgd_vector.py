"""Stochastic gradient steps in vector instructions; see `dpfact_flower.solver.sgd`.

A row is an address and as many vectors as `blocks` has elements. The elements mean nothing: the
length of a tuple is part of its type, so numba compiles one kernel per padded rank, with its loops
unrolled. That is a fifth faster than a rank known at run time alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpfact_flower.compiled import FAST, compiled
from dpfact_flower.solver.kernels import LANES, Array
from dpfact_flower.solver.sgd import Step
from dpfact_flower.solver.vector import (
    add,
    address,
    at_least,
    fma,
    load,
    mul,
    prefetch,
    splat,
    store,
    total,
)

_AHEAD = 8
"""Visits between asking for a row and using it: not all are in the cache."""

_LINE = 2  # vectors in a cache line
_ZERO = np.float32(0)
_ONE = np.float32(1)

Blocks = tuple[int, ...]
Octet = Any
Float = Any  # numba's float32


def visit(stack: Array, anchors: Array, rows: Array, counts: Array, step: Step) -> None:
    """See `dpfact_flower.solver.sgd.visit`."""
    blocks = (0,) * (stack.shape[1] // LANES)
    flat, flat_anchors = stack.reshape(-1), anchors.reshape(-1)
    numbers: Any = step.numbers()
    if rows.shape[1] != 3:
        _any(flat, flat_anchors, blocks, rows, counts, step.sequential, *numbers)
    elif step.sequential:
        _sequential(flat, flat_anchors, blocks, rows, counts, *numbers)
    else:
        _joint(flat, flat_anchors, blocks, rows, counts, *numbers)


def fit(stack: Array, indices: Array, values: Array, offsets: Array) -> tuple[float, float]:
    """See `dpfact_flower.solver.sgd.fit`."""
    blocks = (0,) * (stack.shape[1] // LANES)
    found: tuple[float, float] = _fit(
        stack.reshape(-1), indices, values, tuple(offsets.tolist()), blocks
    )
    return found


@compiled(**FAST)
def _fit(
    stack: Array, indices: Array, values: Array, offsets: tuple[int, ...], blocks: Blocks
) -> tuple[float, float]:
    columns, modes = len(blocks) * LANES, len(offsets) - 1
    squares, inner = 0.0, 0.0
    rows = np.empty(modes, np.int64)
    for s in range(len(values)):
        for n in range(modes):
            rows[n] = address(stack, (offsets[n] + indices[s, n]) * columns)
        sums = splat(_ZERO)
        for v in range(len(blocks)):
            product = load(rows[0], v)
            for n in range(1, modes - 1):
                product = mul(product, load(rows[n], v))
            sums = fma(product, load(rows[modes - 1], v), sums)
        model, value = np.float64(total(sums)), np.float64(values[s])
        squares += (value - model) * (value - model)
        inner += value * model
    return squares, inner


@compiled(**FAST)
def _joint(
    stack: Array,
    anchors: Array,
    blocks: Blocks,
    rows: Array,
    counts: Array,
    eta: Float,
    gamma: Float,
    clip: Float,
    zero_weight: Float,
    floor: Float,
) -> None:
    """Three modes; every row moves by a gradient made with the old ones."""
    columns, patients = len(blocks) * LANES, len(stack) - len(anchors)
    for s in range(len(counts)):
        ahead = min(s + _AHEAD, len(rows) - 1)
        for n in range(3):
            _expect(address(stack, rows[ahead, n] * columns), blocks)
        i, j, k = rows[s, 0] * columns, rows[s, 1] * columns, rows[s, 2] * columns
        a, b, c = address(stack, i), address(stack, j), address(stack, k)
        error = _inner(blocks, a, b, c) - counts[s]
        at_entry = counts[s] > _ZERO
        step = -eta * (error if at_entry else zero_weight * error)
        for_a = for_b = for_c = step
        if clip > _ZERO:
            for_a = _clipped(step, eta * clip, _square(blocks, b, c))
            for_b = _clipped(step, eta * clip, _square(blocks, a, c))
            for_c = _clipped(step, eta * clip, _square(blocks, a, b))
        pull = eta * gamma if at_entry else _ZERO
        p, q = address(anchors, j - patients), address(anchors, k - patients)
        _move_three(blocks, a, b, c, p, q, for_a, for_b, for_c, pull, floor)


@compiled(**FAST)
def _sequential(
    stack: Array,
    anchors: Array,
    blocks: Blocks,
    rows: Array,
    counts: Array,
    eta: Float,
    gamma: Float,
    clip: Float,
    zero_weight: Float,
    floor: Float,
) -> None:
    """Three modes; a row moves by a gradient made with the new rows of the modes before it."""
    columns, patients = len(blocks) * LANES, len(stack) - len(anchors)
    for s in range(len(counts)):
        ahead = min(s + _AHEAD, len(rows) - 1)
        for n in range(3):
            _expect(address(stack, rows[ahead, n] * columns), blocks)
        i, j, k = rows[s, 0] * columns, rows[s, 1] * columns, rows[s, 2] * columns
        a, b, c = address(stack, i), address(stack, j), address(stack, k)
        p, q = address(anchors, j - patients), address(anchors, k - patients)
        at_entry = counts[s] > _ZERO
        scale = -eta if at_entry else -eta * zero_weight
        pull = eta * gamma if at_entry else _ZERO
        step = scale * (_inner(blocks, a, b, c) - counts[s])
        if clip > _ZERO:
            step = _clipped(step, eta * clip, _square(blocks, b, c))
        step = scale * (_move(blocks, a, b, c, a, step, _ZERO, floor) - counts[s])
        if clip > _ZERO:
            step = _clipped(step, eta * clip, _square(blocks, a, c))
        step = scale * (_move(blocks, b, a, c, p, step, pull, floor) - counts[s])
        if clip > _ZERO:
            step = _clipped(step, eta * clip, _square(blocks, a, b))
        _move(blocks, c, a, b, q, step, pull, floor)


@compiled(**FAST)
def _any(
    stack: Array,
    anchors: Array,
    blocks: Blocks,
    rows: Array,
    counts: Array,
    sequential: bool,
    eta: Float,
    gamma: Float,
    clip: Float,
    zero_weight: Float,
    floor: Float,
) -> None:
    """Any number of modes: for each, the product of all other rows, then the step along it."""
    columns, patients, modes = len(blocks) * LANES, len(stack) - len(anchors), rows.shape[1]
    products = np.empty(modes * columns, np.float32)
    for s in range(len(counts)):
        ahead = min(s + _AHEAD, len(rows) - 1)
        for n in range(modes):
            _expect(address(stack, rows[ahead, n] * columns), blocks)
        at_entry = counts[s] > _ZERO
        scale = -eta if at_entry else -eta * zero_weight
        model = _ZERO
        for n in range(1 if sequential else modes):
            _multiply(stack, rows, s, n, blocks, products)
        for n in range(modes):
            row = address(stack, rows[s, n] * columns)
            along = address(products, n * columns)
            if n == 0:
                model = _dot(blocks, row, along)
            elif sequential:
                _multiply(stack, rows, s, n, blocks, products)
            step = scale * (model - counts[s])
            if clip > _ZERO:
                step = _clipped(step, eta * clip, _dot(blocks, along, along))
            pull = eta * gamma if at_entry and n > 0 else _ZERO
            anchor = address(anchors, rows[s, n] * columns - patients) if n > 0 else row
            moved = _move_along(blocks, row, along, anchor, step, pull, floor)
            if sequential:
                model = moved


@compiled(**FAST)
def _multiply(
    stack: Array, rows: Array, s: int, mode: int, blocks: Blocks, products: Array
) -> None:
    """Write to row `mode` of `products` the product of visit s's rows of all other modes."""
    columns = len(blocks) * LANES
    target = address(products, mode * columns)
    first = 1 if mode == 0 else 0
    row = address(stack, rows[s, first] * columns)
    for v in range(len(blocks)):
        store(target, v, load(row, v))
    for n in range(first + 1, rows.shape[1]):
        if n != mode:
            row = address(stack, rows[s, n] * columns)
            for v in range(len(blocks)):
                store(target, v, mul(load(target, v), load(row, v)))


@compiled(**FAST)
def _move_three(
    blocks: Blocks,
    a: int,
    b: int,
    c: int,
    anchor_b: int,
    anchor_c: int,
    step_a: Float,
    step_b: Float,
    step_c: Float,
    pull: Float,
    floor: Float,
) -> None:
    """Step three rows, each along the product of the other two as they were."""
    up_a, up_b, up_c, least = splat(step_a), splat(step_b), splat(step_c), splat(floor)
    if pull > _ZERO:
        keep, to_anchor = splat(_ONE - pull), splat(pull)
        for v in range(len(blocks)):
            x, y, z = load(a, v), load(b, v), load(c, v)
            kept_y = fma(keep, y, mul(to_anchor, load(anchor_b, v)))
            kept_z = fma(keep, z, mul(to_anchor, load(anchor_c, v)))
            store(a, v, at_least(fma(up_a, mul(y, z), x), least))
            store(b, v, at_least(fma(up_b, mul(x, z), kept_y), least))
            store(c, v, at_least(fma(up_c, mul(x, y), kept_z), least))
    else:
        for v in range(len(blocks)):
            x, y, z = load(a, v), load(b, v), load(c, v)
            store(a, v, at_least(fma(up_a, mul(y, z), x), least))
            store(b, v, at_least(fma(up_b, mul(x, z), y), least))
            store(c, v, at_least(fma(up_c, mul(x, y), z), least))


@compiled(**FAST)
def _move(
    blocks: Blocks,
    row: int,
    other: int,
    another: int,
    anchor: int,
    step: Float,
    pull: Float,
    floor: Float,
) -> Float:
    """Step a row along the product of two others; returns the model's value with the new row."""
    model = splat(_ZERO)
    for v in range(len(blocks)):
        along = mul(load(other, v), load(another, v))
        new = _stepped(row, v, along, anchor, step, pull, floor)
        model = fma(new, along, model)
    return total(model)


@compiled(**FAST)
def _move_along(
    blocks: Blocks, row: int, along: int, anchor: int, step: Float, pull: Float, floor: Float
) -> Float:
    """`_move` for a product that lies in memory."""
    model = splat(_ZERO)
    for v in range(len(blocks)):
        new = _stepped(row, v, load(along, v), anchor, step, pull, floor)
        model = fma(new, load(along, v), model)
    return total(model)


@compiled(**FAST)
def _stepped(
    row: int, v: int, along: Octet, anchor: int, step: Float, pull: Float, floor: Float
) -> Octet:
    """Step vector v of a row; returns it."""
    new = load(row, v)
    if pull > _ZERO:
        new = fma(splat(_ONE - pull), new, mul(splat(pull), load(anchor, v)))
    new = at_least(fma(splat(step), along, new), splat(floor))
    store(row, v, new)
    return new


@compiled(**FAST)
def _inner(blocks: Blocks, a: int, b: int, c: int) -> Float:
    """The model's value at the cell of three rows."""
    even, odd = splat(_ZERO), splat(_ZERO)  # an addition takes several cycles: two overlap
    for half in range(len(blocks) // 2):
        v = 2 * half
        even = fma(load(a, v), mul(load(b, v), load(c, v)), even)
        odd = fma(load(a, v + 1), mul(load(b, v + 1), load(c, v + 1)), odd)
    if len(blocks) % 2 == 1:
        v = len(blocks) - 1
        even = fma(load(a, v), mul(load(b, v), load(c, v)), even)
    return total(add(even, odd))


@compiled(**FAST)
def _dot(blocks: Blocks, x: int, y: int) -> Float:
    """Inner product of two rows."""
    inner = splat(_ZERO)
    for v in range(len(blocks)):
        inner = fma(load(x, v), load(y, v), inner)
    return total(inner)


@compiled(**FAST)
def _square(blocks: Blocks, x: int, y: int) -> Float:
    """Squared 2-norm of the product of two rows."""
    square = splat(_ZERO)
    for v in range(len(blocks)):
        product = mul(load(x, v), load(y, v))
        square = fma(product, product, square)
    return total(square)


@compiled(**FAST)
def _clipped(step: Float, longest: Float, square: Float) -> Float:
    """`step`, cut so that it along a direction of squared 2-norm `square` is at most `longest`."""
    norm = abs(step) * np.sqrt(square)
    return step * (longest / norm) if norm > longest else step


@compiled(**FAST)
def _expect(row: int, blocks: Blocks) -> None:
    """Ask for a row, to be moved soon."""
    for v in range(0, len(blocks), _LINE):
        prefetch(row, v)
