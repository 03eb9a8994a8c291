"""`dpfact submit` and `status`, with a script in place of Flower's command."""

import json
import os
import re
from threading import Timer

import pytest
from flwr.cli.utils import SUPERLINK_UNAVAILABLE_MESSAGE
from typer.testing import CliRunner

from dpfact_flower import cli
from dpfact_flower.cli.options import APP_FOLDER
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.runtime import superlink
from dpfact_flower.runtime.superlink import RunFailedError
from dpfact_flower.server.history import Failure
from tests.commands import dpfact
from tests.server.test_status import begun, close

pytestmark = pytest.mark.slow

FLWR = """#!/bin/sh
echo "$@" >> {folder}/asked
case "$1" in
run) n=$(grep -c ^run {folder}/asked); echo 'Loading'
     if [ -e {folder}/answer-$n ]; then cat {folder}/answer-$n; else cat {folder}/run; fi ;;
log) echo 'INFO: round 1 of 4: north, south answered in 9 s'
     if [ -p {folder}/go ]; then cat {folder}/go; fi ;;
ls) n=$(grep -c ^ls {folder}/asked); sed -n "${{n}}p" {folder}/ls ;;
esac
"""


@pytest.fixture
def flower(tmp_path, monkeypatch):
    """Set the answers of `flwr ls`, line by line, and return the requests."""
    monkeypatch.setattr(superlink, "tool", lambda name: str(tmp_path / name))
    monkeypatch.setattr(superlink, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(superlink, "_GONE_SECONDS", 0.0)
    (tmp_path / "flwr").write_text(FLWR.format(folder=tmp_path))
    (tmp_path / "flwr").chmod(0o700)
    (tmp_path / "run").write_text('{"success": true, "run-id": "77"}\n')
    for name in ("a", "b"):
        Vocabulary(name, ("x", "y"), ("", "")).save(tmp_path / f"{name}.json")

    def said(state) -> str:
        if not isinstance(state, str):
            return json.dumps(state)
        return json.dumps({"runs": [{"run-id": "77", "status": state}]}) if state else ""

    def run(*states, options=()):
        lines = [said(state) for state in states]
        (tmp_path / "ls").write_text("".join(f"{line}\n" for line in lines))
        lists = f"{tmp_path}/a.json, {tmp_path}/b.json,"
        words = ["submit", "centre", "--out", str(tmp_path / "run-1"), "--vocabulary", lists]
        done = CliRunner().invoke(cli.app, [*words, *options])
        asked = tmp_path / "asked"
        return done, asked.read_text().splitlines() if asked.exists() else []

    return run


@pytest.mark.process
@pytest.mark.parametrize(
    ("states", "code"),
    [
        (["finished:completed"], 0),
        (["running", "running", "finished:completed"], 0),
        (["running", "finished:failed"], 1),  # killed: Flower notices a minute later
        (["finished:stopped"], 1),
        (["running", "", ""], 4),
    ],
)
def test_the_exit_code_is_the_runs(flower, states, code):
    done, asked = flower(*states, options=("-s", "rounds=3", "--json"))
    assert done.exit_code == code, done.output
    assert asked[0].startswith(f"run {APP_FOLDER} centre --run-config ")
    assert "data=''" in asked[0] or 'data=""' in asked[0]
    assert "rounds=3" in asked[0]
    assert asked[1] == "log 77 centre --stream"
    assert set(asked[2:]) == {"ls centre --run-id 77 --format json"}
    said = json.loads(done.stdout[done.stdout.index("{") :])
    assert said["run"] == "77"
    assert said["status"] == (states[-1] or "unknown")


@pytest.mark.process
@pytest.mark.parametrize(
    ("states", "code"),
    [
        (["running", "running", "", ""], 4),
        (["running", *["finished:failed"] * 2], 1),
        (["pending", *["finished:stopped"] * 2], 1),
    ],
)
def test_nobody_waits_for_a_log_that_never_ends(flower, tmp_path, monkeypatch, states, code):
    """The SuperLink's machine may have failed, or the run may never begin, with only a warning."""
    pipe = tmp_path / "go"
    os.mkfifo(pipe)
    monkeypatch.setattr(superlink, "_LOOK_SECONDS", 0.01)
    # Otherwise this test would wait too.
    guard = Timer(60, pipe.write_text, args=("INFO: ended\n",))
    guard.start()
    done, _ = flower(*states)
    assert guard.is_alive()
    guard.cancel()
    assert done.exit_code == code, done.output
    warned = "warning: run 77 has not begun yet" in done.stderr
    assert warned is (states[0] == "pending")
    assert ("To end the run: flwr stop 77 centre" in done.stderr) is warned


AWAY = {"success": False, "error-message": f"Using SuperLink: x\n\n{SUPERLINK_UNAVAILABLE_MESSAGE}"}


@pytest.mark.process
@pytest.mark.parametrize(
    ("answer", "says"),
    [({"success": False, "error-message": "no such connection"}, "no such connection"),
     (AWAY, "Connection to the SuperLink is unavailable")],
)  # fmt: skip
def test_a_run_without_a_number_may_have_begun_and_is_not_repeated(flower, tmp_path, answer, says):
    """The SuperLink may have accepted the run before it failed. Sites would be charged twice."""
    (tmp_path / "run").write_text(json.dumps(answer))
    done, asked = flower()
    assert isinstance(done.exception, RunFailedError)
    assert re.search(rf"unknown whether the run was started: .*{says}", str(done.exception))
    assert "flwr ls centre before" in str(done.exception)
    assert len(asked) == 1


def test_a_bad_setting_or_code_list_starts_nothing(flower, tmp_path):
    done, asked = flower(options=("-s", "rank=0"))
    assert isinstance(done.exception, SettingsError)
    (tmp_path / "b.json").write_text("{")
    done, asked = flower()
    assert isinstance(done.exception, DataError)
    assert asked == []


@pytest.mark.process
def test_a_finished_run_is_not_charged_again_by_the_same_command(flower, tmp_path):
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "summary.json").write_text("{}")
    done, asked = flower()
    assert isinstance(done.exception, SettingsError)
    assert "holds a finished run already" in str(done.exception)
    assert asked == []
    for options in (["-s", "resume = true"], ["--force"]):
        done, _ = flower(*["finished:completed"] * 4, options=options)
        assert done.exit_code == 0, done.output


