"""A site's stored files: exact, complete after any crash, and accessible only to the owner."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest

from dpfact_flower.errors import StateError
from dpfact_flower.privacy.ledger import Ledger
from dpfact_flower.site.store import RoundMeasures, SiteState, SiteStore, has_jobs
from dpfact_flower.tensor import SquaredError
from tests.bits import assert_bits
from tests.ledgers import charge

FINGERPRINT = "f" * 64
NOTICE = "NOT-TO-BE-SHARED.txt"


def make_state(round_number: int = 1) -> SiteState:
    rng = np.random.default_rng(round_number)
    factors = tuple(rng.standard_normal((size, 3)).astype(np.float32) for size in (9, 5, 4))
    return SiteState(round_number, factors, 0.1 / 3)


def name_of(round_number: int) -> str:
    return f"state-{round_number:06d}.npz"


def make_store(root, fingerprint=FINGERPRINT, **how) -> SiteStore:
    return SiteStore(root / "north", "job-1", fingerprint, **how)


def make_measures(round_number: int = 1, seconds: float = 1 / 3) -> RoundMeasures:
    return RoundMeasures(round_number, SquaredError(1.5, 0.5, 9.25, 180, 12), seconds)


def assert_equal(found: SiteState | None, expected: SiteState) -> None:
    assert found is not None
    assert (found.round, found.eta) == (expected.round, expected.eta)
    assert_bits(found.factors, expected.factors)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def store(tmp_path) -> SiteStore:
    return make_store(tmp_path / "state")


@pytest.mark.parametrize("durable", [True, False])
def test_the_round_that_is_asked_for_is_read_whatever_lies_beside_it(tmp_path, durable):
    """The ledger decides which round counts. A crash may leave an earlier or later round."""
    rounds = (1, 3, 9, 10, 100_000)
    store = make_store(tmp_path, durable=durable)
    assert store.load() is None
    assert store.history() == []
    assert not store.folder.exists()
    for number in rounds:
        store.save(make_state(number))
    for reader in (store, make_store(tmp_path)):
        for number in rounds:
            assert_equal(reader.load(number), make_state(number))
        assert reader.load(4) is None
        assert_equal(reader.load(), make_state(100_000))  # rounds are compared as numbers


def test_only_the_last_round_is_kept_and_nothing_of_a_killed_process(store, monkeypatch):
    """A partial file of patient factors must be deleted after every round."""
    for number in (1, 2, 3):
        store.save(make_state(number))
        (store.folder / f".{name_of(number)}.killed").write_bytes(b"half a file")
    store.note(make_measures(2))
    for _ in range(2):
        store.keep_only(2)
        assert names(store.folder) == {name_of(2), NOTICE, "history.jsonl"}
        assert_equal(store.load(), make_state(2))
    monkeypatch.setattr(Path, "glob", lambda *_: [store.folder / "gone"])  # by another process
    store.keep_only(2)
    store.forget_secrets()


def test_whether_there_was_ever_a_job_shows_in_the_folder(store, tmp_path):
    private = tmp_path / "state" / "north"
    assert not has_jobs(private)
    private.mkdir(parents=True)
    (private / "ledger.sqlite").write_bytes(b"")
    (private / ".lock").write_bytes(b"")
    assert not has_jobs(private)
    store.create()
    assert has_jobs(private)
    store.save(make_state(1))
    (store.folder / name_of(1)).unlink()
    assert has_jobs(private)


def test_a_ledger_that_is_gone_shows_where_its_jobs_are_deleted(tmp_path):
    """Unused job folders may be deleted, but this does not restore the budget."""
    folder = tmp_path / "north"
    with Ledger(folder, create=True) as ledger:
        charge(ledger, "job", 1, "patient")
    ledger.path.unlink()
    assert has_jobs(folder)
    for left in folder.iterdir():
        left.unlink()
    assert not has_jobs(folder)


def test_the_folder_says_that_it_is_not_private_and_keeps_what_a_person_wrote_there(store):
    store.save(make_state(1))
    notice = store.folder / NOTICE
    assert "No noise protects them" in notice.read_text(encoding="utf-8")
    notice.write_text("ours, with a telephone number")
    store.save(make_state(2))
    assert notice.read_text() == "ours, with a telephone number"
    shutil.rmtree(store.folder)
    store.save(make_state(3))
    assert names(store.folder) == {name_of(3), NOTICE}


@pytest.mark.parametrize("place", ["", "north", "north/job-1"])
def test_a_folder_that_others_may_write_to_is_refused(store, tmp_path, place):
    store.create()
    (tmp_path / "state" / place).chmod(0o777)
    with pytest.raises(StateError, match="others may write to it"):
        make_store(tmp_path / "state")


def test_state_of_other_data_is_refused(store, tmp_path):
    store.save(make_state())
    for arguments, fingerprint in itertools.product(((), (1,)), ("0" * 64, "g" * 64, "")):
        with pytest.raises(StateError, match=r"made from different data or with another .*key"):
            make_store(tmp_path / "state", fingerprint).load(*arguments)


def damages(whole: bytes):
    for length in [*range(0, len(whole), 23), len(whole) - 1]:
        yield whole[:length]
    for place in range(0, len(whole), 7):
        yield whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :]
    yield from (b"", b"987654", b"PK\x03\x04")


def test_a_damaged_file_is_refused_by_its_name_or_says_what_it_said(store):
    """A zip file has unused bytes, such as dates. Checksums cover each array and the head."""
    store.save(make_state(2))
    path = store.folder / name_of(2)
    refused = tried = 0
    for content in damages(path.read_bytes()):
        path.write_bytes(content)
        tried += 1
        for arguments in ((), (2,)):
            try:
                found = store.load(*arguments)
            except StateError as error:
                refused += str(error).startswith(f"{path}: damaged (")
            else:
                assert_equal(found, make_state(2))
    assert refused > tried  # each file is read twice


def test_a_file_without_its_head_is_damaged(store):
    store.folder.mkdir(parents=True)
    for head in ({}, {"head": np.array("[1]")}, {"head": np.array('{"fingerprint": "x"}')}):
        np.savez(store.folder / name_of(2), np.zeros(3, np.float32), **head)
        with pytest.raises(StateError, match="damaged"):
            store.load(2)


def test_measures_survive_the_last_line_of_a_round_wins_and_rounds_are_in_order(store):
    store.create()
    noted = [make_measures(n, more / 3) for n, more in ((2, 0), (1, 0), (2, 5), (3, 0), (1, 7))]
    for measures in noted:
        store.note(measures)
    assert store.history() == [noted[4], noted[2], noted[3]]
    assert len((store.folder / "history.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize("line", ['{"round": 1, "sec', "", "987654", '{"round": 1}', "\x00\x01"])
def test_a_damaged_line_is_named(store, line):
    store.create()
    store.note(make_measures(1))
    with (store.folder / "history.jsonl").open("a") as file:
        file.write(line + "\n")
    store.note(make_measures(3))
    with pytest.raises(StateError, match=r"history.jsonl: line 2 is damaged$"):
        store.history()
