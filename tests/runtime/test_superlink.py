"""Runs of one SuperLink that this process starts; a real one is started in `test_runtimes`."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from dpfact_flower.runtime import superlink
from dpfact_flower.runtime.connection import COMPLETED, RunFailedError
from dpfact_flower.runtime.serve import MEASURING_LINE
from dpfact_flower.runtime.superlink import LogFollower
from dpfact_flower.runtime.supervisor import supervised

LINES = ["INFO :      [ROUND 1/4]\n", "WARNING :   round 1: é\n"]


@pytest.fixture
def link(tmp_path, monkeypatch):
    """A SuperLink whose runs end as their configs say; two of them begin at the same moment."""
    begun = Barrier(2)

    class Connection:
        def __init__(self, name, environment):
            assert environment["FLWR_HOME"] == str(tmp_path)

        def submit(self, app, config, federation_config):
            begun.wait()
            return config["ends"]

        def follow(self, run, log):
            code = f"print({''.join(LINES)!r}, end='')"
            command = [sys.executable, "-X", "utf8", "-c", code]
            with supervised(command, stdout=log, stderr=log) as process:
                process.wait()
            begun.wait()
            return {"status": run}

    monkeypatch.setattr(superlink, "Connection", Connection)
    nobody = subprocess.Popen([sys.executable, "-c", ""])
    nobody.wait()
    return superlink.SuperLink(tmp_path, "127.0.0.1:9", nobody)


class Heard(list):
    """Keeps the lines of a log."""

    def __call__(self, line):
        self.append(line)

    def show_all(self):
        self.append("all")


@pytest.mark.process
def test_of_two_runs_at_the_same_moment_each_has_its_own_outcome_and_log(link):
    heard = Heard(), Heard()
    with ThreadPoolExecutor(2) as pool:
        good, bad = (
            pool.submit(link.run, link.home, {"ends": ends}, follower=each)
            for ends, each in zip((COMPLETED, "finished:failed"), heard, strict=True)
        )
        assert good.result() is None
        with pytest.raises(RunFailedError, match="ended as 'finished:failed'"):
            bad.result()
    assert heard == (LINES, [*LINES, "all"])


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


def test_of_a_long_log_the_end_is_kept():
    shown = []
    follower = LogFollower(lambda *_: None, shown.append)
    for number in range(1000):
        follower(f"{number}\n")
    follower.show_all()
    assert shown == [str(number) for number in range(800, 1000)]
