"""What a site keeps: exactly what it had, whole after any crash, and for its owner alone."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dpfact_flower.site.store as state_module
from dpfact_flower.errors import StateError
from dpfact_flower.privacy import PATIENT_CLAIM, ReleaseEvent, replay
from dpfact_flower.privacy.ledger import Ledger, ReleaseKey
from dpfact_flower.site.factor_file import read_factors, write_factors
from dpfact_flower.site.store import RoundMeasures, SiteState, SiteStore, has_jobs
from dpfact_flower.tensor.error import SquaredError

SECRET = 987654
FINGERPRINT = "f" * 64
NOTICE = "NOT-TO-BE-SHARED.txt"


def make_state(round_number: int = 1) -> SiteState:
    rng = np.random.default_rng(round_number)
    factors = tuple(rng.standard_normal((size, 3)).astype(np.float32) for size in (9, 5, 4))
    return SiteState(round_number, factors, 0.1 / 3)


def name_of(round_number: int) -> str:
    return f"state-{round_number:06d}.npy"


def make_store(root, fingerprint=FINGERPRINT) -> SiteStore:
    return SiteStore(root, "north", "job-1", fingerprint)


def make_measures(round_number: int = 1, **changes) -> RoundMeasures:
    measures = RoundMeasures(
        round_number, (3.5, 1 / 3), SquaredError(1.5, 0.5, 9.25, 180, 12), (0.0, 0.1, 2.0),
        0.01, 2, 0.125,
    )  # fmt: skip
    return replace(measures, **changes)


def assert_bits(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == np.float32
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()


def assert_equal(found: SiteState | None, expected: SiteState) -> None:
    assert found is not None
    assert (found.round, found.eta) == (expected.round, expected.eta)
    assert_bits(found.factors, expected.factors)


@pytest.fixture
def store(tmp_path) -> SiteStore:
    return make_store(tmp_path / "state")


# --- state


@pytest.mark.parametrize("round_number", [1, 3])
def test_round_trip(store, tmp_path, round_number):
    state = make_state(round_number)
    store.save(state)
    for found in (store, make_store(tmp_path / "state")):
        assert_equal(found.load(round_number), state)
        assert_equal(found.load(), state)


def test_the_round_that_is_asked_for_is_read_whatever_lies_beside_it(store):
    """The ledger says which round counts: a crash may leave a round's factors before or after."""
    for number in (1, 2, 3):
        store.save(make_state(number))
    for number in (1, 2, 3):
        assert_equal(store.load(number), make_state(number))
    assert store.load(4) is None
    assert_equal(store.load(), make_state(3))


def test_rounds_are_numbers_not_text(store):
    for number in (9, 10, 100_000):
        store.save(make_state(number))
    assert_equal(store.load(), make_state(100_000))


def test_a_round_saved_again_replaces_what_it_left(store):
    """A round that crashed before its charge is computed anew."""
    store.save(SiteState(2, make_state(1).factors, 0.5))
    store.save(make_state(2))
    assert os.listdir(store.folder) != []
    assert_equal(store.load(2), make_state(2))


def test_keep_only_deletes_the_factors_of_all_other_rounds(store):
    for number in (1, 2, 3):
        store.save(make_state(number))
    store.note(make_measures(2))
    store.keep_only(2)
    assert {path.name for path in store.folder.iterdir()} == {name_of(2), NOTICE, "history.jsonl"}
    assert_equal(store.load(), make_state(2))
    store.keep_only(2)
    assert_equal(store.load(2), make_state(2))


def test_keep_only_leaves_other_jobs_alone(tmp_path):
    stores = [SiteStore(tmp_path, "a", job, FINGERPRINT) for job in "xy"]
    for store in stores:
        store.save(make_state(1))
    stores[0].save(make_state(2))
    stores[0].keep_only(2)
    assert_equal(stores[1].load(), make_state(1))


def test_what_a_killed_process_left_goes_with_the_round_it_was_for(store):
    """Half a file of patient factors must not outlive the round, not even the last one."""
    store.save(make_state(1))
    for number in (1, 2):
        (store.folder / f".{name_of(number)}.killed").write_bytes(b"half a file")
    store.save(make_state(2))
    store.keep_only(2)
    assert {path.name for path in store.folder.iterdir()} == {name_of(2), NOTICE}


