"""A centre and two hospitals on one machine without root, with the page's commands and scripts.

`dpfact centre init` and `dpfact site init` write the scripts, and one user runs them all.
"""

import re
import signal
import subprocess
import time
from contextlib import ExitStack

import pytest

from dpfact_flower.evaluation.run_folder import read_json
from dpfact_flower.runtime import installation
from dpfact_flower.runtime.superlink import free_port
from tests.commands import dpfact
from tests.patience import PATIENCE, await_that
from tests.processes import await_none_left
from tests.runtime.page import written


@pytest.mark.nightly
@pytest.mark.deployment
def test_a_centre_and_two_hospitals_are_set_up_by_one_command_each_and_run(cohort, tmp_path):
    cohort.save(tmp_path / "cohort")
    lists = []
    for vocabulary in cohort.vocabularies:
        vocabulary.save(tmp_path / f"{vocabulary.name}.json")
        lists.append(f"{tmp_path / vocabulary.name}.json")
    centre, port = tmp_path / "centre", free_port()
    dpfact("centre", "init", "127.0.0.1", "--folder", centre, "--port", port)
    names = [site.name for site in cohort.sites[:2]]
    with ExitStack() as stack:
        started = [start(centre, stack)]
        await_that(lambda: "startup complete" in (centre / "log").read_text(), "the SuperLink")
        for name in names:
            folder = tmp_path / name
            dpfact(
                "site", "init", name, "--centre", f"127.0.0.1:{port}", "--ca", centre / "ca.crt",
                "--data", tmp_path / "cohort" / f"{name}.npz", "--max-epsilon", 4, "--folder",
                folder, "--port", free_port(), "-s", "reply-after=0.0",
            )  # fmt: skip
            key = folder / f"{name}.pub"
            assert "is admitted" in dpfact("centre", "admit", key, "--folder", centre, answer="y\n")
            started.append(start(folder, stack))
        dpfact(
            "submit", centre, "--out", tmp_path / "run", "--vocabulary", ",".join(lists),
            "-s", "sites=2", "-s", "min-sites=2", "-s", "rank=4", "-s", "patients=100",
            "-s", "refine-rounds=1", "-s", "relative-l21=0.0", "-s", f"wait-timeout={PATIENCE}",
        )  # fmt: skip
        for name in names:
            dpfact("ledger", "show", tmp_path / name / "site" / "state")
        for process in started:
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait(PATIENCE)
    assert "starts runs has ended" not in (centre / "log").read_text()  # a stop is no failure
    for home in (centre / "flwr", *(tmp_path / name / "node" for name in names)):
        await_none_left(home)
    summary = read_json(tmp_path / "run" / "summary.json")
    assert set(summary["per_site"]) == set(names)
    assert summary["claim"].startswith("proven: patient-level")


@pytest.mark.process
def test_the_script_ends_the_executor_before_the_supernode_that_sends_its_answer(tmp_path):
    script, ended = start_script(tmp_path), tmp_path / "ended"
    lines = script.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("env "):
            busy, part = ("1", "executor") if " answer " in line else ("0", "SuperNode")
            last = f"sleep {busy}; echo {part} >> {ended}; exit"
            lines[number] = f"sh -c 'trap \"{last}\" TERM; while :; do sleep .1; done' &"
    script.write_text("\n".join(lines))
    process = subprocess.Popen(["sh", script])
    time.sleep(0.5)
    process.terminate()
    process.wait(PATIENCE)
    assert ended.read_text().split() == ["executor", "SuperNode"]


def test_the_proxy_forwards_only_normalised_paths_and_systemd_stops_the_executor_first():
    assert "proxy_pass https://127.0.0.1:9200/v1/fleet/;" in written("dpfact-proxy.conf")
    assert "After=dpfact-node.service" in written("dpfact-site.service")


@pytest.mark.process
def test_the_script_ends_in_silence_if_a_part_has_ended_before(tmp_path):
    script = start_script(tmp_path)
    script.write_text(re.sub("^env .*$", "true &", script.read_text(), flags=re.MULTILINE))
    done = subprocess.run(["sh", script], capture_output=True, check=False, timeout=PATIENCE)
    assert done.stderr == b""


def start_script(folder):
    values = {"folder": folder, "name": "north", "port": 1, "centre": "x:1"}
    installation._write_units(folder, ("dpfact-node.service", "dpfact-site.service"), values)
    return folder / "start.sh"


def start(folder, stack: ExitStack) -> subprocess.Popen[bytes]:
    """Start the script that replaces the units."""
    file = stack.enter_context((folder / "log").open("wb"))
    process = subprocess.Popen(["sh", folder / "start.sh"], stdout=file, stderr=file)
    stack.callback(process.terminate)
    return process
