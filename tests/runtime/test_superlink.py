"""Runs on a SuperLink that this process starts. `test_runtimes` starts a real one."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from dpfact_flower.runtime.superlink import (
    COMPLETED,
    MEASURING_LINE,
    Connection,
    RunFailedError,
    SuperLink,
    followed,
    free_port,
    quiet_environment,
)


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
WARNING :   round 3: nöde 5: no reply within 600 s
INFO :      ServerApp-side Evaluate Metrics:
INFO :      {MEASURING_LINE}
(ClientAppActor pid=31969) WARNING :   Manually terminating ClientAppActor
"""


def test_rounds_and_warnings_are_shown_without_noise_and_all_lines_if_the_run_fails(monkeypatch):
    def follow(link, run, log):
        os.write(log, LOG.encode())
        return {"status": run}

    monkeypatch.setattr(Connection, "submit", lambda link, app, config, _: config["ends"])
    monkeypatch.setattr(Connection, "follow", follow)
    link, reported, shown = SuperLink("here", {}, address="127.0.0.1:9", process=None), [], []
    with followed(lambda *progress: reported.append(progress), shown.append) as log:
        link.run(Path("app"), {"ends": COMPLETED}, log=log)
    assert reported == [("rounds", 0.0), ("rounds", 0.5), ("rounds", 1.0), ("measuring", 0.0)]
    assert shown == ["WARNING :   round 3: nöde 5: no reply within 600 s"]
    failed = pytest.raises(RunFailedError, match="ended as 'finished:failed'")
    with failed, followed(Mock(), shown.append) as log:
        link.run(Path("app"), {"ends": "finished:failed"}, log=log)
    assert shown[2:] == LOG.splitlines()
