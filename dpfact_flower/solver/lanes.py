"""Vector instructions for rows of factor matrices: sums stay in registers along a whole fibre.

Left to itself, LLVM keeps a fibre's sum in memory, since it can't rule out that the arrays overlap;
that doubles the time of an MTTKRP. So these few loops are spelled out in LLVM's vector
instructions, which it fits to the processor at hand.

A row is handled in slices of `lanes` octets, 8 values each. `lanes` is a tuple of so many zeros:
its length is part of its type, so the loop over a slice is unrolled when it is compiled. Arrays are
two-dimensional, C-contiguous and all float32 or all float64; nothing is checked. For use inside
`numba.njit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

OCTET = 8
_MOST = 8  # octets a slice: with as many again for what is loaded, all fit into registers
_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
_unpack: Any = cgutils.unpack_tuple
_variable: Any = cgutils.alloca_once
_ONE = ir.Constant(_INT64, 1)
_FLAGS = ("reassoc", "contract", "nsz")  # NaN and infinity keep their meaning


def slices(rank: int) -> tuple[tuple[int, ...], int]:
    """How a row of `rank` values is cut: `lanes`, and the length it is padded to."""
    octets = -(-rank // OCTET)
    count = -(-octets // _MOST)
    lanes = -(-octets // count)
    return (0,) * lanes, OCTET * lanes * count


class _Emitter:
    """Instructions for one call of an intrinsic; arguments are known by their place."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self.builder = builder
        self._context, self._types, self._arguments = context, signature.args, arguments
        self.lanes = range(signature.args[0].count)
        self._real = context.get_value_type(signature.args[1].dtype)
        self._vector = ir.VectorType(self._real, OCTET)

    def array(self, place: int) -> Any:
        kind = self._types[place]
        return self._context.make_array(kind)(self._context, self.builder, self._arguments[place])

    def row(self, place: int, number: Any, column: Any) -> list[Any]:
        """Pointers to the octets of a row's slice that begins at `column`."""
        builder, array = self.builder, self.array(place)
        width = _unpack(builder, array.shape)[1]
        start = builder.gep(array.data, [builder.add(builder.mul(number, width), column)])
        octets = builder.bitcast(start, self._vector.as_pointer())
        return [builder.gep(octets, [ir.Constant(_INT64, lane)]) for lane in self.lanes]

    def load(self, pointers: list[Any]) -> list[Any]:
        values = [self.builder.load(pointer) for pointer in pointers]
        for value in values:
            value.align = 4
        return values

    def store(self, values: list[Any], pointers: list[Any]) -> None:
        for value, pointer in zip(values, pointers, strict=True):
            self.builder.store(value, pointer).align = 4

    def product(self, x: list[Any], y: list[Any]) -> list[Any]:
        return [self.builder.fmul(*pair, flags=_FLAGS) for pair in zip(x, y, strict=True)]

    def total(self, x: list[Any], y: list[Any]) -> list[Any]:
        return [self.builder.fadd(*pair, flags=_FLAGS) for pair in zip(x, y, strict=True)]

    def across(self, vector: Any) -> Any:
        """Sum of a vector's values."""
        nothing = ir.Constant(self._vector, ir.Undefined)
        for half in (4, 2, 1):
            mask = [lane ^ half for lane in range(OCTET)]
            other = self.builder.shuffle_vector(
                vector, nothing, ir.Constant(ir.VectorType(_INT32, OCTET), mask)
            )
            (vector,) = self.total([vector], [other])
        return self.builder.extract_element(vector, ir.Constant(_INT32, 0))

    def variables(self) -> list[Any]:
        """Zeros that live in registers, once LLVM has promoted them."""
        pointers = [_variable(self.builder, self._vector) for _ in self.lanes]
        self.store([ir.Constant(self._vector, [0.0] * OCTET) for _ in self.lanes], pointers)
        return pointers

    @contextmanager
    def entries(self, indices: int, first: Any) -> Iterator[tuple[Any, list[Any]]]:
        """Loop over the entries of a fibre: the last mode's row, `first` added, and the value."""
        builder = self.builder
        begin, end = self._arguments[indices + 2 : indices + 4]
        table, values = self.array(indices).data, self.array(indices + 1).data
        modes = _unpack(builder, self.array(indices).shape)[1]
        with cgutils.for_range_slice(builder, begin, end, _ONE) as (entry, _):
            last = builder.sub(builder.mul(builder.add(entry, _ONE), modes), _ONE)
            index = builder.sext(builder.load(builder.gep(table, [last])), _INT64)
            value = builder.load(builder.gep(values, [entry]))
            if isinstance(self._real, ir.DoubleType):
                value = builder.fpext(value, self._real)
            nothing = ir.Constant(self._vector, ir.Undefined)
            alone = builder.insert_element(nothing, value, ir.Constant(_INT32, 0))
            mask = ir.Constant(ir.VectorType(_INT32, OCTET), [0] * OCTET)
            splat = builder.shuffle_vector(alone, nothing, mask)
            yield builder.add(first, index), [splat] * len(self.lanes)


_I = types.int64


def _instruction(emit: Callable[..., Any]) -> Any:
    """`numba.extending.intrinsic`, which takes the first argument away; typed so."""
    return intrinsic(emit)


@_instruction
def contract(
    _: Any, lanes: Any, out: Any, row: Any, stack: Any, first: Any, column: Any,
    indices: Any, values: Any, begin: Any, end: Any,
) -> Any:  # fmt: skip
    """out[row] = sum of values[s] * stack[first + indices[s, -1]] over a fibre's entries s."""

    def emit(*call: Any) -> Any:
        e, (_, _, row, _, first, column, *_) = _Emitter(*call), call[-1]
        sums = e.variables()
        with e.entries(6, first) as (number, value):
            term = e.product(value, e.load(e.row(3, number, column)))
            e.store(e.total(e.load(sums), term), sums)
        e.store(e.load(sums), e.row(1, row, column))
        return call[0].get_dummy_value()

    return types.void(lanes, out, _I, stack, _I, _I, indices, values, _I, _I), emit


@_instruction
def spread(
    _: Any, lanes: Any, out: Any, first: Any, source: Any, row: Any, column: Any,
    indices: Any, values: Any, begin: Any, end: Any,
) -> Any:  # fmt: skip
    """out[first + indices[s, -1]] += values[s] * source[row], for a fibre's entries s."""

    def emit(*call: Any) -> Any:
        e, (_, _, first, _, row, column, *_) = _Emitter(*call), call[-1]
        factor = e.load(e.row(3, row, column))
        with e.entries(6, first) as (number, value):
            target = e.row(1, number, column)
            e.store(e.total(e.load(target), e.product(value, factor)), target)
        return call[0].get_dummy_value()

    return types.void(lanes, out, _I, source, _I, _I, indices, values, _I, _I), emit


@_instruction
def multiply(
    _: Any, lanes: Any, out: Any, row: Any, x: Any, i: Any, y: Any, j: Any, column: Any
) -> Any:
    """out[row] = x[i] * y[j]."""

    def emit(*call: Any) -> Any:
        e, (_, _, row, _, i, _, j, column) = _Emitter(*call), call[-1]
        product = e.product(e.load(e.row(3, i, column)), e.load(e.row(5, j, column)))
        e.store(product, e.row(1, row, column))
        return call[0].get_dummy_value()

    return types.void(lanes, out, _I, x, _I, y, _I, _I), emit


@_instruction
def add_product(
    _: Any, lanes: Any, out: Any, row: Any, x: Any, i: Any, y: Any, j: Any, column: Any
) -> Any:
    """out[row] += x[i] * y[j]."""

    def emit(*call: Any) -> Any:
        e, (_, _, row, _, i, _, j, column) = _Emitter(*call), call[-1]
        product = e.product(e.load(e.row(3, i, column)), e.load(e.row(5, j, column)))
        target = e.row(1, row, column)
        e.store(e.total(e.load(target), product), target)
        return call[0].get_dummy_value()

    return types.void(lanes, out, _I, x, _I, y, _I, _I), emit


@_instruction
def dot(_: Any, lanes: Any, x: Any, i: Any, y: Any, j: Any, column: Any) -> Any:
    """Sum of x[i] * y[j] over the slice."""

    def emit(*call: Any) -> Any:
        e, (_, _, i, _, j, column) = _Emitter(*call), call[-1]
        terms = e.product(e.load(e.row(1, i, column)), e.load(e.row(3, j, column)))
        while len(terms) > 1:  # in pairs: no long chain of sums to wait for
            half = len(terms) // 2
            terms = [*e.total(terms[:half], terms[half : 2 * half]), *terms[2 * half :]]
        return e.across(terms[0])

    return x.dtype(lanes, x, _I, y, _I, _I), emit
