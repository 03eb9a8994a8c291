"""The ledger keeps every charge, whatever process dies, and returns sent releases again."""

import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from dpfact_flower.errors import SettingsError, StateError
from dpfact_flower.privacy import PAPER_CLAIM, PATIENT_CLAIM, Release, ReleaseEvent, account
from dpfact_flower.privacy.ledger import LEDGER, Head, Ledger, ReleaseKey, file
from dpfact_flower.privacy.ledger import ledger as ledger_module
from dpfact_flower.privacy.ledger.file import chained, to_bytes
from dpfact_flower.privacy.release import Share, release_nothing
from tests.bits import assert_bits
from tests.crash import files_up_to
from tests.machine.test_files import made_foreign, mode_of, steps_to_disk

DATA = "f" * 64
MODES = ("procedures", "diagnoses")
ROOT = Path(__file__).parents[3]
START = "0" * 64
HEAD = f"{LEDGER}-head"


def make_key(job: str = "job-1", round_number: int = 1, data: str = DATA, request: str = ""):
    return ReleaseKey(data, job, round_number, request or f"asked-{round_number}")


def make_events(round_number: int = 1, **changes) -> tuple[ReleaseEvent, ...]:
    size = 0.1 + round_number, 100 / 3, 7
    events = (
        ReleaseEvent(f"round {round_number}, {mode}", *size, "entry", "replace", PAPER_CLAIM)
        for mode in MODES
    )
    return tuple(replace(event, **changes) for event in events)


def make_release(round_number: int = 1, *, noise: bool = True, seed: int = 0) -> Release:
    rng = np.random.default_rng([round_number, seed])
    arrays = tuple(rng.standard_normal((size, 3)).astype(np.float32) for size in (5, 4))
    return Release(arrays, make_events(round_number) if noise else ())


def charge(ledger: Ledger, job: str = "job-1", round_number: int = 1, **changes) -> Release:
    release = make_release(round_number, noise=changes.pop("noise", True))
    expected = changes.pop("expected", None) or ledger.head()
    ledger.charge(make_key(job, round_number, **changes), "terms", release, expected)
    return release


def assert_same(found: Release | None, expected: Release) -> None:
    assert found is not None
    assert found.events == expected.events
    assert_bits(found.arrays, expected.arrays)


