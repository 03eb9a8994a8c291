"""A site's door: what it answers, what it refuses, and that nothing of a patient gets out."""

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import dpfact_flower.site.round
from dpfact_flower.client import DPFactClient, RoundRefusedError
from dpfact_flower.data.site_data import load_site
from dpfact_flower.data.vocabulary import joint_digest
from dpfact_flower.errors import DataError, DivergenceError, SettingsError
from dpfact_flower.privacy import ReleaseEvent, account
from dpfact_flower.privacy.ledger import LEDGER, Ledger, data_tag
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.settings import PrivacySettings, SiteSettings, SolverSettings
from dpfact_flower.site import admission, answer
from dpfact_flower.site.disclosure import log_privately
from dpfact_flower.site.store import SiteState, SiteStore
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.wire.protocol import RoundRequest

PAPER = SolverSettings(rank=4, solver="psgd", clip=1.0, eta=1e-3)


@pytest.fixture
def data(cohort):
    return cohort.sites[0]


@pytest.fixture
def client(data, tmp_path):
    return make_client(data, tmp_path)


def make_client(data, tmp_path, **settings) -> DPFactClient:
    """A real site that allows what the test asks; by default, releases without noise."""
    given = {"allow_privacy": "none", "state_dir": str(tmp_path / "state"), **settings}
    return DPFactClient(data, SiteSettings(**given))


def test_a_site_is_a_real_one_unless_it_is_said_to_be_played(data, tmp_path):
    """Of which a setting that a hospital must choose is asked, and noise is never seeded."""
    with pytest.raises(SettingsError, match="allow-privacy: must be set"):
        answer.Site(data, SiteSettings(state_dir=str(tmp_path)))
    answer.Site(data, SiteSettings(state_dir=str(tmp_path)), simulation=True)


def make_noisy_client(data, tmp_path, **settings) -> DPFactClient:
    return make_client(
        data, tmp_path, **{"allow_privacy": "paper", "max_epsilon": 50.0, **settings}
    )


def make_request(data, **changes) -> RoundRequest:
    solver = changes.pop("solver", SolverSettings(rank=4))
    request = RoundRequest(
        job="job", round=1, rounds=5, seed=3, solver=solver,
        privacy=PrivacySettings(privacy="none"), vocabulary=joint_digest(data.vocabularies),
        anchors=initial_factors(data.tensor.feature_shape, solver.rank, 3),
    )  # fmt: skip
    return replace(request, **changes)


def fit(client, request):
    arrays, examples, config = client.fit(*request.to_wire())
    return arrays, examples, config


def refusal(client, request, caplog) -> str:
    """Refuse the request; return the site's own log."""
    caplog.clear()
    with caplog.at_level(logging.INFO), pytest.raises(RoundRefusedError) as error:
        fit(client, request)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__
    assert str(error.value).startswith("dpfact:")
    assert len(str(error.value)) < 70
    return caplog.text


def folder_of(tmp_path):
    """The site's own folder: its ledger, and a folder a job."""
    return tmp_path / "state" / "site-1"


def state_of(tmp_path, data, job="job") -> SiteState:
    """What the site kept of a job, as its next round would read it."""
    store = SiteStore(tmp_path / "state", "site-1", job, tag_of(tmp_path, data))
    state = store.load()
    assert state is not None
    return state


def all_events(tmp_path, job=None) -> list[ReleaseEvent]:
    """Everything the site was charged, by its ledger, which must be in order."""
    with Ledger(folder_of(tmp_path), create=False) as ledger:
        assert ledger.verify() == []
        return list(ledger.events(job))


def tag_of(tmp_path, data):
    return data_tag(folder_of(tmp_path), data.tensor.fingerprint())


def rows_of(tmp_path):
    with Ledger(folder_of(tmp_path), create=False) as ledger:
        return ledger.rows()


def test_a_round_gives_feature_factors_the_sites_name_and_a_constant_for_the_patients(client, data):
    arrays, examples, config = fit(client, make_request(data))
    assert [a.shape for a in arrays] == [(9, 4), (12, 4)]
    assert {a.dtype for a in arrays} == {np.dtype(np.float32)}
    assert examples == 1
    assert config == {"site": "site-1"}


def test_patient_factors_stay_in_the_state_folder(client, data, tmp_path):
    fit(client, make_request(data))
    assert state_of(tmp_path, data).factors[0].shape == (data.tensor.n_patients, 4)
    line = (tmp_path / "state" / "site-1" / "job" / "history.jsonl").read_text()
    assert json.loads(line)["round"] == 1


