"""All processes that this process starts end with it, including helpers of helpers."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from dpfact_flower.runtime.supervisor import supervised
from tests.patience import PATIENCE, await_that
from tests.processes import await_none_left, family_of, processes_of, running
from tests.runtime.deployment import APP, lines_of

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows others' environments")
posix = pytest.mark.skipif(os.name != "posix", reason="needs a supervisor")

# A server whose helper leaves its session and its parent, like a daemon, and ignores SIGTERM. On
# request, the server ignores SIGTERM too.
SERVER = """
import os, signal, sys
signal.alarm(3600)  # should the supervisor fail
name = "server"
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    name = "helper"
if name in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(name + ".part", "w") as file:
    file.write(str(os.getpid()))
os.rename(name + ".part", name)
signal.pause()
"""


@contextmanager
def supervised_server(folder: Path, *stubborn: str):
    """Start a server and its helper."""
    environment = {**os.environ, "FLWR_HOME": str(folder)}
    command = [sys.executable, "-c", SERVER, "helper", *stubborn]
    with supervised(command, cwd=folder, env=environment) as process:
        for name in ("server", "helper"):
            await_that((folder / name).exists, f"the start of the {name}")
        yield process


def start_server(folder: str) -> None:
    with supervised_server(Path(folder)):
        (Path(folder) / "started").touch()
        signal.pause()


def kill_and_await_none_left(process: subprocess.Popen, home: Path) -> None:
    family = family_of(process.pid)
    assert len(family) > 1
    process.kill()
    process.wait()
    await_that(lambda: not family & running().keys(), f"the end of {family}")
    await_none_left(home)


@pytest.mark.process
@linux
def test_a_killed_process_takes_along_what_it_started_and_a_helper_that_left_its_session(tmp_path):
    code = f"from tests.runtime import test_supervisor as t; t.start_server({str(tmp_path)!r})"
    with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2]) as process:
        await_that((tmp_path / "started").exists, "the start of both")
        kill_and_await_none_left(process, tmp_path)


@pytest.mark.process
@linux
@pytest.mark.parametrize("stubborn", [(), pytest.param(("server",), marks=pytest.mark.nightly)])
def test_nothing_is_left_when_the_context_has_ended(tmp_path, stubborn):
    with supervised_server(tmp_path, *stubborn) as process:
        assert process.poll() is None
        assert len(processes_of(tmp_path)) == 3  # including the supervisor
    assert processes_of(tmp_path) == []
    # A stubborn process is killed after some time.
    assert process.returncode == 128 + (signal.SIGKILL if stubborn else signal.SIGTERM)


@pytest.mark.process
@linux
def test_a_command_that_ends_takes_its_helper_along(tmp_path):
    with supervised_server(tmp_path) as process:
        os.kill(int((tmp_path / "server").read_text()), signal.SIGTERM)
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM
        assert processes_of(tmp_path) == []


@linux
@pytest.mark.nightly
@pytest.mark.ray
def test_a_killed_simulation_leaves_nothing_not_even_of_ray(cohort_folder, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "dpfact_flower", "simulate", "--app", str(APP)]
    command += ["--data", str(cohort_folder), "--out", str(out)]
    command += [f"--set={each}" for each in ("rounds=10000", "rank=4", "privacy=none")]
    with (tmp_path / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        await_that(lambda: lines_of(out / "history.jsonl") or process.poll(), "a round")
        assert {"raylet", "gcs_server"} <= {each.name for each in family_of(process.pid)}
        kill_and_await_none_left(process, tmp_path / "out.sites" / "flwr")
    finally:
        process.kill()
        process.wait()


@pytest.mark.process
@posix
@pytest.mark.parametrize(
    ("code", "found"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_supervisor_exits_as_its_command_does(code, found):
    with supervised([sys.executable, "-c", code]) as process:
        assert process.wait(PATIENCE) == found


@pytest.mark.process
@posix
def test_a_supervisor_that_is_asked_to_end_ends_its_command(tmp_path):
    with supervised_server(tmp_path) as process:
        process.terminate()
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM
