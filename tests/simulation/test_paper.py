"""The paper's evaluation: jobs, measures, statistics, verdicts, and the whole on small data."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.errors import DataError
from simulation.paper import datasets, measures, page, published
from simulation.paper.__main__ import EXPERIMENTS, main, run, wanted
from simulation.paper.jobs import Job, Result, Results, Store, merged
from simulation.paper.plan import FULL, QUICK, Plan
from simulation.paper.systems import DESCRIPTION, SYSTEMS, TRAFFIC, compute
from tests.bits import assert_bits
from tests.commands import dpfact

pytestmark = pytest.mark.nightly

JOB = Job("demo-icu", "trip", 3, 2)
TINY = Plan(
    "full", seeds=2, seeds_large=2, rounds=3, iterations=2, splits=2,
    ranks=(3,), epsilons=(2.0,), weights=(0.5,),
    convergence=(), prediction=(), epsilon=(), phenotypes=(),
)  # fmt: skip


@pytest.fixture(scope="module")
def small() -> Cohort:
    settings = preset(
        "demo", patients=300, phenotypes=4, shares="0.4,0.3,0.3", distinct=3,
        modes="procedures:15:2.5,diagnoses:20:4", mortality=0.2,
    )  # fmt: skip
    return synthetic(settings)


@pytest.fixture(scope="module")
def folder(small, tmp_path_factory):
    path = tmp_path_factory.mktemp("cohort")
    small.save(path)
    return path


@pytest.fixture(autouse=True)
def small_rank(monkeypatch, folder):
    """A cohort from a folder is fitted at rank 50, which is too high for these patients."""
    known = datasets.dataset

    def small_dataset(name):
        changed = {"rank": 3, "distinct": "site-3" if name == str(folder) else None}
        return replace(known(name), **changed if Path(name).is_dir() else {})

    monkeypatch.setattr(datasets, "dataset", small_dataset)


def test_a_jobs_key_tells_every_setting_apart():
    others = {"data": "eicu", "system": "sgd", "rank": 4, "rounds": 3, "seed": 1, "splits": 2,
              "epsilon": 1.0, "delta": 1e-4, "relative_l21": 0.5, "tables": True,
              "sites": 2}  # fmt: skip
    assert set(others) == {field.name for field in fields(Job)}
    jobs = [JOB, *(replace(JOB, **{name: value}) for name, value in others.items())]
    assert len({job.key("one") for job in jobs}) == len(jobs)
    assert JOB.key("one") != JOB.key("other")
    # A fit is computed once, with all measures that any job requests.
    scored, told, other = replace(JOB, splits=3), replace(JOB, tables=True), replace(JOB, seed=1)
    jobs = merged([JOB, scored, other, told])
    assert jobs == {JOB: replace(JOB, splits=3, tables=True), other: other}
    found = Results({jobs[JOB]: Result({"fit": 1.0}, 0.0)})
    assert found.complete([JOB, scored, told])
    assert other not in found


def test_the_whole_evaluation_repeats_and_goes_on(folder, tmp_path, capsys):
    """Two runs give the same values, an interrupted run continues, and the page has every table."""
    plan = TINY.on(str(folder))
    experiments = [name for name in EXPERIMENTS if name != "traffic"]
    run(plan, experiments, tmp_path / "a", None)
    run(plan, experiments, tmp_path / "b", None, limit=5)
    assert "Not complete: 5 of" in (tmp_path / "b" / "evaluation.md").read_text()
    page = run(plan, experiments, tmp_path / "b", tmp_path / "docs" / "evaluation.md")
    assert ", 5 of them done before" in capsys.readouterr().out
    files = sorted(path.name for path in (tmp_path / "a" / "results").glob("*.json"))
    assert files == sorted(path.name for path in (tmp_path / "b" / "results").glob("*.json"))
    for name in files:
        one, other = (json.loads((tmp_path / n / "results" / name).read_text()) for n in "ab")
        assert one["values"] == other["values"], name
    text = page.read_text()
    assert "Not complete" not in text
    for table in ("data", "convergence", "auc", "auc_paired", "norms", "fms_against_epsilon"):
        rows = json.loads((tmp_path / "a" / f"{table}.json").read_text())
        assert rows
        assert (tmp_path / "a" / f"{table}.csv").read_text().count("\n") >= len(rows)
    # The verdicts come first, and each table has a link.
    top, rest = text.split("\n## The data\n")
    verdicts = json.loads((tmp_path / "a" / "verdicts.json").read_text())
    assert top.count("| **") == len({row["claim"] for row in verdicts}) > 0
    assert "| DPFact, patient mode (ours) |" in top
    assert "|---" not in rest
    linked = set(re.findall(r"\(evaluation/([\w.-]+\.csv)\)", text))
    assert linked == {path.name for path in (tmp_path / "docs" / "evaluation").iterdir()}
    assert {"verdicts.csv", "settings.csv", "auc_paired.csv"} < linked
    for figure in ("convergence", "auc", "norms", "fms_against_epsilon"):
        assert (tmp_path / "a" / f"{figure}.svg").read_bytes()
        assert f"(images/evaluation/{figure}.png)" in text
        assert (tmp_path / "docs" / "images" / "evaluation" / f"{figure}.png").exists()


def test_a_fit_that_fails_is_told_and_the_others_are_shown(folder, tmp_path, monkeypatch, capsys):
    plan = replace(TINY, weights=(0.0, 0.5), prediction=(str(folder),))

    def fails_at_half(job):
        if job.relative_l21 == 0.5:
            raise DataError("no such thing")
        return compute(job)

    monkeypatch.setattr("simulation.paper.compute.compute", fails_at_half)
    with pytest.raises(SystemExit, match="1 fits failed"):
        run(plan, ["norms"], tmp_path, None)
    assert "failed: DataError: no such thing" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "norms.json").read_text())) == 1
    assert "1 fits of this section are missing" in (tmp_path / "evaluation.md").read_text()


@pytest.mark.parametrize(
    ("kind", "source", "options"),
    [
        ("mimic3", "mimic3_demo", []),
        ("synpuf", "synpuf/outpatient_partial", ["--claims", "outpatient", "--top", "0x0"]),
    ],
)
def test_the_commands_for_full_data_run_on_the_demos(
    kind, source, options, ehr_data, tmp_path, monkeypatch
):
    """The commands are those of the page, with fewer fits."""
    monkeypatch.chdir(tmp_path)
    dpfact("data", kind, ehr_data / source, *options, "--out", "data/full")
    written = next(line for line in page.COMMANDS.splitlines() if f"dpfact data {kind} " in line)
    assert all(option in written.split() for option in options)
    given = ["--quick", "--cohort", "data/full", "--out", "runs/paper-full"]
    monkeypatch.setattr("sys.argv", ["paper", *given, "--only", "data", "phenotypes"])
    main()
    text = (tmp_path / "runs" / "paper-full" / "evaluation.md").read_text()
    assert "the phenotypes with the largest weights (lambda)" in text
    assert "Not complete" not in text


def test_every_system_has_a_noise_claim_exactly_if_it_takes_an_epsilon():
    assert {name for name, system in SYSTEMS.items() if system.noise} == {
        "paper", "paper-no-l21", "paper-small", "patient", "naive",
    }  # fmt: skip
    for plan in (QUICK, FULL):
        for module in EXPERIMENTS.values():
            for job in module.jobs(plan):
                noisy = job.system in TRAFFIC and job.system == "patient"
                fitted = not job.sites and job.system != DESCRIPTION
                noisy |= fitted and bool(SYSTEMS[job.system].noise)
                assert (job.epsilon > 0) == (job.delta > 0) == noisy


@pytest.mark.parametrize("system", ["exact", "patient", "cp-als", "paper", "random", "null"])
def test_a_fit_does_not_see_labels(system, small, folder, monkeypatch):
    """With other labels, the factors stay the same, and only the scores change."""
    job = Job(str(folder), system, 4, 3, splits=3, epsilon=4.0, delta=1e-4)
    dead = tuple(replace(site, labels=1 - site.labels["died"]) for site in small.sites)
    monkeypatch.setattr("simulation.paper.systems.load", lambda name: small)
    before = compute(job)
    monkeypatch.setattr("simulation.paper.systems.load", lambda name: replace(small, sites=dead))
    after = compute(job)
    assert_bits(before.shared, after.shared)
    assert before.values["trace"] == after.values["trace"]


def test_random_factors_are_as_sparse_as_learned_ones(folder):
    learned = compute(Job(str(folder), "exact-no-l21", 4, 4))
    shuffled = compute(Job(str(folder), "random", 4, 4))
    for mine, theirs in zip(shuffled.shared, learned.shared, strict=True):
        np.testing.assert_array_equal(np.sort(mine, axis=0), np.sort(theirs, axis=0))
        assert not np.array_equal(mine, theirs)


def test_a_perfect_predictor_scores_one_and_scale_does_not_matter(small):
    rng = np.random.default_rng(0)
    perfect = [
        site.labels["died"][:, None] + 0.1 * rng.random((len(site), 1)) for site in small.sites
    ]
    scores = measures.death_scores(perfect, small, 4)
    assert set(scores) == {"overall", "site-1", "site-2", "site-3"}
    assert all(values == [1.0] * 4 for values in scores.values())
    noise = [rng.random((len(site), 3)) for site in small.sites]
    scaled = [1000 * values + 7 for values in noise]
    one, other = (measures.death_scores(x, small, 4)["overall"] for x in (noise, scaled))
    np.testing.assert_allclose(one, other, atol=1e-3)
    # Many random columns fit the training patients well, but do not predict others.
    rng = np.random.default_rng(2)
    noise = [rng.random((len(site), 80)) for site in small.sites]
    assert abs(np.mean(measures.death_scores(noise, small, 8)["overall"]) - 0.5) < 0.08


def traffic_job(system, rank=10):
    return compute(Job("paper-synthetic", system, rank, 2, sites=5)).values["rounds"]


def test_dpfact_sends_two_sets_of_factors_where_trip_sends_three_and_patient_mode_a_start():
    sets = {
        system: (sum(traffic_job(system, rank=30)[-1].values())
                 - sum(traffic_job(system)[-1].values())) / (20 * 1100 * 4 * 5)
        for system in ("dpfact", "trip", "trip-lean")
    }  # fmt: skip
    assert sets == pytest.approx({"dpfact": 2, "trip": 3, "trip-lean": 2}, abs=2e-3)
    job = Job("demo-icu", "patient", 10, 2, sites=5, epsilon=1.0, delta=1e-4)
    rounds = compute(job).values["rounds"]
    pairs = 320 * 321 // 2
    # noise of 256 steps, plus overhead
    assert 10 / 8 < rounds[0]["up"] / 5 / pairs < 13 / 8
    assert rounds[0]["up"] > 3 * max(later["up"] for later in rounds[1:])


def test_the_papers_numbers_are_the_papers():
    """Check relations stated in the paper's text."""
    saved = [1 - row["dpfact"] / row["trip"] for row in published.TRAFFIC.values()]
    assert saved == pytest.approx([0.466, 0.377, 0.207], abs=5e-4)
    assert max(row["psgd"] for row in published.AUC_BY_RANK.values()) == 0.7790
    assert published.TRAFFIC["paper-icu"]["dpfact"] == published.TRAFFIC_BY_SITES["paper-icu"][5]