def test_a_folder_that_is_no_centres_is_not_taken_for_a_connection(tmp_path):
    with pytest.raises(SettingsError, match="centr: is not a folder that dpfact centre init wrote"):
        superlink.Connection.of(f"{tmp_path}/centr")
    assert superlink.Connection.of("centre").name == "centre"
    (home := tmp_path / "flwr").mkdir()
    (home / "config.toml").touch()
    stop = superlink.Connection.of(str(tmp_path)).command("stop 77")
    assert stop == f"FLWR_HOME={home} flwr stop 77 centre"


def test_status_exits_with_1_until_the_run_is_finished(tmp_path):
    it = begun(tmp_path / "run")
    for number in range(1, it.rounds + 1):
        close(it, number, ("north", "south"))
        command, code = ("status", tmp_path / "run"), int(number < it.rounds)
        said = dpfact(*command, code=code)
    assert f"{it.rounds} of {it.rounds} rounds" in said
    assert "north" in said
    found = json.loads(dpfact(*command, "--json"))
    assert (found["finished"], found["rounds"]) == (it.rounds, it.rounds)
    assert [(site["name"], site["used"]) for site in found["sites"]] == [
        ("north", it.rounds), ("south", it.rounds)
    ]  # fmt: skip


def test_status_cuts_no_nodes_number(tmp_path):
    it, node = begun(tmp_path / "run"), 1797986398149720550
    close(it, 1, ("north", "south"), [Failure(f"node {node}", "no reply within 9 s")])
    rows = [line for line in dpfact("status", tmp_path / "run", code=1).splitlines() if "│" in line]
    assert str(node) in "".join(row.partition("│")[0].strip() for row in rows)
