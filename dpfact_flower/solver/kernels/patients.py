"""Update the patients' factor A exactly, and compute the next MTTKRP, in one pass over the data.

The module processes one block of patients at a time, while the block is in the cache. For each
block, the module computes the MTTKRP, updates the block's rows of A, and adds the new rows' parts
to A's Gram matrix and to the next mode's MTTKRP. The patients' MTTKRP and the next mode's MTTKRP
share the sums over the last mode. Blocks are independent only if the l2,1 weight is 0. For a
positive l2,1 weight, `exact` uses `update_patients` instead of this module.
"""

import itertools
from typing import Any

import numpy as np

from dpfact_flower.machine.compiled import FAST, REGISTERS, WIDTH, compiled
from dpfact_flower.machine.threads import in_order
from dpfact_flower.solver.kernels.instructions import (
    Offsets,
    Registers,
    add,
    at_least,
    fma,
    load,
    mul,
    outer,
    pointer,
    read,
    store,
    total,
    zeros,
)
from dpfact_flower.solver.mttkrp import BLOCK, TILE, Fibres, contracted, row_of
from dpfact_flower.tensor.arrays import Array
from dpfact_flower.tensor.stack import aligned_zeros, slices

STRIP = REGISTERS // 4
"""Number of columns in a strip, whose gradients are computed together. Each gradient fills `TILE`
registers, and the processor has enough registers for all gradients of a strip."""
LEAST_CURVATURE = float(np.finfo(np.float32).tiny)
"""Curvature below which a column counts as having no effect on the model."""
_SUMS = TILE * STRIP  # number of registers for the sums of a Gram matrix
_FEW = 8  # number of blocks whose Gram matrices are summed in float32 before float64 is used
_MINUS = np.float32(-1)

_TILE = (0,) * TILE  # registers for a column of a block
_STRIP = (0,) * _SUMS  # registers for the gradients of a strip


