"""A site's answers and refusals, none of which reveals patient data."""

import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest

import dpfact_flower.site.local_fit
from dpfact_flower.client_app import DPFactClient, RoundRefusedError
from dpfact_flower.data.vocabulary import joint_digest
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.privacy import Release, account
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.settings import PrivacySettings, SiteSettings, SolverSettings
from dpfact_flower.site import hospital
from dpfact_flower.site.disclosure import log_privately
from dpfact_flower.site.store import SiteState, SiteStore
from dpfact_flower.wire.protocol import RoundRequest
from tests.bits import assert_bits
from tests.crash import Killed
from tests.site import federation
from tests.site.federation import ask, events_of, raising, refusal, rows_of, store_of

PAPER = SolverSettings(rank=4, solver="psgd", clip=1.0, eta=1e-3)


@pytest.fixture
def client(data, tmp_path):
    return make_client(data, tmp_path)


def make_client(data, tmp_path, **settings) -> DPFactClient:
    """Return a real site that allows the test's requests (by default, releases without noise)."""
    plain = {"allow_privacy": "none", "max_epsilon": 0.0}
    return federation.make_client(data, tmp_path, **{**plain, **settings})


def make_noisy_client(data, tmp_path, **settings) -> DPFactClient:
    noisy = {"allow_privacy": "paper", "max_epsilon": 50.0}
    return make_client(data, tmp_path, **{**noisy, **settings})


def make_request(data, **changes) -> RoundRequest:
    vocabulary = joint_digest(data.vocabularies)
    return federation.make_request(**{"rounds": 5, "vocabulary": vocabulary, **changes})


def make_noisy_request(data, **changes) -> RoundRequest:
    return make_request(data, solver=PAPER, privacy=PrivacySettings(privacy="paper"), **changes)


def folder_of(tmp_path):
    """Return the site's own folder, with its ledger and a folder per job."""
    return tmp_path / "state" / "site-1"


def release_of(tmp_path, number) -> Release:
    with Ledger(folder_of(tmp_path), create=False) as ledger:
        return ledger.release_of("job", number)


def state_of(tmp_path, data) -> SiteState:
    """Return the site's stored state of a job, as its next round would read it."""
    state = store_of(data, tmp_path).load()
    assert state is not None
    return state


