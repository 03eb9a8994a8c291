"""The same run in one process, in Flower's simulation, and deployed: the same numbers.

The simulation is a real `flwr run` on a SuperLink with Ray; the deployment is a SuperLink and three
SuperNodes, each a process of its own on loopback, started and ended here.
"""

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpfact_flower import cli
from dpfact_flower.evaluation.run_folder import read_config, read_json, read_model
from dpfact_flower.privacy.ledger import Ledger
from dpfact_flower.runtime.federate import federate
from dpfact_flower.runtime.keeper import kept
from dpfact_flower.runtime.superlink import RunFailedError, local_superlink
from dpfact_flower.server.history import read_history
from tests.patience import PATIENCE, await_that
from tests.runtime.deployment import (
    APP,
    assert_same,
    lines_of,
    server_config,
    site_config,
    supernode,
)

CPUS = "client-resources-num-cpus=1"
CONFIG = {"rounds": 3, "rank": 4, "seed": 5, "privacy": "none", "tau": 2}
PATIENT = {"rank": 4, "seed": 5, "off": 0.0, "privacy": "patient", "epsilon": 4.0, "delta": 1e-5}


@pytest.fixture
def expected(cohort_folder, tmp_path):
    """Global factors of the run in one process."""
    out = federate({**CONFIG, "data": str(cohort_folder), "out": str(tmp_path / "inprocess")})
    return read_model(out)[0]


@pytest.mark.slow
@pytest.mark.ray
def test_simulation_gives_the_numbers_of_one_process(cohort_folder, tmp_path, expected):
    out = tmp_path / "ray"
    config = {**CONFIG, "data": str(cohort_folder), "out": str(out)}
    with local_superlink(tmp_path / "flwr", simulation=True) as superlink:
        superlink.run(APP, config, federation_config="num-supernodes=3 client-resources-num-cpus=1")
        wrong = {**config, "out": str(tmp_path / "wrong")}
        with pytest.raises(RunFailedError):  # the data has three sites
            superlink.run(APP, wrong, federation_config=f"num-supernodes=2 {CPUS}")
    assert superlink.process.poll() is not None
    assert_same(out, expected)
    assert read_json(out / "summary.json")["sites"] == 3


@pytest.mark.slow
@pytest.mark.ray
def test_patient_mode_simulated_gives_the_numbers_of_one_process(cohort_folder, tmp_path):
    config = {**PATIENT, "noise-seed": 7, "data": str(cohort_folder)}
    one = federate({**config, "out": str(tmp_path / "inprocess")})
    out = tmp_path / "ray"
    with local_superlink(tmp_path / "flwr", simulation=True) as superlink:
        superlink.run(
            APP, {**config, "out": str(out)},
            federation_config="num-supernodes=3 client-resources-num-cpus=1",
        )  # fmt: skip
    assert_same(out, read_model(one)[0])
    assert "seeded: not private" in read_json(out / "summary.json")["claim"]


