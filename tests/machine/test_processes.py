"""Processes as Linux shows them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpfact_flower.machine.processes import Process, processes

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs Linux")


def test_a_process_is_seen_with_its_words_environment_and_folder(tmp_path):
    says_that_it_runs = "print('here', flush=True); input()"
    command = [sys.executable, "-c", says_that_it_runs, "--config=a b", "--key", "../k"]
    ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **ends, env={"MARK": "x=y"}, cwd=tmp_path) as process:
        # Popen returns within exec, before Linux has the new words to show.
        assert process.stdout.readline() == b"here\n"
        (found,) = [each for each in processes() if each.pid == process.pid]
        process.communicate(b"\n")
    assert found.uid == os.geteuid()
    assert list(found.words) == command
    assert found.environment is not None
    assert found.environment["MARK"] == "x=y"
    assert found.path("--config") == tmp_path / "a b"
    assert found.path("--key") == tmp_path.parent / "k"
    assert found.option("--none") is None
    assert found.path("--none") is None


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (["/opt/bin/python", "/opt/bin/flower-supernode", "--port", "1"], True),
        (["flower-supernode"], True),
        (["python", "-m", "other", "x", "flower-supernode"], False),
    ],
)
def test_a_command_is_known_by_its_name(words, runs):
    assert Process(1, 0, words, None, None).runs("flower-supernode") is runs
