"""Messages of a run with slow sites, with a simulated network and clock."""

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import pytest
from flwr.app import Error, Message, MetricRecord

from dpfact_flower import collect, connected, dispatcher
from dpfact_flower.errors import QuorumError
from dpfact_flower.server.history import read_history
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.strategy import DPFact
from dpfact_flower.wire import records
from tests.crash import Killed
from tests.test_collect import Delayed

SHAPE, RANK = (5, 7), 3
GONE, SILENT = Error(5, "node unavailable"), Error(0, "silent")
TWO = {2: ("a", 10), 3: ("b", 10)}
THREE = {**TWO, 4: ("c", 10)}


class Network(Delayed):
    """Sites by node, with their times in seconds, and a clock.

    Like a hospital, a site gives the same answer to a repeated question, and refuses other
    questions of that round. `faults` replaces the reply to the n-th message to a node.
    """

    def __init__(self, sites: dict[int, tuple[str, float]], faults=None, online=None) -> None:
        super().__init__()
        self.until = math.inf
        self.sites, self.faults, self.online = sites, faults or {}, online or {}
        self.busy: dict[int, float] = {}  # seconds until a node answers a preflight
        self.asked: dict[int, list[tuple[float, int]]] = defaultdict(list)
        self.lives: dict[int, list[float]] = defaultdict(list)
        self.kept: dict[str, dict[int, str]] = defaultdict(dict)
        self.paid: dict[str, int] = defaultdict(int)

    def get_node_ids(self) -> list[int]:
        return [node for node in self.sites if self.now < self.online.get(node, math.inf)]

    def answer(self, node: int, message: Message):
        name, seconds = self.sites[node]
        asked = records.read_request(message)
        self.lives[node].append(message.metadata.ttl)
        if message.metadata.message_type == "query":
            return self.busy.get(node, 0.0), self._answer(name, asked, query=True)
        fault = self.faults.get((node, len(self.asked[node]) + 1))
        self.asked[node].append((self.now, asked.config["round"]))
        takes = math.inf if fault is SILENT else seconds
        return takes, fault if fault else self._answer(name, asked, query=False)

    def _answer(self, name, asked, query):
        number = asked.config["round"]
        digest = b"".join(array.tobytes() for array in asked.arrays).hex()
        done = self.kept[name]
        if digest != done.get(number, digest) or (number not in done and number < max([0, *done])):
            return Error(2, "dpfact:message")
        if query:
            return records.answer([np.empty(0, np.float32)], 1, {"site": name})
        self.paid[name] += number not in done
        done[number] = digest
        wish = 0.1 * (1 + "abcdef".index(name))
        return records.answer([(a + np.float32(wish)) / 2 for a in asked.arrays], 1, {"site": name})

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        if self.now >= self.until:
            raise Killed
        return super().pull_messages(message_ids)


@pytest.fixture
def play(monkeypatch):
    def run(network, *, resume=False, run_dir=None, durable=False, last=None, **settings) -> DPFact:
        for module in (collect, connected, dispatcher):
            monkeypatch.setattr(module, "time", network)
        changes = {"rounds": 10, "start": "random", "aggregation": "async", "job": "j"} | settings
        it = DPFact(
            SHAPE, solver=SolverSettings(rank=RANK), privacy=PrivacySettings(privacy="none"),
            run=RunSettings(**changes), run_dir=run_dir, resume=resume, durable=durable,
        )  # fmt: skip
        it.result = it.start(network, None, last, evaluate_fn=lambda n, _: MetricRecord({"n": n}))
        return it

    return run


@pytest.fixture
def killed(play, tmp_path):
    """Start a run in `tmp_path` whose server is killed at a given time. Return its network."""

    def run(sites: dict[int, tuple[str, float]], until: float = 35.0) -> Network:
        network = Network(sites)
        network.until = until
        with pytest.raises(Killed):
            play(network, run_dir=tmp_path)
        return network

    return run


def failures(it: DPFact) -> list[tuple[str, str]]:
    return [(f.who, f.reason) for record in it.coordinator.records for f in record.failures]


