"""Take stochastic gradient steps with explicit vector instructions.

A factor's row is divided into slices. Each slice fills as many processor registers as `registers`
has elements. The tuple `slices` has one element per slice. For each number of slices, numba
compiles a kernel with unrolled loops, which is 20 % faster than a kernel for any number of slices.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.extending import register_jitable

from dpfact_flower.machine.compiled import FAST, REGISTERS, WIDTH, compiled
from dpfact_flower.solver.kernels.instructions import (
    Pointer,
    Registers,
    Vector,
    add,
    at_least,
    fma,
    load,
    mul,
    pointer,
    store,
    total,
    zeros,
)
from dpfact_flower.solver.losses import Loss, squared
from dpfact_flower.tensor.arrays import Array
from dpfact_flower.tensor.stack import aligned_zeros

_TOGETHER = REGISTERS // 8
"""Maximum number of registers per slice at which the processor can hold slices of three rows."""
_ZERO = np.float32(0)
_ONE = np.float32(1)

Slices = tuple[int, ...]
Float = Any  # numba's float32


@dataclass(frozen=True)
class Step:
    """The parameters of gradient steps. A visit to a cell updates one row of each factor.

    `gamma` is the elastic weight. Visits to non-zero cells also pull feature rows towards the
    anchors. `clip` limits the 2-norm of a row's gradient step to eta * clip, but does not limit the
    elastic pull. If `clip` is 0, steps are not limited. `floor` is the smallest value allowed in a
    factor: 0 or minus infinity. For patients' rows, the step size is multiplied by `patients`, and
    the limit that `clip` sets is multiplied by the square root of `patients`.
    """

    eta: float
    gamma: float = 0.0
    clip: float = 0.0
    floor: float = 0.0
    patients: float = 1.0
    loss: Loss = squared


def visit(stack: Array, anchors: Array, rows: Array, counts: Array, step: Step) -> None:
    """Take a stochastic gradient step at each visit (equations (ai) and (bj) of the DPFact paper).

    `stack` holds all factors, and is updated in place. `anchors` holds the global feature factors.
    Row i of `anchors` corresponds to row n + i of `stack`, where n is the number of patients.
    `rows` holds row numbers in `stack`. `counts` holds the count of each non-zero cell, and the
    negated weight of each sampled zero cell. A visit with the count 0 takes no step.
    """
    whole, (three, any_number) = stack.shape[1] // WIDTH, _visits(step.loss)
    numbers = map(np.float32, (step.eta, step.gamma, step.clip, step.floor, step.patients))
    if rows.shape[1] == 3:
        registers = (0,) * math.gcd(whole, _TOGETHER)
        slices = (0,) * (whole // len(registers))
        three(registers, slices, stack, anchors, rows, counts, *numbers)
    else:
        products = aligned_zeros(rows.shape[1], stack.shape[1])
        any_number((0,) * whole, stack, anchors, rows, counts, products, *numbers)


@functools.cache
def _visits(loss: Loss) -> tuple[Callable[..., None], Callable[..., None]]:
    """Compile two kernels for a loss: one for three modes, and one for any number of modes."""
    gradient = register_jitable(inline="always")(loss.gradient)

    @compiled(loss.name, cache=loss.is_own, **FAST)
    def three(
        registers: Registers, slices: Slices, stack: Array, anchors: Array, rows: Array,
        counts: Array, eta: Float, gamma: Float, clip: Float, floor: Float, patients: Float,
    ) -> None:  # fmt: skip
        """For three modes, take the same steps as `any_number`, but store no row products."""
        columns, limit = stack.shape[1], eta * clip
        patients_limit = limit * np.sqrt(patients)
        factors, pulled_to = pointer(stack), pointer(anchors)
        shift = (len(stack) - len(anchors)) * columns  # anchors begin with mode 1
        for s in range(len(counts)):
            a, b, c = rows[s, 0] * columns, rows[s, 1] * columns, rows[s, 2] * columns
            count = max(counts[s], _ZERO)
            scale = -eta if count > _ZERO else eta * counts[s]
            pull = eta * gamma if count > _ZERO else _ZERO
            model = _inner(registers, slices, factors, a, b, c)
            step = scale * np.float32(gradient(count, model))
            step_a = _clipped(registers, slices, factors, b, c, patients * step, patients_limit)
            step_b = _clipped(registers, slices, factors, a, c, step, limit)
            step_c = _clipped(registers, slices, factors, a, b, step, limit)
            _move_three(
                registers, slices, factors, a, b, c, step_a, step_b, step_c, pulled_to, shift, pull,
                floor,
            )  # fmt: skip

    @compiled(loss.name, cache=loss.is_own, **FAST)
    def any_number(
        registers: Registers, stack: Array, anchors: Array, rows: Array, counts: Array,
        products: Array, eta: Float, gamma: Float, clip: Float, floor: Float, patients: Float,
    ) -> None:  # fmt: skip
        """At each visit, move each mode's row along the product of the other modes' rows."""
        columns, first, modes = stack.shape[1], len(stack) - len(anchors), rows.shape[1]
        factors, pulled_to = pointer(stack), pointer(anchors)
        keep, pull, limit = _ONE - eta * gamma, eta * gamma, eta * clip
        patients_limit = limit * np.sqrt(patients)
        for s in range(len(counts)):
            count = max(counts[s], _ZERO)
            scale = -eta if count > _ZERO else eta * counts[s]
            step = _ZERO
            for n in range(modes):
                _multiply(registers, factors, columns, rows, s, n, products)
            for n in range(modes):
                place = rows[s, n] * columns
                row = load(registers, factors, place)
                along = load(registers, pointer(products), n * columns)
                if n == 0:
                    step = scale * np.float32(gradient(count, total(mul(row, along))))
                if count > _ZERO and gamma > _ZERO and n > 0:
                    anchor = load(registers, pulled_to, place - first * columns)
                    row = fma(keep, row, mul(pull, anchor))
                size, most = (patients * step, patients_limit) if n == 0 else (step, limit)
                store(factors, place, _stepped(row, along, size, most, floor))

    return three, any_number


@compiled(forceinline=True, **FAST)
def _inner(registers: Registers, slices: Slices, factors: Pointer, a: int, b: int, c: int) -> Float:
    """Return the model's value at one cell, given the factor row of each of the three modes."""
    even, odd = zeros(registers, factors), zeros(registers, factors)
    for v in range(len(slices)):
        at = v * WIDTH * len(registers)
        y = mul(load(registers, factors, b + at), load(registers, factors, c + at))
        if v % 2 == 0:  # an addition takes several cycles, so let two additions overlap
            even = fma(load(registers, factors, a + at), y, even)
        else:
            odd = fma(load(registers, factors, a + at), y, odd)
    return total(add(even, odd))


