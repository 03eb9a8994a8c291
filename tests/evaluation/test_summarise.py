"""A simulation's measures: on a sample of many patients, and one site at a time."""

import weakref
from dataclasses import replace

import numpy as np
import pytest

from dpfact_flower import federate
from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.evaluation import summarise as module
from dpfact_flower.evaluation.clinical import coherence
from dpfact_flower.evaluation.prose import headline
from dpfact_flower.evaluation.run_folder import read_phenotypes, read_summary
from dpfact_flower.evaluation.summarise import code_frequencies, shared_error
from dpfact_flower.server.on_arrival import OnArrival
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.settings import PrivacySettings
from dpfact_flower.tensor.cp import CPModel
from tests.commands import dpfact
from tests.server.test_on_arrival import SHAPE, SOLVER, close, reply, run_settings


def test_outcomes_are_predicted_of_some_patients_where_there_are_many(cohort, monkeypatch):
    """Each site contributes its share of patients, who keep their own labels and scores."""
    marks = [np.bincount(s.tensor.indices[:, 0], minlength=len(s))[:, None] for s in cohort.sites]
    assert module._sampled(marks, cohort.sites) == (marks, list(cohort.sites))
    monkeypatch.setattr(module, "MOST_PREDICTED", len(cohort) // 2)
    found, sites = module._sampled(marks, cohort.sites)
    for own, site, whole in zip(found, sites, cohort.sites, strict=True):
        assert 0 <= len(site) - len(whole) * (len(cohort) // 2) / len(cohort) < 1
        cells = np.bincount(site.tensor.indices[:, 0], minlength=len(site))
        np.testing.assert_array_equal(own[:, 0], cells)


@pytest.mark.slow
def test_sites_are_measured_one_at_a_time(monkeypatch):
    """The scaled tensors of a run are a large part of its memory."""
    made, alive, usual = [], [], module.scaled

    def scaled(*given):
        found = usual(*given)
        made.append(weakref.ref(found.values))
        alive.append(sum(each() is not None for each in made))
        return found

    monkeypatch.setattr(module, "scaled", scaled)
    eight = synthetic(preset("demo", patients=200, shares=",".join("1" * 8)))
    federate(sites=eight, privacy="none", rank=3, rounds=1, start="random")
    assert len(alive) > 8
    assert max(alive) <= 3  # the latest tensor, and two still held by a loop's variables


@pytest.mark.slow
def test_coherence_is_of_the_runs_own_patients_and_the_readers_counts_are_rounded(cohort):
    read = (("sites", "rows", 1234), ("patients", "left out", 3), ("patients", "alike", 0))
    run = federate(sites=replace(cohort, read_report=read), privacy="none", rank=3, rounds=2)
    assert [count for _, _, count in run.summary.read_report] == [1230, 10, 0]
    expected = coherence(run.model.factors, (site.tensor for site in cohort.sites))
    assert run.summary.measured.coherence == expected


@pytest.mark.slow
def test_a_model_that_learned_nothing_is_called_that_and_no_figure_describes_it(planted, tmp_path):
    planted.save(tmp_path / "data")
    out = tmp_path / "run"
    settings = ("epsilon=0.01", "noise-seed=1", "rank=3", "refine-rounds=1", "start-share=0.8")
    given = [part for setting in settings for part in ("-s", setting)]
    dpfact("run", "--data", tmp_path / "data", "--out", out, *given, code=3)
    summary = read_summary(out)
    says = dict(headline(summary))["nothing"]
    assert says.startswith("the shared phenotypes explain")
    assert "a larger epsilon" in says
    assert summary.measured.auc is None
    assert summary.measured.predictions == {}
    assert read_phenotypes(out).table is None
    page = (out / "report.html").read_text()
    assert "Nothing was learned" in page
    assert "odds of" not in page


def test_the_shared_fit_is_that_of_patients_refitted_to_the_shared_factors(planted):
    tensors = [site.tensor.scaled_to_unit_patients() for site in planted.sites]
    truth = tuple(factor.astype(np.float32) for factor in planted.truth.factors)
    error = shared_error(tensors, truth)
    for tensor in tensors:  # no other patients give a smaller error: here zeros and a random draw
        zero = np.zeros((tensor.n_patients, 4), np.float32)
        assert CPModel((zero, *truth)).squared_error(tensor).fit == pytest.approx(0)
    random = shared_error(tensors, initial_factors(tensors[0].feature_shape, 4, 0))
    assert error.fit > 2 * shared_error(tensors, code_frequencies(tensors)).fit > 0
    assert error.data == pytest.approx(sum(t.norm_squared() for t in tensors))
    assert random.fit < error.fit


def test_code_frequencies_are_one_component_of_norm_1(planted):
    tensors = [site.tensor for site in planted.sites]
    for mode, factor in enumerate(code_frequencies(tensors), start=1):
        sums = sum(t.to_dense().sum(axis=tuple(set(range(3)) - {mode})) for t in tensors)
        np.testing.assert_allclose(factor[:, 0], sums / np.linalg.norm(sums), rtol=1e-5)


def test_an_asynchronous_run_counts_each_reply_and_the_rounds_that_were_asked_ahead():
    solver = replace(SOLVER, solver="psgd", clip=1.0)
    it = OnArrival(SHAPE, solver=solver, privacy=PrivacySettings("paper"), run=run_settings())
    close(it, 1, "ab")
    for _ in range(2):  # "a" is a round ahead
        it.take("a", reply("a", it.ask("a")))
    it.take("b", reply("b", it.ask("b")))
    it.advance("ab", 1.0)
    assert it.ask("a").round == 4
    assert (it.finished_rounds, len(it.records[-1].sites)) == (2, 2)
    events = [event for number in range(1, 5) for event in it.rule.planned_events(number)]
    assert module._planned(it) == dict.fromkeys("ab", tuple(events))
    assert module._exchange(it).bytes_paper == 2 * 5 * sum(SHAPE) * SOLVER.rank * 8