@contextmanager
def opened(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open the file without any of our checks."""
    with closing(sqlite3.connect(folder / LEDGER, isolation_level=None)) as connection:
        yield connection


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "state" / "north"


@pytest.fixture
def ledger(folder) -> Iterator[Ledger]:
    with Ledger(folder, create=True) as ledger:
        yield ledger


# --- resending


PATIENT = make_events(unit="patient", neighbours="add-remove", claim=PATIENT_CLAIM)[:1]
SENT = {
    "paper": make_release(), "nothing": release_nothing(),
    "patient": Release((np.float32([1.5, -0.0, 1e-45]), np.zeros(0, np.float32)), PATIENT),
    "any shape": Release((np.array(2.5, "f4"), np.ones((2, 1, 3), "f4")), make_events()[:1]),
}  # fmt: skip


@pytest.mark.parametrize("release", SENT.values(), ids=SENT)
def test_the_same_request_gets_the_same_bytes_from_any_process(ledger, folder, release):
    ledger.charge(make_key(), "terms", release, ledger.head())
    assert_same(ledger.release_of("job-1", 1), release)
    with Ledger(folder, create=True) as again:
        assert_same(again.release_of("job-1", 1), release)
        assert again.verify() == []


def test_every_charged_round_can_be_read_and_charged_again_for_nothing(ledger):
    sent = {number: charge(ledger, round_number=number) for number in (1, 2, 5)}
    head = ledger.head()
    for number, release in sent.items():
        assert_same(ledger.release_of("job-1", number), release)
        assert ledger.charge(make_key(round_number=number), "terms", release, ledger.head()) == head
    for job, number in (("job-1", 3), ("job-2", 1)):
        assert ledger.release_of(job, number) is None
    assert ledger.head() == head
    assert len(ledger.events()) == 6


@pytest.mark.parametrize(("key", "terms", "release"), [
    (make_key(), "terms", make_release(seed=1)),
    (make_key(), "terms", make_release(noise=False)),
    (make_key(), "terms", Release(make_release().arrays, make_events(1, sigma=50.0))),
    (make_key(), "terms", Release(make_release().arrays, make_events()[:1])),
    (make_key(), "terms", Release(tuple(a.ravel() for a in make_release().arrays),
                                  make_events())),
    (make_key(), "other", make_release()),
    (make_key(request="other"), "terms", make_release()),
], ids=["values", "no charge", "sigma", "events", "shapes", "terms", "request"])  # fmt: skip
def test_a_round_has_one_release(ledger, key, terms, release):
    sent = charge(ledger)
    head = ledger.head()
    with pytest.raises(StateError, match="round 1 of job 'job-1' was released already"):
        ledger.charge(key, terms, release, ledger.head())
    assert ledger.head() == head
    assert_same(ledger.release_of("job-1", 1), sent)
    assert ledger.verify() == []


def test_rounds_do_not_go_back_nor_does_data_change_within_a_job(ledger):
    charge(ledger, round_number=1)
    charge(ledger, round_number=4)
    with pytest.raises(StateError, match="round 3 of job 'job-1' is stale: round 4 has been"):
        charge(ledger, round_number=3)
    for number, data in ((1, START), (4, START), (5, START), (5, "g" * 64)):
        with pytest.raises(StateError, match="began with different data"):
            charge(ledger, round_number=number, data=data)
    assert [row.round for row in ledger.rows()] == [1, 4]


@pytest.mark.parametrize("make", [
    lambda value: Release((np.full((20_000, 3), value, np.float32),), ()),
    lambda value: Share(np.full(30_000, value), (replace(PATIENT[0], own_sigma=1.0),)),
], ids=["no noise", "share"])  # fmt: skip
def test_of_values_without_full_noise_only_a_keyed_hash_is_kept(ledger, folder, make):
    big = make(1)
    charge(ledger, "noisy", 1)
    size = (folder / LEDGER).stat().st_size
    ledger.charge(make_key(), "terms", big, ledger.head())
    assert (folder / LEDGER).stat().st_size < size + 3 * 4096
    charge(ledger, "noisy", 2)
    assert [row.payload_kept for row in ledger.rows()] == [True, False, True]
    assert ledger.release_of("job-1", 1) is None
    assert [row.unprotected for row in ledger.rows()] == [False, not big.events, False]
    # Whoever has a backup could guess the values that belong to a hash without a key.
    assert ledger.rows()[1].payload_sha256 != hashlib.sha256(to_bytes(big.arrays)).hexdigest()
    assert ledger.verify() == []
    # The hash of the sent release is known, so only the same release may be charged again.
    head = ledger.head()
    assert ledger.charge(make_key(), "terms", big, ledger.head()) == head
    with pytest.raises(StateError, match="was released already"):
        ledger.charge(make_key(), "terms", make(2), ledger.head())
    (folder / file.KEY).write_bytes(bytes(32))
    assert not ledger.holds(ledger.rows()[1], big)


def test_nothing_but_keys_charges_and_released_bytes_is_in_the_file(ledger, folder):
    charge(ledger)
    with opened(folder) as connection:
        ((number, document, _, payload),) = connection.execute("SELECT * FROM releases").fetchall()
    told = json.loads(document)
    assert re.fullmatch("[0-9a-f]{64}", told.pop("random"))
    assert told.pop("recorded").endswith("+00:00")
    assert (number, payload) == (1, to_bytes(make_release().arrays))
    assert told == {
        "job": "job-1", "round": 1, "fingerprint": DATA, "request": "asked-1", "terms": "terms",
        "shapes": [[5, 3], [4, 3]], "payload_sha256": hashlib.sha256(payload).hexdigest(),
        "events": [
            {"name": f"round 1, {mode}", "sensitivity": 1.1, "sigma": 100 / 3, "count": 7,
             "unit": "entry", "neighbours": "replace", "claim": PAPER_CLAIM, "seeded": False,
             "own_sigma": 0.0}
            for mode in MODES
        ],
    }  # fmt: skip


def test_a_row_has_the_time_of_its_request_and_a_head_that_cannot_be_guessed(tmp_path, monkeypatch):
    """The time of the charge would reveal the time of the computation. A head is a commitment."""
    heads, stopped = set(), SimpleNamespace(now=lambda zone: datetime(2027, 1, 31, tzinfo=zone))
    for name in ("one", "other"):
        with monkeypatch.context() as patch:
            patch.setattr(ledger_module, "datetime", stopped)
            ledger = Ledger(tmp_path / name, create=True)
        with ledger:
            charge(ledger)
            assert ledger.rows()[0].recorded == "2027-01-31T00:00:00+00:00"
            heads.add(ledger.head().hash)
    assert len(heads) == 2


# --- the patients' budget


def test_what_others_charge_after_the_budget_was_checked_is_not_passed_over(ledger, folder):
    """Without a lock (Windows, a deleted lock file), two jobs must not both find budget."""
    charge(ledger, "mine", expected=Head(0, START))
    checked = ledger.head()
    with Ledger(folder, create=True) as other:
        charge(other, "theirs", expected=checked)
    for wrong in (checked, Head(0, START), Head(2, "g" * 64)):
        with pytest.raises(StateError, match="another process charged while round 2"):
            charge(ledger, "mine", 2, expected=wrong)
    assert [row.job for row in ledger.rows()] == ["mine", "theirs"]
    charge(ledger, "mine", expected=checked)  # a recorded release needs no budget
    charge(ledger, "mine", 2, expected=ledger.head())
    assert ledger.verify() == []


def test_events_add_up_over_jobs_and_data(ledger):
    expected = []
    for job, number, data in (("a", 1, DATA), ("b", 1, START), ("a", 2, DATA), ("c", 7, "1" * 64)):
        charge(ledger, job, number, data=data)
        expected += make_events(number)
    ledger.charge(make_key("d"), "terms", release_nothing(), ledger.head())
    charge(ledger, "e", noise=False)
    assert list(ledger.events()) == expected
    assert ledger.events("a") == (*make_events(1), *make_events(2))
    assert ledger.events("d") == ledger.events("e") == ledger.events("unknown") == ()
    total = account(ledger.events(), 1e-5)
    assert total.releases == 8
    assert total.rho == pytest.approx(sum(event.rho for event in expected), rel=1e-15)


# --- the file


@pytest.mark.usefixtures("umask")
def test_ledger_and_side_files_are_the_owners_alone(ledger, folder):
    charge(ledger)
    with ledger._transaction("IMMEDIATE") as connection:
        connection.execute("PRAGMA cache_size = 1")  # so that the journal is written at once
        connection.execute("UPDATE releases SET payload = zeroblob(200000)")
        modes = {path.name: mode_of(path) for path in folder.iterdir()}
    assert modes == dict.fromkeys((LEDGER, HEAD, f"{LEDGER}-journal"), 0o600)
    assert mode_of(folder) == mode_of(folder.parent) == 0o700


@pytest.mark.parametrize(("durable", "synchronous"), [(True, 3), (False, 0)])
def test_a_commit_survives_power_loss_except_in_simulation(folder, durable, synchronous):
    # FULL (2) is not enough: the deletion of the journal, which is the commit, must be durable too.
    # A simulated site also has a journal, so a killed process leaves a complete ledger.
    with Ledger(folder, create=True, durable=durable) as ledger:
        found = [ledger._connection.execute(f"PRAGMA {name}").fetchone()[0]
                 for name in ("journal_mode", "synchronous", "fullfsync")]  # fmt: skip
        charge(ledger)
        assert ledger.verify() == []
    assert found == ["delete", synchronous, 1]
    assert {path.name for path in folder.iterdir()} == ({LEDGER, HEAD} if durable else {LEDGER})


@pytest.mark.parametrize("name", ["", LEDGER, f"{LEDGER}-journal"])
def test_what_others_own_is_only_read_and_what_they_can_change_is_refused(
    ledger, folder, name, monkeypatch
):
    (folder / f"{LEDGER}-journal").touch(0o600)
    with monkeypatch.context() as patch:
        made_foreign(folder / name, "owner", patch)  # and so is every other path
        with Ledger(folder, create=False) as theirs:
            assert theirs.rows() == ()
            with pytest.raises(StateError, match="belongs to user"):
                charge(theirs)
    (folder / name).chmod(0o702)
    with pytest.raises(StateError, match="others may write to it"):
        charge(ledger)


def test_a_new_ledger_is_on_disk_before_its_name_and_that_before_any_charge(folder, monkeypatch):
    steps = steps_to_disk(monkeypatch, folder, "link")
    Ledger(folder, create=True).close()
    assert steps == [f"{(folder / LEDGER).stat().st_size} bytes", "name", "folder"]


def test_two_creators_share_the_first_ones_ledger(folder, monkeypatch):
    link = os.link

    def lose_the_race(*paths: str) -> None:
        monkeypatch.setattr(os, "link", link)
        with Ledger(folder, create=True) as winner:
            charge(winner)
        link(*paths)

    monkeypatch.setattr(os, "link", lose_the_race)
    with Ledger(folder, create=True) as ledger:
        assert len(ledger.rows()) == 1
    assert sorted(path.name for path in folder.iterdir()) == [LEDGER, HEAD]


def alter(*statements: str):
    def damage(path: Path) -> None:
        with opened(path.parent) as connection:
            for statement in statements:
                connection.execute(statement)

    return damage


def cut(share: float):
    return lambda path: os.truncate(path, int(share * path.stat().st_size))


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(("damage", "says"), [
    (cut(0), "not a ledger"),
    (lambda path: path.write_bytes(b"no database at all" * 500), "not a database"),
    (folder_instead, "unable to open"),
    (alter("PRAGMA user_version = 2"), "not a ledger of version 1"),
    (alter("PRAGMA application_id = 7"), "not a ledger"),
], ids=["cut to nothing", "no database", "folder", "newer", "other"])  # fmt: skip
def test_a_file_that_is_no_ledger_is_refused_and_left_alone(folder, damage, says):
    with Ledger(folder, create=True) as ledger:
        charge(ledger)
    path = folder / LEDGER
    damage(path)
    before = path.read_bytes() if path.is_file() else None
    for create in (True, False):
        with pytest.raises(StateError, match=says) as error:
            Ledger(folder, create=create)
        assert str(path) in str(error.value)
    assert (path.read_bytes() if path.is_file() else None) == before


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_file_that_was_cut_off_is_never_charged_or_counted(folder, share):
    with Ledger(folder, create=True, durable=share < 0.5) as ledger:
        for number in range(1, 259):  # Python has one object for each number up to 256
            charge(ledger, round_number=number)
    cut(share)(folder / LEDGER)

    def use() -> None:
        with Ledger(folder, create=True) as ledger:
            assert ledger.verify() != []
            ledger.events()
            ledger.release_of("job-1", 30)

    with pytest.raises(StateError):
        use()


# --- tampering

# SQLite lets a cell hold any type, and these values represent damage of every type.
CELLS = {"number": 77, "document": "'{}'", "payload": "zeroblob(108)", "hash": f"'{START}'"}


@pytest.fixture(scope="session")
def template(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "north"
    with Ledger(folder, create=True) as ledger:
        for number in (1, 2):
            charge(ledger, round_number=number)
        charge(ledger, "job-2", noise=False)
        charge(ledger, round_number=3)
        assert ledger.verify() == []
    (folder / HEAD).unlink()  # so that only the rows show the fault
    return folder


@pytest.fixture
def written(template, folder) -> Path:
    """Write a ledger of four rows: three with a charge, and the second job's without."""
    shutil.copytree(template, folder)
    return folder


def problems_of(folder: Path, noted: Head | None = None) -> list[str]:
    with Ledger(folder, create=False) as ledger:
        return ledger.verify(noted)


def edit(folder: Path, number: int, **changes) -> None:
    """Change a row's first event and recompute all hashes, as an attacker can."""
    with opened(folder) as connection:
        rows = connection.execute("SELECT document FROM releases ORDER BY number").fetchall()
        documents = [json.loads(text) for (text,) in rows]
        documents[number - 1]["events"][0].update(changes)
        previous = START
        for place, document in enumerate(map(json.dumps, documents), start=1):
            previous = chained(previous, document)
            update = "UPDATE releases SET document = ?, hash = ? WHERE number = ?"
            connection.execute(update, (document, previous, place))


def use(folder: Path) -> int:
    """Use a ledger in all ways of a site, and return the number of refusals."""
    refused = 0
    with Ledger(folder, create=True) as ledger:
        for each in (
            ledger.events, ledger.rows, ledger.head,
            lambda: ledger.release_of("job-1", 2),
            lambda: charge(ledger, round_number=2, expected=Head(0, START)),
            lambda: charge(ledger, round_number=4, expected=Head(0, START)),
        ):  # fmt: skip
            try:
                each()
            except StateError as error:
                refused += "another process" not in str(error)  # a charge checks every row itself
    return refused


@pytest.mark.parametrize("row", [1, 2, 3, 4])
@pytest.mark.parametrize("cell", CELLS)
def test_a_changed_cell_is_found(written, cell, row):
    """A document is hashed as text, so a changed field is a changed cell."""
    alter(f"UPDATE releases SET {cell} = {CELLS[cell]} WHERE number = {row}")(written / LEDGER)
    assert problems_of(written)
    assert cell == "payload" or use(written) == 6


@pytest.mark.parametrize("statements", [
    *([f"DELETE FROM releases WHERE number = {row}"] for row in (1, 2, 3)),
    ["DELETE FROM releases WHERE number = 2",
     "UPDATE releases SET number = number - 1 WHERE number > 2"],
    *([f"INSERT INTO releases SELECT {row}, document, hash, payload FROM releases WHERE "
       "number = 3"] for row in (0, -3, 5)),
    [f"UPDATE releases SET number = {new} WHERE number = {old}"
     for old, new in ((1, 99), (2, 1), (99, 2))],
    ["UPDATE releases SET number = number - 1"],
], ids=["first gone", "second gone", "third gone", "closed up", "before", "long before", "after",
       "changed places", "from 0"])  # fmt: skip
def test_rows_that_are_gone_added_or_moved_are_found(written, statements):
    alter(*statements)(written / LEDGER)
    assert problems_of(written)
    assert use(written) == 6


def test_what_cannot_be_read_is_said(written):
    """The chain of hashes was recomputed."""
    edit(written, 2, sigma=-1)
    assert problems_of(written) == ["row 2: cannot be read"]
    assert use(written) == 6


def test_missing_and_damaged_bytes_are_found_where_they_are_needed(written):
    for damaged, says in (("zeroblob(108)", "do not match their hash"), ("NULL", "are missing")):
        alter(f"UPDATE releases SET payload = {damaged} WHERE number != 3")(written / LEDGER)
        fault = f"the released bytes {says}"
        assert problems_of(written) == [f"row {number}: {fault}" for number in (1, 2, 4)]
        with Ledger(written, create=True) as ledger:
            for number in (1, 2, 3):  # damage must not lead to a new release
                with pytest.raises(StateError, match=fault):
                    ledger.release_of("job-1", number)


@pytest.mark.parametrize(("place", "says"), [
    (39, "SQLite's integrity check: "),  # SQLite's number of free pages
    (4096, ".*: database disk image is malformed"),  # the rows
])  # fmt: skip
def test_a_damaged_page_is_found(written, place, says):
    with (written / LEDGER).open("r+b") as file:
        file.seek(place)
        file.write(b"\7")
    (problem,) = problems_of(written)
    assert re.match(says, problem)


def test_newest_rows_that_are_gone_show_against_a_head_noted_elsewhere(written):
    with Ledger(written, create=True) as ledger:
        rows, head = ledger.rows(), ledger.head()
    assert head == Head(4, rows[-1].hash)
    alter("DELETE FROM releases WHERE number = 4")(written / LEDGER)
    assert problems_of(written) == []  # the limit of a hash chain, as documented
    (problem,) = problems_of(written, head)
    assert "the noted head has 4 rows, the ledger 3" in problem
    assert problems_of(written, Head(3, rows[2].hash)) == []
    assert problems_of(written, Head(0, START)) == []


def test_a_rewritten_past_shows_against_a_head_noted_elsewhere(written):
    with Ledger(written, create=True) as ledger:
        noted = [Head(row.number, row.hash) for row in ledger.rows()]
    assert all(problems_of(written, head) == [] for head in noted)
    edit(written, 2, name="other")
    assert problems_of(written) == []
    assert [bool(problems_of(written, head)) for head in noted] == [False, True, True, True]


def test_a_head_is_read_as_it_is_written(ledger):
    head = ledger.charge(make_key(), "terms", make_release(), ledger.head())
    assert head == ledger.head()
    assert Head.parse(f" {head}\n") == head
    for text in ("", "1", f"1:{START}0", f"x:{START}", f"1:{'G' * 64}", f"-1:{START}"):
        with pytest.raises(SettingsError, match="need ROWS:HASH"):
            Head.parse(text)


# --- disk errors


def test_on_a_full_disk_nothing_is_charged_and_nothing_is_lost(ledger, folder):
    sent = charge(ledger)
    big = Release((np.ones(20_000, np.float32),), make_events()[:1])
    refused = 0
    for size in range(0, 110_000, 2048):
        head = ledger.head()
        with files_up_to(size):
            try:
                ledger.charge(make_key(round_number=2), "terms", big, ledger.head())
                break
            except StateError:
                refused += 1
        with Ledger(folder, create=True) as again:
            assert again.head() == ledger.head() == head
            assert again.release_of("job-1", 2) is None
            assert again.verify() == []
    assert refused > 30
    with Ledger(folder, create=True) as again:
        assert_same(again.release_of("job-1", 1), sent)
        assert_same(again.release_of("job-1", 2), big)
        assert again.verify() == []


@pytest.mark.parametrize("size", [0, 4096, 8191])
def test_a_ledger_that_cannot_be_made_in_full_is_not_there(folder, size):
    with files_up_to(size), pytest.raises(StateError):
        Ledger(folder, create=True)
    assert list(folder.iterdir()) == []
    Ledger(folder, create=True).close()


def test_a_disk_without_hard_links_is_named(folder, monkeypatch):
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError(1, "not permitted")))
    with pytest.raises(StateError, match="needs a local disk with hard links"):
        Ledger(folder, create=True)
    assert list(folder.iterdir()) == []


