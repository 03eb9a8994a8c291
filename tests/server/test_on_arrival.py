"""Replies used on arrival, from sites that the test plays: each reply is halfway to a target.

The limit of synchronous rounds is then known: the mean of the sites' targets.
"""

import heapq

import numpy as np
import pytest

from dpfact_flower import legacy
from dpfact_flower.errors import SettingsError
from dpfact_flower.estimation import codes
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.elastic import ElasticRule
from dpfact_flower.server.history import Failure, RoundRecord, read_history
from dpfact_flower.server.on_arrival import OnArrival, _Site
from dpfact_flower.server.rule import ServerRule
from dpfact_flower.server.rules import server_rules
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.tensor.triangle import strict_size
from dpfact_flower.wire.protocol import SiteReply
from tests.bits import assert_bits
from tests.server.test_elastic_start import OwnUpdate

SHAPE, RANK = (4, 3), 2
NONE = PrivacySettings(privacy="none")
SOLVER = SolverSettings(rank=RANK)


def run_settings(**changes) -> RunSettings:
    given = {"rounds": 5, "start": "random", "aggregation": "async", "job": "j"}
    return RunSettings(**given | changes)


def on_arrival(options=None, privacy=NONE, **run) -> OnArrival:
    given = {"solver": SOLVER, "privacy": privacy, "run": run_settings(**run)}
    return OnArrival(SHAPE, **given, **options or {})


def rule(**run) -> ElasticRule:
    return ElasticRule(SHAPE, SOLVER, NONE, run_settings(**run))


def wish(site: str) -> list[np.ndarray]:
    rng = np.random.default_rng(list(site.encode()))
    return [rng.random((size, RANK)) for size in SHAPE]


def reply(site: str, request) -> SiteReply:
    halfway = [(a + w) / 2 for a, w in zip(request.anchors, wish(site), strict=True)]
    return SiteReply(site, tuple(factor.astype(np.float32) for factor in halfway))


def close(it, number, sites, failures=()) -> None:
    request = it.request(number)
    it.close_round(number, [reply(site, request) for site in sites], failures)


def play(it: OnArrival, seconds: dict[str, float]) -> float:
    """Play a run in which each site takes the given seconds, and return the time of its end."""
    close(it, 1, seconds)
    now, due = 0.0, []
    while not it.is_over:
        it.advance(seconds, now)
        for site, takes in seconds.items():
            if request := it.ask(site):
                heapq.heappush(due, (now + takes, site, request))
        if not due:
            continue
        now = due[0][0]
        while due and due[0][0] == now:
            _, site, request = heapq.heappop(due)
            it.take(site, reply(site, request))
    return now


@pytest.mark.parametrize("sites", [["a"], ["a", "b", "c"]], ids=["one site", "three"])
def test_sites_that_are_equally_fast_give_the_bits_of_a_run_in_step(sites):
    it = on_arrival()
    play(it, dict.fromkeys(sites, 1.0))
    run = run_settings(aggregation="sync")
    in_step = Coordinator(SHAPE, solver=SOLVER, privacy=NONE, run=run)
    for number in range(1, run.rounds + 1):
        close(in_step, number, sites)
    assert_bits(it.factors, in_step.factors)
    assert [[tuple(a)[:3] for a in record.arrivals] for record in it.records[1:]] == [
        [(site, number, n) for n, site in enumerate(sites)] for number in range(2, 6)
    ]


def test_a_round_counts_its_own_traffic():
    it = on_arrival()
    close(it, 1, "a")
    it.count(bytes_down=3)
    it.take("a", reply("a", it.ask("a")))
    it.advance("a", 1.0)
    it.count(bytes_up=7)
    it.take("a", reply("a", it.ask("a")))
    it.advance("a", 2.5)
    found = [(r.bytes_down, r.bytes_up, r.seconds, r.quorum_seconds, r.updated) for r in it.records]
    assert found[1:] == [(3, 0, 1.0, 0.0, True), (0, 7, 1.5, 0.0, True)]


