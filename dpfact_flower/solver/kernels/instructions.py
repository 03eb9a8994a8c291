"""Explicit vector instructions, for kernels that cannot rely on auto-vectorisation.

LLVM cannot rule out that arrays overlap, so by default LLVM keeps no sums in registers. LLVM also
uses only half the width of an AVX-512 register. This module therefore adds the type `Vector` to
numba. A vector is a group of registers that holds all or part of a factor matrix's row.

The tuple `registers` contains one zero for each register of a vector. A tuple's length is part of
its type, so numba compiles a separate kernel, with unrolled loops, for each number of registers. A
memory location is a `pointer` and an offset, counted in values. Bounds are not checked. Kernels
pass pointers instead of arrays, because numba counts references to arrays. A pointer does not keep
its array alive, so the kernel's caller must keep the array alive. Scalar operands are broadcast.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from dpfact_flower.machine.compiled import WIDTH

Registers = tuple[int, ...]
Pointer = Any
Offsets = tuple[int, ...]
"""First row of each mode in a stack, then the number of rows. numba unrolls loops over tuples."""
_INT32 = ir.IntType(32)
_FLAGS = ("contract", "nsz")
"""Flags that let LLVM merge a multiplication and an addition, but preserve NaN and infinity."""


class Vector(types.Type):
    """A numba type for several registers, each of `WIDTH` float32 or float64 values."""

    def __init__(self, real: Any, registers: int) -> None:
        self.real, self.registers = real, registers
        super().__init__(name=f"Vector({real}, {registers})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        register = ir.VectorType(dmm.lookup(fe_type.real).get_value_type(), WIDTH)
        shape = ir.ArrayType(register, fe_type.registers)
        super().__init__(dmm, fe_type, shape)  # type: ignore[no-untyped-call]


_operation: Callable[[Callable[..., Any]], Any] = intrinsic
"""Decorator for an operation. The operation has type Any, because numba changes its arguments."""


@_operation
def pointer(_: Any, array: Any) -> Any:
    """Return the address of the first value of a C-contiguous array."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), emit  # type: ignore[no-untyped-call]


@_operation
def read(_: Any, start: Any, offset: Any) -> Any:
    """Load one value."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(builder.gep(arguments[0], [arguments[1]]))

    return start.dtype(start, types.int64), emit


@_operation
def zeros(_: Any, registers: Any, start: Any) -> Any:
    """Return a vector of zeros of the same number type as the values at `start`."""

    def emit(context: Any, _builder: Any, signature: Any, _arguments: Any) -> Any:
        return ir.Constant(context.get_value_type(signature.return_type), None)

    return Vector(start.dtype, registers.count)(registers, start), emit


@_operation
def load(_: Any, registers: Any, start: Any, offset: Any) -> Any:
    """Load a vector from memory."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        registers = [builder.load(place) for place in _places(builder, kind, *arguments[1:])]
        for register in registers:
            register.align = start.dtype.bitwidth // 8
        return _packed(builder, kind, registers)

    return Vector(start.dtype, registers.count)(registers, start, types.int64), emit


@_operation
def store(_: Any, start: Any, offset: Any, vector: Any) -> Any:
    """Write a vector to memory."""

    def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        places = _places(builder, context.get_value_type(vector), *arguments[:2])
        for value, place in zip(_registers(builder, arguments[2]), places, strict=True):
            builder.store(value, place).align = vector.real.bitwidth // 8
        return context.get_dummy_value()

    return types.void(start, types.int64, vector), emit


@_operation
def mul(_: Any, x: Any, y: Any) -> Any:
    """Return ``x * y``."""
    return _each(lambda builder, x, y: builder.fmul(x, y, flags=_FLAGS), x, y)


@_operation
def add(_: Any, x: Any, y: Any) -> Any:
    """Return ``x + y``."""
    return _each(lambda builder, x, y: builder.fadd(x, y, flags=_FLAGS), x, y)


