"""A deployment outlives a site, and runs on arrival; its numbers: test_secure_deployment.py.

A SuperLink and three SuperNodes, each a process of its own on loopback, started and ended here.
"""

import os
import signal
from contextlib import ExitStack

import pytest

from dpfact_flower.privacy.ledger import Ledger
from dpfact_flower.runtime.superlink import local_superlink
from dpfact_flower.runtime.supervisor import supervised
from dpfact_flower.server.history import read_history
from dpfact_flower.server.status import run_status
from tests.patience import PATIENCE, await_that
from tests.runtime.deployment import (
    APP,
    CONFIG,
    assert_arrived,
    lines_of,
    server_config,
    site_config,
    supernode,
)


@pytest.mark.nightly
@pytest.mark.deployment
def test_a_run_on_arrival_is_answered_and_charged_round_by_round(cohort, cohort_folder, tmp_path):
    out = tmp_path / "deployed"
    config = {**CONFIG, **server_config(cohort, tmp_path), "aggregation": "async", "rounds": 2}
    with ExitStack() as stack:
        superlink = stack.enter_context(local_superlink(tmp_path / "flwr", simulation=False))
        for site in cohort.sites:
            own = site_config(cohort_folder, tmp_path, site.name)
            stack.enter_context(supernode(superlink, tmp_path, own))
        superlink.run(APP, config)
    assert_arrived(out, rounds=2)
    assert run_status(out).is_finished
    for site in cohort.sites:
        with Ledger(tmp_path / f"state-{site.name}" / site.name, create=False) as ledger:
            assert ledger.verify() == []
            assert [row.round for row in ledger.rows()] == [1, 2]


@pytest.mark.nightly
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