def test_whether_there_was_ever_a_job_shows_in_the_folder(tmp_path):
    store = make_store(tmp_path)
    assert not has_jobs(tmp_path / "north")
    private = tmp_path / "north"
    private.mkdir()
    (private / "ledger.sqlite").write_bytes(b"")
    (private / ".lock").write_bytes(b"")
    assert not has_jobs(private)
    store.save(make_state(1))
    assert has_jobs(private)
    (store.folder / name_of(1)).unlink()
    assert has_jobs(private)


def test_a_ledger_that_is_gone_shows_where_its_jobs_are_deleted(tmp_path):
    """Job folders that nobody needs may be; a whole budget does not come back with that."""
    event = ReleaseEvent("start", 1.0, 900.0, 3, "patient", "add-remove", PATIENT_CLAIM)
    folder = tmp_path / "north"
    with Ledger(folder) as ledger:
        ledger.count()
        ledger.charge(
            ReleaseKey("f" * 64, "job", 1, "asked"), "terms",
            replay([np.zeros(3, np.float32)], [event]),
        )  # fmt: skip
    ledger.path.unlink()
    assert has_jobs(folder)
    for left in folder.iterdir():
        left.unlink()
    assert not has_jobs(folder)


def test_a_job_that_was_begun_shows_before_it_has_state(store, tmp_path):
    store.begin()
    assert has_jobs(tmp_path / "state" / "north")


def test_whoever_finds_the_folder_is_told_that_it_is_not_private(store):
    store.save(make_state(1))
    text = (store.folder / NOTICE).read_text(encoding="utf-8")
    assert "not private" in text
    assert "No noise protects them" in text


def test_a_notice_that_is_there_stays_as_it_is(tmp_path):
    store = make_store(tmp_path)
    store.save(make_state(1))
    (store.folder / NOTICE).write_text("ours, with a telephone number")
    for writer in (store, make_store(tmp_path)):
        writer.save(make_state(2))
    assert (store.folder / NOTICE).read_text() == "ours, with a telephone number"


def test_a_folder_that_is_taken_away_in_a_round_is_made_again(tmp_path):
    make_store(tmp_path).save(make_state(1))
    store = make_store(tmp_path)  # of the next message
    assert_equal(store.load(1), make_state(1))
    shutil.rmtree(store.folder)
    store.save(make_state(2))
    assert {path.name for path in store.folder.iterdir()} == {name_of(2), NOTICE}


def test_before_the_first_round_there_is_nothing(store):
    assert store.load() is None
    assert store.history() == []
    assert not store.folder.exists()


def test_sites_and_jobs_are_apart(tmp_path):
    stores = [SiteStore(tmp_path, site, job, FINGERPRINT) for site in "ab" for job in "xy"]
    for number, store in enumerate(stores, start=1):
        store.save(make_state(number))
    for number, store in enumerate(stores, start=1):
        assert_equal(store.load(), make_state(number))
        assert_equal(store.load(number), make_state(number))


def test_state_of_other_data_is_refused(store, tmp_path):
    store.save(make_state())
    with pytest.raises(StateError, match=r"state of other data.* start a new job"):
        make_store(tmp_path / "state", "0" * 64).load()
    with pytest.raises(StateError, match=r"state of other data.* start a new job"):
        make_store(tmp_path / "state", "0" * 64).load(1)


# --- in simulation


def make_simulated(root, fingerprint=FINGERPRINT) -> SiteStore:
    return SiteStore(root, "north", "job-1", fingerprint, simulation=True)


def forbid(*_: object, **__: object) -> None:
    raise AssertionError("not wanted here")


def test_in_simulation_the_factors_saved_last_are_not_read_again(tmp_path, monkeypatch):
    simulated = make_simulated(tmp_path)
    simulated.begin()
    monkeypatch.setattr(os, "fsync", forbid)
    for number in (1, 2):
        simulated.save(make_state(number))
    with monkeypatch.context() as blind:
        blind.setattr(state_module, "read_factors", forbid)
        assert_equal(make_simulated(tmp_path).load(2), make_state(2))
        assert_equal(simulated.load(), make_state(2))
        with pytest.raises(AssertionError):  # a real site reads its disk
            make_store(tmp_path).load(2)
        with pytest.raises(AssertionError):  # only the last round is kept in memory
            simulated.load(1)
    for number in (1, 2):  # and all of it is on the disk, for whoever goes on after a kill
        assert_equal(make_store(tmp_path).load(number), make_state(number))