@_operation
def fma(_: Any, x: Any, y: Any, z: Any) -> Any:
    """Return ``x * y + z``, in one instruction if the processor has one."""
    return _each(_fma, x, y, z)


@_operation
def at_least(_: Any, x: Any, floor: Any) -> Any:
    """Return the element-wise maximum of `x` and `floor`. A NaN in `x` stays NaN."""
    return _each(
        lambda builder, x, y: builder.select(builder.fcmp_ordered("<", x, y), y, x), x, floor
    )


@_operation
def total(_: Any, x: Any) -> Any:
    """Return the sum of a vector's values."""

    def emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        terms = _registers(builder, arguments[0])
        while len(terms) > 1:  # in pairs, to avoid a long chain of dependent sums
            pairs = zip(terms[::2], terms[1::2], strict=False)
            rest = terms[-1:] if len(terms) % 2 else []
            terms = [builder.fadd(*pair, flags=_FLAGS) for pair in pairs] + rest
        (register,), half = terms, WIDTH
        while half := half // 2:
            other = _shuffled(builder, register, register, [lane ^ half for lane in range(WIDTH)])
            register = builder.fadd(register, other, flags=_FLAGS)
        return builder.extract_element(register, ir.Constant(_INT32, 0))

    return x.real(x), emit


@_operation
def outer(_: Any, start: Any, offset: Any, x: Any, sums: Any) -> Any:
    """Return ``sums[i] + start[offset + i] * x`` for each vector i of `sums`."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        start, offset, *vectors = arguments
        row, totals = (_registers(builder, vector) for vector in vectors)
        first = builder.gep(start, [offset])
        for place in range(len(totals)):
            number, register = divmod(place, len(row))
            if register == 0:
                value = builder.load(builder.gep(first, [ir.Constant(_INT32, number)]))
                weight = _splat(builder, kind.element, value)
            totals[place] = _fma(builder, weight, row[register], totals[place])
        return _packed(builder, kind, totals)

    return sums(start, types.int64, x, sums), emit


def _each(emit_one: Callable[..., Any], *kinds: Any) -> tuple[Any, Callable[..., Any]]:
    """Return a numba signature, and a code generator that applies `emit_one` to each register."""
    result = next(kind for kind in kinds if isinstance(kind, Vector))

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shape = context.get_value_type(result)
        columns = [
            _registers(builder, value)
            if isinstance(kind, Vector)
            else [_splat(builder, shape.element, value)] * result.registers
            for kind, value in zip(signature.args, arguments, strict=True)
        ]
        return _packed(
            builder, shape, [emit_one(builder, *row) for row in zip(*columns, strict=True)]
        )

    kinds = tuple(kind if isinstance(kind, Vector) else result.real for kind in kinds)
    return result(*kinds), emit


def _fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    return builder.fadd(builder.fmul(x, y, flags=_FLAGS), z, flags=_FLAGS)


def _places(builder: Any, kind: Any, start: Any, offset: Any) -> list[Any]:
    """Return a pointer to each register-sized part of a vector in memory."""
    first = builder.bitcast(builder.gep(start, [offset]), kind.element.as_pointer())
    return [builder.gep(first, [ir.Constant(_INT32, number)]) for number in range(kind.count)]


def _registers(builder: Any, vector: Any) -> list[Any]:
    return [builder.extract_value(vector, number) for number in range(vector.type.count)]


def _packed(builder: Any, kind: Any, registers: Sequence[Any]) -> Any:
    vector = ir.Constant(kind, ir.Undefined)
    for number, register in enumerate(registers):
        vector = builder.insert_value(vector, register, number)
    return vector


def _splat(builder: Any, register: Any, number: Any) -> Any:
    nothing = ir.Constant(register, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(_INT32, 0))
    return _shuffled(builder, first, nothing, [0] * WIDTH)


def _shuffled(builder: Any, x: Any, y: Any, lanes: Sequence[int]) -> Any:
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(_INT32, WIDTH), list(lanes)))
