"""Cohorts for studies: halves by patient, merged sites, and shuffled patients."""

import itertools

import numpy as np
import pytest

from dpfact_flower.data.synthetic import SyntheticSettings, preset, synthetic
from dpfact_flower.evaluation.membership import mode_presence
from dpfact_flower.tensor import SparseTensor
from simulation.baselines import pooled
from simulation.studies.clinical import shuffled_codes
from simulation.studies.halves import half, merged
from simulation.systems import shuffled

COHORT = synthetic(preset("demo"))
CLEAR = SyntheticSettings(
    name="clear", patients=600, modes="procedures:30:3,diagnoses:40:5", shares="0.5,0.5",
    phenotypes=4, local=0, active=1.1, background=0.05,
)  # fmt: skip


def patients(site):
    """Return each patient's cells and label as text, so that sets of patients can be compared."""
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
    assert half(COHORT, "both") is COHORT


@pytest.mark.parametrize("size", [2, 4])
def test_merged_sites_have_the_patients_of_their_sites(size):
    found = merged(COHORT, size)
    assert len(found.sites) == -(-len(COHORT.sites) // size)
    together = patients(COHORT.sites[0]) + patients(COHORT.sites[1])
    assert patients(found.sites[0])[: len(together)] == together
    assert merged(COHORT, 1) is COHORT


def one_by_one(tensor: SparseTensor, seed: int) -> set[tuple[int, ...]]:
    """Apply the definition patient by patient: cells of all combinations of the modes' codes."""
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
    where = where[where[:, 0] != 0] if sizes[0] > 1 else where  # a patient without a cell
    tensor = SparseTensor.from_coo(where, rng.integers(1, 9, len(where)), sizes)
    for seed in range(5):
        found = shuffled(tensor, seed)
        assert found.shape == tensor.shape
        assert set(map(tuple, found.indices.tolist())) == one_by_one(tensor, seed)
        assert set(found.values) == {1.0}


def test_shuffled_codes_are_as_frequent_and_go_with_nothing():
    tensor = pooled(synthetic(CLEAR))
    other = shuffled_codes(tensor, 1)
    for mode in (1, 2):
        before, after = (mode_presence(each, mode).toarray() for each in (tensor, other))
        assert (after.sum(axis=1) <= before.sum(axis=1)).all()
        assert after.sum() > 0.8 * before.sum()
        assert np.corrcoef(before.sum(axis=0), after.sum(axis=0))[0, 1] > 0.97
        used = before.sum(axis=0) > 20
        ties = [np.abs(np.corrcoef(each[:, used].T) - np.eye(used.sum())).max()
                for each in (before, after)]  # fmt: skip
        assert ties[0] > 0.4
        assert ties[1] < 0.25
    assert not np.array_equal(other.indices, shuffled_codes(tensor, 2).indices)