def test_without_noise_the_release_is_the_local_factors(client, data, tmp_path):
    arrays, _, _ = fit(client, make_request(data))
    np.testing.assert_array_equal(arrays[0], state_of(tmp_path, data).factors[1])


def test_without_noise_nothing_is_charged_but_the_release_is_on_record(client, data, tmp_path):
    fit(client, make_request(data))
    (row,) = rows_of(tmp_path)
    assert (row.job, row.round, row.shapes, row.events) == ("job", 1, ((9, 4), (12, 4)), ())
    assert row.unprotected
    assert all_events(tmp_path) == []


def test_paper_mode_perturbs_and_charges_before_it_sends(data, tmp_path):
    client = make_noisy_client(data, tmp_path)
    request = make_request(data, solver=PAPER, privacy=PrivacySettings(privacy="paper"))
    arrays, _, _ = fit(client, request)
    assert not np.array_equal(arrays[0], state_of(tmp_path, data).factors[1])
    with Ledger(folder_of(tmp_path), create=False) as ledger:
        kept = ledger.release_of("job", 1)
    for sent, charged in zip(arrays, kept.arrays, strict=True):
        assert sent.tobytes() == charged.tobytes()
    assert [event.name for event in kept.events] == ["round 1, procedures", "round 1, diagnoses"]
    assert {e.sensitivity for e in kept.events} == {2 * PAPER.tau * PAPER.clip * PAPER.eta}
    assert list(kept.events) == all_events(tmp_path)


class Stopped(BaseException):
    """Stands for a process that ends there."""


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
    request = make_request(data, solver=PAPER, privacy=PrivacySettings(privacy="paper"))
    if not first:
        fit(client, request)
        request = replace(request, round=2)
    before = [] if first else all_events(tmp_path)
    kind, name = place
    whole = getattr(kind, name)

    def stop(*arguments):
        if after:
            whole(*arguments)
        raise Stopped

    with monkeypatch.context() as broken:
        broken.setattr(kind, name, stop)
        with pytest.raises(Stopped):
            fit(client, request)
    charged = (name, after) in {("charge", True), ("keep_only", False), ("keep_only", True)}
    assert len(all_events(tmp_path)) - len(before) == (2 if charged else 0)
    arrays, _, _ = fit(make_noisy_client(data, tmp_path), request)
    assert len(all_events(tmp_path)) - len(before) == 2
    with Ledger(folder_of(tmp_path), create=False) as ledger:
        kept = ledger.release_of("job", request.round)
    for sent, noted in zip(arrays, kept.arrays, strict=True):
        assert sent.tobytes() == noted.tobytes()
    # And the job goes on from that round's own factors, whatever lies about.
    fit(make_noisy_client(data, tmp_path), replace(request, round=request.round + 1))
    assert state_of(tmp_path, data).round == request.round + 1
    left = sorted(path.name for path in (folder_of(tmp_path) / "job").glob("*.npz"))
    assert left == [f"state-{request.round + 1:06d}.npz"]


def test_state_charge_and_deletion_come_in_this_order(data, tmp_path, monkeypatch):
    """What each step finds on the disk when it begins."""
    seen = []
    client = make_noisy_client(data, tmp_path)
    request = make_request(data, solver=PAPER, privacy=PrivacySettings(privacy="paper"))
    fit(client, request)

    def watch(kind, name):
        whole = getattr(kind, name)

        def step(*arguments):
            states = sorted(p.name for p in (folder_of(tmp_path) / "job").glob("state-*.npz"))
            seen.append((name, [int(state[6:12]) for state in states], len(rows_of(tmp_path))))
            return whole(*arguments)

        monkeypatch.setattr(kind, name, step)

    for kind, name in CRASHES.values():
        watch(kind, name)
    fit(client, replace(request, round=2))
    assert seen == [("save", [1], 1), ("charge", [1, 2], 1), ("keep_only", [1, 2], 2)]


