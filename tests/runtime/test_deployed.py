"""A deployment gives the numbers of one process, and outlives a site.

A SuperLink and three SuperNodes, each a process of its own on loopback, started and ended here. In
patient mode: test_secure_deployment.py.
"""

import os
import signal
from contextlib import ExitStack

import pytest

from dpfact_flower.evaluation.run_folder import read_json, read_model
from dpfact_flower.privacy.ledger import Ledger
from dpfact_flower.runtime.connection import COMPLETED, Connection
from dpfact_flower.runtime.federate import federate
from dpfact_flower.runtime.superlink import local_superlink
from dpfact_flower.runtime.supervisor import supervised
from dpfact_flower.server.history import read_history
from dpfact_flower.server.status import run_status
from tests.patience import PATIENCE, await_that
from tests.runtime.deployment import (
    APP,
    CONFIG,
    assert_arrived,
    assert_same,
    lines_of,
    server_config,
    site_config,
    supernode,
)


@pytest.mark.slow
@pytest.mark.deployment
def test_deployment_gives_the_numbers_of_one_process(cohort, cohort_folder, tmp_path):
    one = federate({**CONFIG, "data": str(cohort_folder), "out": str(tmp_path / "inprocess")})
    with ExitStack() as stack:
        superlink = stack.enter_context(local_superlink(tmp_path / "flwr", simulation=False))
        for site in cohort.sites:
            config = site_config(cohort_folder, tmp_path, site.name)
            stack.enter_context(supernode(superlink, tmp_path, config))
        link = Connection("dpfact", superlink.environment)  # as `dpfact submit` does it
        run = link.submit(APP, {**CONFIG, **server_config(cohort, tmp_path)})
        assert link.follow(run)["status"] == COMPLETED
        arriving = {"pace": "on-arrival", "rounds": 2, "out": str(tmp_path / "arriving")}
        run = link.submit(APP, {**CONFIG, **server_config(cohort, tmp_path), **arriving})
        assert link.follow(run)["status"] == COMPLETED
    assert_arrived(tmp_path / "arriving", rounds=2)
    status = run_status(tmp_path / "deployed")
    assert status.is_finished
    assert [(site.name, site.used, site.failed) for site in status.sites] == [
        (site.name, CONFIG["rounds"], 0) for site in cohort.sites
    ]
    out = tmp_path / "deployed"
    assert_same(out, read_model(one)[0])
    summary = read_json(out / "summary.json")
    assert summary["sites"] == 3
    assert summary["auc"] is None  # the server has no patients to measure on
    for site in cohort.sites:
        state = tmp_path / f"state-{site.name}" / site.name
        kept = sorted(path.name for path in state.glob("*/state-*.npy"))
        assert kept == [f"state-{rounds:06d}.npy" for rounds in (2, CONFIG["rounds"])]
        with Ledger(state, create=False) as ledger:
            assert ledger.verify() == []
            rows = ledger.rows()
            # The run in step, and the one on arrival.
            assert [row.round for row in rows] == [1, 2, 3, 1, 2]
            (job, _) = dict.fromkeys(row.job for row in rows)
        history = state / job / "history.jsonl"
        # Round 1 is the start: co-occurrences, and no model to measure.
        assert len(history.read_text().splitlines()) == CONFIG["rounds"] - 1


@pytest.mark.slow
@pytest.mark.deployment
def test_a_site_that_dies_does_not_take_the_run_with_it(cohort, cohort_folder, tmp_path):
    config = {**CONFIG, **server_config(cohort, tmp_path), "rounds": 4, "round-timeout": PATIENCE,
              "preflight": "off"}  # fmt: skip
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
        run = stack.enter_context(supervised(command, env=superlink.environment))
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
