"""Compute MTTKRPs and errors in passes over a sparse tensor's fibres, for any number of modes.

An *MTTKRP* is the product of a matricised tensor and the Khatri-Rao product of factors. A *fibre*
is a run of entries whose indices differ only in the last mode. Except for the last mode, factor
rows are read only once per fibre, not once per entry.

*Blocks* are groups of patients whose intermediate results fit into the cache. *Chunks* are groups
of blocks. Each chunk is processed by one thread. The chunks depend only on the data, and their sums
are added in float64 in a fixed order. The number of threads therefore does not affect the result.
Within a chunk, sums are computed in the factors' precision.

Loops over fibres use vector instructions. A factor's row is processed in slices, each of which
fills `registers` (see `stack.slices`). The argument `column` is a slice's first column.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.machine.compiled import FAST, WIDTH, compiled
from dpfact_flower.machine.threads import in_order
from dpfact_flower.solver.kernels.instructions import (
    Offsets,
    Pointer,
    Registers,
    add,
    fma,
    load,
    mul,
    pointer,
    read,
    store,
    total,
    zeros,
)
from dpfact_flower.tensor import Array, Factors, SparseTensor, SquaredError
from dpfact_flower.tensor.cp import gram, hadamard
from dpfact_flower.tensor.stack import aligned_zeros, row_offsets, slices, stack_factors

TILE = 3  # number of registers for one column of a block of patients
BLOCK = TILE * WIDTH  # largest number of patients in a block
_FIBRES = 4096  # largest number of fibres in a block, unless one patient has more
_CHUNK = 1 << 16  # approximate number of entries in a chunk


@dataclass(frozen=True, eq=False, repr=False)
class Fibres:
    """A tensor and its fibres. To create an instance, call `of`.

    ``starts`` lists each fibre's first entry. ``patients`` lists each patient's first fibre.
    ``blocks`` lists each block's first patient. ``chunks`` lists each chunk's first block.
    ``offsets`` lists each mode's first row in a stack. Each sequence ends with one more element:
    the total number of entries, fibres, patients, blocks or rows.
    """

    tensor: SparseTensor
    starts: NDArray[np.int64]
    patients: NDArray[np.int64]
    blocks: NDArray[np.int64]
    chunks: NDArray[np.int64]
    offsets: tuple[int, ...]

    @classmethod
    def of(cls, tensor: SparseTensor) -> "Fibres":
        """Find the fibres of a tensor, and divide its patients into blocks and chunks."""
        new = np.zeros(tensor.nnz + 1, np.bool_)
        new[[0, -1]] = True
        for column in tensor.indices.T[:-1]:
            new[1:-1] |= column[1:] != column[:-1]
        starts = np.flatnonzero(new)
        patients = np.searchsorted(tensor.indices[starts[:-1], 0], np.arange(tensor.n_patients + 1))
        buffer = np.empty(tensor.n_patients + 1, np.int64)
        blocks = buffer[: 1 + _divide(patients, buffer)].copy()
        chunk = starts[patients[blocks[:-1]]] // _CHUNK
        chunks = np.append(np.flatnonzero(np.diff(chunk, prepend=-1)), len(chunk))
        offsets = tuple(row_offsets(tensor.shape).tolist())
        return cls(tensor, starts, patients, blocks, chunks, offsets)


@compiled()
def _divide(patients: Array, blocks: Array) -> int:
    """Fill `blocks` with the first patient of each block. Return the number of blocks."""
    count = 0
    blocks[0] = 0
    for patient in range(1, len(patients) - 1):
        first = blocks[count]
        if patient - first == BLOCK or patients[patient + 1] - patients[first] > _FIBRES:
            count += 1
            blocks[count] = patient
    blocks[count + 1] = len(patients) - 1
    return count + 1


def mttkrp(tensor: SparseTensor, factors: Sequence[Array], mode: int) -> Array:
    """Matricise the tensor along `mode`, and multiply by the other factors' Khatri-Rao product."""
    return stacked_mttkrp(Fibres.of(tensor), stack_factors(factors), mode)[:, : factors[0].shape[1]]


