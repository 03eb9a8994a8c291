"""The results of federated runs: planted and switched-off phenotypes, paper mode, N modes."""

import json
from dataclasses import replace

import numpy as np
import pytest

import dpfact_flower
from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.estimation import codes
from dpfact_flower.evaluation.run_folder import PHENOTYPES, SUMMARY, read_json, read_model
from dpfact_flower.runtime.serve import federate_config
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.site.elastic import ElasticRound
from dpfact_flower.site.round import JobState
from dpfact_flower.solver.exact import fitted_patients
from dpfact_flower.solver.mttkrp import squared_error
from dpfact_flower.tensor.cp import factor_match_score, match_columns
from dpfact_flower.wire.protocol import SiteReply
from simulation.baselines import pooled

pytestmark = pytest.mark.slow

NONE = PrivacySettings(privacy="none")
DEMO = SolverSettings(rank=12, relative_l21=0.3, mu_from_round=21)


def learn(cohort: Cohort, solver: SolverSettings, *, rounds: int, seed: int):
    """Federate with pure functions, without Flower. Return global factors and the sites' states."""
    coordinator = Coordinator(
        [len(v) for v in cohort.vocabularies], solver=solver, privacy=NONE,
        run=RunSettings(rounds=rounds, seed=seed, job="test"),
    )  # fmt: skip
    states = dict.fromkeys(site.name for site in cohort.sites)
    for number in range(1, rounds + 1):
        request, replies = coordinator.request(number), []
        for site in cohort.sites:
            work = ElasticRound(site.vocabularies, request, site=site.name, simulation=True)
            outcome = work.run(site, JobState(states[site.name]))
            states[site.name] = outcome.state
            replies.append(SiteReply(site.name, outcome.release.arrays))
        coordinator.close_round(number, replies, [], bytes_down=0, bytes_up=0, seconds=0.0)
    return coordinator.factors, states


@pytest.fixture(scope="module")
def demo() -> Cohort:
    return synthetic("demo")


@pytest.mark.parametrize("data_seed", [0, 11])  # seed 11 was not used for tuning
def test_planted_phenotypes_come_back(data_seed):
    """Check the factor match at the planted rank. Random factors of the same shape reach .05."""
    cohort = synthetic(preset("demo", seed=data_seed))
    truth = cohort.truth.factors
    learned = [learn(cohort, DEMO, rounds=40, seed=seed)[0] for seed in range(3)]
    assert np.mean([factor_match_score(factors, truth) for factors in learned]) >= 0.8
    rng = np.random.default_rng(0)
    assert factor_match_score([rng.random(factor.shape) for factor in truth], truth) < 0.4


def long_lists() -> Cohort:
    """Patients with few codes from long lists, of which a random start explains a millionth."""
    names = {"procedures": 100, "diagnoses": 200, "drugs": 150}
    return synthetic(
        preset("demo", patients=240, phenotypes=3, shares="0.5,0.5", local=0.0,
               modes=",".join(f"{name}:{size}:3" for name, size in names.items()))
    )  # fmt: skip


@pytest.mark.parametrize("solver", ["exact", "psgd"])
def test_long_lists_of_three_modes_do_not_collapse(solver):
    """Shared factors explain as much as a fit to pooled patients from the same start."""
    cohort = long_lists()
    tensors = [site.tensor.scaled_to_unit_patients() for site in cohort.sites]

    def explained(factors):
        parts = [(fitted_patients(tensor, factors), *factors) for tensor in tensors]
        errors = [squared_error(tensor, own) for tensor, own in zip(tensors, parts, strict=True)]
        return (errors[0] + errors[1]).fit

    learned, _ = learn(cohort, SolverSettings(rank=3, solver=solver), rounds=15, seed=0)
    whole = replace(
        cohort, sites=(SiteData("all", pooled(cohort), cohort.vocabularies),), truth=None
    )
    alone, _ = learn(
        whole, SolverSettings(rank=3, relative_elastic=0.0, relative_l21=0.0), rounds=40, seed=0
    )
    assert explained(learned) > 0.9 * explained(alone) > 0.01


def test_a_phenotype_of_one_site_is_switched_off_at_the_others(demo):
    factors, states = learn(demo, DEMO, rounds=40, seed=3)
    match = match_columns(factors, demo.truth.factors)
    usage = demo.truth.usage
    local = np.flatnonzero(usage.sum(axis=0) == 1)
    assert len(local) == 2
    for phenotype in local:
        position = int(np.flatnonzero(match.truth == phenotype)[0])
        assert match.cosines[position] > 0.9
        column = match.estimate[position]
        norms = [np.linalg.norm(states[s.name].factors[0][:, column]) for s in demo.sites]
        owner = int(np.flatnonzero(usage[:, phenotype])[0])
        assert norms[owner] > 0
        assert [norm for site, norm in enumerate(norms) if site != owner] == [0] * 5


