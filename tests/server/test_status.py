"""The status of a run, read from its folder."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from dpfact_flower.errors import DataError, QuorumError, StateError
from dpfact_flower.evaluation.summarise import summarise
from dpfact_flower.privacy import account
from dpfact_flower.server import coordinator as coordinator_module
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.elastic import ElasticRule
from dpfact_flower.server.history import Failure, read_history
from dpfact_flower.server.on_arrival import OnArrival
from dpfact_flower.server.readiness import READINESS, Readiness, read_readiness, write_readiness
from dpfact_flower.server.rules import server_rules
from dpfact_flower.server.status import run_status
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.wire.protocol import SiteReply
from tests.crash import Killed, killed

SHAPE = (5, 4)
PATIENT = PrivacySettings(epsilon=4.0, delta=1e-5, refine_rounds=1, patients=100)
PAPER = PrivacySettings(privacy="paper", epsilon=2.0)
NORTH = Failure("north (node 12)", "no reply within 9 s")


def begun(folder, privacy=PATIENT, kind=Coordinator, *, resume=False, **run) -> Coordinator:
    solver = SolverSettings(rank=3, relative_l21=0.0, solver="psgd", clip=1.0)
    given = RunSettings(**{"job": "j", "min_sites": 2, "rounds": 4, **run})
    it = kind(SHAPE, privacy=privacy, solver=solver, run=given, run_dir=folder, resume=resume)
    it.begin()
    return it


@pytest.fixture(autouse=True)
def times(monkeypatch):
    """Rounds end a minute apart."""
    minutes = iter(range(60))
    monkeypatch.setattr(
        coordinator_module, "utc_now", lambda: f"2026-01-01T00:{next(minutes):02d}:00+00:00"
    )


def close(it: Coordinator, number: int, sites, failures=()):
    shapes = it.rule.reply_shapes(number)
    replies = [SiteReply(s, tuple(np.ones(shape, np.float32) for shape in shapes)) for s in sites]
    it.close_round(number, replies, failures)


def test_a_run_that_was_never_begun_says_why(tmp_path):
    with pytest.raises(StateError, match="no run was begun here"):
        run_status(tmp_path)
    write_readiness(tmp_path, [Readiness(12, fault="error 2: dpfact:state (details)")])
    written = (tmp_path / READINESS).read_text()
    assert written.endswith('(details)",\n  "version": "",\n  "clock": 0.0\n }\n]')
    with pytest.raises(StateError, match="in the preflight: node 12: error 2: dpfact:state: its"):
        run_status(tmp_path)


@pytest.mark.parametrize("text", [None, "[", '["no fields"]', '[{"node": 2, "more": 3}]'])
def test_damaged_answers_to_the_preflight_are_named(tmp_path, text):
    path = tmp_path / READINESS
    path.mkdir() if text is None else path.write_text(text)
    with pytest.raises(DataError, match=rf"{READINESS}: damaged \("):
        read_readiness(tmp_path)


@pytest.mark.slow
def test_sites_stand_by_name_with_what_each_was_charged(tmp_path):
    it = begun(tmp_path)
    ready = {8: ("away", "no answer within 9 s"), 9: ("away", "more"), 1: ("north", "dpfact:late")}
    write_readiness(tmp_path, [Readiness(node, *said) for node, said in ready.items()])
    close(it, 1, ("north", "south"), [Failure("west", reason) for reason in "abcd"])
    close(it, 2, ("south", "east"), [NORTH])
    found = run_status(tmp_path)
    assert (found.job, found.finished, found.rounds, found.is_finished) == ("j", 2, 4, False)
    assert found.last == "2026-01-01T00:01:00+00:00"
    sites = {site.name: site for site in found.sites}
    assert list(sites) == ["away", "east", "north", "south", "west"]
    north = sites["north"]
    assert (north.used, north.failed, north.reason) == (1, 1, f"dpfact:late; also {NORTH.reason}")
    assert north.last_seen == "2026-01-01T00:00:00+00:00"
    assert sites["south"].last_seen == found.last
    assert sites["away"].reason == "no answer within 9 s"
    assert sites["west"].reason == "b; also c; also d"
    for name, rounds in {"north": [1], "east": [2], "south": [1, 2], "away": []}.items():
        events = [event for number in rounds for event in it.rule.planned_events(number)]
        cost = account(events, 1e-5).headline.epsilon if events else 0.0
        assert sites[name].epsilon == cost
        assert sites[name].epsilon_unused == 0
    assert 0 < sites["east"].epsilon < sites["south"].epsilon


@pytest.mark.slow
@pytest.mark.parametrize("died", [False, True])
def test_what_was_paid_for_nothing_is_said_until_the_run_goes_on(tmp_path, monkeypatch, died):
    it = begun(tmp_path, min_sites=2 - died)
    monkeypatch.setattr(it.rule, "update", killed)
    with pytest.raises(Killed if died else QuorumError):
        close(it, 1, ("north",), [Failure("node 7", "error 5")])
    found = run_status(tmp_path)
    assert (found.finished, found.missed, read_history(tmp_path)[0].quorum_seconds) == (0, (1,), 0)
    north = next(site for site in found.sites if site.name == "north")
    assert (north.used, north.unused) == (0, 1)
    assert north.epsilon_unused == north.epsilon > 0
    again = begun(tmp_path, resume=True)
    assert run_status(tmp_path) == found
    close(again, 1, ("east", "south"))  # and the site that paid never returns
    found = run_status(tmp_path)
    assert (found.finished, found.missed) == (1, ())
    seen = [(site.name, site.used, site.unused, site.epsilon_unused) for site in found.sites]
    assert seen == [("east", 1, 0, 0), ("north", 0, 1, north.epsilon), ("south", 1, 0, 0)]
    spent = summarise(again, None, tmp_path, measured=False)[0].spent
    costs = {name: site.epsilon for name, site in spent.per_site.items()}
    assert costs == dict.fromkeys(("east", "north", "south"), north.epsilon)


def test_a_resumed_last_round_says_of_no_site_that_it_was_charged(tmp_path, monkeypatch):
    """It is free and not in the ledgers, so the sites would believe that theirs were replaced."""
    it, sites = begun(tmp_path), ("north", "south")
    for number in range(1, it.rounds + 1):
        monkeypatch.setattr(it.rule, "update", killed if number == it.rounds else lambda *_: None)
        with suppress(Killed):
            close(it, number, sites)
    answered = begun(tmp_path, resume=True).request(it.rounds).answered
    assert answered == dict.fromkeys(sites, it.rounds - 1)


@pytest.mark.parametrize("privacy", [PrivacySettings(privacy="none"), PAPER], ids=["none", "paper"])
def test_other_modes(tmp_path, privacy):
    it, bounded = begun(tmp_path, privacy, start="random"), privacy == PAPER
    for number in range(1, 5):
        close(it, number, ("north",) if number == 3 else ("north", "south"))
    found = run_status(tmp_path)
    assert (found.is_finished, found.missed, found.privacy) == (True, (3,), privacy.privacy)
    assert replace(found, rounds=3).is_finished
    north, south = found.sites
    assert (north.used, north.unused, south.used) == (3, 1, 3)
    assert (north.epsilon is not None) == bounded
    if bounded:
        assert 0 < north.epsilon_unused < north.epsilon
        assert north.epsilon == pytest.approx(2.0, rel=1e-6)


def test_a_rule_that_this_process_does_not_know_has_no_bound(tmp_path, monkeypatch):
    """Its sites' releases are unknown, although the mode has noise."""

    class Mine(ElasticRule):
        name = "mine"

    monkeypatch.setitem(server_rules._more, "mine", Mine)
    it = begun(tmp_path, PAPER, start="random", rule="mine")
    close(it, 1, ("north", "south"))
    (epsilon,) = {site.epsilon for site in run_status(tmp_path).sites}
    assert 0 < epsilon < 2
    monkeypatch.delitem(server_rules._more, "mine")
    assert {site.epsilon for site in run_status(tmp_path).sites} == {None}


def test_on_arrival_each_reply_is_charged(tmp_path):
    it = begun(tmp_path, PAPER, OnArrival, aggregation="async", start="random", min_sites=1)
    close(it, 1, ("fast", "other", "slow"))
    ones = tuple(np.ones(shape, np.float32) for shape in it.rule.reply_shapes(2))
    assert it.ask("slow")
    for _ in range(2):
        for site in ("fast", "other"):
            assert it.ask(site)
            it.take(site, SiteReply(site, ones))
        it.advance(("fast", "other", "slow"), 1.0)
    it.fail("slow", "no reply within 9 s")
    it.save()
    sites = {site.name: site for site in run_status(tmp_path).sites}
    assert [(s.used, s.unused, s.failed) for s in sites.values()] == [(3, 0, 0)] * 2 + [(1, 0, 0)]
    once = account(it.rule.planned_events(1), 1e-5).headline.epsilon
    assert sites["slow"].epsilon == pytest.approx(once)
    assert once < sites["fast"].epsilon