def test_an_auc_and_a_match_are_means_over_starts(folder, tmp_path):
    plan = replace(TINY.on(str(folder)), starts=2)
    run(plan, ["prediction", "epsilon"], tmp_path, None)
    store = Store(tmp_path / "results")

    def mean(system, value):
        jobs = [job for job in wanted(plan, ["prediction", "epsilon"]) if job.system == system]
        found = [value(store.load(job).values) for job in jobs if job.epsilon in (0, 2)]
        assert len(set(found)) == 2
        return np.mean(found)

    rows = json.loads((tmp_path / "auc.json").read_text())
    shown = next(row["R = 3"] for row in rows if row["system"] == "TRIP")
    auc = mean("trip", lambda values: np.mean(values["auc"]["overall"]))
    assert float(shown.split()[0]) == pytest.approx(auc, abs=6e-4)
    rows = json.loads((tmp_path / "fms_against_epsilon.json").read_text())
    shown = next(r["fit, shared"] for r in rows if "naively" in r["system"] and r["epsilon"] == "2")
    assert shown == pytest.approx(mean("naive", lambda values: values["shared"]["fit"]))


def test_reported_data_are_not_those_that_settings_were_searched_on():
    searched = synthetic(preset("demo-icu", seed=datasets.SEARCHED_SEED))
    reported = datasets.load("demo-icu")
    assert not np.array_equal(searched.sites[0].labels["died"], reported.sites[0].labels["died"])
    planted = datasets.planted_memberships("demo-icu")
    assert [len(own) for own in planted] == [s.tensor.n_patients for s in reported.sites]
    scores = measures.death_scores(planted, reported, 2)["overall"]
    assert min(scores) > 0.75  # the memberships belong to these patients
