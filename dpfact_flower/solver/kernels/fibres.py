"""The fibres of a sparse tensor, and the division of its patients into blocks and chunks.

A *fibre* is a run of entries that differ in the last mode alone. A sorted tensor holds the fibres
one after the other, so it is enough to find their first entries.

*Blocks* are groups of patients whose intermediate results fit into the cache. *Chunks* are groups
of blocks that one thread processes. Blocks and chunks depend on the data alone.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.machine.compiled import WIDTH, compiled
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.arrays import Array
from dpfact_flower.tensor.remembered import remembered
from dpfact_flower.tensor.stack import row_offsets

TILE = 3  # registers for one column of a block of patients
BLOCK = TILE * WIDTH  # largest number of patients in a block
_FIBRES = 4096  # largest number of fibres in a block, unless one patient has more
_CHUNK = 1 << 16  # number of entries in a chunk, or slightly more


@dataclass(frozen=True, eq=False, repr=False)
class Fibres:
    """A tensor and its fibres; `of` creates an instance.

    `starts` has the first entry of each fibre, `patients` the first fibre of each patient, `blocks`
    the first patient of each block, `chunks` the first block of each chunk, and `offsets` the first
    row of each mode in a stack. Each array ends with the total number of the items that it refers
    to.
    """

    tensor: SparseTensor
    starts: NDArray[np.int64]
    patients: NDArray[np.int64]
    blocks: NDArray[np.int64]
    chunks: NDArray[np.int64]
    offsets: tuple[int, ...]

    @classmethod
    def of(cls, tensor: SparseTensor) -> Fibres:
        """Find the fibres of a tensor, and divide its patients into blocks and chunks."""
        new = np.zeros(tensor.nnz + 1, np.bool_)
        new[[0, -1]] = True
        for column in tensor.indices.T[:-1]:
            new[1:-1] |= column[1:] != column[:-1]
        starts = np.flatnonzero(new)
        owners = tensor.indices[starts[:-1], 0]
        patients = np.searchsorted(owners, np.arange(tensor.n_patients + 1))
        room = np.empty(tensor.n_patients + 1, np.int64)
        blocks = room[: 1 + _divide(patients, room)].copy()
        chunk = starts[patients[blocks[:-1]]] // _CHUNK
        chunks = np.append(np.flatnonzero(np.diff(chunk, prepend=-1)), len(chunk))
        offsets = tuple(row_offsets(tensor.shape).tolist())
        return cls(tensor, starts, patients, blocks, chunks, offsets)

    @cached_property
    def norm_squared(self) -> float:
        """Squared Frobenius norm of the tensor, summed in float64."""
        values = self.tensor.values
        return float(np.einsum("s,s->", values, values, dtype=np.float64))

    def rows(self, stack: Array, mode: int) -> Array:
        """Return the rows of one mode in a stack, as a view with the padding."""
        return stack[self.offsets[mode] : self.offsets[mode + 1]]

    def patient_ranges(self) -> list[tuple[int, int]]:
        """Return each chunk's first patient, and the first patient after the chunk."""
        return list(itertools.pairwise(self.blocks[self.chunks].tolist()))

    def fibre_ranges(self) -> list[tuple[int, int]]:
        """Return each chunk's first fibre, and the first fibre after the chunk."""
        return list(itertools.pairwise(self.patients[self.blocks[self.chunks]].tolist()))


@remembered
def fibres_of(tensor: SparseTensor) -> Fibres:
    """Return the fibres of a tensor from a cache, or find them with `Fibres.of`."""
    return Fibres.of(tensor)


@compiled()
def _divide(patients: Array, blocks: Array) -> int:
    """Fill `blocks`. Return the number of blocks."""
    count = 0
    blocks[0] = 0
    for patient in range(1, len(patients) - 1):
        first = blocks[count]
        if patient - first == BLOCK or patients[patient + 1] - patients[first] > _FIBRES:
            count += 1
            blocks[count] = patient
    blocks[count + 1] = len(patients) - 1
    return count + 1