@pytest.mark.parametrize("simulation", [False, True])
def test_only_a_simulated_site_does_not_wait_for_the_disk(data, tmp_path, monkeypatch, simulation):
    waited = []
    opened, fsync = admission.Ledger, os.fsync

    def open_ledger(*arguments, **choices):
        ledger = opened(*arguments, **choices)
        waited.append(ledger._connection.execute("PRAGMA synchronous").fetchone()[0] == 3)
        return ledger

    settings = SiteSettings(allow_privacy="none", state_dir=str(tmp_path))
    client = DPFactClient(data, settings, simulation=simulation)
    fit(client, make_request(data))  # makes folders and ledger, which is waited for
    monkeypatch.setattr(admission, "Ledger", open_ledger)
    monkeypatch.setattr(os, "fsync", lambda handle: (waited.append(True), fsync(handle)))
    fit(client, make_request(data, round=2))
    assert waited == ([False] if simulation else [True, True, True])  # the state, and its name


def test_a_state_that_no_ledger_row_vouches_for_is_not_gone_on_from(data, tmp_path, monkeypatch):
    """A crash between state and charge leaves factors of a round that was never answered."""
    request = make_request(data, solver=PAPER, privacy=PrivacySettings(privacy="paper"))
    fit(make_noisy_client(data, tmp_path), request)
    known = state_of(tmp_path, data)
    with monkeypatch.context() as broken:
        broken.setattr(Ledger, "charge", lambda *_: (_ for _ in ()).throw(Stopped))
        with pytest.raises(Stopped):
            fit(make_noisy_client(data, tmp_path), replace(request, round=2))
    begun = []
    solved = dpfact_flower.site.round.solved

    def watch(tensor, start, *arguments, **named):
        begun.append(start)
        return solved(tensor, start, *arguments, **named)

    monkeypatch.setattr("dpfact_flower.site.elastic.solved", watch)
    fit(make_noisy_client(data, tmp_path), replace(request, round=2))
    (start,) = begun
    assert start.round == 1
    for one, other in zip(start.factors, known.factors, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_job_begun_with_other_data_does_not_go_on(data, cohort, tmp_path, caplog):
    """What was sent is sent again: whether the data has changed since, that does not tell."""
    request = make_request(data, solver=PAPER, privacy=PrivacySettings(privacy="paper"))
    sent, _, _ = fit(make_noisy_client(data, tmp_path), request)
    other = replace(cohort.sites[1], name="site-1")
    client = make_noisy_client(other, tmp_path)
    again, _, _ = fit(client, request)
    assert [array.tobytes() for array in again] == [array.tobytes() for array in sent]
    assert "begun with other data" in refusal(client, replace(request, round=2), caplog)
    assert len(all_events(tmp_path)) == 2
    fit(client, replace(request, job="other"))  # and counts with what was spent before
    assert len(all_events(tmp_path)) == 4


def test_a_ledger_that_is_gone_is_not_made_anew(client, data, tmp_path, caplog):
    """Where there is state, there was a ledger: an empty one would have a whole budget."""
    fit(client, make_request(data))
    (folder_of(tmp_path) / LEDGER).unlink()
    for request in (make_request(data), make_request(data, job="other")):
        assert "there is no ledger here" in refusal(client, request, caplog)
    assert not (folder_of(tmp_path) / LEDGER).exists()


def test_a_damaged_ledger_is_refused_and_left_as_it_is(data, tmp_path, caplog):
    client = make_noisy_client(data, tmp_path)
    request = make_request(data, solver=PAPER, privacy=PrivacySettings(privacy="paper"))
    fit(client, request)
    path = folder_of(tmp_path) / LEDGER
    for content in (b"", path.read_bytes()[:512], b"something else"):
        path.write_bytes(content)
        text = refusal(client, replace(request, round=2), caplog)
        assert "site-1: state:" in text
        assert path.read_bytes() == content


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(("privacy", "charges"), [("none", 0), ("paper", 2)])
def test_a_repeated_request_gets_the_same_bytes_at_no_cost_even_after_a_restart(
    data, tmp_path, privacy, charges, number
):
    make = make_noisy_client if privacy == "paper" else make_client
    request = make_request(data, solver=PAPER, privacy=PrivacySettings(privacy=privacy))
    for before in range(1, number):
        fit(make(data, tmp_path), replace(request, round=before))
    request = replace(request, round=number)
    first, _, _ = fit(make(data, tmp_path), request)
    again, _, _ = fit(make(data, tmp_path), request)
    assert [array.tobytes() for array in again] == [array.tobytes() for array in first]
    assert len(all_events(tmp_path)) == charges * number
    assert len(rows_of(tmp_path)) == number
    assert [row.payload_kept for row in rows_of(tmp_path)] == [charges > 0] * number


def test_without_charge_only_the_last_round_is_answered_again(client, data, caplog):
    caplog.set_level("INFO")
    requests = [make_request(data, round=number) for number in (1, 2)]
    for request in requests:
        fit(client, request)
    assert "round 1 of job 'job' is stale" in refusal(client, requests[0], caplog)
    assert "asked again" not in caplog.text
    fit(client, requests[1])
    assert "round 2 asked again: sending what was sent" in caplog.text


def test_a_start_without_noise_leaves_no_state_and_is_answered_again(client, data, tmp_path):
    asked = make_request(data, anchors=())
    first, again = fit(client, asked), fit(client, asked)
    np.testing.assert_array_equal(first[0][0], again[0][0])
    assert first[0][0].shape == (21 * 20 // 2,)  # pairs of the 21 codes
    assert not list((tmp_path / "state").rglob("state-*"))
    later = make_request(data, round=2)
    assert [array.shape for array in fit(client, later)[0]] == [(9, 4), (12, 4)]


def test_a_state_that_is_not_what_was_sent_is_not_sent_in_its_place(client, data, tmp_path, caplog):
    fit(client, make_request(data))
    store = SiteStore(tmp_path / "state", "site-1", "job", tag_of(tmp_path, data))
    state = state_of(tmp_path, data)
    patients, *features = state.factors
    store.save(replace(state, factors=(patients, *(2 * factor for factor in features))))
    text = refusal(client, make_request(data), caplog)
    assert "round 1 of job 'job' has its release already" in text
    store.save(replace(state, factors=(2 * patients, *features)))  # those were never sent
    fit(client, make_request(data))
    (tmp_path / "state" / "site-1" / "job" / "state-000001.npz").unlink()
    assert "round 1 of job 'job' is stale" in refusal(client, make_request(data), caplog)
    assert len(rows_of(tmp_path)) == 1


def test_noise_differs_between_jobs(data, tmp_path):
    """Fresh noise each time: two jobs that ask the same get different bytes."""
    client = make_noisy_client(data, tmp_path)
    request = make_request(data, solver=PAPER, privacy=PrivacySettings(privacy="paper"))
    first, _, _ = fit(client, request)
    other, _, _ = fit(client, replace(request, job="other"))
    assert not np.array_equal(first[0], other[0])


def test_an_asked_again_round_with_another_content_is_stale(client, data, caplog):
    fit(client, make_request(data))
    text = refusal(client, make_request(data, seed=4), caplog)
    assert "round 1 of job 'job' is stale" in text


def test_rounds_go_on_from_the_state(client, data, tmp_path):
    # With the paper's weight: with a relative one, features begin at the global factors.
    own = SolverSettings(rank=4, gamma=5.0)
    fit(client, make_request(data, solver=own))
    fit(client, make_request(data, solver=own, round=2))
    lines = (tmp_path / "state" / "site-1" / "job" / "history.jsonl").read_text().splitlines()
    first, second = (json.loads(line) for line in lines)
    assert second["objective"][0] == pytest.approx(first["objective"][-1], rel=1e-4)


def test_a_privacy_mode_the_site_did_not_name_is_refused(data, tmp_path, caplog):
    client = make_noisy_client(data, tmp_path)
    assert "allow-privacy is 'paper'" in refusal(client, make_request(data), caplog)
    assert not (tmp_path / "state").exists()


def test_a_solver_that_the_site_has_no_code_for_is_refused_and_nothing_is_left(
    data, tmp_path, caplog
):
    client = make_client(data, tmp_path)
    asked = make_request(
        data, solver=SolverSettings(rank=4, solver="adam", relative_l21=0.0, mu=0.0)
    )
    assert "adam" in refusal(client, asked, caplog)
    fit(client, make_request(data))


def test_a_budget_the_site_capped_is_not_exceeded(data, tmp_path, caplog):
    client = make_noisy_client(data, tmp_path, max_epsilon=1.0)
    privacy = PrivacySettings(privacy="paper", epsilon=1.2)
    request = make_request(data, solver=PAPER, privacy=privacy)
    refused_at = None
    for number in range(1, 6):
        try:
            fit(client, replace(request, round=number))
        except RoundRefusedError as error:
            assert "privacy-refused" in str(error)  # noqa: PT017
            refused_at = number
            break
    assert refused_at is not None
    assert refused_at > 1
    assert len(all_events(tmp_path)) == 2 * (refused_at - 1)


def test_a_budget_may_be_spent_to_the_last(data, tmp_path, caplog):
    request = make_request(
        data, solver=PAPER, privacy=PrivacySettings(privacy="paper", epsilon=1.2)
    )
    fit(make_noisy_client(data, tmp_path / "free"), request)
    spent = account(all_events(tmp_path / "free"), SiteSettings().budget_delta).headline.epsilon
    fit(make_noisy_client(data, tmp_path / "exact", max_epsilon=spent), request)
    less = make_noisy_client(data, tmp_path / "less", max_epsilon=spent * (1 - 1e-12))
    assert "max-epsilon is" in refusal(less, request, caplog)


def test_the_server_cannot_widen_the_budget_by_naming_a_large_delta(data, tmp_path, caplog):
    client = make_noisy_client(data, tmp_path, max_epsilon=0.5)
    privacy = PrivacySettings(privacy="paper", epsilon=5.0, delta=0.4)
    request = make_request(data, solver=PAPER, privacy=privacy)
    assert "at delta 1e-05" in refusal(client, request, caplog)


def test_a_new_job_does_not_make_a_new_budget(data, tmp_path):
    client = make_noisy_client(data, tmp_path, max_epsilon=4.0)
    privacy = PrivacySettings(privacy="paper", rho=0.01)
    request = make_request(data, solver=PAPER, privacy=privacy)
    accepted = 0
    for number in range(100):
        try:
            fit(client, replace(request, job=f"job-{number}"))
        except RoundRefusedError:
            break
        accepted += 1
    events = all_events(tmp_path)
    assert len(events) == 2 * accepted
    assert account(events, 1e-5).headline.epsilon <= 4.0
    assert account(events + events[:2], 1e-5).headline.epsilon > 4.0


def test_requests_at_the_same_time_make_one_release(data, tmp_path):
    """Threads stand for the processes that a deployment starts, one a message."""
    request = make_request(data, solver=PAPER, privacy=PrivacySettings(privacy="paper"))
    with ThreadPoolExecutor(4) as pool:
        clients = [make_noisy_client(data, tmp_path) for _ in range(4)]
        replies = list(pool.map(lambda client: fit(client, request)[0][0], clients))
    for reply in replies[1:]:
        np.testing.assert_array_equal(reply, replies[0])
    assert len(all_events(tmp_path)) == 2


def test_settings_cannot_change_in_the_middle_of_a_job(data, tmp_path, caplog):
    """State carries un-noised factors: a smaller step in round 2 must not publish round 1's."""
    client = make_noisy_client(data, tmp_path)
    first = make_request(data, solver=PAPER, privacy=PrivacySettings(privacy="paper"))
    fit(client, first)
    for changes in (
        {"solver": replace(PAPER, eta=1e-8)},
        {"solver": replace(PAPER, clip=1e-6)},
        {"privacy": PrivacySettings(privacy="paper", epsilon=9.0)},
        {"rounds": 50},
        {"seed": 4},
    ):
        asked = replace(first, round=2, **changes)
        assert "settings of job 'job' have changed" in refusal(client, asked, caplog)
    fit(client, replace(first, round=2))


def test_an_over_budget_request_is_refused_before_any_patient_is_looked_at(
    data, tmp_path, caplog, monkeypatch
):
    def touch(*_args, **_kwargs):
        raise AssertionError("looked at the patients")

    client = make_noisy_client(data, tmp_path, max_epsilon=0.01)
    for place in (
        "dpfact_flower.site.elastic.run_round",
        "dpfact_flower.site.elastic.ElasticRound.run",
    ):
        monkeypatch.setattr(place, touch)
    request = make_request(data, solver=PAPER, privacy=PrivacySettings(privacy="paper"))
    assert "max-epsilon is 0.01" in refusal(client, request, caplog)


@pytest.mark.parametrize("error", [DivergenceError("x"), DataError("x"), ValueError("x")])
def test_whatever_fails_on_the_data_leaves_as_one_code(client, data, monkeypatch, error):
    def fail(*_args, **_kwargs):
        raise error

    monkeypatch.setattr("dpfact_flower.site.elastic.run_round", fail)
    with pytest.raises(RoundRefusedError, match=r"^dpfact:failed "):
        fit(client, make_request(data))


def test_a_request_for_too_much_is_refused(data, tmp_path, caplog):
    client = make_client(data, tmp_path, max_rank=3, max_tau=2)
    assert "this site's limit is 3" in refusal(client, make_request(data), caplog)
    asked = make_request(data, solver=SolverSettings(rank=3, tau=3))
    assert "this site's limit is 2" in refusal(client, asked, caplog)


def test_an_unwritable_diary_does_not_undo_a_release(client, data, monkeypatch):
    def fail(*_args):
        raise OSError("no space")

    monkeypatch.setattr("dpfact_flower.site.store.SiteStore.note", fail)
    arrays, _, _ = fit(client, make_request(data))
    assert np.isfinite(arrays[0]).all()


def test_what_a_killed_process_left_is_swept(client, data, tmp_path):
    fit(client, make_request(data))
    folder = tmp_path / "state" / "site-1" / "job"
    for number in (1, 2):
        torn = folder / f".state-{number:06d}.npz.killed"
        torn.write_bytes(b"half a file of patient factors")
    for number in (2, 3):
        fit(client, make_request(data, round=number))
    assert not list(folder.glob(".state-*"))


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"allow_privacy": "paper"}, "max-epsilon: must be above 0"),
        ({"allow_privacy": "none", "max_epsilon": 2.0}, "max-epsilon"),
        ({"allow_privacy": "none,paper", "max_epsilon": 2.0}, "would void max-epsilon"),
        ({"state_dir": "relative/state"}, "absolute"),
    ],
)
def test_choices_that_would_fail_open_are_refused(data, tmp_path, choices, says):
    with pytest.raises(SettingsError, match=says):
        make_client(data, tmp_path, **choices)