def test_who_is_fast_does_not_count_more():
    """Each round halves the distance to the mean of the targets, and 2 ** -60 is negligible.

    Only the rounding of a mean of six and of a half remains, each an eps of numbers below 1.
    """
    sites = {"abcdef"[n]: 1.0 for n in range(5)} | {"f": 0.1}
    it = on_arrival(rounds=60)
    play(it, sites)
    for got, *wanted in zip(it.factors, *map(wish, sites), strict=True):
        np.testing.assert_allclose(got, np.mean(wanted, axis=0), atol=4 * np.finfo(np.float32).eps)


@pytest.mark.slow
def test_who_is_slow_counts_less_the_staler_its_last_reply_is():
    """Five of six sites move the model 5 times a second.

    Between two replies of the slow site, its last reply is 50 / 6 to 101 / 6 rounds old. So it has
    a share s of 1 / 7.4 to 1 / 15.9, and the model moves 6 s / (5 + s) of the way from the mean of
    the other sites to the mean of all.
    """
    sites = {"abcdef"[n]: 1.0 for n in range(5)} | {"f": 10.0}
    it = on_arrival(rounds=400)
    assert play(it, sites) < 410  # synchronous: 4000
    for got, *wanted in zip(it.factors, *map(wish, sites), strict=True):
        others, way = np.mean(wanted[:5], axis=0), np.mean(wanted, axis=0) - np.mean(wanted[:5], 0)
        share = np.sum((got - others) * way) / np.sum(way**2)
        assert 6 / 15.9 / (5 + 1 / 15.9) < share < 6 / 7.3 / (5 + 1 / 7.3)


def test_who_is_fast_is_a_round_ahead_at_most_and_who_is_slow_goes_on_where_the_others_are():
    it = on_arrival(rounds=40)
    play(it, {"a": 1.0, "b": 1.0, "c": 1.0, "fast": 0.01, "slow": 10.0})
    rounds = {name: [] for name in ("a", "fast", "slow")}
    for record in it.records:
        for each in record.arrivals:
            rounds.get(each.site, []).append(each.round)
    assert [max(a.round - r.round for a in r.arrivals) for r in it.records[1:]] == [1] * 38 + [0]
    assert rounds["fast"] == rounds["a"] == list(range(2, 41))
    assert rounds["slow"] == [2, 12, 22, 32]
    # Four sites in ten seconds, and in the nine seconds until the others' last round. "fast" may be
    # ahead, and other sites of the same second may have arrived just before.
    stale = [each.staleness for r in it.records for each in r.arrivals if each.site == "slow"]
    assert [abs(n - 4 * s) <= 4 for n, s in zip(stale, [10, 10, 10, 9], strict=True)] == [True] * 4
    last = [_Site(based=it._version + 1 - 3 * age) for age in (1, 2, 3, 5)]
    assert [it._share(site, 3) for site in last] == [1, 1, 1 / 2, 1 / 4]  # of three sites
    assert [it._enough(sites) for sites in range(6)] == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("since", [1, 2])
def test_a_stale_reply_of_a_site_that_came_back_takes_nothing_from_what_it_said_since(since):
    ends = []
    for comes in (False, True):
        it = on_arrival(rounds=9)
        close(it, 1, "abc")
        old = it.ask("node 9")
        assert [request.round for request in it.questions()] == [9]
        for now in range(since):
            for site in "abc":
                it.take(site, reply(site, it.ask(site)))
            it.advance("abc", float(now))
        if comes:
            it.take("node 9", reply("c", old))
            assert not it.records[-1].failures
        it.take("a", reply("a", it.ask("a")))
        it.advance("abc", 3.0)
        ends.append((it.factors, it._answered(since + 1)))
    assert_bits(ends[1][0], ends[0][0])
    assert ends[1][1] == ends[0][1] == 3


