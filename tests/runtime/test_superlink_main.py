"""A SuperLink whose helper was killed ends, so that whoever started it starts both again."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dpfact_flower.errors import MissingDependencyError
from dpfact_flower.machine import flower
from dpfact_flower.runtime import superlink_main as module
from dpfact_flower.runtime.connection import tool
from dpfact_flower.runtime.superlink_main import refuse_damaged
from laboratory.campaign.deployed import CODE
from tests.runtime.page import written


@pytest.mark.process
def test_the_superlink_waits_for_who_writes_to_its_database():
    """In a process of its own, where Flower is not imported yet."""
    code = """if True:
        import sqlite3
        from dpfact_flower.runtime.superlink_main import wait_for_the_database
        wait_for_the_database()
        from flwr.superlink.cli import flower_superlink
        from flwr.supercore.sql_mixin import _set_sqlite_pragmas
        database = sqlite3.connect(":memory:")
        _set_sqlite_pragmas(database, None)
        print(*database.execute("PRAGMA busy_timeout").fetchone())
    """
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CODE, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["25000"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("option", "damage"),
    [("--database {}", "not a database"), ("--database={}", "a page of another")],
)
def test_a_damaged_database_is_named_and_nothing_is_started(tmp_path, option, damage):
    """With the exit code that the unit does not start again on."""
    path = tmp_path / "superlink.db"
    for options in ([], option.format(path).split()):
        refuse_damaged(options)
    assert not path.exists()  # Flower makes it
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            "CREATE TABLE runs (name TEXT PRIMARY KEY); PRAGMA user_version = 1;"
            "INSERT INTO runs SELECT value FROM json_each('[1,2,3]');"
        )
    refuse_damaged(option.format(path).split())  # it is whole
    whole = path.read_bytes()
    path.write_bytes(b"x" * 4096 if damage == "not a database" else whole[:4096] + b"x" * 8192)
    done = subprocess.run(
        [tool("dpfact"), "superlink", "--insecure", *option.format(path).split()],
        env={"PYTHONPATH": str(CODE)}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"{path}: the SuperLink's database is damaged" in done.stderr
    assert "RestartPreventExitStatus=2" in written("dpfact-centre.service")


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_end_of_the_helper_is_told_from_that_of_others_and_from_a_pause(monkeypatch):
    """Flower's own SuperLink stays when its helper is gone, and every run is `pending` for ever."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        name = Path(f"/proc/{child.pid}/comm").read_text().strip()
        os.kill(child.pid, signal.SIGSTOP)  # of which its parent is told, too
        monkeypatch.setattr(module, "_HELPER", name)
        assert not module._helper_has_ended()
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert module._helper_has_ended()
        monkeypatch.setattr(module, "_HELPER", "another")
        assert not module._helper_has_ended()


def test_with_another_flower_no_superlink_is_started(monkeypatch):
    monkeypatch.setattr(flower, "version", lambda name: "1.43.0")
    monkeypatch.setattr(module, "wait_for_the_database", None)
    with pytest.raises(MissingDependencyError, match=r"nothing was started: Flower 1\.43\.0"):
        module.superlink_main([])