def stacked_mttkrp(fibres: Fibres, stack: Array, mode: int) -> Array:
    """Compute `mttkrp` from a tensor's fibres and stacked factors.

    The result is float64 for feature modes. For the patients' mode, the result has the stack's
    type, because only a few terms are summed per patient.
    """
    tensor, size, width = fibres.tensor, fibres.tensor.shape[mode], stack.shape[1]
    registers, _ = slices(width)
    entries = registers, tensor.indices, tensor.values, fibres.starts
    patients = aligned_zeros(size if mode == 0 else 0, width, stack.dtype)

    def part(fibre_range: tuple[int, int]) -> Array:
        out = patients if mode == 0 else aligned_zeros(size, width, stack.dtype)
        if mode == tensor.ndim - 1:
            _spread(*entries, *fibre_range, stack, fibres.offsets, out)
        else:
            _contract(*entries, *fibre_range, stack, fibres.offsets, mode, out)
        return out

    total = np.zeros((size if mode > 0 else 0, width))
    ranges = list(itertools.pairwise(fibres.patients[fibres.blocks[fibres.chunks]].tolist()))
    for out in in_order(part, ranges):
        if mode > 0:
            total += out
    return total if mode > 0 else patients


@compiled(forceinline=True, **FAST)
def contracted(
    registers: Registers, indices: Pointer, values: Pointer, first: int, end: int, stack: Pointer,
    width: int, column: int, offsets: Offsets,
) -> Any:  # fmt: skip
    """For entries from `first` to `end - 1`, sum the last factor's rows, weighted by the values."""
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
) -> Any:  # fmt: skip
    """Load the row that an entry's index selects in a mode's factor."""
    row = offsets[mode] + read(indices, entry * (len(offsets) - 1) + mode)
    return load(registers, stack, row * width + column)


@compiled(**FAST)
def _contract(
    registers: Registers, indices: Array, values: Array, starts: Array, first: int, end: int,
    stack: Array, offsets: Offsets, mode: int, out: Array,
) -> None:  # fmt: skip
    """For a mode before the last, add the MTTKRP of fibres `first` to `end - 1` to `out`."""
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
def _spread(
    registers: Registers, indices: Array, values: Array, starts: Array, first: int, end: int,
    stack: Array, offsets: Offsets, out: Array,
) -> None:  # fmt: skip
    """Compute the last mode's MTTKRP for fibres `first` to `end - 1`, and add it to `out`."""
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


def squared_error(
    tensor: SparseTensor, factors: Factors, grams: Sequence[Array] | None = None,
    norm_squared: float | None = None,
) -> SquaredError:  # fmt: skip
    """Compute `CPModel.squared_error` for float32 factors, in about the time of one MTTKRP.

    Cell values are computed in float32 and summed in float64, so the result has about six correct
    digits. If known, pass the factors' Gram matrices and the tensor's squared norm.
    """
    fibres = Fibres.of(tensor)

    def part(chunk: tuple[int, int]) -> tuple[float, float, float]:
        first, end = chunk  # of patients; only the rows of this chunk need padding
        stack = stack_factors([factors[0][first:end], *factors[1:]])
        offsets = row_offsets((end - first, *tensor.feature_shape))
        offsets[0] = -first
        entries = slice(*fibres.starts[fibres.patients[[first, end]]])
        return entry_sums(stack, tensor.indices[entries], tensor.values[entries], offsets)

    chunks = list(itertools.pairwise(fibres.blocks[fibres.chunks].tolist()))
    parts = list(in_order(part, chunks))
    nonzeros = sum(squares for squares, _, _ in parts)
    model = float(hadamard(grams or [gram(factor) for factor in factors]).sum())
    zeros = model - sum(mass for _, _, mass in parts)
    data = tensor.norm_squared() if norm_squared is None else norm_squared
    return SquaredError.on(tensor, nonzeros + zeros, nonzeros, data)


def inner_product(tensor: SparseTensor, factors: Factors) -> float:
    """Return the inner product of data and model for float32 factors, summed in float64."""
    stack = stack_factors(factors)
    return entry_sums(stack, tensor.indices, tensor.values, row_offsets(tensor.shape))[1]


def entry_sums(
    stack: Array, indices: Array, values: Array, offsets: Array
) -> tuple[float, float, float]:
    """Return the sums of squared errors, of data times model, and of squared model values."""
    registers = (0,) * (stack.shape[1] // WIDTH)
    return _entry_sums(registers, stack, indices, values, tuple(offsets.tolist()))


@compiled(**FAST)
def _entry_sums(
    registers: Registers, stack: Array, indices: Array, values: Array, offsets: tuple[int, ...]
) -> tuple[float, float, float]:
    columns, modes = stack.shape[1], len(offsets) - 1
    factors = pointer(stack)
    squares, inner, mass = 0.0, 0.0, 0.0
    for s in range(len(values)):
        product = load(registers, factors, (offsets[0] + indices[s, 0]) * columns)
        for n in range(1, modes):
            row = offsets[n] + indices[s, n]
            product = mul(product, load(registers, factors, row * columns))
        model, value = np.float64(total(product)), np.float64(values[s])
        squares += (value - model) * (value - model)
        inner += value * model
        mass += model * model
    return squares, inner, mass
