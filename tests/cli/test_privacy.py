"""`dpfact ledger` and `dpfact audit`, as a privacy officer uses them."""

import json
import logging
import re
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from dpfact_flower.audit import Finding
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.errors import SettingsError, StateError, plural
from dpfact_flower.privacy import PATIENT_CLAIM, SEEDED_CLAIM, ReleaseEvent, account, rounded_up
from dpfact_flower.privacy.ledger import LEDGER, Ledger, ReleaseKey
from dpfact_flower.privacy.release import release_nothing
from tests.commands import dpfact
from tests.ledgers import SECRET, charge

pytestmark = pytest.mark.slow

ledger_text = partial(dpfact, "ledger", width=200)


@pytest.fixture
def state_dir(tmp_path) -> Path:
    """Two sites: north has made every kind of release, and south none."""
    with Ledger(tmp_path / "north", create=True) as ledger:
        charge(ledger, "first", 1, "entry", "entry")
        charge(ledger, "first", 2, "entry", "entry", seeded=True)
        charge(ledger, "second", 1, "patient")
        second = ReleaseKey("f" * 64, "second", 2, "q")
        ledger.charge(second, "terms", release_nothing(), ledger.head())
        charge(ledger, "[red]third[/red]", 1)
    Ledger(tmp_path / "south", create=True).close()
    return tmp_path


def test_show_has_every_release_with_its_cost(state_dir):
    text = ledger_text("show", state_dir, "--site", "north", width=80)
    assert "no bound" in text  # the last column is complete, even in a small terminal
    text = ledger_text("show", state_dir, "--site", "north", "--delta", "1e-6")
    lines = [line for line in text.splitlines() if "first" in line]
    assert len(lines) == 4
    for line, mode in zip(lines, (0, 1, 0, 1), strict=True):
        assert f"mode {mode}" in line
        assert " 0.5 " in line
        assert f" {20 + mode} " in line
        assert f"{0.125 / (20 + mode) ** 2:.4g}" in line
        assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d ", line)
    assert [("seeded: not private" in line) for line in lines] == [False, False, True, True]
    assert "nothing left the site" in text
    assert "only the cap (max-epsilon) is guaranteed" in text
    (bare,) = (line for line in text.splitlines() if "[red]third[/red]" in line)  # no markup
    assert "values without noise" in bare
    assert "no bound" in bare


def test_the_running_total_is_that_of_all_releases_of_the_unit_so_far(state_dir):
    with Ledger(state_dir / "north", create=True) as ledger:
        events = ledger.events()
    shown = json.loads(ledger_text("show", state_dir / "north", "--delta", "1e-6", "--json"))
    so_far = (events[:2], events[:4], events[4:])
    expected = [*(account(part, 1e-6).headline.epsilon for part in so_far), None, None]
    assert [release["running_epsilon"] for release in shown["releases"]] == expected
    text = ledger_text("show", state_dir / "north", "--delta", "1e-6")
    last = [row.split("│")[-1].strip() for row in text.splitlines() if "first" in row]
    assert last == ["", rounded_up(expected[0]), "", rounded_up(expected[1])]


