"""The mark beside a ledger: a check reads the rows after it, and all rows where it does not fit."""

import json
import os
import shutil
from collections import Counter
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from dpfact_flower.errors import StateError
from dpfact_flower.privacy import PATIENT_CLAIM, Release, ReleaseEvent, account, release_nothing
from dpfact_flower.privacy.ledger import LEDGER, Ledger, ReleaseKey, rows
from dpfact_flower.privacy.ledger.file import open_ledger
from dpfact_flower.privacy.tally import Tally

DATA = "f" * 64
EVENT = ReleaseEvent("start", 1.0, 900.0, 3, "patient", "add-remove", PATIENT_CLAIM)
VALUES = np.zeros(3, np.float32)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "north"


def charge(ledger: Ledger, job: str, *, release: Release | None = None) -> None:
    release = release or Release((VALUES,), (EVENT,))
    ledger.charge(ReleaseKey(DATA, job, 1, "asked"), "terms", release)


def filled(folder: Path, count: int) -> Path:
    """A ledger with many free rows, as an earlier version left them, and a charged one last."""
    with Ledger(folder) as ledger, ledger._transaction("IMMEDIATE") as connection:
        previous, nothing = rows.START, sha256(b"").hexdigest()
        for number in range(1, count):
            content = (number, "then", f"free-{number}", 1, DATA, "asked", "terms", "[]", nothing)
            previous = rows.chained(previous, content, ())
            connection.execute(
                f"INSERT INTO releases ({rows.CONTENT}, payload, hash) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*content, b"", previous),
            )
    with Ledger(folder) as ledger:
        charge(ledger, "paid")
    return folder


def mark_of(folder: Path) -> Path:
    return folder / f"{LEDGER}-checked"


def spent(folder: Path) -> Tally:
    with Ledger(folder, create=False) as ledger:
        return ledger.spent()


class Work:
    """What SQLite and the hashing of rows did in a check."""

    def __init__(self, monkeypatch) -> None:
        self.done = Counter()
        chained = rows.Record.chained

        def watched(record, previous):
            self.done["rows"] += 1
            return chained(record, previous)

        monkeypatch.setattr(rows.Record, "chained", watched)

    def step(self) -> int:
        self.done["steps"] += 1
        return 0

    def of(self, folder: Path) -> tuple[int, int]:
        """Rows that were hashed, and steps of SQLite's machine, for a whole admission."""
        self.done.clear()
        with Ledger(folder, create=False) as ledger:
            ledger._connection.set_progress_handler(self.step, 1)
            ledger.last("paid")
            ledger.charged("paid")
            ledger.spent().guarantee(1e-5)
        return self.done["rows"], self.done["steps"]


def test_a_check_takes_as_much_work_with_many_rows_as_with_few(tmp_path, monkeypatch):
    """Steps of SQLite's machine, not seconds; 100,000 rows take about a millisecond."""
    work = Work(monkeypatch)
    few, many = (filled(tmp_path / str(count), count) for count in (10, 3000))
    assert work.of(many) > (2999, 3000)  # nothing is known of it yet
    assert work.of(few)[0] == 10
    again = work.of(few), work.of(many)
    assert again[0] == again[1]
    assert again[1][0] == 0
    assert again[1][1] < 200
    with Ledger(many, create=False) as ledger:
        ledger.spent()
        charge(ledger, "next")
    assert work.of(many) == again[1]  # a charge moves the mark on


def test_rows_that_came_after_the_mark_are_checked_and_counted(folder, monkeypatch):
    work = Work(monkeypatch)
    filled(folder, 5)
    spent(folder)
    told = mark_of(folder).read_text()
    with Ledger(folder, create=False) as ledger:  # by somebody who leaves no mark
        charge(ledger, "other")
    assert mark_of(folder).read_text() == told
    assert work.of(folder)[0] == 6  # another file: all of it is checked
    assert spent(folder) == Tally().plus([EVENT] * 2)
    assert work.of(folder)[0] == 0


def test_what_is_spent_is_what_all_events_come_to(folder):
    filled(folder, 20)
    with Ledger(folder, create=False) as ledger:
        for number in range(5):
            event = replace(EVENT, sigma=500.0 + number, seeded=number == 3)
            charge(ledger, f"job-{number}", release=Release((VALUES,), (event,)))
            assert ledger.spent().guarantee(1e-5) == account(ledger.events(), 1e-5)
        assert ledger.spent().unprotected == 0
        charge(ledger, "bare", release=Release((VALUES,), ()))
        charge(ledger, "nothing", release=release_nothing())
        assert ledger.spent().unprotected == 1
        kept = ledger.spent()
        assert ledger.verify() == []
    assert spent(folder) == kept
    mark_of(folder).unlink()
    assert spent(folder) == kept


