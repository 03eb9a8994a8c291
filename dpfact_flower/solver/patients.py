"""The exact update of the patients' factor, and what the entries mean for the next mode, in one go.

Without an l2,1 weight, patients have nothing to do with each other: their rows of A follow from
their own entries and the features. So a block of patients is done with while it is in the cache:
MTTKRP, sweeps over its columns, and then, with the new rows, its part of the next mode's MTTKRP,
which shares its sums over the last mode. With an l2,1 weight a column is shortened as a whole, and
this module is not used.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from dpfact_flower.compiled import compiled
from dpfact_flower.solver.columns import PANEL, descend_panel
from dpfact_flower.solver.fibres import BLOCK, Array, Fibres
from dpfact_flower.solver.lanes import OCTET, contract
from dpfact_flower.solver.mttkrp import add_fibre
from dpfact_flower.threads import in_order


def update_rows(
    fibres: Fibres,
    stack: Array,
    lanes: tuple[int, ...],
    q: Array,
    *,
    floor: float,
    sweeps: int,
    threads: int,
) -> tuple[Array, float]:
    """Sweep over the columns of A, which is updated in place.

    Parameters
    ----------
    fibres : Fibres
    stack : ndarray of float32
        As of `Fibres.stack`.
    lanes : tuple of int
        As of `lanes.slices`.
    q : ndarray, shape (R, R)
        Hadamard product of the features' Gram matrices.
    floor : float
        0 for non-negativity, or minus infinity.
    sweeps : int
    threads : int

    Returns
    -------
    product : ndarray of float64, shape (I_1, R padded)
        MTTKRP of mode 1 with the new rows of A; zeros if mode 1 is the last.
    inner : float
        <X, M> with the rows as they were.
    """
    tensor = fibres.tensor
    weights = q.astype(np.float32)
    shape = (tensor.shape[1], stack.shape[1])

    def part(blocks: tuple[int, int]) -> tuple[Array, float]:
        out = np.zeros(shape, np.float32)
        inner = _update_blocks(
            lanes, tensor.indices, tensor.values, fibres.starts, fibres.patients, fibres.blocks,
            *blocks, stack, fibres.offsets, weights, floor, sweeps, out,
        )  # fmt: skip
        return out, inner

    product, inner = np.zeros(shape), 0.0
    parts = itertools.pairwise(fibres.chunks.tolist())
    for out, part_of_inner in in_order(part, parts, threads=threads):
        product += out
        inner += part_of_inner
    return product, inner


@compiled(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def _update_blocks(
    lanes: Any, indices: Array, values: Array, starts: Array, patients: Array, blocks: Array,
    first_block: int, end_block: int, stack: Array, offsets: Array, q: Array, floor: float,
    sweeps: int, out: Array,
) -> float:  # fmt: skip
    rank, width = len(q), stack.shape[1]
    most = 0
    for block in range(first_block, end_block):
        most = max(most, patients[blocks[block + 1]] - patients[blocks[block]])
    sums, room = np.empty((most, width), np.float32), np.empty((1, width), np.float32)
    product = np.empty((BLOCK, width), np.float32)
    columns_room = np.empty(rank * BLOCK, np.float32)
    target_room = np.empty(rank * BLOCK, np.float32)
    gradient_room = np.empty(PANEL * BLOCK, np.float32)
    inner = 0.0
    for block in range(first_block, end_block):
        first, end = blocks[block], blocks[block + 1]
        size = end - first
        columns = columns_room[: rank * size].reshape((rank, size))
        target = target_room[: rank * size].reshape((rank, size))
        _contract_block(
            lanes, indices, values, starts, patients, first, end, stack, offsets, sums, room,
            product,
        )  # fmt: skip
        inner += _turn_in(stack, product, first, end, columns, target)
        for _ in range(sweeps):
            for start in range(0, rank, PANEL):
                panel = q[start : start + PANEL]
                gradient = gradient_room[: len(panel) * size].reshape((len(panel), size))
                np.dot(panel, columns, gradient)
                for r in range(len(panel)):
                    for p in range(size):
                        gradient[r, p] = target[start + r, p] - gradient[r, p]
                descend_panel(columns, gradient, q, start, 0.0, floor)
        _turn_out(columns, first, end, stack)
        if indices.shape[1] > 2:
            for fibre in range(patients[first], patients[end]):
                row = fibre - patients[first]
                for column in range(0, width, OCTET * len(lanes)):
                    add_fibre(
                        lanes, indices, starts[fibre], sums, row, column, stack, offsets, 1,
                        indices[starts[fibre], 1], room, out,
                    )  # fmt: skip
    return inner


@compiled()
def _contract_block(
    lanes: Any, indices: Array, values: Array, starts: Array, patients: Array, first: int, end: int,
    stack: Array, offsets: Array, sums: Array, room: Array, product: Array,
) -> None:  # fmt: skip
    """Contract a block's fibres with the last factor, into `sums`; from that, mode 0's MTTKRP."""
    width, modes = stack.shape[1], indices.shape[1]
    product[:] = 0
    for fibre in range(patients[first], patients[end]):
        s, e = starts[fibre], starts[fibre + 1]
        row, local = fibre - patients[first], indices[s, 0] - first
        for column in range(0, width, OCTET * len(lanes)):
            if modes == 2:  # a patient is a fibre
                contract(lanes, product, local, stack, offsets[1], column, indices, values, s, e)
            else:
                last = offsets[modes - 1]
                contract(lanes, sums, row, stack, last, column, indices, values, s, e)
                add_fibre(
                    lanes, indices, s, sums, row, column, stack, offsets, 0, local, room, product
                )


@compiled()
def _turn_in(
    stack: Array, product: Array, first: int, end: int, columns: Array, target: Array
) -> float:
    """Transpose a block's rows of A and of the product; returns their inner product."""
    inner = 0.0
    for p in range(end - first):
        for r in range(len(columns)):
            columns[r, p] = stack[first + p, r]
            target[r, p] = product[p, r]
            inner += np.float64(stack[first + p, r]) * np.float64(product[p, r])
    return inner


@compiled()
def _turn_out(columns: Array, first: int, end: int, stack: Array) -> None:
    """Transpose a block's columns back into the stack."""
    for p in range(end - first):
        for r in range(len(columns)):
            stack[first + p, r] = columns[r, p]