def test_replacing_a_record_is_priced_where_it_is_not_what_is_counted_already(tmp_path):
    with Ledger(tmp_path / "north", create=True) as ledger:
        charge(ledger, "first", 1, "patient")
        charge(ledger, "second", 1, "patient")
        events = ledger.events()
    text = ledger_text("show", tmp_path)  # the only site need not be named
    assert not [odd for odd in ("be added up", "without noise", "seeded") if odd in text]
    with pytest.raises(SettingsError, match="delta"):
        ledger_text("show", tmp_path, "--delta", "2")
    for so_far in (events[: len(events) // 2], events):
        assert f"({rounded_up(account(so_far, 1e-5).headline.replacing)})" in text
    releases = json.loads(ledger_text("show", tmp_path, "--json"))["releases"]
    assert releases[-1]["running_replacing"] == account(events, 1e-5).headline.replacing
    with Ledger(tmp_path / "south", create=True) as ledger:
        charge(ledger, "first", 1, "entry")
    assert "record:" not in ledger_text("show", tmp_path, "--site", "south")


def test_totals_stand_under_every_accountant_with_their_claim_and_unit(state_dir):
    text = ledger_text("show", state_dir / "north")
    with Ledger(state_dir / "north", create=True) as ledger:
        events = ledger.events()
    for part in (events[:4], events[4:]):
        total = account(part, 1e-5)
        assert len(total.figures) >= 3
        for figure in total.figures:
            assert str(figure) in text
        assert f" over {plural(len(part), 'charged release')}, unit {part[0].unit}" in text
    assert SEEDED_CLAIM in text
    assert PATIENT_CLAIM in text
    assert "cannot be added up" in text
    assert "1 release without noise: no epsilon bounds" in text


def test_json_is_complete_and_holds_no_released_value(state_dir):
    for command in ("show", "verify"):
        assert "9876543" not in ledger_text(command, state_dir / "north").replace(",", "")
    text = ledger_text("show", state_dir / "north", "--json", "--delta", "1e-6")
    assert str(int(SECRET)) not in text
    shown = json.loads(text)
    with Ledger(state_dir / "north", create=True) as ledger:
        head, rows = ledger.head(), ledger.rows()
    assert (shown["rows"], shown["head"], shown["delta"]) == (head.rows, head.hash, 1e-6)
    assert shown["ledger"] == str(state_dir / "north" / LEDGER)
    assert [release["hash"] for release in shown["releases"]] == [row.hash for row in rows]
    assert [release["unprotected"] for release in shown["releases"]] == [False] * 4 + [True]
    assert shown["unprotected_releases"] == 1
    events = [event for release in shown["releases"] for event in release["events"]]
    kept = [event for row in rows for event in row.events]
    assert [event.pop("rho") for event in events] == [event.rho for event in kept]
    assert [ReleaseEvent(**event) for event in events] == kept
    assert [total["unit"] for total in shown["totals"]] == ["entry", "patient"]
    assert shown["totals"][1]["claim"] == PATIENT_CLAIM


def test_a_charge_during_the_command_changes_neither_rows_nor_head(state_dir, monkeypatch):
    def rows(ledger):
        found = usual(ledger)
        monkeypatch.undo()  # a charge reads the rows too
        charge(ledger, "late", len(found))
        return found

    usual = Ledger.rows
    monkeypatch.setattr(Ledger, "rows", rows)
    shown = json.loads(ledger_text("show", state_dir / "north", "--json"))
    assert (shown["rows"], shown["head"]) == (5, shown["releases"][-1]["hash"])


def test_nothing_charged_is_said(state_dir):
    assert "nothing was charged" in ledger_text("show", state_dir, "--site", "south")
    shown = json.loads(ledger_text("show", state_dir / "south", "--json"))
    assert (shown["releases"], shown["totals"], shown["rows"]) == ([], [], 0)
    with Ledger(state_dir / "south", create=True) as ledger:
        charge(ledger, "bare", 1)
    text = ledger_text("show", state_dir / "south")
    assert "nothing was charged" in text
    assert "no epsilon bounds the loss" in text


def test_verify_says_ok_with_rows_and_head(state_dir):
    with Ledger(state_dir / "north", create=True) as ledger:
        head = ledger.head()
    text = ledger_text("verify", state_dir / "north")
    assert f"OK: 5 rows, head {head}" in text
    assert "--noted" in text
    text = ledger_text("verify", state_dir, "--site", "north", "--noted", head)
    assert f"OK: 5 rows, head {head}" in text
    assert "--noted" not in text
    with pytest.raises(SettingsError, match="need ROWS:HASH"):
        ledger_text("verify", state_dir / "north", "--noted", "abc")
    text = ledger_text("verify", state_dir / "north", "--noted", f"6:{'0' * 64}", code=1)
    assert "newest rows are missing" in text


def test_verify_names_problems_and_exits_1(state_dir):
    path = state_dir / "north" / LEDGER
    change = "UPDATE releases SET document = replace(document, '20.0', '1e9') WHERE number = 2"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(change)
    for problem in ("row 2", "not a database"):
        text = ledger_text("verify", state_dir / "north", code=1)
        assert problem in text
        assert "OK" not in text
        with pytest.raises(StateError, match=problem):
            ledger_text("show", state_dir / "north")
        path.write_bytes(b"x" * 5000)


@pytest.mark.parametrize("command", ["show", "verify"])
def test_whose_ledger_must_be_clear(state_dir, command):
    with pytest.raises(StateError, match=f"no {LEDGER} of site 'south'"):
        ledger_text(command, state_dir / "north", "--site", "south")
    for arguments in ([], ["--site", "west"], ["--site", "."]):
        with pytest.raises(StateError, match="--site: need one of north, south"):
            ledger_text(command, state_dir, *arguments)
    with pytest.raises(StateError, match=LEDGER):
        ledger_text(command, state_dir / "nowhere")
    assert not (state_dir / "nowhere").exists()


def audit(*arguments, code=0):
    settings = ("--set", "privacy=patient", "--set", "rank=3")
    return dpfact("audit", *arguments, *settings, width=200, code=code)


def files_below(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_cohort_passes_and_nothing_is_left_behind(cohort_folder, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    before = files_below(tmp_path)
    said = audit("--data", cohort_folder, "--site", "site-2", "--quick")
    assert "checks passed" in said
    assert "likelihood ratio: whole run" in said
    assert files_below(tmp_path) == before
    assert "new ledger in" not in caplog.text  # this would alarm readers of the site's log
    assert not logging.getLogger("dpfact_flower.client_app").filters


def fake(monkeypatch, *findings):
    """Replace the audits by given findings; the rest of the command is real."""
    asked = {}

    def found(data, solver, privacy, **given):
        asked.update(given, data=data, solver=solver, privacy=privacy)
        return findings

    monkeypatch.setattr("dpfact_flower.audit.audit", found)
    return asked


def test_one_failure_is_exit_code_one(monkeypatch):
    fake(monkeypatch, Finding("good", 1, (0, 2)), Finding("bad", 3, (0, 2), "too much"))
    said = audit("--data", "synthetic:demo", code=1)
    assert "1 of 2 checks failed" in said
    assert "FAILED" in said


def test_settings_data_and_site_are_the_users(monkeypatch, cohort_folder):
    asked = fake(monkeypatch, Finding("good", 1, (0, 2)))
    audit("--data", cohort_folder / "site-3.npz", "--set", "epsilon=0.7", "--seed", 4)
    assert asked["data"].name == "site-3"
    assert asked["privacy"].epsilon == 0.7
    assert asked["solver"].rank == 3
    assert asked["seed"] == 4
    audit("--data", cohort_folder)
    assert isinstance(asked["data"], Cohort)