def in_a_process(function: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a function of this module in a separate process."""
    program = f"import {__name__} as tests; tests.{function}(*{arguments!r})"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )


def without_rights(folder: str) -> None:
    """Use a read-only ledger, in a separate process that gives up its rights."""
    if os.geteuid() == 0:
        os.setegid(65534)
        os.seteuid(65534)
    with Ledger(folder, create=True) as ledger:
        assert_same(ledger.release_of("job-1", 1), make_release())
        assert ledger.verify() == []
        assert len(ledger.events()) == 2
        with pytest.raises(StateError, match=r"readonly|belongs to user"):
            charge(ledger, round_number=2)
        assert len(ledger.rows()) == 1
    with pytest.raises(StateError, match="denied"):
        Ledger(Path(folder) / "new", create=True)


@pytest.mark.process
def test_a_read_only_ledger_can_be_shown_and_not_charged():
    with tempfile.TemporaryDirectory() as name:  # all users may enter, unlike pytest's folders
        folder = Path(name)
        with Ledger(folder, create=True) as ledger:
            charge(ledger)
        (folder / LEDGER).chmod(0o444)
        folder.chmod(0o555)
        died = in_a_process("without_rights", str(folder))
        assert died.returncode == 0, died.stderr
        folder.chmod(0o700)


# --- two processes, and processes that die


def test_a_writer_that_gets_no_turn_says_so(folder, monkeypatch):
    monkeypatch.setattr(file, "_SECONDS_TO_WAIT", 0.05)
    with Ledger(folder, create=True) as one, Ledger(folder, create=True) as other:
        with one._transaction("IMMEDIATE"), pytest.raises(StateError, match="locked"):
            charge(other)
        charge(other)


def charge_rounds(folder: Path, seed: int) -> list[int]:
    """Charge the same rounds as another connection, with own noise, and return the successes."""
    won = []
    with Ledger(folder, create=True) as ledger:
        for number in range(1, 61):
            with suppress(StateError):
                release = make_release(number, seed=seed)
                ledger.charge(make_key(round_number=number), "terms", release, ledger.head())
                won.append(number)
    return won


def test_of_two_connections_exactly_one_has_the_round(folder):
    with ThreadPoolExecutor(2) as pool:
        winners = list(pool.map(charge_rounds, [folder, folder], [1, 2]))
    assert len(winners[0]) + len(winners[1]) == len({*winners[0], *winners[1]})
    with Ledger(folder, create=True) as ledger:
        rounds = [row.round for row in ledger.rows()]
        assert sorted(winners[0] + winners[1]) == rounds
        for seed, won in enumerate(winners, start=1):
            for number in won:
                assert_same(ledger.release_of("job-1", number), make_release(number, seed=seed))
        assert len(ledger.events()) == 2 * len(rounds)
        assert ledger.verify() == []


def charge_and_die(folder: str, point: str) -> None:
    """Charge the second round, and end without cleanup at a given point."""
    with Ledger(folder, create=True) as ledger:
        if point == "written":
            asked = make_key(round_number=2), "terms", make_release(2)
            ledger.charge(*asked, ledger.head(), lambda: os._exit(7))
        ledger_module.note_head = lambda *_: os._exit(7)
        charge(ledger, round_number=2)


@pytest.mark.process
@pytest.mark.parametrize("point", ["written", "committed"])
def test_who_dies_in_a_charge_leaves_the_ledger_before_it_or_after_it(folder, point):
    with Ledger(folder, create=True) as ledger:
        sent = charge(ledger)
    assert in_a_process("charge_and_die", str(folder), point).returncode == 7
    assert (folder / f"{LEDGER}-journal").exists() == (point == "written")
    with Ledger(folder, create=True) as ledger:
        assert ledger.verify() == []
        assert len(ledger.rows()) == (1 if point == "written" else 2)
        assert_same(ledger.release_of("job-1", 1), sent)
        charge(ledger, round_number=2)
        assert len(ledger.events()) == 4


def test_a_charge_looks_a_last_time_after_it_has_waited_for_who_reads(ledger):
    """Otherwise, a slow reader could delay a charge until its round is over."""
    looked = []
    charge(ledger)
    reader = sqlite3.connect(ledger.path, isolation_level=None, check_same_thread=False)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM releases").fetchall()
    ending = threading.Timer(1.0, reader.execute, ("COMMIT",))
    ending.start()
    asked = make_key(round_number=2), "terms", make_release(2)
    ledger.charge(*asked, ledger.head(), lambda: looked.append(reader.in_transaction))
    ending.join()
    reader.close()
    assert looked == [False]
