"""The end of a run: the site's stored request, and its own model, for which no message waits."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dpfact_flower.client_app import DPFactClient
from dpfact_flower.errors import DataError, MessageError, StateError
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.settings import PrivacySettings, RunSettings
from dpfact_flower.site import refit as refit_module
from dpfact_flower.site.refit import refit, unfitted
from dpfact_flower.site.store import SiteStore
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.wire.protocol import RoundRequest
from tests.bits import assert_bits
from tests.site import federation
from tests.site.federation import Watched, ask, go_to, make_settings, raising, rows_of, store_of

PRIVACY = PrivacySettings(start_share=0.8, refine_rounds=1)
CODES = PrivacySettings(start_share=0.8, refine_rounds=1, codes="6x8")


def make_client(data, tmp_path, **settings) -> DPFactClient:
    return federation.make_client(data, tmp_path, **{"max_epsilon": 50.0, **settings})


def make_server(data, privacy=PRIVACY, job="job") -> Coordinator:
    return federation.make_server(data, privacy, job=job)


def ended(data, tmp_path, privacy=PRIVACY) -> RoundRequest:
    """Return the last request of a finished run."""
    server = make_server(data, privacy)
    return go_to(make_client(data, tmp_path), server, server.rounds)[-1][0]


def files(tmp_path) -> set[str]:
    return {path.name for path in (tmp_path / "state").rglob("*") if path.is_file()}


@pytest.mark.parametrize("privacy", [PRIVACY, CODES], ids=["all codes", "codes counted"])
def test_the_end_of_a_run_is_answered_without_a_look_at_a_patient(data, tmp_path, privacy):
    server = make_server(data, privacy)
    go_to(make_client(data, tmp_path), server, server.rounds - 1)
    before = files(tmp_path)
    source = Watched(data)
    release = make_client(source, tmp_path).site.answer(server.request(server.rounds))
    assert (release.arrays, release.events) == ((), ())
    assert not source.read_by_now
    assert files(tmp_path) == before | {"ending.npz"}
    assert [row.round for row in rows_of(tmp_path)] == list(range(1, server.rounds))
    late = make_client(data, tmp_path / "late")  # of which only one reply was asked for
    for number in (server.rounds - 1, server.rounds):
        ask(late, replace(server.request(number), answered={}))
    assert [row.round for row in rows_of(tmp_path / "late")] == [server.rounds - 1]


def test_the_first_end_counts(data, tmp_path):
    """A server cannot make a site fit many models to made-up factors."""
    last = ended(data, tmp_path)
    other = make_server(data)
    other.rule.factors, other.rule.started = tuple(f + 1 for f in last.anchors), True
    ask(make_client(data, tmp_path), other.request(other.rounds))
    assert_bits(store_of(data, tmp_path).ending()[0], last.anchors)


@pytest.mark.parametrize("rows", [0, 1])
def test_the_end_of_a_run_that_nothing_was_charged_in_is_refused(data, tmp_path, rows):
    """Otherwise, a server could send unlimited requests without a charge."""
    source = Watched(data)
    site = make_client(source, tmp_path).site
    if rows:  # from another run
        go_to(make_client(data, tmp_path), make_server(data, job="paid"), 1)
    server = make_server(data, job="free")
    server.rule.started = True
    before = files(tmp_path) if rows else set()
    for _ in range(20):
        with pytest.raises(MessageError, match="free"):
            site.answer(server.request(server.rounds))
    assert files(tmp_path) - {".lock"} == before - {".lock"}
    assert not source.read_by_now


def test_a_changed_setting_is_refused_at_the_end_too(data, tmp_path):
    server = make_server(data)
    client = make_client(data, tmp_path)
    go_to(client, server, server.rounds - 1)
    other = make_server(data)
    other.run = RunSettings(job="job", seed=4)
    other.rule.factors, other.rule.started = server.factors, True
    with pytest.raises(MessageError, match="settings of job 'job' have changed"):
        client.site.answer(other.request(other.rounds))


def test_an_end_that_cannot_be_kept_is_answered_all_the_same(data, tmp_path, monkeypatch, caplog):
    server = make_server(data)
    client = make_client(data, tmp_path)
    go_to(client, server, server.rounds - 1)
    monkeypatch.setattr(SiteStore, "keep_ending", raising(OSError(28, "No space left")))
    (secret := tmp_path / "state" / "site-1" / "job" / "secure-job.json").touch()
    assert client.site.answer(server.request(server.rounds)).arrays == ()
    assert "No space left" in caplog.text
    assert not secret.exists()  # as docs/explanation/secure-sums.md promises
    assert unfitted(tmp_path / "state" / "site-1") == []


@pytest.mark.parametrize("privacy", [PRIVACY, CODES], ids=["all codes", "codes counted"])
def test_a_refit_leaves_the_sites_own_model(data, tmp_path, privacy, monkeypatch):
    last = ended(data, tmp_path, privacy)
    given, waited, solved = [], [], refit_module.solved
    monkeypatch.setattr("os.fsync", waited.append)
    noted = lambda *each: given.append(each[3]) or solved(*each)  # noqa: E731
    monkeypatch.setattr(refit_module, "solved", noted)
    assert unfitted(tmp_path / "state" / "site-1") == ["job"]
    measures = refit(data, make_settings(tmp_path), "job")
    assert unfitted(tmp_path / "state" / "site-1") == []
    store = store_of(data, tmp_path)
    state = store.load()
    assert state.round == last.round == measures.round
    assert state.factors[0].shape == (data.tensor.n_patients, 4)
    assert [len(f) for f in state.factors[1:]] == [len(a) for a in last.anchors]
    assert measures.error.fit > 0
    assert [(solver.tau, solver.mu > 0) for solver in given] == [(10, True)]
    assert store.history() == [measures]
    assert len(waited) == 2  # the model and its name


def test_a_refit_repeats_bit_for_bit(data, tmp_path):
    ended(data, tmp_path)
    factors = []
    for _ in range(2):
        refit(data, make_settings(tmp_path), "job")
        factors.append(store_of(data, tmp_path).load().factors)
    assert_bits(*factors)


def test_a_run_that_has_not_ended_cannot_be_refitted(data, tmp_path):
    server = make_server(data)
    go_to(make_client(data, tmp_path), server, server.rounds - 1)
    with pytest.raises(StateError, match="has not ended here"):
        refit(data, make_settings(tmp_path), "job")


def test_other_data_is_not_refitted(data, cohort, tmp_path):
    ended(data, tmp_path)
    with pytest.raises(StateError, match="made from different data"):
        refit(cohort.sites[1], make_settings(tmp_path, site="site-1"), "job")


def test_a_site_without_the_runs_codes_is_told(data, tmp_path):
    nobody = replace(data, tensor=SparseTensor.from_coo([], [], data.tensor.shape))
    ended(nobody, tmp_path)
    with pytest.raises(DataError, match="no patient has any of the run's codes"):
        refit(nobody, make_settings(tmp_path), "job")


def test_what_is_kept_of_the_end_is_public(data, tmp_path):
    last = ended(data, tmp_path)
    (path,) = tmp_path.rglob("ending.npz")
    with np.load(path) as archive:
        told = json.loads(str(archive["head"]))
    assert last.answered
    # A server could fill the disk with `answered`, whose size has no limit.
    assert told["config"] == replace(last, answered={}).to_wire()[1]
    assert set(told) == {"config", "fingerprint", "arrays"}