CHANGES = {
    "a charge that is made smaller": "UPDATE events SET sigma = 1e9, rho = 5e-19 WHERE number = 9",
    "a charge that is gone": "DELETE FROM events WHERE number = 9",
    "a free row that is gone": "DELETE FROM releases WHERE number = 2",
    "an old row that is another": "UPDATE releases SET job = 'other' WHERE number = 2",
    "the newest row gone, its charge with it": "DELETE FROM events WHERE number = 9; "
    "DELETE FROM releases WHERE number = 9",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("restored", [False, True], ids=["as it is", "with its old time"])
def test_a_row_that_anybody_edits_is_found_in_the_next_check(folder, change, restored):
    filled(folder, 9)
    before = spent(folder)
    path = folder / LEDGER
    times = path.stat()
    with closing(open_ledger(path, durable=True)) as connection:
        connection.executescript(f"PRAGMA foreign_keys = OFF; {change}")
    if restored:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    if "newest" in change or "= 9; " in change:  # a chain that is cut off is whole
        with pytest.raises(StateError, match="knows of: it was set back"):
            spent(folder)
        mark_of(folder).unlink()
        assert spent(folder) == Tally() != before
        return
    with pytest.raises(StateError, match="damaged ledger"):
        spent(folder)


def test_a_mark_of_another_file_counts_for_nothing(folder, tmp_path, monkeypatch):
    """Of a ledger that was copied: it is read as a whole, and goes on."""
    work = Work(monkeypatch)
    filled(folder, 4)
    spent(folder)
    shutil.copy(folder / LEDGER, tmp_path / "copy")
    (folder / LEDGER).unlink()
    shutil.copy(tmp_path / "copy", folder / LEDGER)
    (folder / LEDGER).chmod(0o600)
    assert work.of(folder)[0] == 4
    assert work.of(folder)[0] == 0
    assert spent(folder) == Tally().plus([EVENT])


@pytest.mark.parametrize("place", range(24, 28))
def test_every_byte_of_sqlites_count_of_changes_is_looked_at(folder, monkeypatch, place):
    """Size and times may be as they were; bytes 24 to 27 of the header count what was written."""
    work = Work(monkeypatch)
    filled(folder, 4)
    spent(folder)
    path = folder / LEDGER
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert work.of(folder)[0] == 4


@pytest.mark.parametrize("other", ["an older copy", "a new one", "one of the same length"])
def test_a_ledger_that_was_set_back_is_refused(folder, tmp_path, other):
    """Its budget would be what was left when the copy was made."""
    filled(folder, 4)
    older = shutil.copytree(folder, tmp_path / "older")
    with Ledger(folder, create=False) as ledger:
        ledger.spent()
        charge(ledger, "since")
    shutil.copytree(folder, tmp_path / "newer")
    (folder / LEDGER).unlink()
    if other == "an older copy":
        shutil.copy(older / LEDGER, folder / LEDGER)
    elif other == "one of the same length":
        shutil.copy(filled(tmp_path / "same", 5) / LEDGER, folder / LEDGER)
    with Ledger(folder) as ledger:
        with pytest.raises(StateError, match="it was set back, or is another one"):
            ledger.spent()
        (problem,) = ledger.verify()
        assert "set back" in problem
    (folder / LEDGER).unlink()
    shutil.copy(tmp_path / "newer" / LEDGER, folder / LEDGER)  # the newest copy
    assert spent(folder) == Tally().plus([EVENT] * 2)


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", "x" * 200_000, '{"said": {}}'])
def test_a_damaged_mark_counts_for_nothing(folder, content):
    filled(folder, 3)
    right = spent(folder)
    mark_of(folder).write_text(content)
    assert spent(folder) == right
    assert mark_of(folder).read_text() != content  # a new one


def test_a_mark_that_was_edited_counts_for_nothing(folder):
    filled(folder, 3)
    right = spent(folder)
    told = json.loads(mark_of(folder).read_text())
    told["said"]["tally"]["sums"] = []
    mark_of(folder).write_text(json.dumps(told))
    assert spent(folder) == right


def test_a_mark_that_was_forged_is_found_by_verify(folder):
    """As is a rewritten chain, with a head noted elsewhere: who may write here may do both."""
    filled(folder, 3)
    spent(folder)
    told = json.loads(mark_of(folder).read_text())
    told["said"]["tally"]["sums"] = []
    told["sha256"] = sha256(json.dumps(told["said"], sort_keys=True).encode()).hexdigest()
    mark_of(folder).write_text(json.dumps(told))
    assert spent(folder) == Tally()
    with Ledger(folder, create=False) as ledger:
        (problem,) = ledger.verify()
        assert "the mark beside the ledger" in problem


def test_a_mark_that_cannot_be_written_hinders_nothing(folder):
    filled(folder, 3)
    mark_of(folder).mkdir()
    assert spent(folder) == spent(folder) == Tally().plus([EVENT])


def test_a_mark_is_its_owners_alone_and_a_simulated_site_leaves_none(folder, tmp_path):
    spent(filled(folder, 3))
    assert mark_of(folder).stat().st_mode & 0o777 == 0o600
    other = filled(tmp_path / "simulated", 3)
    with Ledger(other, durable=False) as ledger:
        assert ledger.spent() == Tally().plus([EVENT])
        charge(ledger, "next")
        assert ledger.spent() == Tally().plus([EVENT] * 2)
    assert not mark_of(other).exists()