@pytest.mark.parametrize("data_seed", [pytest.param(0, marks=pytest.mark.nightly), 11])
def test_patient_mode_finds_planted_phenotypes_at_epsilon_4(data_seed, tmp_path):
    """In a whole run with own noise at every site, a phenotype of one site is off at the others.

    Seed 11 was not used for tuning.
    """
    cohort = synthetic(preset("demo", seed=data_seed))
    cohort.save(tmp_path)
    out = federate_config({"data": str(tmp_path), "out": str(tmp_path / "run"), "rank": 12,
                    "relative-l21": 0.1, "epsilon": 4.0, "noise-seed": 5,
                    "mu-from-round": 21})  # fmt: skip
    factors, norms = read_model(out)[0], np.array(read_json(out / PHENOTYPES)["usage"]["norms"])
    assert factor_match_score(factors, cohort.truth.factors) > 0.9
    match = match_columns(factors, cohort.truth.factors)
    usage = cohort.truth.usage
    for phenotype in np.flatnonzero(usage.sum(axis=0) == 1):
        position = int(np.flatnonzero(match.truth == phenotype)[0])
        np.testing.assert_array_equal(norms[:, match.estimate[position]] > 0, usage[:, phenotype])


@pytest.mark.parametrize("aggregation", ["sync", "async"])
def test_long_lists_start_from_frequent_codes_whatever_runs_it(tmp_path, monkeypatch, aggregation):
    monkeypatch.setattr(codes, "_MOST_PAIRED", 49)
    monkeypatch.setattr(codes, "_FREQUENT", 44)
    cohort = synthetic(
        preset("demo", patients=600, phenotypes=4, modes="procedures:20:3,diagnoses:30:3")
    )
    cohort.save(tmp_path / "data")
    out = federate_config({"data": str(tmp_path / "data"), "out": str(tmp_path / "run"), "rank": 4,
                    "rounds": 5, "privacy": "none", "aggregation": aggregation})  # fmt: skip
    factors = read_model(out)[0]
    assert [len(factor) for factor in factors] == [20, 30]
    assert factor_match_score(factors, cohort.truth.factors) > 0.9
    history = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert [len(record["sites"]) for record in history] == [6] * 5


@pytest.mark.parametrize("modes", [1, 3])
def test_any_number_of_feature_modes(modes):
    """A patients x codes matrix, and a tensor of four modes, go through the whole round."""
    names = ["procedures", "diagnoses", "drugs"][:modes]
    settings = preset(
        "demo", patients=300, phenotypes=3, shares="0.6,0.4", local=0.0,
        modes=",".join(f"{name}:{8 + n}:2" for n, name in enumerate(names)),
    )  # fmt: skip
    cohort = synthetic(settings)
    factors, states = learn(cohort, SolverSettings(rank=3, tau=1), rounds=15, seed=0)
    assert [f.shape for f in factors] == [(8 + n, 3) for n in range(modes)]
    assert all(len(state.factors) == modes + 1 for state in states.values())
    assert factor_match_score(factors, cohort.truth.factors) > 0.5


def test_paper_mode_prints_its_epsilon_with_its_claim(cohort_folder, tmp_path):
    out = federate_config({"data": str(cohort_folder), "out": str(tmp_path / "a"), "rounds": 5,
                    "rank": 4, "privacy": "paper", "solver": "psgd", "clip": 1.0, "eta": 1e-3,
                    "epsilon": 1.2})  # fmt: skip
    summary = read_json(out / SUMMARY)
    assert summary["epsilon"] == pytest.approx(1.2)
    assert summary["claim"] == "claimed by DPFact, Theorem 4.1; entry-level; not proven"
    assert set(summary["per_site"]) == {"site-1", "site-2", "site-3"}
    assert "not proven" in (out / "report.html").read_text()


def test_a_run_folder_is_complete_and_holds_no_patient(cohort_folder, tmp_path):
    out = federate_config({"data": str(cohort_folder), "out": str(tmp_path / "r"), "rank": 4,
                    "rounds": 2, "privacy": "none"})  # fmt: skip
    assert {path.name for path in out.iterdir()} == {
        "summary.json", "global_model.npz", "history.jsonl", "checkpoint.npz", "config.toml",
        "phenotypes.json", "report.html",
    }  # fmt: skip
    summary = read_json(out / SUMMARY)
    for key in ("sites", "rounds", "rank", "solver", "privacy", "epsilon", "delta", "accountant",
                "bytes_up", "bytes_down", "rmse", "fms", "auc", "seconds"):  # fmt: skip
        assert key in summary
    sizes = {site.tensor.n_patients for site in Cohort.load(cohort_folder).sites}
    for path in (out / "global_model.npz", out / "checkpoint.npz"):
        with np.load(path) as arrays:
            assert not any(set(arrays[name].shape) & sizes for name in arrays.files)
    assert "patient_factors" not in json.dumps(read_json(out / PHENOTYPES))


def test_public_names_are_there_and_lazy():
    for name in dpfact_flower.__all__:
        assert getattr(dpfact_flower, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(dpfact_flower, "nothing")  # noqa: B009