@compiled(forceinline=True, **FAST)
def _clipped(
    registers: Registers, slices: Slices, factors: Pointer, x: int, y: int, step: Float,
    limit: Float,
) -> Float:  # fmt: skip
    """Reduce `step` so that a row moves by at most `limit`. If `limit` is 0, keep `step`."""
    if limit > _ZERO:
        square = zeros(registers, factors)
        for v in range(len(slices)):
            at = v * WIDTH * len(registers)
            along = mul(load(registers, factors, x + at), load(registers, factors, y + at))
            square = fma(along, along, square)
        norm = abs(step) * np.sqrt(total(square))
        step = step * (limit / norm) if norm > limit else step
    return step


@compiled(forceinline=True, **FAST)
def _move_three(
    registers: Registers, slices: Slices, factors: Pointer, a: int, b: int, c: int, step_a: Float,
    step_b: Float, step_c: Float, pulled_to: Pointer, shift: int, pull: Float, floor: Float,
) -> None:  # fmt: skip
    """Move each of three rows along the element-wise product of the other two rows' old values."""
    for v in range(len(slices)):
        at = v * WIDTH * len(registers)
        x, y = load(registers, factors, a + at), load(registers, factors, b + at)
        z = load(registers, factors, c + at)
        new_y, new_z = y, z
        if pull > _ZERO:
            new_y = fma(_ONE - pull, y, mul(pull, load(registers, pulled_to, b + at - shift)))
            new_z = fma(_ONE - pull, z, mul(pull, load(registers, pulled_to, c + at - shift)))
        store(factors, a + at, at_least(fma(step_a, mul(y, z), x), floor))
        store(factors, b + at, at_least(fma(step_b, mul(x, z), new_y), floor))
        store(factors, c + at, at_least(fma(step_c, mul(x, y), new_z), floor))


@compiled(**FAST)
def _multiply(
    registers: Registers, factors: Pointer, columns: int, rows: Array, s: int, mode: int,
    products: Array,
) -> None:  # fmt: skip
    """At visit s, multiply the rows of all modes except `mode`. Store the result in `products`."""
    first = 1 if mode == 0 else 0
    product = load(registers, factors, rows[s, first] * columns)
    for n in range(first + 1, rows.shape[1]):
        if n != mode:
            product = mul(product, load(registers, factors, rows[s, n] * columns))
    store(pointer(products), mode * columns, product)


@compiled(forceinline=True, **FAST)
def _stepped(row: Vector, along: Vector, step: Float, limit: Float, floor: Float) -> Any:
    """Return `row` after a step in direction `along`. A non-zero `limit` caps the step's 2-norm."""
    if limit > _ZERO:
        norm = abs(step) * np.sqrt(total(mul(along, along)))
        step = step * (limit / norm) if norm > limit else step
    return at_least(fma(step, along, row), floor)