def update_rows(
    fibres: Fibres, stack: Array, q: Array, *, floor: float, sweeps: int
) -> tuple[Array, float, Array]:
    """Update the patients' factor in `stack`. The module `exact` explains `q` and `floor`.

    Return the new MTTKRP of mode 1, the data's inner product with the old model, and the Gram
    matrix of the new patients' factor. If mode 1 is the last mode, the MTTKRP is zero.
    """
    tensor, rank, width = fibres.tensor, len(q), stack.shape[1]
    registers, _ = slices(width)
    curvature = np.diag(q)
    steps = np.zeros(width, np.float32)
    steps[:rank] = np.divide(1, curvature, out=np.zeros(rank), where=curvature > LEAST_CURVATURE)
    pulls = aligned_zeros(width, width)
    pulls[:rank, :rank] = -q
    outers = registers * (_SUMS // len(registers))  # registers for the sums of a Gram matrix

    def part(blocks: tuple[int, int]) -> tuple[Array, float, Array]:
        most = np.diff(fibres.patients[fibres.blocks[blocks[0] : blocks[1] + 1]]).max()
        buffers, out = _buffers(int(most), width), aligned_zeros(tensor.shape[1], width)
        gram = np.zeros(buffers[-1].shape)
        inner = _update_blocks(
            registers, outers, tensor.indices, tensor.values, fibres.starts,
            fibres.patients, fibres.blocks, *blocks, stack, fibres.offsets, rank,
            pulls, steps, np.float32(floor), sweeps, buffers, out, gram,
        )  # fmt: skip
        return out, inner, gram

    product, inner = np.zeros((tensor.shape[1], width)), 0.0
    gram = np.zeros((width + _SUMS, width))
    parts = list(itertools.pairwise(fibres.chunks.tolist()))
    for out, part_of_inner, part_of_gram in in_order(part, parts):
        product += out
        inner += part_of_inner
        gram += part_of_gram
    by_slice = gram.reshape(-1, len(gram), WIDTH * len(registers))
    return product, inner, np.concatenate(list(by_slice), axis=1)[:rank, :rank]


def _buffers(fibres: int, width: int) -> tuple[Array, ...]:
    """Allocate the working arrays of `_update_blocks`, for blocks of at most `fibres` fibres."""
    rows, more = BLOCK + 1, width + _SUMS  # the Gram matrix's sums extend beyond the last row
    shapes = (
        (fibres, width), (rows, width), (BLOCK, width), (width, BLOCK), (width, BLOCK),
        (STRIP, BLOCK), (more, width),
    )  # fmt: skip
    return tuple(aligned_zeros(*shape) for shape in shapes)


@compiled(**FAST)
def _update_blocks(
    registers: Registers, outers: Registers, indices: Array, values: Array, starts: Array,
    patients: Array, blocks: Array, first_block: int, end_block: int, stack: Array,
    offsets: Offsets, rank: int, pulls: Array, steps: Array, floor: Any, sweeps: int,
    buffers: tuple[Array, ...], out: Array, gram: Array,
) -> float:  # fmt: skip
    """Update `out`, `gram` and rows of `stack`. Return the inner product of data and old model."""
    sums, rows, product, columns, target, gradient, squares = buffers
    inner = 0.0
    for block in range(first_block, end_block):
        first, end = blocks[block], blocks[block + 1]
        inner += _gather(
            registers, indices, values, starts, patients, first, end, stack, offsets, sums, rows,
            product,
        )  # fmt: skip
        _transpose(rows[:BLOCK], columns)
        _transpose(product, target)
        for _ in range(sweeps):
            _sweep(rank, columns, target, pulls, steps, floor, gradient)
        _transpose(columns, rows[:BLOCK])
        _scatter(registers, indices, starts, patients, first, end, stack, offsets, sums, rows, out)
        _add_gram(registers, outers, rank, rows, end - first, squares)
        if block % _FEW == 0 or block == end_block - 1:
            gram += squares  # to float64, before float32 loses digits
            squares[:] = 0
    return inner


@compiled(**FAST)
def _gather(
    registers: Registers, indices: Array, values: Array, starts: Array, patients: Array, first: int,
    end: int, stack: Array, offsets: Offsets, sums: Array, rows: Array, product: Array,
) -> float:  # fmt: skip
    """Write a block's rows to `rows` and its MTTKRP to `product`. Return their inner product."""
    width, modes = stack.shape[1], len(offsets) - 1
    cells, counts, begin = pointer(indices), pointer(values), pointer(starts)
    fibres, factors, kept = pointer(patients), pointer(stack), pointer(sums)
    inner = 0.0
    for column in range(0, width, WIDTH * len(registers)):
        fibre, place = read(fibres, first), column
        for patient in range(first, end):
            x, last = zeros(registers, factors), read(fibres, patient + 1)
            while fibre < last:
                s, e = read(begin, fibre), read(begin, fibre + 1)
                y = contracted(registers, cells, counts, s, e, factors, width, column, offsets)
                store(kept, place, y)
                for n in range(1, modes - 1):
                    y = mul(y, row_of(registers, cells, s, n, factors, width, column, offsets))
                x = add(x, y)
                fibre += 1
                place += width
            row = load(registers, factors, patient * width + column)
            target = (patient - first) * width + column
            store(pointer(rows), target, row)
            store(pointer(product), target, x)
            inner += np.float64(total(mul(row, x)))
    return inner


@compiled(**FAST)
def _transpose(source: Array, target: Array) -> None:
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            target[j, i] = source[i, j]


@compiled(**FAST)
def _sweep(
    rank: int, columns: Array, target: Array, pulls: Array, steps: Array, floor: Any,
    gradient: Array,
) -> None:  # fmt: skip
    """Minimise the objective over each column in turn. Padding columns stay zero."""
    width = len(pulls)
    new, aim, pull = pointer(columns), pointer(target), pointer(pulls)
    step, left = pointer(steps), pointer(gradient)
    for first in range(0, rank, STRIP):
        slopes = load(_STRIP, aim, first * BLOCK)
        for k in range(rank):
            slopes = outer(pull, k * width + first, load(_TILE, new, k * BLOCK), slopes)
        store(left, 0, slopes)
        for here in range(STRIP):
            r = first + here
            old, slope = load(_TILE, new, r * BLOCK), load(_TILE, left, here * BLOCK)
            best = at_least(fma(read(step, r), slope, old), floor)
            store(new, r * BLOCK, best)
            change = fma(_MINUS, old, best)
            for later in range(here + 1, STRIP):
                slope = load(_TILE, left, later * BLOCK)
                weight = read(pull, r * width + first + later)
                store(left, later * BLOCK, fma(weight, change, slope))


@compiled(**FAST)
def _scatter(
    registers: Registers, indices: Array, starts: Array, patients: Array, first: int, end: int,
    stack: Array, offsets: Offsets, sums: Array, rows: Array, out: Array,
) -> None:  # fmt: skip
    """Copy a block's new rows to `stack`, and add the rows' part of mode 1's MTTKRP to `out`."""
    width, modes = stack.shape[1], len(offsets) - 1
    cells, begin, fibres = pointer(indices), pointer(starts), pointer(patients)
    factors, kept, results = pointer(stack), pointer(sums), pointer(out)
    for column in range(0, width, WIDTH * len(registers)):
        fibre, place = read(fibres, first), column
        for patient in range(first, end):
            row = load(registers, pointer(rows), (patient - first) * width + column)
            store(factors, patient * width + column, row)
            last = read(fibres, patient + 1)
            while modes > 2 and fibre < last:
                s = read(begin, fibre)
                x = mul(row, load(registers, kept, place))
                for n in range(2, modes - 1):
                    x = mul(x, row_of(registers, cells, s, n, factors, width, column, offsets))
                target = width * read(cells, s * modes + 1) + column
                store(results, target, add(x, load(registers, results, target)))
                fibre += 1
                place += width


@compiled(**FAST)
def _add_gram(
    registers: Registers, outers: Registers, rank: int, rows: Array, count: int, gram: Array
) -> None:
    """Add the Gram matrix of `count` rows to `gram`, which is stored slice by slice."""
    width, size = rows.shape[1], WIDTH * len(registers)
    at, totals = pointer(rows), pointer(gram)
    for column in range(0, width, size):
        for r in range(0, rank, len(outers) // len(registers)):
            place = column * len(gram) + r * size
            sums = load(outers, totals, place)
            for p in range(count):
                sums = outer(at, p * width + r, load(registers, at, p * width + column), sums)
            store(totals, place, sums)
