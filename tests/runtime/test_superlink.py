"""Runs of one SuperLink that this process starts; a real one is started in `test_runtimes`."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from dpfact_flower.runtime import superlink
from dpfact_flower.runtime.connection import COMPLETED, RunFailedError
from dpfact_flower.runtime.keeper import kept

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
            with kept(command, stdout=log, stderr=log) as process:
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


def test_of_two_runs_at_the_same_moment_each_has_its_own_outcome_and_log(link):
    heard = Heard(), Heard()
    with ThreadPoolExecutor(2) as pool:
        good, bad = (
            pool.submit(link.run, link.home, {"ends": ends}, heard=each)
            for ends, each in zip((COMPLETED, "finished:failed"), heard, strict=True)
        )
        assert good.result() is None
        with pytest.raises(RunFailedError, match="ended as 'finished:failed'"):
            bad.result()
    assert heard == (LINES, [*LINES, "all"])


def test_the_log_of_a_quiet_run_goes_nowhere(link, capfd):
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(link.run, link.home, {"ends": COMPLETED}, quiet=quiet)
            for quiet in (True, False)
        ]
        assert [run.result() for run in runs] == [None, None]
    assert capfd.readouterr().out == "".join(LINES)