def test_a_slow_site_holds_nobody_up_and_counts(play):
    network = Network({**THREE, 5: ("d", 100)})
    it = play(network)
    # The first round takes 100 s, and the other nine 10 s and a poll each. The slow site's second
    # reply is requested together with the others and awaited.
    assert 190 <= network.now <= 206
    assert [number for _, number in network.asked[2]] == list(range(1, 11))
    assert [number for _, number in network.asked[5]] == [1, 2]
    assert failures(it) == []
    (late,) = [a for r in it.coordinator.records for a in r.arrivals if a.site == "d"]
    assert late.staleness == 27
    assert sum(map(len, network.asked.values())) == 32 == sum(network.paid.values())
    assert all(record.bytes_up and record.bytes_down for record in it.coordinator.records)
    with_slow = play(Network(THREE))
    for got, without in zip(it.coordinator.factors, with_slow.coordinator.factors, strict=True):
        assert (got > without).all()  # it has the largest target


def test_who_was_lost_is_asked_the_same_again_and_pays_once(play):
    network = Network(THREE, {(2, 3): Error(8, "crashed"), (3, 2): GONE, (3, 3): GONE})
    assert failures(play(network)) == []
    assert [number for _, number in network.asked[2]] == [1, 2, 3, 3, *range(4, 11)]
    assert [number for _, number in network.asked[3]] == [1, 2, 2, 2, *range(4, 11)]
    assert network.paid == {"a": 10, "b": 9, "c": 10}


def test_who_is_silent_is_waited_for_until_the_timeout_and_asked_in_a_later_round(play):
    network = Network(THREE, {(4, 3): SILENT, (4, 4): SILENT})
    it = play(network, round_timeout=45.0, wait_timeout=45.0)
    assert failures(it) == [("c (node 4)", "no reply within 45 s")]
    assert [number for _, number in network.asked[4]] == [1, 2, 3, 3, 7, 8, 9, 10]
    assert it.coordinator.finished_rounds == 10


def test_a_refusal_is_final_for_the_round(play):
    network = Network(TWO, {(3, 4): Error(2, "dpfact:state")})
    assert failures(play(network)) == [("b (node 3)", "error 2: dpfact:state")]
    assert [number for _, number in network.asked[3]] == [1, 2, 3, 4, *range(5, 11)]


def test_a_site_that_comes_back_under_another_number_goes_on(play):
    network = Network(THREE, {(4, 3): GONE}, {4: 25})
    it = play(network)
    assert network.asked[4][-1][1] == 3
    network = Network({**THREE, 5: ("c", 10)}, {(4, 3): GONE}, {4: 25})
    here = network.get_node_ids
    network.get_node_ids = lambda: [n for n in here() if n != 5 or network.now > 32]
    it = play(network)
    assert len(network.asked[5]) > 4
    assert it.coordinator.finished_rounds == 10
    assert failures(it) == []
    assert network.now < 150


@pytest.mark.parametrize("numbers", [(2, 3, 4), (9, 8, 7)], ids=["same nodes", "other nodes"])
@pytest.mark.parametrize("until", [35.0, 95.0])
def test_a_killed_server_goes_on_and_no_payment_is_lost(play, killed, tmp_path, numbers, until):
    """In the last rounds, a site refuses a new request because it has already answered."""
    sites = [("a", 10), ("b", 10), ("c", 25)]
    first = killed(dict(zip((2, 3, 4), sites, strict=True)), until)
    second = Network(dict(zip(numbers, sites, strict=True)))
    second.kept, second.paid = first.kept, first.paid
    finished = len(read_history(tmp_path))
    it = play(second, run_dir=tmp_path, resume=True)
    assert failures(it) == []
    assert list(it.result.evaluate_metrics_serverapp) == [*range(10 - finished + 1)]
    answered = defaultdict(int)
    for record in read_history(tmp_path):
        for site in record.sites if record.round == 1 else [a.site for a in record.arrivals]:
            answered[site] += 1
    assert answered == second.paid


def test_who_is_not_there_after_a_resume_is_noted(play, killed, tmp_path):
    first = killed(THREE)
    second = Network(TWO)
    second.kept, second.busy = first.kept, {3: 150.0}  # busy with the killed run's message
    it = play(second, run_dir=tmp_path, resume=True, wait_timeout=5.0)
    assert [who for who, _ in failures(it)] == ["c"]
    assert it.coordinator.finished_rounds == 10


def test_a_run_is_not_gone_on_with_where_the_sites_are_not(play, killed, tmp_path):
    """The run would end without any site, and could not be resumed."""
    first = killed(TWO)
    before = len(read_history(tmp_path))
    with pytest.raises(QuorumError, match=r"0 site\(s\) connected within 5 s"):
        play(Network({}), run_dir=tmp_path, resume=True, wait_timeout=5.0)
    assert len(read_history(tmp_path)) == before
    second = Network(TWO)
    second.kept = first.kept
    assert failures(play(second, run_dir=tmp_path, resume=True)) == []


