"""Squared errors of a site's factors on its own tensor, in one pass over the fibres."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpfact_flower.compiled import compiled
from dpfact_flower.cp import SquaredError
from dpfact_flower.solver.fibres import Array, fibres_of, padded
from dpfact_flower.solver.lanes import OCTET, dot, multiply, slices
from dpfact_flower.solver.objective import gram, hadamard
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.threads import in_order, thread_count


def squared_error(
    tensor: SparseTensor, factors: Factors, grams: Sequence[Array] | None = None
) -> SquaredError:
    """`CPModel.squared_error` for float32 factors, at the price of an MTTKRP.

    Parameters
    ----------
    tensor : SparseTensor
    factors : tuple of N ndarrays of float32, each (I_n, R)
        Patients first.
    grams : sequence of N ndarrays, each (R, R), optional
        `gram` of every factor, where it is known.

    Returns
    -------
    SquaredError
        A cell's value is formed in float32, sums are float64: six digits.
    """
    fibres, (lanes, width) = fibres_of(tensor), slices(factors[0].shape[1])
    features = padded(np.concatenate(factors[1:]), width)
    offsets = fibres.offsets - tensor.n_patients  # of the features' rows, from mode 1 on

    def part(chunk: tuple[int, int]) -> tuple[float, float]:
        first, end = chunk  # patients; only theirs are padded at a time
        return _sums(
            lanes, tensor.indices, tensor.values, fibres.starts, fibres.patients[first],
            fibres.patients[end], padded(factors[0][first:end], width), first, features, offsets,
        )  # fmt: skip

    parts = list(in_order(part, fibres.patient_ranges(), threads=thread_count()))
    nonzeros = sum(error for error, _ in parts)
    model = float(hadamard(grams or [gram(factor) for factor in factors]).sum())
    zeros = model - sum(mass for _, mass in parts)
    return SquaredError(
        all_cells=nonzeros + max(zeros, 0.0),  # rounding alone can make it negative
        nonzeros=nonzeros,
        data=fibres.norm_squared,
        cells=tensor.cells,
        nnz=tensor.nnz,
    )


@compiled()
def _sums(
    lanes: Any, indices: Array, values: Array, starts: Array, first: int, end: int, people: Array,
    first_patient: int, features: Array, offsets: Array,
) -> tuple[float, float]:  # fmt: skip
    """Squared error, and squared model, summed over the entries of some fibres."""
    width, modes = features.shape[1], indices.shape[1]
    room = np.empty((1, width), features.dtype)
    error, mass = 0.0, 0.0
    for fibre in range(first, end):
        s = starts[fibre]
        patient = indices[s, 0] - first_patient
        for column in range(0, width, OCTET * len(lanes)):
            if modes > 2:
                second = offsets[1] + indices[s, 1]
                multiply(lanes, room, 0, people, patient, features, second, column)
            for n in range(2, modes - 1):
                multiply(lanes, room, 0, room, 0, features, offsets[n] + indices[s, n], column)
        for entry in range(s, starts[fibre + 1]):
            last = offsets[modes - 1] + indices[entry, modes - 1]
            value = 0.0
            for column in range(0, width, OCTET * len(lanes)):
                if modes > 2:
                    value += dot(lanes, room, 0, features, last, column)
                else:
                    value += dot(lanes, people, patient, features, last, column)
            error += (values[entry] - value) ** 2
            mass += value * value
    return error, mass
