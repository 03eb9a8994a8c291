"""Shuffled patients: the codes of each mode as they were, and no tie between the modes."""

import itertools

import numpy as np
import pytest

from dpfact_flower.tensor import SparseTensor
from simulation.systems import shuffled


def one_by_one(tensor: SparseTensor, seed: int) -> set[tuple[int, ...]]:
    """The definition, a patient at a time: cells of every combination of their modes' codes."""
    rng = np.random.default_rng(seed)
    alive = sorted(set(tensor.indices[:, 0].tolist()))
    donors = [alive, *(rng.permutation(alive).tolist() for _ in range(2, tensor.ndim))]
    cells = set()
    for place, patient in enumerate(alive):
        codes = [
            sorted({int(row[mode]) for row in tensor.indices if row[0] == donor[place]})
            for mode, donor in enumerate(donors, 1)
        ]
        cells |= {(patient, *cell) for cell in itertools.product(*codes)}
    return cells


@pytest.mark.parametrize("sizes", [(30, 7, 5), (25, 4, 6, 3), (1, 3, 3), (20, 1, 1)])
def test_cells_are_those_of_the_definition(sizes):
    rng = np.random.default_rng(sum(sizes))
    where = np.unique(rng.integers(0, sizes, (3 * sizes[0], len(sizes))), axis=0)
    where = where[where[:, 0] != 0] if sizes[0] > 1 else where  # somebody without a cell
    tensor = SparseTensor.from_coo(where, rng.integers(1, 9, len(where)), sizes)
    for seed in range(5):
        found = shuffled(tensor, seed)
        assert found.shape == tensor.shape
        assert set(map(tuple, found.indices.tolist())) == one_by_one(tensor, seed)
        assert set(found.values) == {1.0}
