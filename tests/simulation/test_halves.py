"""Halves by patient and merged sites of the studies."""

import numpy as np
import pytest

from dpfact_flower.data.synthetic import preset, synthetic
from simulation.studies.halves import half, merged

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
