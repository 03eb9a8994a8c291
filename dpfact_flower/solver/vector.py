"""Eight float32 values as one vector, for kernels whose speed must not hang on auto-vectorisation.

numba has no type for a vector register, so this module makes one, `Octet`, and the few operations
that stochastic gradient steps need. They emit LLVM's vector instructions, which LLVM fits to the
processor at hand: one 256-bit register, two of 128 bits, or eight scalars.

Memory is named by an address, an integer, and a number of vectors from there; nothing is checked.
An address costs nothing to hand on, while numba counts references to an array at each call. Whoever
takes one keeps the array alive. Everything here is for use inside `numba.njit`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from dpfact_flower.compiled import compiled
from dpfact_flower.solver.kernels import LANES, Array

_INT32, _ADDRESS = ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_UNDEFINED = ir.Constant(_VECTOR, ir.Undefined)
_FLAGS = ("contract", "nsz")
"""Multiply and add may be one instruction; NaN and infinity keep their meaning."""


def _operation(function: Callable[..., Any]) -> Any:
    return intrinsic(function)  # a type checker would take its arguments for the caller's


class Octet(types.Type):
    """numba's type of a vector of eight float32."""

    def __init__(self) -> None:
        super().__init__(name="Octet")


_octet = Octet()


@register_model(Octet)
class _OctetModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _VECTOR)  # type: ignore[no-untyped-call]


@_operation
def address(_: Any, array: Any, offset: Any) -> Any:
    """Where value `offset` of a one-dimensional, C-contiguous array lies in memory."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(builder.gep(data, [arguments[1]]), _ADDRESS)

    return types.int64(array, types.int64), emit


@_operation
def load(_: Any, start: Any, number: Any) -> Any:
    """Vector `number` from an address on."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        value = builder.load(_place(builder, *arguments))
        value.align = 4
        return value

    return _octet(types.int64, types.int64), emit


@_operation
def store(_: Any, start: Any, number: Any, vector: Any) -> Any:
    """Write vector `number` from an address on."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _place(builder, *arguments[:2])).align = 4
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, _octet), emit


@_operation
def prefetch(_: Any, start: Any, number: Any) -> Any:
    """Ask for the cache line of vector `number` from an address on, to be written soon."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, _INT32, _INT32, _INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        write, keep, data = (ir.Constant(_INT32, flag) for flag in (1, 3, 1))
        place = builder.bitcast(_place(builder, *arguments), pointer)
        builder.call(function, [place, write, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@_operation
def splat(_: Any, number: Any) -> Any:
    """Vector of eight times the same float32."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        first = builder.insert_element(_UNDEFINED, arguments[0], ir.Constant(_INT32, 0))
        return _shuffled(builder, first, [0] * LANES)

    return _octet(types.float32), emit


@_operation
def mul(_: Any, x: Any, y: Any) -> Any:
    """Product of two vectors."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fmul(*arguments, flags=_FLAGS)

    return _octet(_octet, _octet), emit


@_operation
def add(_: Any, x: Any, y: Any) -> Any:
    """Sum of two vectors."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fadd(*arguments, flags=_FLAGS)

    return _octet(_octet, _octet), emit


@_operation
def fma(_: Any, x: Any, y: Any, z: Any) -> Any:
    """``x * y + z``, in one instruction where there is one."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        x, y, z = arguments
        return builder.fadd(builder.fmul(x, y, flags=_FLAGS), z, flags=_FLAGS)

    return _octet(_octet, _octet, _octet), emit


@_operation
def at_least(_: Any, x: Any, floor: Any) -> Any:
    """The larger of both, value by value; a NaN in `x` stays one."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        x, floor = arguments
        return builder.select(builder.fcmp_ordered("<", x, floor), floor, x)

    return _octet(_octet, _octet), emit


@_operation
def total(_: Any, x: Any) -> Any:
    """Sum of the eight values."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        (x,) = arguments
        for half in (4, 2, 1):
            other = _shuffled(builder, x, [lane ^ half for lane in range(LANES)])
            x = builder.fadd(x, other, flags=_FLAGS)
        return builder.extract_element(x, ir.Constant(_INT32, 0))

    return types.float32(_octet), emit


def _place(builder: Any, start: Any, number: Any) -> Any:
    return builder.gep(builder.inttoptr(start, _VECTOR.as_pointer()), [number])


def _shuffled(builder: Any, vector: Any, lanes: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(_INT32, LANES), lanes)
    return builder.shuffle_vector(vector, _UNDEFINED, mask)


@compiled()
def _every_operation(values: Array, result: Array) -> float:
    """(max(values, 2) / 2 + 1) * values + 1; returns the sum of what was written."""
    source, target, one = address(values, 0), address(result, 0), splat(np.float32(1))
    prefetch(source, 0)
    x = load(source, 0)
    half = fma(splat(np.float32(0.5)), at_least(x, splat(np.float32(2))), one)
    y = add(mul(half, x), one)
    store(target, 0, y)
    return float(total(y))


def works() -> bool:
    """Whether these operations compute on this machine what they should."""
    values, result = np.arange(LANES, dtype=np.float32), np.zeros(LANES, np.float32)
    expected = (np.maximum(values, 2) / 2 + 1) * values + 1  # exact in float32
    found = _every_operation(values, result)
    return bool((result == expected).all() and found == expected.sum())