def test_what_is_kept_in_memory_cannot_be_changed(tmp_path):
    simulated = make_simulated(tmp_path)
    simulated.save(make_state(1))
    for factor in simulated.load(1).factors:
        with pytest.raises(ValueError, match="read-only"):
            factor[0, 0] = 1


def test_in_simulation_too_a_file_counts_and_not_what_is_remembered(tmp_path):
    simulated = make_simulated(tmp_path)
    simulated.save(make_state(1))
    make_store(tmp_path).save(SiteState(1, make_state(7).factors, 0.5))  # by another process
    assert_equal(simulated.load(1), SiteState(1, make_state(7).factors, 0.5))
    (simulated.folder / name_of(1)).unlink()
    assert simulated.load(1) is None
    simulated.save(make_state(2))
    with pytest.raises(StateError, match="state of other data"):
        make_simulated(tmp_path, "0" * 64).load(2)


def test_in_simulation_a_round_is_written_over_the_one_before_the_last(tmp_path):
    """Fresh blocks take most of the time of a save; a real site deletes what it had."""
    simulated = make_simulated(tmp_path)
    spare = simulated.folder / ".state-spare"
    for number in range(1, 7):
        blocks = spare.stat().st_ino if number > 1 else None
        simulated.save(make_state(number))
        if blocks is not None:
            assert (simulated.folder / name_of(number)).stat().st_ino == blocks
            assert not spare.exists()
        torn = simulated.folder / f".{name_of(number)}.killed"
        torn.write_bytes(b"half a file")
        simulated.keep_only(number)
        kept = {path.name for path in simulated.folder.iterdir()}
        assert kept == {name_of(number), NOTICE, spare.name}
        assert_equal(make_store(tmp_path).load(), make_state(number))
    make_store(tmp_path).keep_only(6)
    assert {path.name for path in simulated.folder.iterdir()} == {name_of(6), NOTICE}


def test_of_many_sites_only_some_are_remembered(tmp_path, monkeypatch):
    stores = [SiteStore(tmp_path, f"s{n}", "job", FINGERPRINT, simulation=True) for n in range(40)]
    for number, store in enumerate(stores, start=1):
        store.save(make_state(number))
    assert len(state_module._recent._kept) <= 16
    for number, store in enumerate(stores, start=1):
        assert_equal(store.load(), make_state(number))


# --- for the owner alone