def test_paper_mode_perturbs_and_charges_before_it_sends(data, tmp_path, caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setattr(SiteStore, "keep_only", raising(OSError()))  # whose error is only logged
    client = make_noisy_client(data, tmp_path)
    arrays, _ = ask(client, make_noisy_request(data))
    assert not np.array_equal(arrays[0], state_of(tmp_path, data).factors[1])
    kept = release_of(tmp_path, 1)
    assert_bits(arrays, kept.arrays)
    assert [event.name for event in kept.events] == ["round 1, procedures", "round 1, diagnoses"]
    assert {e.sensitivity for e in kept.events} == {2 * PAPER.tau * PAPER.clip * PAPER.eta}
    assert list(kept.events) == events_of(tmp_path)
    assert "; epsilon_spent 1.715271, " in caplog.text


CRASHES = {
    "while the state is written": (SiteStore, "save"),
    "between state and charge": (Ledger, "charge"),
    "between charge and the end of the old state": (SiteStore, "keep_only"),
}


@pytest.mark.parametrize("place", CRASHES.values(), ids=CRASHES)
@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
@pytest.mark.parametrize("first", [True, False], ids=["first round", "second round"])
def test_a_crash_leaves_the_site_before_the_round_or_after_it(
    data, tmp_path, monkeypatch, place, after, first
):
    client = make_noisy_client(data, tmp_path)
    request = make_noisy_request(data)
    if not first:
        ask(client, request)
        request = replace(request, round=2)
    before = events_of(tmp_path)
    kind, name = place
    whole = getattr(kind, name)

    def stop(*arguments):
        if after:
            whole(*arguments)
        raise Killed

    with monkeypatch.context() as broken:
        broken.setattr(kind, name, stop)
        with pytest.raises(Killed):
            ask(client, request)
    charged = (name, after) in {("charge", True), ("keep_only", False), ("keep_only", True)}
    assert len(events_of(tmp_path)) - len(before) == (2 if charged else 0)
    arrays, _ = ask(make_noisy_client(data, tmp_path), request)
    assert len(events_of(tmp_path)) - len(before) == 2
    assert_bits(arrays, release_of(tmp_path, request.round).arrays)
    # The job continues from that round's own factors, whatever other files exist.
    ask(make_noisy_client(data, tmp_path), replace(request, round=request.round + 1))
    assert state_of(tmp_path, data).round == request.round + 1
    left = sorted(path.name for path in (folder_of(tmp_path) / "job").glob("*.npz"))
    assert left == [f"state-{request.round + 1:06d}.npz"]


@pytest.mark.parametrize("simulation", [False, True])
def test_only_a_simulated_site_does_not_wait_for_the_disk(data, tmp_path, monkeypatch, simulation):
    waited = []
    opened, fsync = hospital.Ledger, os.fsync

    def open_ledger(*arguments, **choices):
        ledger = opened(*arguments, **choices)
        waited.append(ledger._connection.execute("PRAGMA synchronous").fetchone()[0] == 3)
        return ledger

    settings = SiteSettings(allow_privacy="none", state_dir=str(tmp_path))
    client = DPFactClient(data, settings, simulation=simulation)
    ask(client, make_request(data))  # creates folders and ledger, and waits for the disk
    monkeypatch.setattr(hospital, "Ledger", open_ledger)
    monkeypatch.setattr(os, "fsync", lambda handle: (waited.append(True), fsync(handle)))
    ask(client, make_request(data, round=2))
    assert waited == ([False] if simulation else [True, True, True])  # the state and its name


def test_a_state_that_no_ledger_row_vouches_for_is_not_gone_on_from(data, tmp_path, monkeypatch):
    """A crash between state and charge leaves the factors of an unanswered round."""
    request = make_noisy_request(data)
    ask(make_noisy_client(data, tmp_path), request)
    known = state_of(tmp_path, data)
    with monkeypatch.context() as broken:
        broken.setattr(Ledger, "charge", raising(Killed()))
        with pytest.raises(Killed):
            ask(make_noisy_client(data, tmp_path), replace(request, round=2))
    begun = []
    solved = dpfact_flower.site.local_fit.solved

    def watch(tensor, start, *arguments, **named):
        begun.append(start)
        return solved(tensor, start, *arguments, **named)

    monkeypatch.setattr("dpfact_flower.site.elastic.solved", watch)
    ask(make_noisy_client(data, tmp_path), replace(request, round=2))
    (start,) = begun
    assert start.round == 1
    assert_bits(start.factors, known.factors)


def test_without_charge_rounds_are_on_record_and_only_the_last_is_answered_again(
    client, data, tmp_path, caplog
):
    caplog.set_level("INFO")
    requests = [make_request(data, round=number) for number in (1, 2)]
    for request in requests:
        sent, _ = ask(client, request)
        assert_bits(ask(make_client(data, tmp_path), request)[0], sent)  # after a restart
        assert f"round {request.round} was asked for again: sending the same" in caplog.text
    assert "round 1 of job 'job' is stale" in refusal(client, requests[0], caplog)[1]
    assert [noted.round for noted in store_of(data, tmp_path).history()] == [1, 2]
    for number, row in zip((1, 2), rows_of(tmp_path), strict=True):
        assert (row.job, row.round, row.shapes) == ("job", number, ((9, 4), (12, 4)))
        assert (row.events, row.unprotected, row.payload_kept) == ((), True, False)


def test_a_start_without_noise_leaves_no_state_and_is_answered_again(client, data, tmp_path):
    asked = make_request(data, anchors=())
    (first, _), (again, _) = ask(client, asked), ask(client, asked)
    assert_bits(first, again)
    assert first[0].shape == (21 * 20 // 2,)  # pairs of the 21 codes
    assert not list((tmp_path / "state").rglob("state-*"))
    later = make_request(data, round=2)
    assert [array.shape for array in ask(client, later)[0]] == [(9, 4), (12, 4)]


def test_a_state_that_is_not_what_was_sent_is_not_sent_in_its_place(client, data, tmp_path, caplog):
    ask(client, make_request(data))
    store = store_of(data, tmp_path)
    state = state_of(tmp_path, data)
    patients, *features = state.factors
    store.save(replace(state, factors=(patients, *(2 * factor for factor in features))))
    _, text = refusal(client, make_request(data), caplog)
    assert "round 1 of job 'job' was released with other values" in text
    store.save(replace(state, factors=(2 * patients, *features)))  # these were never sent
    ask(client, make_request(data))
    (tmp_path / "state" / "site-1" / "job" / "state-000001.npz").unlink()
    assert "the state of round 1 is missing" in refusal(client, make_request(data), caplog)[1]
    assert len(rows_of(tmp_path)) == 1


def test_a_budget_the_site_capped_is_not_exceeded(data, tmp_path):
    client = make_noisy_client(data, tmp_path, max_epsilon=0.5, budget_delta=1e-6)
    for epsilon in (0.501, 0.5):  # all rounds together may cost exactly the cap
        privacy = PrivacySettings(privacy="paper", epsilon=epsilon, delta=1e-6)
        request = make_request(data, job=f"job-{epsilon}", solver=PAPER, privacy=privacy)
        if epsilon > 0.5:
            with pytest.raises(RoundRefusedError, match="privacy-refused"):
                ask(client, request)
            assert not rows_of(tmp_path)
    for number in range(1, 6):
        ask(client, replace(request, round=number))
    assert account(events_of(tmp_path), 1e-6).headline.epsilon == pytest.approx(0.5)


def test_settings_cannot_change_in_the_middle_of_a_job(data, tmp_path, caplog):
    """The stored factors have no noise. A tiny step in round 2 would publish those of round 1."""
    first = make_noisy_request(data)
    log = refusal(make_noisy_client(data, tmp_path, max_rounds=4), first, caplog)[1]
    assert "this site has answered 0 rounds in all jobs, and this run needs 5" in log
    client = make_noisy_client(data, tmp_path, max_rounds=5)
    ask(client, first)
    for changes in (
        {"solver": replace(PAPER, eta=1e-8)},
        {"solver": replace(PAPER, clip=1e-6)},
        {"privacy": PrivacySettings(privacy="paper", epsilon=9.0)},
        {"rounds": 50},
        {"seed": 4},
    ):
        asked = replace(first, round=2, **changes)
        assert "settings of job 'job' have changed" in refusal(client, asked, caplog)[1]
    ask(client, replace(first, round=2))


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"allow_privacy": "paper"}, "max-epsilon: must be above 0"),
        ({"allow_privacy": "none", "max_epsilon": 1.0}, "max-epsilon"),
        ({"allow_privacy": "none,paper", "max_epsilon": 2.0}, "would void max-epsilon"),
        ({"allow_privacy": "none,none", "max_epsilon": 2.0}, "max-epsilon: must be .* 'none,none'"),
        ({"state_dir": "relative/state"}, "absolute"),
        ({"state_dir": ""}, "state-dir: must be set"),
        ({"allow_privacy": ""}, "allow-privacy: must be set"),
    ],
)
def test_choices_that_would_fail_open_are_refused(data, tmp_path, choices, says):
    with pytest.raises(SettingsError, match=says):
        make_client(data, tmp_path, **choices)


