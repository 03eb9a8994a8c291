"""Squared errors of a site's factors on its own tensor, in one pass over the entries."""

from __future__ import annotations

from collections.abc import Sequence

from dpfact_flower.machine.threads import in_batches, thread_count
from dpfact_flower.solver.kernels.fibres import fibres_of
from dpfact_flower.solver.kernels.vector import sgd
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.arrays import Array
from dpfact_flower.tensor.cp import gram, hadamard
from dpfact_flower.tensor.error import SquaredError
from dpfact_flower.tensor.stack import row_offsets, stack_factors


def squared_error(
    tensor: SparseTensor, factors: Factors, grams: Sequence[Array] | None = None
) -> SquaredError:
    """Compute `CPModel.squared_error` for float32 factors in about the time of one MTTKRP.

    Cell values are computed in float32 and summed in float64, which gives six correct digits.
    `grams` holds the factors' Gram matrices, if known.
    """
    fibres = fibres_of(tensor)

    def part(chunk: tuple[int, int]) -> tuple[float, float, float]:
        first, end = chunk  # patients; only the rows of this chunk need padding
        stack = stack_factors([factors[0][first:end], *factors[1:]])
        offsets = row_offsets((end - first, *tensor.feature_shape))
        offsets[0] = -first
        entries = slice(*fibres.starts[fibres.patients[[first, end]]])
        return sgd.squares(stack, tensor.indices[entries], tensor.values[entries], offsets)

    parts = list(in_batches(part, fibres.patient_ranges(), threads=thread_count()))
    nonzeros = sum(squares for squares, _, _ in parts)
    model = float(hadamard(grams or [gram(factor) for factor in factors]).sum())
    zeros = model - sum(mass for _, _, mass in parts)
    return SquaredError.on(tensor, nonzeros + zeros, nonzeros, fibres.norm_squared)


def inner_product(tensor: SparseTensor, factors: Factors) -> float:
    """Return ``<X, M>`` for float32 factors, summed in float64."""
    stack = stack_factors(factors)
    offsets = row_offsets(tensor.shape)
    return sgd.squares(stack, tensor.indices, tensor.values, offsets)[1]
