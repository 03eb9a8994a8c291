"""Loops over fibres as one writes them down; see `dpfact_flower.solver.kernels.vector.fibres`."""

from __future__ import annotations

from dpfact_flower.machine.compiled import FAST, compiled
from dpfact_flower.tensor.arrays import Array

Offsets = tuple[int, ...]


@compiled(**FAST)
def add_fibres(
    indices: Array, values: Array, starts: Array, first: int, end: int, stack: Array,
    offsets: Offsets, mode: int, out: Array,
) -> None:  # fmt: skip
    """See `dpfact_flower.solver.kernels.vector.fibres.add_fibres`."""
    for s in range(starts[first], starts[end]):
        target = indices[s, mode]
        for r in range(stack.shape[1]):
            x = stack.dtype.type(values[s])
            for n in range(len(offsets) - 1):
                if n != mode:
                    x *= stack[offsets[n] + indices[s, n], r]
            out[target, r] += x


@compiled(**FAST)
def squares(
    indices: Array, values: Array, starts: Array, first: int, end: int, patients: Array,
    first_patient: int, features: Array, offsets: Offsets,
) -> tuple[float, float]:  # fmt: skip
    """See `dpfact_flower.solver.kernels.vector.fibres.squares`."""
    error, mass = 0.0, 0.0
    for s in range(starts[first], starts[end]):
        value = 0.0
        for r in range(features.shape[1]):
            x = patients[indices[s, 0] - first_patient, r]
            for n in range(1, len(offsets) - 1):
                x *= features[offsets[n] + indices[s, n], r]
            value += x
        error += (values[s] - value) ** 2
        mass += value * value
    return error, mass
