"""What a simulation measures: of some patients where there are many, and one site at a time."""

import gc

import numpy as np

from dpfact_flower.evaluation import measured as module
from dpfact_flower.runtime.config import RunConfig
from dpfact_flower.runtime.federate import federate_cohort
from dpfact_flower.tensor import SparseTensor, remembered


def test_outcomes_are_predicted_of_some_patients_where_there_are_many(cohort, monkeypatch):
    """As many of each site as its share, and what belongs to them stays beside them."""
    marks = [np.bincount(s.tensor.indices[:, 0], minlength=len(s))[:, None] for s in cohort.sites]
    assert module._some(marks, cohort.sites) == (marks, list(cohort.sites))
    monkeypatch.setattr(module, "MOST_PREDICTED", len(cohort) // 2)
    found, sites = module._some(marks, cohort.sites)
    for own, site, whole in zip(found, sites, cohort.sites, strict=True):
        assert 0 <= len(site) - len(whole) * (len(cohort) // 2) / len(cohort) < 1
        cells = np.bincount(site.tensor.indices[:, 0], minlength=len(site))
        np.testing.assert_array_equal(own[:, 0], cells)


def test_sites_are_measured_one_at_a_time(cohort, tmp_path, monkeypatch):
    """Tensors that a run scales are as large as a good part of the data."""
    alive, usual = [], module.scaled

    def scaled(*given):
        found = usual(*given)
        alive.append(sum(isinstance(each, SparseTensor) for each in gc.get_objects()))
        return found

    monkeypatch.setattr(remembered, "_MOST", 0)
    monkeypatch.setattr(module, "scaled", scaled)
    settings = {"privacy": "none", "rank": 3, "rounds": 1, "start": "random"}
    config = RunConfig.read({**settings, "out": str(tmp_path / "run")})
    federate_cohort(cohort, config, report=False)
    assert len(alive) > 3
    assert max(alive) - min(alive) <= 1
