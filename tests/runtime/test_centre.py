"""A SuperLink whose helper was killed ends, so that whoever started it starts both again."""

import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

from dpfact_flower.runtime.connection import quiet_environment, tool
from dpfact_flower.runtime.keeper import kept
from dpfact_flower.runtime.superlink import free_port
from tests.campaign.deployed import CODE
from tests.patience import PATIENCE, await_that
from tests.processes import descendant


@contextmanager
def superlink(folder: Path):
    """A SuperLink, and the number of its helper."""
    command = [tool("dpfact"), "superlink", "--insecure", "--host", "127.0.0.1"]
    command += ["--port", str(free_port()), "--control-api-address", f"127.0.0.1:{free_port()}"]
    environment = {**quiet_environment(), "FLWR_HOME": str(folder), "PYTHONPATH": str(CODE)}
    with (
        (folder / "log").open("wb") as log,
        kept(command, cwd=folder, env=environment, stdout=log, stderr=log) as process,
    ):
        await_that(
            lambda: "startup complete" in (folder / "log").read_text(), "the SuperLink's start"
        )
        yield process, descendant(process.pid, "flower-superexec")


@pytest.mark.slow
@pytest.mark.deployment
def test_a_superlink_whose_helper_is_killed_ends(tmp_path):
    """Flower's own stays, and every run of it is `pending` for ever."""
    with superlink(tmp_path) as (process, helper):
        os.kill(helper, signal.SIGSTOP)  # of which its parent is told, too
        os.kill(helper, signal.SIGCONT)
        assert process.poll() is None
        os.kill(helper, signal.SIGKILL)
        process.wait(PATIENCE)
    said = (tmp_path / "log").read_text()
    assert said.count("has ended, so it ends too") == 1


@pytest.mark.slow
@pytest.mark.deployment
def test_a_superlink_that_is_ended_ends_its_helper(tmp_path):
    with superlink(tmp_path) as (process, helper):
        process.terminate()
        process.wait(PATIENCE)
        assert not Path(f"/proc/{helper}").exists()
