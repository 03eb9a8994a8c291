"""Loops over fibres in vector instructions. Sums along a fibre stay in registers.

Rows are processed in slices of `registers`, see `dpfact_flower.tensor.stack.slices`. `column` is
the start of a slice. `offsets` holds the first row of each mode in the stack, then the number of
rows. It is a tuple, so loops over the modes are unrolled. Stacks are float32 or float64.
"""

from __future__ import annotations

from typing import Any

from dpfact_flower.machine.compiled import FAST, WIDTH, compiled
from dpfact_flower.solver.kernels.vector.instructions import (
    add,
    fma,
    load,
    mul,
    pointer,
    read,
    store,
    zeros,
)
from dpfact_flower.tensor.arrays import Array

Registers = tuple[int, ...]
Offsets = tuple[int, ...]
Pointer = Any
Vector = Any


@compiled(forceinline=True, **FAST)
def contracted(
    registers: Registers, indices: Pointer, values: Pointer, first: int, end: int, stack: Pointer,
    width: int, column: int, offsets: Offsets,
) -> Vector:  # fmt: skip
    """Sum the last factor's rows over entries first..end-1, each row times the entry's value."""
    modes = len(offsets) - 1
    origin = offsets[modes - 1] * width + column
    sums = zeros(registers, stack)
    for s in range(first, end):
        row = width * read(indices, s * modes + modes - 1)
        sums = fma(read(values, s), load(registers, stack, origin + row), sums)
    return sums


@compiled(forceinline=True, **FAST)
def row_of(
    registers: Registers, indices: Pointer, entry: int, mode: int, stack: Pointer, width: int,
    column: int, offsets: Offsets,
) -> Vector:  # fmt: skip
    """Load the row of a mode's factor that belongs to an entry."""
    row = offsets[mode] + read(indices, entry * (len(offsets) - 1) + mode)
    return load(registers, stack, row * width + column)


@compiled(**FAST)
def contract(
    registers: Registers, indices: Array, values: Array, starts: Array, first: int, end: int,
    stack: Array, offsets: Offsets, mode: int, out: Array,
) -> None:  # fmt: skip
    """Add fibres first..end-1 to the MTTKRP of a mode other than the last, `out`.

    `out` has the type of the stack and the shape (I_mode, padded R).
    """
    width, modes = stack.shape[1], len(offsets) - 1
    cells, counts, begin = pointer(indices), pointer(values), pointer(starts)
    factors, sums = pointer(stack), pointer(out)
    for column in range(0, width, WIDTH * len(registers)):
        for fibre in range(first, end):
            s, e = read(begin, fibre), read(begin, fibre + 1)
            x = contracted(registers, cells, counts, s, e, factors, width, column, offsets)
            for n in range(modes - 1):
                if n != mode:
                    x = mul(x, row_of(registers, cells, s, n, factors, width, column, offsets))
            target = width * read(cells, s * modes + mode) + column
            store(sums, target, add(x, load(registers, sums, target)))


@compiled(**FAST)
def spread(
    registers: Registers, indices: Array, values: Array, starts: Array, first: int, end: int,
    stack: Array, offsets: Offsets, out: Array,
) -> None:  # fmt: skip
    """Add fibres first..end-1 to the MTTKRP of the last mode, `out`."""
    width, modes = stack.shape[1], len(offsets) - 1
    cells, counts, begin = pointer(indices), pointer(values), pointer(starts)
    factors, sums = pointer(stack), pointer(out)
    for column in range(0, width, WIDTH * len(registers)):
        for fibre in range(first, end):
            s, e = read(begin, fibre), read(begin, fibre + 1)
            x = row_of(registers, cells, s, 0, factors, width, column, offsets)
            for n in range(1, modes - 1):
                x = mul(x, row_of(registers, cells, s, n, factors, width, column, offsets))
            for entry in range(s, e):
                target = width * read(cells, entry * modes + modes - 1) + column
                store(sums, target, fma(read(counts, entry), x, load(registers, sums, target)))