def test_as_many_arrivals_as_sites_pull_as_far_as_one_round():
    """With a step of 0.1 and three sites, 0.7 of the way remains, and 0.7 ** (1/3) per arrival.

    Each of four moves is rounded to float32, for numbers below 1.
    """
    replies = [SiteReply(s, tuple(w.astype(np.float32) for w in wish(s))) for s in "abc"]
    once, often = (rule(elastic_step=0.1) for _ in range(2))
    once.update(1, replies)
    for _ in replies:
        often.arrive(1, replies, [1.0] * 3)
    for got, want in zip(often.factors, once.factors, strict=True):
        np.testing.assert_allclose(got, want, atol=4 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("sites", [1, 49])
def test_however_many_sites_there_are_the_mean_is_reached_at_once(sites):
    """49 * (1 / 49) is not 1, and the 49th root of the remainder would be about a half."""
    replies = [SiteReply("s", tuple(w.astype(np.float32) for w in wish("a")))] * sites
    it = rule()
    it.arrive(1, replies, [1.0] * sites)
    for got, want in zip(it.factors, wish("a"), strict=True):
        np.testing.assert_allclose(got, want, atol=2 * np.finfo(np.float32).eps)


@pytest.mark.parametrize(("step", "used"), [(0.0, ""), (0.0, "ab"), (0.2, "")])
def test_a_share_is_what_a_reply_counts_by(step, used):
    it = rule(elastic_step=step)
    it._usage = dict.fromkeys(used, np.ones(RANK))
    before = it.factors
    ones, zeros = (tuple(np.full_like(f, v) for f in before) for v in (1, 0))
    it.arrive(1, [SiteReply("a", ones), SiteReply("b", zeros)], [0.4, 0.1])
    way = 1 - (1 - 2 * step) ** (1 / 2) if step else 1.0
    for got, was in zip(it.factors, before, strict=True):
        # A mean of two and a move, rounded once to float32, for numbers up to 1.
        np.testing.assert_allclose(got, was + way * (0.8 - was), atol=np.finfo(np.float32).eps)


def test_until_a_site_has_answered_after_the_start_it_stands_for_the_start():
    it = on_arrival(start="cooccurrence")
    assert it.rounds_in_step == 1
    pairs = np.ones(strict_size(sum(SHAPE)), np.float32)
    it.close_round(1, [SiteReply(site, (pairs,)) for site in "ab"], [])
    before = it.factors
    request = it.ask("a")
    it.take("a", reply("a", request))
    assert it._share(it._sites["b"], 1) == 1 / 2  # three versions of the model old
    for got, start, new in zip(it.factors, before, reply("a", request).arrays, strict=True):
        assert (got != start).any()
        assert (np.abs(got - new) > 1e-3).any()  # b counts


@pytest.mark.slow
def test_a_start_of_two_rounds_is_in_step(monkeypatch):
    monkeypatch.setattr(codes, "_MOST_PAIRED", 6)
    monkeypatch.setattr(codes, "_FREQUENT", 4)
    it = on_arrival(start="cooccurrence")
    assert it.rounds_in_step == 2
    it.close_round(1, [SiteReply(site, (np.arange(7, dtype=np.float32),)) for site in "ab"], [])
    assert it.rounds_in_step == 2
    it.close_round(2, [SiteReply("a", (np.ones(strict_size(4), np.float32),))], [])
    assert (it.rounds_in_step, it._answered(2)) == (1, 1)
    request = it.ask("a")
    assert [anchor.shape for anchor in request.anchors] == [(4, RANK), (3, RANK)]
    answer = reply("a", request)
    it.take("a", answer)  # b, which was absent at the start, does not count yet
    for got, new in zip(it.factors, answer.arrays, strict=True):
        np.testing.assert_allclose(got, new, rtol=1e-6)


def test_a_site_that_refuses_is_asked_once_a_round_and_a_run_of_refusals_ends(caplog):
    it = on_arrival(rounds=3)
    close(it, 1, ["a"], [Failure("node 3", "dpfact:data")])
    here, asked = ["a", "node 3"], []
    while not it.is_over:
        for who in here:
            if it.ask(who):
                asked.append((who, it.current_round))
                it.fail(who, "dpfact:data")
        it.advance(here, 0.0)
    assert asked == [("a", 2), ("node 3", 2), ("a", 3), ("node 3", 3)]
    assert [len(record.failures) for record in it.records] == [1, 2, 2]
    assert caplog.text.count("fewer sites than the quorum") == 2  # rounds 2 and 3


def test_the_last_round_waits_for_what_was_asked_and_asks_nobody_more():
    it = on_arrival(rounds=300)  # Python has several objects of a number above 256
    close(it, 1, "abc")
    it.records.append(RoundRecord(299, (), (), True, 0, 0, 0.0))
    requests = {site: it.ask(site) for site in "abc"}
    assert [request.round for request in it.questions()] == [300] * 4  # one for a new site
    for site in "ab":
        it.take(site, reply(site, requests[site]))
    it.advance("abc", 1.0)
    assert not it.is_over
    assert it.ask("new") is None
    it.take("c", reply("c", requests["c"]))
    it.advance("abc", 2.0)
    assert (it.is_over, it.records[-1].sites) == (True, ("a", "b", "c"))


def test_who_goes_on_asks_the_very_same_again_and_ends_with_the_same_bits(tmp_path):
    """The server is killed after it used one reply. Two others may have been charged."""
    out, whole = tmp_path / "run", on_arrival()
    play(whole, dict.fromkeys("abc", 1.0))
    it = on_arrival({"run_dir": out})
    it.begin()
    saves, save = [], it.save
    it.save = lambda: saves.append(save())
    close(it, 1, "abc")
    assert len(saves) == 1  # or a crash between two could lose the replies
    requests = {site: it.ask(site) for site in "abc"}
    it.take("a", reply("a", requests.pop("a")))
    it.fail("node 9", "dpfact:data")
    it.save()

    again = on_arrival({"run_dir": out, "resume": True})
    asked = again.waited_for
    assert asked.keys() == requests.keys()
    assert all(asked[who].digest == request.digest for who, request in requests.items())
    while not again.is_over:
        for site, request in sorted(asked.items()):
            again.take(site, reply(site, request))
        again.advance("abc", 0.0)
        asked = {site: r for site in "abc" if (r := again.ask(site))}
        again.save()
    assert_bits(again.factors, whole.factors)
    assert [r.arrivals for r in again.records] == [r.arrivals for r in whole.records]
    assert again.records[1].failures == (Failure("node 9", "dpfact:data"),)
    assert read_history(out) == again.records


def test_patient_mode_and_flowers_older_strategies_refuse_it_in_one_line():
    with pytest.raises(SettingsError, match="aggregation: 'async' is for modes none and paper"):
        on_arrival(privacy=PrivacySettings(patients=1000))
    with pytest.raises(SettingsError, match="aggregation: Flower's older strategies"):
        legacy.DPFact(SHAPE, solver=SOLVER, privacy=NONE, run=run_settings())
    run, privacy = RunSettings(sites=3, grace=5.0), PrivacySettings(secure_sums=True)
    with pytest.raises(SettingsError, match=r"^grace, secure-sums: Flower's older strategies"):
        legacy.DPFact(SHAPE, privacy=privacy, run=run)
    with pytest.raises(SettingsError, match="grace: has no meaning with aggregation 'async'"):
        run_settings(grace=5.0)


def test_a_rule_with_an_update_of_its_own_works_in_step(monkeypatch):
    monkeypatch.setitem(server_rules._more, "mine", OwnUpdate)
    with pytest.raises(SettingsError, match="aggregation: a rule with its own update"):
        on_arrival(rule="mine")
    monkeypatch.setattr(OwnUpdate, "arrive", ServerRule.arrive)
    with pytest.raises(SettingsError, match="has no method 'arrive'; use 'sync'"):
        on_arrival(rule="mine", start="random")
    monkeypatch.setitem(server_rules._more, "mine", lambda *_: object())
    with pytest.raises(SettingsError, match="rule: 'mine' must be a subclass of ServerRule"):
        on_arrival(rule="mine", start="random")