class Unready(Network):
    """A network in which site d is not ready."""

    def _answer(self, name, asked, query):
        return Error(2, "dpfact:data") if name == "d" else super()._answer(name, asked, query)


def test_who_was_left_out_does_not_stand_for_those_who_are_gone(play):
    """The run waits for lost sites, so the remaining rounds do not end at once."""
    network = Unready({2: ("a", 10), 3: ("b", 10), 4: ("d", 10)}, online={2: 35, 3: 35})
    it = play(network, durable=True, preflight="leave-out", rounds=8, wait_timeout=50.0)
    assert network.asked[4] == []
    answered = max(number for _, number in network.asked[2])
    assert network.now >= 35 + 50 * (8 - answered)
    assert it.coordinator.finished_rounds == 8


def test_who_was_left_out_is_not_asked_after_a_resume(play, tmp_path):
    network, options = Unready({**TWO, 4: ("d", 10)}), {"durable": True, "preflight": "leave-out"}
    network.until = 35.0
    with pytest.raises(Killed):
        play(network, run_dir=tmp_path, **options)
    network.until = math.inf
    play(network, run_dir=tmp_path, resume=True, **options)
    assert network.asked[4] == []


def test_fewer_rounds_than_planned_charge_no_more_and_go_on_to_an_end_without_sites(play, tmp_path):
    network, nobody = Network({**THREE, 5: ("d", 35), 6: ("e", 1)}), Network({})
    it = play(network, last=3, run_dir=tmp_path)
    assert network.paid == {"a": 3, "b": 3, "c": 3, "d": 2, "e": 3}
    assert it.coordinator.records[2].sites == ("a", "b", "c", "d")
    assert (it.coordinator.finished_rounds, it.coordinator.asked_rounds) == (3, 3)
    it.start(network)
    assert it.coordinator.finished_rounds == max(network.paid.values()) == 10
    assert [r.seconds for r in it.coordinator.records] == pytest.approx([35, 10, 25, *[10] * 7])
    assert failures(it) == []
    play(nobody, run_dir=tmp_path, resume=True)
    assert nobody.now == 0


# --- Synchronous, with grace


def test_a_round_ends_a_grace_after_the_quorums_time_and_sites_are_told(play, tmp_path):
    network = Network({2: ("a", 10), 3: ("b", 12), 4: ("c", 8), 5: ("d", 100)})
    it = play(network, aggregation="sync", rounds=4, min_sites=2, grace=20.0, run_dir=tmp_path)
    assert network.lives[2] == [600.0, 30.0, 30.0, 30.0]
    assert network.lives[5] == [600.0, *[30.0, 15.0] * 3]  # connected but silent: again halfway
    assert 190 <= network.now <= 191
    assert failures(it) == [("d (node 5)", "no reply within 30 s")] * 3
    assert [record.quorum_seconds for record in read_history(tmp_path)] == [10.0] * 4


def test_if_the_quorum_is_missing_then_the_missing_are_asked_again_with_the_whole_time(play):
    network = Network({**THREE, 5: ("d", 100)}, {(4, 2): SILENT, (4, 3): SILENT})
    it = play(network, aggregation="sync", rounds=3, min_sites=3, grace=20.0)
    assert network.lives[4] == [600.0, 30.0, 15.0, 600.0, 60.0]
    assert network.lives[5] == [600.0, 30.0, 15.0, 600.0, 60.0, 30.0]
    assert network.lives[2] == [600.0, 30.0, 60.0]
    # Sites that were given the whole time are awaited, because they may still be charged.
    assert [record.sites for record in it.coordinator.records] == [
        ("a", "b", "c", "d"), ("a", "b", "c", "d"), ("a", "b", "c"),
    ]  # fmt: skip


def test_what_later_rounds_build_on_and_a_run_without_grace_are_waited_for(play):
    network = Network({2: ("a", 10), 3: ("b", 100)})
    it = play(network, aggregation="sync", rounds=3)
    assert {seconds for each in network.lives.values() for seconds in each} == {600.0}
    it.coordinator.run = RunSettings(grace=20.0)
    assert it.coordinator.seconds_for(3) == 30.0
    it.coordinator.rule.needs_quorum = lambda number: True
    assert it.coordinator.seconds_for(3) == math.inf
