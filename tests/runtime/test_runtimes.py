"""The same run in one process and in Flower's simulation gives the same numbers.

The simulation is a real `flwr run` on a SuperLink with Ray. Deployed: test_secure_deployment.py.
"""

from pathlib import Path

import pytest

from dpfact_flower.evaluation.run_folder import read_config, read_json, read_model
from dpfact_flower.runtime.config import RunConfig
from dpfact_flower.runtime.serve import federate_config
from dpfact_flower.runtime.superlink import RunFailedError, local_superlink
from dpfact_flower.server.elastic import ElasticRule
from dpfact_flower.server.history import read_history
from tests.commands import dpfact
from tests.conftest import CODES
from tests.ledgers import rows_in
from tests.runtime.deployment import APP, CONFIG, PATIENT, assert_arrived, assert_same

PAPER = {"rounds": 3, "rank": 4, "seed": 5, "tau": 1, "privacy": "paper", "epsilon": 2.0,
         "solver": "psgd", "clip": 1.0, "eta": 1e-3, "noise-seed": 7}  # fmt: skip
CPUS = "client-resources-num-cpus=1"


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.usefixtures("all_surrogates")
def test_simulation_gives_the_numbers_of_one_process(cohort_folder, tmp_path):
    out = tmp_path / "ray"
    config = {**CONFIG, "data": str(cohort_folder), "out": str(out)}
    one = federate_config({**config, "out": str(tmp_path / "inprocess")})
    with local_superlink(tmp_path / "flwr", simulation=True) as superlink:
        superlink.run(APP, config, federation_config=f"num-supernodes=3 {CPUS}")
        arriving = {**config, "aggregation": "async", "out": str(tmp_path / "arriving")}
        superlink.run(APP, arriving, federation_config=f"num-supernodes=3 {CPUS}")
        paper = {**arriving, **PAPER, "out": str(tmp_path / "paper")}
        superlink.run(APP, paper, federation_config=f"num-supernodes=3 {CPUS}")
        wrong = {**config, "out": str(tmp_path / "wrong")}
        with pytest.raises(RunFailedError):  # the data has three sites
            superlink.run(APP, wrong, federation_config=f"num-supernodes=2 {CPUS}")
    assert superlink.process.poll() is not None
    assert_same(out, read_model(one)[0])
    assert read_json(out / "summary.json")["sites"] == 3
    assert_arrived(tmp_path / "arriving", rounds=CONFIG["rounds"])
    assert_arrived(tmp_path / "paper", rounds=PAPER["rounds"])
    assert_paid(tmp_path / "paper")


def assert_paid(out: Path) -> None:
    """Check each site's charges for its answered rounds against the paper's plan."""
    config = RunConfig.read(PAPER)
    rule = ElasticRule([*CODES.values()], config.solver, config.privacy, config.run)
    plan = {n: sum(e.rho for e in rule.planned_events(n)) for n in range(1, rule.rounds + 1)}
    records = read_history(out)
    answered = {(each.site, each.round) for record in records for each in record.arrivals}
    answered |= {(site, 1) for site in records[0].sites}
    for folder in out.with_name(f"{out.name}.sites").glob("site-*"):
        paid = [(row.round, sum(e.rho for e in row.events)) for row in rows_in(folder)]
        assert sorted(paid) == [(n, plan[n]) for n in plan if (folder.name, n) in answered]


@pytest.mark.nightly
@pytest.mark.slow
def test_paper_mode_on_arrival_pays_as_planned_and_a_seed_repeats_it(cohort_folder, tmp_path):
    """The bits differ from a synchronous run, because the order of updates matters."""
    config = {**PAPER, "aggregation": "async", "job": "j", "data": str(cohort_folder)}
    outs = [federate_config({**config, "out": str(tmp_path / name)}) for name in ("one", "two")]
    assert_same(outs[1], read_model(outs[0])[0])
    for out in outs:
        assert_arrived(out, rounds=PAPER["rounds"])
        assert_paid(out)
        assert "used on arrival" in (out / "report.html").read_text()
        assert (tmp_path / f"{out.name}.sites" / "site-1").is_dir()
        assert not list(out.glob("**/state-*.npz"))  # the run's folder has no patient data
        assert not list(out.glob("**/ledger.sqlite"))


@pytest.mark.ray
@pytest.mark.usefixtures("all_surrogates")
def test_the_command_runs_in_flowers_simulation_and_its_config_repeats_it_elsewhere(
    cohort_folder, tmp_path, monkeypatch
):
    """In patient mode with seeded noise, one process gives the same bits."""
    monkeypatch.chdir(tmp_path)
    config = {**PATIENT, "noise-seed": 7}
    one = federate_config({**config, "data": str(cohort_folder), "out": "inprocess"})
    settings = [f"--set={key}={value}" for key, value in config.items()]
    dpfact("simulate", "--app", APP, "--data", cohort_folder.name, "--out", "runs/one", *settings)
    assert_same(Path("runs/one"), read_model(one)[0])
    assert "seeded: not private" in read_json(Path("runs/one/summary.json"))["claim"]
    again = federate_config({**read_config(Path("runs/one"))["run-config"], "out": "runs/again"})
    assert_same(again, read_model(one)[0])
    assert {path.name for path in Path("runs").iterdir()} == {
        "one", "one.sites", "again", "again.sites",
    }  # fmt: skip