def test_seeded_noise_is_refused_outside_simulation(data, tmp_path, caplog):
    client = make_noisy_client(data, tmp_path)
    privacy = PrivacySettings(privacy="paper", noise_seed=1)
    text = refusal(client, make_request(data, solver=PAPER, privacy=privacy), caplog)
    assert "noise-seed" in text


BAD_REQUESTS = {
    "vocabulary": ({"vocabulary": "0" * 64}, "digests differ"),
    "too many codes": ({"anchors": initial_factors((9, 13), 4, 0)}, "sizes (9, 13)"),
    "a mode too many": ({"anchors": initial_factors((9, 12, 3), 4, 0)}, "sizes (9, 12, 3)"),
    "a mode missing": ({"anchors": initial_factors((9,), 4, 0)}, "sizes (9,)"),
    "other rank": ({"anchors": initial_factors((9, 12), 3, 0)}, "need shape (features, 4)"),
    "huge": ({"anchors": (np.full((9, 4), 1e19, np.float32),) * 2}, "beyond 1e+06"),
    "not finite": ({"anchors": (np.full((9, 4), np.nan, np.float32),) * 2}, "not finite"),
    "job leads out of the folder": ({"job": "../../elsewhere"}, "job"),
    "job empty": ({"job": ""}, "job"),
    "round 0": ({"round": 0}, "round: must be at least 1"),
}