BAD_REQUESTS = {
    "vocabulary": ({"vocabulary": "0" * 64}, "digests differ"),
    "too many codes": ({"anchors": initial_factors((9, 13), 4, 0)}, "sizes (9, 13)"),
    "a mode too many": ({"anchors": initial_factors((9, 12, 3), 4, 0)}, "sizes (9, 12, 3)"),
    "a mode missing": ({"anchors": initial_factors((9,), 4, 0)}, "sizes (9,)"),
    "other rank": ({"anchors": initial_factors((9, 12), 3, 0)}, "need shape (features, 4)"),
    "job leads out of the folder": ({"job": "../../elsewhere"}, "job"),
}


@pytest.mark.parametrize(("changes", "says"), BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_a_bad_request_is_refused_at_the_door(client, data, tmp_path, caplog, changes, says):
    assert says in refusal(client, make_request(data, **changes), caplog)[1]
    assert not (tmp_path / "state").exists()
    ask(client, make_request(data))  # the site still works


PLACES = {"state-dir": "state", "site": "state/site-1", "job": "state/site-1/job",
          "ledger": f"state/site-1/{LEDGER}"}  # fmt: skip


@pytest.mark.parametrize("how", ["link", "writable", "owner"])
@pytest.mark.parametrize("place", PLACES)
def test_what_others_could_change_is_refused_and_nothing_is_read_or_written(
    data, tmp_path, caplog, monkeypatch, place, how
):
    client, path = make_client(data, tmp_path), tmp_path / PLACES[place]
    ask(client, make_request(data))
    if how == "link":
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")
    elif how == "writable":
        path.chmod(0o770)
    else:
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + (path == tmp_path / "state"))
        if place != "state-dir":
            lstat = type(path).lstat
            monkeypatch.setattr(type(path), "lstat", lambda p: _owned(lstat(p), user + (p == path)))
    monkeypatch.setattr(type(data), "read", lambda _: pytest.fail("patients were read"))
    before = _listed(tmp_path)
    _, log = refusal(client, make_request(data, round=2), caplog)
    assert f"state: {path}: " in log
    assert _listed(tmp_path) == before


def _owned(found, user):
    return os.stat_result([*found[:4], user, *found[5:10]])


def _listed(folder):
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}


def test_a_state_dir_that_anybody_may_move_away_is_refused(data, tmp_path, caplog):
    tmp_path.chmod(0o777)
    _, log = refusal(make_client(data, tmp_path), make_request(data), caplog)
    tmp_path.chmod(0o700)
    assert "anybody may write to it" in log
    assert not (tmp_path / "state").exists()


@pytest.mark.usefixtures("umask")
def test_whatever_the_umask_what_a_site_makes_is_its_own(data, tmp_path):
    ask(make_client(data, tmp_path), make_request(data))
    for path in (tmp_path / "state", *(tmp_path / "state").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_the_log_has_the_text_of_our_errors_and_the_last_three_places_of_others(caplog):
    log_privately("north", DataError("x" * 100_000))
    with pytest.raises(ValueError, match="property name") as error:
        json.loads("{")
    log_privately("north", error.value)
    ours, other = (record.getMessage() for record in caplog.records)
    assert ours == f"site north: data: {'x' * 800}"
    places = re.sub(":[0-9]+", "", other.removeprefix("site north: unexpected JSONDecodeError at "))
    assert places == "__init__.py loads > decoder.py decode > decoder.py raw_decode"
