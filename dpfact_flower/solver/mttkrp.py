"""MTTKRP of a sparse tensor, fibre by fibre, for any number of modes.

What a fibre's entries have in common is worked out once for all of them, so an entry costs one row
of one factor, read or written, however many modes there are.

Sums for features run over very many entries. They are made in the factors' own precision within a
chunk of the patients, and in float64 over the chunks, in their order: which thread made which chunk
is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpfact_flower.compiled import compiled
from dpfact_flower.solver.fibres import Array, Fibres
from dpfact_flower.solver.lanes import OCTET, add_product, contract, multiply, slices, spread
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.threads import in_order, thread_count


def mttkrp(tensor: SparseTensor, factors: Sequence[Array], mode: int) -> Array:
    """Matricised tensor times Khatri-Rao product of all factors but `mode`'s.

    Parameters
    ----------
    tensor : SparseTensor
    factors : sequence of N ndarrays of float32 or float64, each (I_n, R)
    mode : int in [0, N)

    Returns
    -------
    ndarray, shape (I_mode, R)
        As `stacked_mttkrp`.
    """
    fibres, rank = Fibres.of(tensor), factors[0].shape[1]
    product = stacked_mttkrp(fibres, fibres.stack(factors), mode, slices(rank)[0])
    return product[:, :rank]


def stacked_mttkrp(
    fibres: Fibres, stack: Array, mode: int, lanes: tuple[int, ...], *, threads: int | None = None
) -> Array:
    """`mttkrp` for fibres that are found and factors that are stacked already.

    Parameters
    ----------
    fibres : Fibres
    stack : ndarray of float32 or float64
        As of `Fibres.stack`.
    mode : int in [0, N)
    lanes : tuple of int
        As of `lanes.slices`.
    threads : int, optional
        Default: `thread_count`.

    Returns
    -------
    ndarray, shape (I_mode, R padded)
        Of the stack's type for the patients, whose rows collect few entries; float64 for features.
    """
    tensor, width = fibres.tensor, stack.shape[1]
    arrays = (tensor.indices, tensor.values, fibres.starts)
    last = mode == tensor.ndim - 1
    patients = np.zeros((tensor.n_patients if mode == 0 else 0, width), stack.dtype)

    def part(fibre_range: tuple[int, int]) -> Array:
        out = patients if mode == 0 else np.zeros((tensor.shape[mode], width), stack.dtype)
        if last:
            _spread_fibres(lanes, *arrays, *fibre_range, stack, fibres.offsets, out)
        else:
            _contract_fibres(lanes, *arrays, *fibre_range, stack, fibres.offsets, mode, out)
        return out

    total = np.zeros((tensor.shape[mode] if mode > 0 else 0, width))
    for out in in_order(part, fibres.fibre_ranges(), threads=threads or thread_count()):
        if mode > 0:
            total += out
    return total if mode > 0 else patients


@compiled()
def add_fibre(
    lanes: Any, indices: Array, entry: int, sums: Array, row: int, column: int, stack: Array,
    offsets: Array, mode: int, target: int, room: Array, out: Array,
) -> None:  # fmt: skip
    """Add to `out` what a fibre means for `mode`, which is not the last.

    Parameters
    ----------
    lanes : tuple of int
    indices : ndarray of int32, shape (nnz, N)
    entry : int
        Any of the fibre's entries.
    sums, row
        The fibre's contraction with the last factor: row `row` of `sums`.
    column : int
        First column of the slice.
    stack, offsets
        Factors.
    mode : int
    target : int
        Row of `out`.
    room : ndarray, shape (1, R padded)
        Scratch.
    out : ndarray, shape (rows, R padded)
    """
    prefix = indices.shape[1] - 1
    left = prefix - 1
    for n in range(prefix):
        if n == mode:
            continue
        other = offsets[n] + indices[entry, n]
        left -= 1
        if prefix == 2:
            add_product(lanes, out, target, sums, row, stack, other, column)
        elif left == prefix - 2:
            multiply(lanes, room, 0, sums, row, stack, other, column)
        elif left > 0:
            multiply(lanes, room, 0, room, 0, stack, other, column)
        else:
            add_product(lanes, out, target, room, 0, stack, other, column)


@compiled()
def _contract_fibres(
    lanes: Any, indices: Array, values: Array, starts: Array, first: int, end: int, stack: Array,
    offsets: Array, mode: int, out: Array,
) -> None:  # fmt: skip
    width, modes = stack.shape[1], indices.shape[1]
    sums, room = np.empty((1, width), stack.dtype), np.empty((1, width), stack.dtype)
    for fibre in range(first, end):
        s, e = starts[fibre], starts[fibre + 1]
        for column in range(0, width, OCTET * len(lanes)):
            if modes == 2:  # a patient is a fibre
                contract(
                    lanes, out, indices[s, 0], stack, offsets[1], column, indices, values, s, e
                )
            else:
                contract(lanes, sums, 0, stack, offsets[modes - 1], column, indices, values, s, e)
                add_fibre(
                    lanes, indices, s, sums, 0, column, stack, offsets, mode, indices[s, mode],
                    room, out,
                )  # fmt: skip


@compiled()
def _spread_fibres(
    lanes: Any, indices: Array, values: Array, starts: Array, first: int, end: int, stack: Array,
    offsets: Array, out: Array,
) -> None:  # fmt: skip
    width, modes = stack.shape[1], indices.shape[1]
    room = np.empty((1, width), stack.dtype)
    for fibre in range(first, end):
        s, e = starts[fibre], starts[fibre + 1]
        for column in range(0, width, OCTET * len(lanes)):
            if modes == 2:
                spread(lanes, out, 0, stack, indices[s, 0], column, indices, values, s, e)
                continue
            second = offsets[1] + indices[s, 1]
            multiply(lanes, room, 0, stack, indices[s, 0], stack, second, column)
            for n in range(2, modes - 1):
                multiply(lanes, room, 0, room, 0, stack, offsets[n] + indices[s, n], column)
            spread(lanes, out, 0, room, 0, column, indices, values, s, e)