@pytest.mark.slow
@pytest.mark.ray
def test_the_command_runs_in_flowers_simulation_and_its_config_repeats_it_elsewhere(
    cohort_folder, tmp_path, monkeypatch, expected
):
    monkeypatch.chdir(tmp_path)
    settings = [f"--set={key}={value}" for key, value in CONFIG.items()]
    places = ["--app", str(APP), "--data", cohort_folder.name, "--out", "runs/one"]
    done = CliRunner().invoke(cli.app, ["simulate", *places, *settings])
    assert done.exit_code == 0, done.output
    assert_same(Path("runs/one"), expected)
    again = federate({**read_config(Path("runs/one"))["run-config"], "out": "runs/again"})
    assert_same(again, expected)
    assert {path.name for path in Path("runs").iterdir()} == {
        "one", "one.sites", "again", "again.sites",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.deployment
def test_patient_mode_deployed_spends_each_hospitals_budget_once(cohort, cohort_folder, tmp_path):
    config = {**PATIENT, **server_config(cohort, tmp_path), "min-sites": 3}
    allowed = {"allow-privacy": "patient", "max-epsilon": 5.0}
    with ExitStack() as stack:
        superlink = stack.enter_context(local_superlink(tmp_path / "flwr", simulation=False))
        for site in cohort.sites:
            own = site_config(cohort_folder, tmp_path, site.name, **allowed)
            stack.enter_context(supernode(superlink, tmp_path, own))
        superlink.run(APP, config)
        spent = [ledger_of(tmp_path, site.name) for site in cohort.sites]
        with pytest.raises(RunFailedError):  # every hospital has spent what it allows
            superlink.run(APP, {**config, "out": str(tmp_path / "second")})
    assert [ledger_of(tmp_path, site.name) for site in cohort.sites] == spent
    summary = read_json(tmp_path / "deployed" / "summary.json")
    assert summary["epsilon"] == pytest.approx(PATIENT["epsilon"], rel=1e-6)
    assert summary["claim"].startswith("proven: patient-level")
    for (events, sent), ledger in zip(spent, summary["per_site"].values(), strict=True):
        assert [event.sigma for event in events] == [row["sigma"] for row in ledger["ledger"]]
        assert sent == len(events)  # the last round sends nothing, and costs nothing


def ledger_of(tmp_path: Path, site: str):
    """What a hospital was charged for, and how many rounds it answered."""
    with Ledger(tmp_path / f"state-{site}" / site, create=False) as ledger:
        assert ledger.verify() == []
        return ledger.events(), len(ledger.rows())


@pytest.mark.slow
@pytest.mark.deployment
def test_deployment_gives_the_numbers_of_one_process(cohort, cohort_folder, tmp_path, expected):
    with ExitStack() as stack:
        superlink = stack.enter_context(local_superlink(tmp_path / "flwr", simulation=False))
        for site in cohort.sites:
            config = site_config(cohort_folder, tmp_path, site.name)
            stack.enter_context(supernode(superlink, tmp_path, config))
        superlink.run(APP, {**CONFIG, **server_config(cohort, tmp_path)})
    out = tmp_path / "deployed"
    assert_same(out, expected)
    summary = read_json(out / "summary.json")
    assert summary["sites"] == 3
    assert summary["auc"] is None  # the server has no patients to measure on
    for site in cohort.sites:
        state = tmp_path / f"state-{site.name}" / site.name
        (kept,) = state.glob("*/state-*.npy")
        assert kept.name == f"state-{CONFIG['rounds']:06d}.npy"
        with Ledger(state, create=False) as ledger:
            assert ledger.verify() == []
            assert [row.round for row in ledger.rows()] == [1, 2, 3]
        (history,) = state.glob("*/history.jsonl")
        # Round 1 is the start: co-occurrences, and no model to measure.
        assert len(history.read_text().splitlines()) == CONFIG["rounds"] - 1


@pytest.mark.slow
@pytest.mark.deployment
def test_a_site_that_dies_does_not_take_the_run_with_it(cohort, cohort_folder, tmp_path):
    config = {**CONFIG, **server_config(cohort, tmp_path), "rounds": 4, "round-timeout": PATIENCE}
    with ExitStack() as stack:
        superlink = stack.enter_context(local_superlink(tmp_path / "flwr", simulation=False))
        nodes = []
        for site in cohort.sites[:2]:
            own = site_config(cohort_folder, tmp_path, site.name)
            nodes.append(stack.enter_context(supernode(superlink, tmp_path, own)))
        # The third hospital allows nothing that this run asks.
        own = site_config(
            cohort_folder, tmp_path, "site-3", **{"allow-privacy": "paper", "max-epsilon": 1.0}
        )
        nodes.append(stack.enter_context(supernode(superlink, tmp_path, own)))
        command = superlink.run_command(APP, {**config, "min-sites": 1})
        run = stack.enter_context(kept(command, env=superlink.environment))
        await_that(lambda: lines_of(tmp_path / "deployed" / "history.jsonl"), "a round")
        os.killpg(nodes[1].pid, signal.SIGKILL)
        assert run.wait(PATIENCE) == 0
    rounds = read_history(tmp_path / "deployed")
    assert [r.updated for r in rounds] == [True] * 4
    assert rounds[0].sites == ("site-1", "site-2")
    assert rounds[-1].sites == ("site-1",)
    reasons = {failure.reason for r in rounds for failure in r.failures}
    assert any("dpfact:privacy-refused" in reason for reason in reasons)
    assert not any("allow-privacy" in reason for reason in reasons)  # the text stays at the site


def test_one_process_repeats_itself_and_leaves_no_patient_value(cohort_folder, tmp_path, expected):
    out = federate({**CONFIG, "data": str(cohort_folder), "out": str(tmp_path / "again")})
    assert_same(out, expected)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["rounds"] == CONFIG["rounds"]
    assert (tmp_path / "again.sites" / "site-1").is_dir()
    assert not list(out.glob("**/state-*.npy"))
    assert not list(out.glob("**/ledger.sqlite"))
