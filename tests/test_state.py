"""What a site keeps: exactly what it had, whole after any crash, and for its owner alone."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from dpfact_flower.cp import SquaredError
from dpfact_flower.errors import StateError
from dpfact_flower.privacy import PAPER_CLAIM, Release, ReleaseEvent
from dpfact_flower.state import Answered, RoundMeasures, SiteState, SiteStore

SECRET = 987654
FINGERPRINT = "f" * 64
MODES = ("procedures", "diagnoses")


def make_events(round_number: int) -> tuple[ReleaseEvent, ...]:
    return tuple(
        ReleaseEvent(
            name=f"round {round_number}, {mode}", sensitivity=0.1 + round_number, sigma=1 / 3,
            count=7, unit="entry", neighbours="replace", claim=PAPER_CLAIM, seeded=True,
        )
        for mode in MODES
    )  # fmt: skip


def make_answered(round_number: int = 1, *, noise: bool = True) -> Answered:
    rng = np.random.default_rng(round_number)
    factors = tuple(rng.standard_normal((size, 3)).astype(np.float32) for size in (9, 5, 4))
    # What was sent need not be what follows from the factors: noise lies between.
    sent = tuple(rng.standard_normal((size, 3)).astype(np.float32) for size in (5, 4))
    numbers = range(1, round_number + 1) if noise else ()
    events = tuple(event for number in numbers for event in make_events(number))
    last = events[-2:] if noise else ()
    state = SiteState(round_number, factors, 0.1 / 3, events)
    return Answered(f"digest-{round_number}", "terms", state, Release(sent, last))


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


def assert_equal(found: Answered, expected: Answered) -> None:
    assert found.request == expected.request
    assert found.state.round == expected.state.round
    assert found.state.eta == expected.state.eta
    assert found.state.events == expected.state.events
    assert_bits(found.state.factors, expected.state.factors)
    assert found.release.events == expected.release.events
    assert_bits(found.release.factors, expected.release.factors)


@pytest.fixture
def store(tmp_path) -> SiteStore:
    return make_store(tmp_path / "state")


# --- state


@pytest.mark.parametrize("noise", [True, False])
@pytest.mark.parametrize("round_number", [1, 3])
def test_round_trip(store, tmp_path, noise, round_number):
    answered = make_answered(round_number, noise=noise)
    store.save(answered)
    assert_equal(store.load(), answered)
    assert_equal(make_store(tmp_path / "state").load(), answered)


def test_the_last_round_is_kept(store):
    store.save(make_answered(1))
    store.save(make_answered(2))
    assert_equal(store.load(), make_answered(2))


def test_before_the_first_round_there_is_nothing(store):
    assert store.load() is None
    assert store.history() == []
    assert not store.folder.exists()


def test_sites_and_jobs_are_apart(tmp_path):
    stores = [SiteStore(tmp_path, site, job, FINGERPRINT) for site in "ab" for job in "xy"]
    for number, store in enumerate(stores, start=1):
        store.save(make_answered(number))
    for number, store in enumerate(stores, start=1):
        assert_equal(store.load(), make_answered(number))


def test_state_of_other_data_is_refused(store, tmp_path):
    store.save(make_answered())
    with pytest.raises(StateError, match=r"state of other data.* start a new job"):
        make_store(tmp_path / "state", "0" * 64).load()


# --- for the owner alone


@pytest.fixture(params=[0o022, 0o000], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_nothing_is_readable_by_others(store, tmp_path):
    for number in (1, 2):
        store.save(make_answered(number))
        store.note(make_measures(number))
    modes = {
        str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")
    }
    assert modes == {
        "state": 0o700,
        "state/north": 0o700,
        "state/north/job-1": 0o700,
        "state/north/job-1/state.npz": 0o600,
        "state/north/job-1/history.jsonl": 0o600,
    }


# --- crashes


def break_disk(*_: object, **__: object) -> None:
    raise OSError("no space left on device")


@pytest.mark.parametrize("call", [(os, "replace"), (os, "fsync"), (np, "savez")],
                         ids=lambda call: call[1])  # fmt: skip
@pytest.mark.parametrize("before", [True, False], ids=["second round", "first round"])
def test_a_crash_leaves_the_round_before(store, monkeypatch, call, before):
    if before:
        store.save(make_answered(1))
    else:
        store.folder.mkdir(parents=True)
    with monkeypatch.context() as broken:
        broken.setattr(*call, break_disk)
        with pytest.raises(OSError, match="no space"):
            store.save(make_answered(2))
    assert os.listdir(store.folder) == (["state.npz"] if before else [])
    found = store.load()
    if before:
        assert_equal(found, make_answered(1))
    else:
        assert found is None
    store.save(make_answered(2))
    assert_equal(store.load(), make_answered(2))


def test_half_a_file_never_takes_the_place_of_the_old(store, monkeypatch):
    store.save(make_answered(1))

    def write_half(file, **arrays: object) -> None:
        file.write(b"PK\x03\x04 half")
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(np, "savez", write_half)
        with pytest.raises(KeyboardInterrupt):
            store.save(make_answered(2))
    assert os.listdir(store.folder) == ["state.npz"]
    assert_equal(store.load(), make_answered(1))


# --- damage


def refused(store) -> str:
    with pytest.raises(StateError) as caught:
        store.load()
    assert str(caught.value).startswith(str(store.folder / "state.npz"))
    assert str(SECRET) not in str(caught.value)
    return str(caught.value)


def test_a_truncated_file_is_damaged_wherever_it_ends(store):
    store.save(make_answered(2))
    path = store.folder / "state.npz"
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 23), len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert "damaged state" in refused(store)


def test_a_flipped_byte_is_found_or_harmless(store):
    store.save(make_answered(2))
    path = store.folder / "state.npz"
    whole, found = path.read_bytes(), 0
    for place in range(0, len(whole), 17):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            again = store.load()
        except StateError:
            found += 1
        else:  # such as a date in the zip's directory
            assert_equal(again, make_answered(2))
    assert found > len(whole) / 17 / 2


META_KEYS = ("request", "fingerprint", "round", "eta", "modes", "events", "released_events")
EVENT = make_events(1)[0].to_dict()
CRAFTED = {
    **{f"no {key}": {key: None} for key in META_KEYS},
    "modes text": {"modes": str(SECRET)},
    "more modes than factors": {"modes": 4},
    "events a number": {"events": SECRET},
    "event a number": {"events": [SECRET]},
    "event without a field": {"events": [{"name": "x", "sigma": SECRET}]},
    "event with a field more": {"events": [EVENT | {"more": SECRET}]},
    "event out of range": {"events": [EVENT | {"sigma": -SECRET}]},
    "released events text": {"released_events": "two"},
}


def rewrite(path, changes) -> None:
    with np.load(path) as archive:
        arrays = dict(archive)
    meta = json.loads(str(arrays["meta"])) | changes
    meta = {key: value for key, value in meta.items() if value is not None}
    np.savez(path, **(arrays | {"meta": np.array(json.dumps(meta))}))


@pytest.mark.parametrize("changes", CRAFTED.values(), ids=CRAFTED)
def test_a_state_that_makes_no_sense_is_damaged(store, changes):
    store.save(make_answered(2))
    rewrite(store.folder / "state.npz", changes)
    assert "damaged state" in refused(store)


@pytest.mark.parametrize("meta", ["", "{", "[1]", "3", "null"])
def test_a_state_without_its_meta_is_damaged(store, meta):
    store.save(make_answered(2))
    path = store.folder / "state.npz"
    with np.load(path) as archive:
        arrays = dict(archive) | {"meta": np.array(meta)}
    np.savez(path, **arrays)
    assert "damaged state" in refused(store)


@pytest.mark.parametrize("content", [b"", b"987654", b"PK\x03\x04"], ids=repr)
def test_another_file_in_its_place_is_damaged(store, content):
    store.folder.mkdir(parents=True)
    (store.folder / "state.npz").write_bytes(content)
    assert "damaged state" in refused(store)


# --- the site's own history


def test_measures_survive(store):
    store.save(make_answered())
    measures = [make_measures(number, eta=0.1 * number) for number in (1, 2, 3)]
    for measure in measures:
        store.note(measure)
    assert store.history() == measures


def test_the_last_line_of_a_round_wins_and_rounds_are_in_order(store):
    store.save(make_answered())
    for number, rollbacks in ((2, 0), (1, 0), (2, 5), (3, 0), (1, 7)):
        store.note(make_measures(number, rollbacks=rollbacks))
    assert [(m.round, m.rollbacks) for m in store.history()] == [(1, 7), (2, 5), (3, 0)]
    assert len((store.folder / "history.jsonl").read_text().splitlines()) == 5


LINE = json.dumps({"round": SECRET, "seconds": 1.0})
BAD_LINES = {"torn": LINE[:-5], "empty": "", "number": "987654", "other fields": LINE,
             "binary": "\x00\x01"}  # fmt: skip


@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES)
def test_a_damaged_line_is_named(store, line):
    store.save(make_answered())
    store.note(make_measures(1))
    with (store.folder / "history.jsonl").open("a") as file:
        file.write(line + "\n")
    store.note(make_measures(3))
    with pytest.raises(StateError, match=r"history.jsonl: line 2 is damaged$"):
        store.history()