@pytest.mark.parametrize(("changes", "says"), BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_a_bad_request_is_refused_at_the_door(client, data, tmp_path, caplog, changes, says):
    assert says in refusal(client, make_request(data, **changes), caplog)
    assert not (tmp_path / "state").exists()
    fit(client, make_request(data))  # the site is unharmed


@pytest.mark.parametrize("key", ["rank", "eta", "privacy", "job", "round", "seed", "solver"])
def test_a_mistyped_config_is_refused(client, data, key):
    arrays, config = make_request(data).to_wire()
    with pytest.raises(RoundRefusedError, match=r"dpfact:message"):
        client.fit(arrays, {**config, key: [1]})


def test_a_site_without_nonzeros_says_so(data, tmp_path, caplog):
    nothing = SparseTensor.from_coo(np.empty((0, 3)), [], data.tensor.shape)
    client = make_client(replace(data, tensor=nothing), tmp_path)
    assert "no non-zeros" in refusal(client, make_request(data), caplog)


def test_an_unexpected_error_keeps_its_text_from_server_and_log(client, data, caplog, monkeypatch):
    def fail(*_args, **_kwargs):
        raise ValueError("could not convert 'Jane Doe MRN 12345'")

    monkeypatch.setattr("dpfact_flower.site.elastic.run_round", fail)
    text = refusal(client, make_request(data), caplog)
    assert "unexpected ValueError" in text
    assert "Jane" not in text


def test_logs_hold_no_patient_value(client, data, caplog):
    with caplog.at_level(logging.DEBUG):
        fit(client, make_request(data))
    for record in caplog.records:
        assert str(data.tensor.n_patients) not in record.getMessage().split()


def test_evaluate_and_get_parameters_are_refused(client):
    with pytest.raises(RoundRefusedError):
        client.evaluate([], {})
    with pytest.raises(RoundRefusedError):
        client.get_parameters({})


@pytest.mark.parametrize("key", ["state_dir", "allow_privacy"])
def test_what_a_site_must_choose_for_itself_has_no_default(data, tmp_path, key):
    with pytest.raises(SettingsError, match=key.replace("_", "-")):
        make_client(data, tmp_path, **{key: ""})


def test_the_sites_own_mu_switches_phenotypes_off_for_it_alone(data, tmp_path):
    client = make_client(data, tmp_path, site_mu=1e6)
    fit(
        client,
        make_request(data, solver=SolverSettings(rank=4, relative_l21=0.001, mu_from_round=1)),
    )
    assert (state_of(tmp_path, data).factors[0] == 0).all()


def test_the_sites_own_mu_of_0_switches_nothing_off_whatever_the_run_asks(data, tmp_path):
    asked = SolverSettings(rank=4, relative_l21=0.9, mu_from_round=1)
    fit(make_client(data, tmp_path / "own", site_mu=0.0), make_request(data, solver=asked))
    plain = replace(asked, mu=0.0, relative_l21=0.0)
    fit(make_client(data, tmp_path / "plain"), make_request(data, solver=plain))
    own, expected = (state_of(tmp_path / name, data).factors for name in ("own", "plain"))
    np.testing.assert_array_equal(own[0], expected[0])


def test_a_data_file_is_read_again_when_it_changes(cohort, tmp_path):
    path = tmp_path / "site.npz"
    cohort.sites[0].save(path)
    assert load_site(path) is load_site(path)
    cohort.sites[1].save(path)
    assert load_site(path).name == "site-2"


def test_a_missing_data_file_is_a_clear_error(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        load_site(tmp_path / "absent.npz")


# --- folders of others, and lines of the log


PLACES = {"state-dir": "state", "site": "state/site-1", "job": "state/site-1/job",
          "ledger": f"state/site-1/{LEDGER}"}  # fmt: skip


@pytest.mark.parametrize("how", ["link", "writable", "owner"])
@pytest.mark.parametrize("place", PLACES)
def test_what_others_could_change_is_refused_and_nothing_is_read_or_written(
    data, tmp_path, caplog, monkeypatch, place, how
):
    client, path = make_client(data, tmp_path), tmp_path / PLACES[place]
    fit(client, make_request(data))
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
    log = refusal(client, make_request(data, round=2), caplog)
    assert f"state: {path}: " in log
    assert _listed(tmp_path) == before


def _owned(found, user):
    return os.stat_result([*found[:4], user, *found[5:10]])


def _listed(folder):
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}


def test_a_state_dir_that_anybody_may_move_away_is_refused(data, tmp_path, caplog):
    tmp_path.chmod(0o777)
    log = refusal(make_client(data, tmp_path), make_request(data), caplog)
    tmp_path.chmod(0o700)
    assert "anybody may write to it" in log
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o002], ids=oct)
def test_whatever_the_umask_what_a_site_makes_is_its_own(data, tmp_path, mask):
    before = os.umask(mask)
    try:
        fit(make_client(data, tmp_path), make_request(data))
    finally:
        os.umask(before)
    for path in (tmp_path / "state", *(tmp_path / "state").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize(
    "changes",
    [{"update": "x" * 100_000}, {"solver": "x" * 100_000}, {"job": "x" * 100_000},
     {"rank": 10**60}, {"protocol": "x" * 100_000}, {"seed": 10**5000}, {"tau": "9\n" * 50_000}],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_no_request_makes_a_long_line_in_the_log(client, data, caplog, changes):
    arrays, config = make_request(data).to_wire()
    with caplog.at_level(logging.DEBUG), pytest.raises(RoundRefusedError, match="message"):
        client.fit(arrays, {**config, **changes})
    for record in caplog.records:
        assert len(record.getMessage()) < 500
        assert record.getMessage().isprintable()


def test_a_long_error_is_cut_off_in_the_log(caplog):
    log_privately("north", DataError("x" * 100_000))
    assert len(caplog.records[-1].getMessage()) < 1000
