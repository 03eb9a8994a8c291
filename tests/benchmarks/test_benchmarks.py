"""`make bench` runs from end to end, at the smallest scale and in a separate process."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.parts import PARTS
from benchmarks.rows import LOST, TARGETS_FOR, Row, Timing, show

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "results"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--scale", "smoke", "--out", str(out)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_all_functions_whose_seconds_are_added_up_exist():
    missing = [name for its in PARTS.values() for owner, name in its if name not in vars(owner)]
    assert missing == []


def test_an_absolute_target_says_which_machine_it_is_for(capsys):
    found = [Row("seconds", 1, "s", 2), Row("ratio", 3, "x", 2), Row("no target", 3, "s")]
    assert [bool(row.target_for) for row in found] == [True, False, False]
    assert found[0].to_dict()["target_for"] == TARGETS_FOR
    show(found)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"1 of them are absolute, for {TARGETS_FOR}: seconds"


def test_a_difference_of_times_that_a_busy_machine_lost_is_said_to_have_no_value():
    told = Row.of("ten more", Timing.of_more((1.0, 2.0, 1.0), (3.0, 4.0, 0.5), 10), "s")
    assert (told.value, told.note) == (pytest.approx(0.2), "")
    lost = Row.of("ten more", Timing.of_more((1.0, 2.0), (0.5, 2.0), 10), "s", note="noted")
    assert (lost.value, lost.note, lost.repetitions) == (None, f"{LOST}; noted", 2)
    # Every figure has a value, except perhaps a difference.
    assert Row.of("a share", Timing((-0.5, -0.5)), "share").value == -0.5


@pytest.mark.nightly
@pytest.mark.process
def test_every_row_says_what_was_measured_and_whether_the_target_is_met(results):
    rows = json.loads((results[0] / "bench.json").read_text())
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)
    for row in rows:
        assert {"name", "value", "unit", "target", "met"} <= row.keys()
        if row["target"] is None or row["value"] is None:
            assert row["met"] is None
        elif row["at_least"]:
            assert row["met"] is (row["value"] >= row["target"])
        else:
            assert row["met"] is (row["value"] <= row["target"])
        assert row["value"] is not None or row["note"]
    times = [row for row in rows if row["unit"] in {"s", "ns/nnz", "ns/visit", "ms/round"}]
    measured = {row["name"]: row["value"] for row in times if row["value"] is not None}
    assert all(math.isfinite(value) and value > 0 for value in measured.values())
    lost = [row for row in times if row["name"] not in measured]
    # On a busy machine, a difference of short times can be lost, and its row must say so.
    assert all(row["note"].startswith(LOST) for row in lost), lost
    assert len(measured) > 50


@pytest.mark.nightly
@pytest.mark.process
def test_it_says_what_it_ran_on_and_on_one_thread(results):
    out, printed = results
    machine = json.loads((out / "machine.json").read_text())
    assert set(machine["threads"].values()) == {"1"}
    assert machine["packages"]["numba"] in printed
    assert machine["cpu"] in printed
    assert (out / "bench.png").read_bytes().startswith(b"\x89PNG")