@pytest.fixture(params=[0o022, 0o000], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_nothing_is_readable_by_others(store, tmp_path):
    for number in (1, 2):
        store.save(make_state(number))
        store.note(make_measures(number))
    modes = {
        str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")
    }
    assert modes == {
        "state": 0o700,
        "state/north": 0o700,
        "state/north/job-1": 0o700,
        f"state/north/job-1/{NOTICE}": 0o600,
        "state/north/job-1/state-000001.npy": 0o600,
        "state/north/job-1/state-000002.npy": 0o600,
        "state/north/job-1/history.jsonl": 0o600,
    }


# --- crashes


def break_disk(*_: object, **__: object) -> None:
    raise OSError("no space left on device")


@pytest.mark.parametrize("call", [(os, "replace"), (os, "fsync"), (state_module, "write_factors")],
                         ids=lambda call: call[1])  # fmt: skip
@pytest.mark.parametrize("before", [True, False], ids=["second round", "first round"])
def test_a_crash_leaves_the_round_before(store, monkeypatch, call, before):
    if before:
        store.save(make_state(1))
    else:
        store.folder.mkdir(parents=True)
    with monkeypatch.context() as broken:
        broken.setattr(*call, break_disk)
        with pytest.raises(OSError, match="no space"):
            store.save(make_state(2))
    # The notice is for people; it may be there or not.
    left = {path.name for path in store.folder.iterdir()} - {NOTICE}
    assert left == ({name_of(1)} if before else set())
    assert store.load(2) is None
    if before:
        assert_equal(store.load(1), make_state(1))
    else:
        assert store.load() is None
    store.save(make_state(2))
    assert_equal(store.load(2), make_state(2))


def test_half_a_file_never_takes_the_place_of_the_old(store, monkeypatch):
    """Not even of the same round's, where it is computed anew after a crash."""
    store.save(make_state(1))

    def write_half(file, *_: object) -> None:
        file.write(b"\x93NUMPY half")
        raise KeyboardInterrupt

    for number in (1, 2):
        with monkeypatch.context() as broken:
            broken.setattr(state_module, "write_factors", write_half)
            with pytest.raises(KeyboardInterrupt):
                store.save(SiteState(number, make_state(7).factors, 0.5))
        assert {path.name for path in store.folder.iterdir()} == {name_of(1), NOTICE}
        assert_equal(store.load(1), make_state(1))


def test_a_crash_while_old_rounds_are_deleted_leaves_the_one_to_keep(store, monkeypatch):
    for number in (1, 2, 3):
        store.save(make_state(number))
    unlinked = []

    def stop(path, missing_ok=False):
        unlinked.append(path.name)
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", stop)
        with pytest.raises(KeyboardInterrupt):
            store.keep_only(3)
    assert unlinked
    assert name_of(3) not in unlinked
    assert_equal(store.load(3), make_state(3))


# --- damage


def refused(store) -> str:
    """Whether the round is asked for or found, the file is refused by its name."""
    texts = set()
    for arguments in ((), (2,)):
        with pytest.raises(StateError) as caught:
            store.load(*arguments)
        texts.add(str(caught.value))
    (text,) = texts
    assert text.startswith(str(store.folder / name_of(2)))
    assert str(SECRET) not in text
    return text


def test_a_truncated_file_is_damaged_wherever_it_ends(store):
    store.save(make_state(2))
    path = store.folder / name_of(2)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 23), len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert "damaged state" in refused(store)


def test_a_flipped_byte_is_found(store):
    store.save(make_state(2))
    path = store.folder / name_of(2)
    whole = path.read_bytes()
    for place in range(0, len(whole), 17):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        assert "damaged state" in refused(store)


@pytest.mark.parametrize("key", ["fingerprint", "round", "eta"])
def test_a_state_that_does_not_say_what_it_is_is_damaged(store, key):
    store.save(make_state(2))
    path = store.folder / name_of(2)
    factors, meta = read_factors(path)
    del meta[key]
    with path.open("wb") as file:
        write_factors(file, factors, meta)
    assert "damaged state" in refused(store)


@pytest.mark.parametrize("content", [b"", b"987654", b"PK\x03\x04"], ids=repr)
def test_another_file_in_its_place_is_damaged(store, content):
    store.folder.mkdir(parents=True)
    (store.folder / name_of(2)).write_bytes(content)
    assert "damaged state" in refused(store)


# --- the site's own history


def test_measures_survive(store):
    store.save(make_state())
    measures = [make_measures(number, eta=0.1 * number) for number in (1, 2, 3)]
    for measure in measures:
        store.note(measure)
    assert store.history() == measures


def test_the_last_line_of_a_round_wins_and_rounds_are_in_order(store):
    store.save(make_state())
    for number, rollbacks in ((2, 0), (1, 0), (2, 5), (3, 0), (1, 7)):
        store.note(make_measures(number, rollbacks=rollbacks))
    assert [(m.round, m.rollbacks) for m in store.history()] == [(1, 7), (2, 5), (3, 0)]
    assert len((store.folder / "history.jsonl").read_text().splitlines()) == 5


LINE = json.dumps({"round": SECRET, "seconds": 1.0})
BAD_LINES = {"torn": LINE[:-5], "empty": "", "number": "987654", "other fields": LINE,
             "binary": "\x00\x01"}  # fmt: skip


@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES)
def test_a_damaged_line_is_named(store, line):
    store.save(make_state())
    store.note(make_measures(1))
    with (store.folder / "history.jsonl").open("a") as file:
        file.write(line + "\n")
    store.note(make_measures(3))
    with pytest.raises(StateError, match=r"history.jsonl: line 2 is damaged$"):
        store.history()
