"""Runs on a SuperLink that this process starts. `test_runtimes` starts a real one."""

import os
import subprocess
import sys

import pytest

from dpfact_flower.runtime.superlink import (
    COMPLETED,
    MEASURING_LINE,
    Connection,
    LogFollower,
    RunFailedError,
    SuperLink,
    free_port,
    quiet_environment,
)

LINES = ["INFO :      [ROUND 1/4]\n", "WARNING :   round 1: é\n"]


class Heard(list):
    """A list of log lines."""

    def __call__(self, line):
        self.append(line)

    def show_all(self):
        self.append("all")


def test_a_runs_log_goes_to_its_follower_and_its_outcome_counts(tmp_path, monkeypatch):
    def follow(link, run, log):
        assert link.environment["FLWR_HOME"] == str(tmp_path)
        os.write(log, "".join(LINES).encode())
        return {"status": run}

    monkeypatch.setattr(Connection, "submit", lambda link, app, config, _: config["ends"])
    monkeypatch.setattr(Connection, "follow", follow)
    own = {"FLWR_HOME": str(tmp_path)}
    link = SuperLink("here", own, address="127.0.0.1:9", process=None)
    good, bad = Heard(), Heard()
    link.run(tmp_path, {"ends": COMPLETED}, follower=good)
    with pytest.raises(RunFailedError, match="ended as 'finished:failed'"):
        link.run(tmp_path, {"ends": "finished:failed"}, follower=bad)
    assert (good, bad) == (LINES, [*LINES, "all"])


def test_no_port_is_given_twice():
    assert len({free_port() for _ in range(1000)}) == 1000


@pytest.mark.process
def test_colours_that_jupyter_asks_for_stay_out_of_flowers_json(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as ipykernel does
    command = [sys.executable, "-c", "from rich import print_json; print_json('{\"a\": 1}')"]
    assert b"\x1b" in subprocess.run(command, capture_output=True, check=True).stdout
    done = subprocess.run(command, env=quiet_environment(), capture_output=True, check=True)
    assert b"\x1b" not in done.stdout


LOG = f"""\
INFO :      Starting Flower Simulation
WARNING :   Since flwr 1.32, default simulated SuperNodes changed from 10 to 2.
INFO :      [ROUND 1/4]
INFO :      [ROUND 3/4]
WARNING :   round 3: node 5: no reply within 600 s
INFO :      ServerApp-side Evaluate Metrics:
INFO :      {MEASURING_LINE}
(ClientAppActor pid=31969) WARNING :   Manually terminating ClientAppActor
"""


def test_rounds_are_reported_and_warnings_shown_and_noise_is_not():
    reported, shown = [], []
    follower = LogFollower(lambda *progress: reported.append(progress), shown.append)
    for line in LOG.splitlines(keepends=True):
        follower(line)
    assert reported == [("rounds", 0.0), ("rounds", 0.5), ("rounds", 1.0), ("measuring", 0.0)]
    assert shown == ["WARNING :   round 3: node 5: no reply within 600 s"]
    shown.clear()
    follower.show_all()  # the run has failed
    assert shown == LOG.splitlines()
