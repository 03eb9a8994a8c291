"""MTTKRP of a sparse tensor, fibre by fibre, for any number of modes.

Work that is common to a fibre's entries is done once per fibre. Each entry then reads or writes
only one row of one factor. Within a chunk of patients, sums use the precision of the factors. The
sums of all chunks are added in float64 and in a fixed order, so threads do not affect the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpfact_flower.machine.threads import in_batches, thread_count
from dpfact_flower.solver.kernels.fibres import Fibres
from dpfact_flower.solver.kernels.vector.fibres import contract, spread
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.arrays import Array
from dpfact_flower.tensor.stack import aligned_zeros, slices, stack_factors


def mttkrp(tensor: SparseTensor, factors: Sequence[Array], mode: int) -> Array:
    """Return the matricised tensor times the Khatri-Rao product of the others, (I_mode, R)."""
    product = stacked_mttkrp(Fibres.of(tensor), stack_factors(factors), mode)
    return product[:, : factors[0].shape[1]]


def stacked_mttkrp(fibres: Fibres, stack: Array, mode: int, *, threads: int | None = None) -> Array:
    """Compute `mttkrp` from a tensor's fibres and stacked factors.

    For patients, whose rows have few entries, the result has the type of the stack. For features,
    the result is float64.
    """
    tensor, size, width = fibres.tensor, fibres.tensor.shape[mode], stack.shape[1]
    registers, _ = slices(width)
    entries = registers, tensor.indices, tensor.values, fibres.starts
    patients = aligned_zeros(size if mode == 0 else 0, width, stack.dtype)

    def part(fibre_range: tuple[int, int]) -> Array:
        out = patients if mode == 0 else aligned_zeros(size, width, stack.dtype)
        if mode == tensor.ndim - 1:
            spread(*entries, *fibre_range, stack, fibres.offsets, out)
        else:
            contract(*entries, *fibre_range, stack, fibres.offsets, mode, out)
        return out

    total = np.zeros((size if mode > 0 else 0, width))
    for out in in_batches(part, fibres.fibre_ranges(), threads=threads or thread_count()):
        if mode > 0:
            total += out
    return total if mode > 0 else patients
