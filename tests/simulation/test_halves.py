"""What studies make of a cohort: halves by patient, merged sites, and shuffled patients."""

import itertools

import numpy as np
import pytest

from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.tensor import SparseTensor
from simulation.studies.halves import half, merged
from simulation.systems import shuffled

COHORT = synthetic(preset("demo"))


def patients(site):
    """Each patient's cells and label as text, so that sets of patients can be compared."""
    cuts = np.searchsorted(site.tensor.indices[:, 0], np.arange(site.tensor.n_patients + 1))
    return [
        (site.tensor.indices[a:b, 1:].tobytes(), site.tensor.values[a:b].tobytes(), int(label))
        for a, b, label in zip(cuts[:-1], cuts[1:], site.labels["died"], strict=True)
    ]


def test_every_patient_is_in_one_half_with_their_own_label():
    one, other = half(COHORT, "tune"), half(COHORT, "report")
    for whole, first, second in zip(COHORT.sites, one.sites, other.sites, strict=True):
        assert abs(first.tensor.n_patients - second.tensor.n_patients) <= 1
        assert sorted(patients(first) + patients(second)) == sorted(patients(whole))
    assert (one.name, other.name) == ("demo-tune", "demo-report")


def test_both_halves_are_the_cohort():
    assert half(COHORT, "both") is COHORT


@pytest.mark.parametrize("size", [2, 4])
def test_merged_sites_have_the_patients_of_their_sites(size):
    found = merged(COHORT, size)
    assert len(found.sites) == -(-len(COHORT.sites) // size)
    together = patients(COHORT.sites[0]) + patients(COHORT.sites[1])
    assert patients(found.sites[0])[: len(together)] == together
    assert merged(COHORT, 1) is COHORT


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
