"""Repeated requests in a round, with a simulated network and clock."""

from collections import defaultdict
from collections.abc import Iterable

import httpx
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from dpfact_flower import collect
from dpfact_flower.client_app import app as client_app
from dpfact_flower.collect import RetryingGrid, RoundPolicy
from dpfact_flower.runtime.grid import InProcessGrid
from tests.patience import Clock
from tests.test_strategy import make_strategy

NEVER = float("inf")
CONTENT = RecordDict({"config": ConfigRecord({"asked": 1})})
CRASHED, GONE = Error(8, "crashed"), Error(5, "node unavailable")
FAILED, REFUSED = (Error(2, f"dpfact:{code} (details)") for code in ("failed", "privacy-refused"))
LATE = Error(2, "dpfact:late (details)")
CHARGED, REQUIRED, FREE = RoundPolicy(charged=True), RoundPolicy(True, True), RoundPolicy()


class Delayed(Clock, InProcessGrid):
    """Nodes whose `answer`s, of seconds and an answer, arrive then on this network's own clock."""

    def __init__(self) -> None:
        InProcessGrid.__init__(self, client_app, [{}])
        Clock.__init__(self)
        self._due: dict[str, tuple[float, Message]] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            number = message.metadata.__dict__["_message_id"] = f"{node}-{next(self._ids)}"
            seconds, answer = self.answer(node, message)
            self._due[number] = (self.now + seconds, Message(answer, reply_to=message))
            ids.append(number)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        ready = [number for number in message_ids if self._due.get(number, (NEVER,))[0] <= self.now]
        return [self._due.pop(number)[1] for number in ready]


class Network(Delayed):
    """Nodes with a given delay for the answer to the n-th request."""

    def __init__(self, answers, online=None) -> None:
        super().__init__()
        self.asked: dict[int, list[tuple[float, Message]]] = defaultdict(list)
        self._answers, self._online = answers, online or {}

    def get_node_ids(self) -> list[int]:
        return [
            node
            for node in self._answers
            if any(a <= self.now < b for a, b in self._online.get(node, [(0, NEVER)]))
        ]

    def answer(self, node, message):
        seconds, answer = self._answers[node][len(self.asked[node])]
        self.asked[node].append((self.now, message))
        return seconds, answer if isinstance(answer, Error) else CONTENT


@pytest.fixture
def exchange(monkeypatch):
    def run(answers, policy, *, online=None, timeout=600.0):
        network, more = Network(answers, online), []
        monkeypatch.setattr(collect, "time", network)
        messages = [
            Message(CONTENT, node, "train", ttl=timeout, group_id="3")
            for node in network.get_node_ids()
        ]
        grid = RetryingGrid(network, more.append)
        grid.policy = policy
        replies = grid.send_and_receive(messages, timeout=timeout)
        said = {}
        for reply in replies:
            node = int(reply.metadata.reply_to_message_id.split("-")[0])
            said[node] = reply.error.code if reply.has_error() else "release"
        assert len(said) == len(replies)
        assert len(more) == sum(map(len, network.asked.values())) - len(messages)
        return said, network

    return run


def test_without_a_fault_everybody_is_asked_once_and_nobody_is_waited_for(exchange):
    said, network = exchange({2: [(7, "release")], 3: [(3, REFUSED)]}, REQUIRED)
    assert said == {2: "release", 3: 2}
    assert 7 <= network.now < 8


@pytest.mark.parametrize("policy", [CHARGED, REQUIRED, FREE])
def test_a_site_whose_process_was_killed_is_asked_again_and_its_bytes_count(exchange, policy):
    said, network = exchange({2: [(60, CRASHED), (9, "release")], 3: [(5, "release")]}, policy)
    assert said == {2: "release", 3: "release"}
    assert 69 <= network.now < 71
    ((_, first), (at, again)) = network.asked[2]
    assert again.content is first.content
    assert again.metadata.group_id == "3"
    assert again.metadata.ttl == pytest.approx(600 - at, rel=1e-12)


def test_a_supernode_that_comes_back_is_waited_for_where_something_was_paid(exchange):
    answers = {2: [(50, GONE), (9, "release")], 3: [(5, "release")]}
    online = {2: [(0, 50), (110, NEVER)]}
    said, network = exchange(answers, CHARGED, online=online)
    assert said == {2: "release", 3: "release"}
    assert 119 <= network.now < 121
    said, network = exchange(answers, FREE, online=online)
    assert said == {2: 5, 3: "release"}
    assert network.now < 51


def test_a_supernode_without_a_key_comes_back_under_another_number(exchange):
    answers = {2: [(50, GONE)], 3: [(5, "release")], 4: [(9, "release")]}
    said, _ = exchange(answers, CHARGED, online={2: [(0, 50)], 4: [(80, NEVER)]})
    assert said == {2: 5, 3: "release", 4: "release"}


def test_who_stays_away_is_not_waited_for_without_end(exchange):
    answers, online = {2: [(50, GONE)], 3: [(5, "release")]}, {2: [(0, 50)]}
    said, network = exchange(answers, REQUIRED, online=online)
    assert said == {2: 5, 3: "release"}
    assert 170 <= network.now < 171  # two minutes
    _, network = exchange(answers, CHARGED, online=online, timeout=100.0)
    assert 100 <= network.now < 101


def test_who_fails_again_and_again_is_left_alone(exchange):
    said, network = exchange({2: [(10, CRASHED)] * 9, 3: [(1, FAILED)] * 9}, CHARGED)
    assert said == {2: 8, 3: 2}
    assert {node: len(times) for node, times in network.asked.items()} == {2: 3, 3: 2}


def test_a_refusal_is_final(exchange):
    said, network = exchange({2: [(10, REFUSED)] * 2, 3: [(1, Error(7, "no FAB"))] * 2}, REQUIRED)
    assert said == {2: 2, 3: 7}
    assert {len(times) for times in network.asked.values()} == {1}


@pytest.mark.parametrize(("policy", "asked"), [(REQUIRED, 1), (CHARGED, 0)])
def test_who_connects_late_is_asked_where_later_rounds_build_on_it(exchange, policy, asked):
    answers = {2: [(100, "release")], 3: [(9, "release")]}
    said, network = exchange(answers, policy, online={3: [(40, NEVER)]})
    assert len(network.asked[3]) == asked
    assert said == {2: "release"} | ({3: "release"} if asked else {})


def test_who_connects_after_half_the_time_is_asked_once(exchange):
    answers = {2: [(450, "release")] * 2, 3: [(60, "release")] * 2}
    _, network = exchange(answers, REQUIRED, online={3: [(350, NEVER)]})
    assert len(network.asked[3]) == 1


@pytest.mark.parametrize(("policy", "came"), [(REQUIRED, "release"), (CHARGED, None)])
def test_who_is_there_but_missing_is_asked_at_the_end_where_it_matters(exchange, policy, came):
    """For example, it was stopped for the whole round, or disconnected after the charge."""
    answers = {2: [(NEVER, "release")] * 2 + [(9, "release")], 3: [(5, "release")]}
    said, network = exchange(answers, policy)
    assert said.get(2) == came
    assert (609 if came else 600) <= network.now < 611
    if came:
        assert network.asked[2][2][1].metadata.ttl == 150
        answers[2][2] = (NEVER, "release")
        _, network = exchange(answers, policy)
        assert 750 <= network.now < 751


@pytest.mark.parametrize(
    ("policy", "came"), [(RoundPolicy(True, quorum=2, grace=900.0), "release"), (CHARGED, 2)]
)
def test_who_says_late_before_the_end_is_asked_again_where_the_silent_are(exchange, policy, came):
    """It was not charged, and had less time than it gets now."""
    answers = {2: [(590, LATE), (NEVER, LATE), (700, "release")], 3: [(5, "release")]}
    said, network = exchange(answers, policy)
    assert said == {2: came, 3: "release"}
    assert len(network.asked[2]) == (3 if came == "release" else 2)


def test_a_reply_of_the_first_asking_does_not_count_twice(exchange):
    answers = {2: [(30, CRASHED), (9, "release")], 3: [(NEVER, CRASHED)] * 2}
    said, _ = exchange(answers, CHARGED, timeout=60.0)
    assert said == {2: "release"}


@pytest.mark.parametrize("policy", [CHARGED, REQUIRED, FREE])
@pytest.mark.parametrize(
    ("answers", "came"),
    [
        ([(NEVER, "release"), (9, "release")], 309),  # the first message was lost without notice
        ([(320, "release"), (NEVER, "release")], 320),  # it is slow, and answers the first request
        ([(320, REFUSED), (30, "release")], 330),
        ([(320, "release"), (30, REFUSED)], 320),
    ],
)
def test_who_is_silent_is_asked_half_way_and_either_reply_counts(exchange, policy, answers, came):
    said, network = exchange({2: answers, 3: [(5, "release")]}, policy)
    assert said == {2: "release", 3: "release"}
    assert came <= network.now < came + 1
    (_, (at, again)) = network.asked[2]
    assert 300 <= at < 301
    assert again.metadata.ttl == pytest.approx(600 - at, rel=1e-12)


def test_who_is_not_there_half_way_is_not_asked(exchange):
    answers = {2: [(400, "release")], 3: [(5, "release")]}
    said, network = exchange(answers, CHARGED, online={2: [(0, 200)]})
    assert said == {2: "release", 3: "release"}
    assert len(network.asked[2]) == 1


class Busy(Network):
    """A SuperLink whose database is locked for the given seconds, with its error."""

    def __init__(self, answers, seconds, status) -> None:
        super().__init__(answers)
        self._until, self._status = seconds, status

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        if self.now < self._until:
            request = httpx.Request("POST", "http://127.0.0.1:9")
            response = httpx.Response(self._status, request=request)
            raise httpx.HTTPStatusError("", request=request, response=response)
        return super().pull_messages(message_ids)


@pytest.mark.parametrize(
    ("seconds", "status", "ends"), [(20, 500, False), (90, 500, True), (1, 403, True)]
)
def test_a_superlink_that_fails_for_a_moment_ends_no_run(monkeypatch, seconds, status, ends):
    network = Busy({2: [(7, "release")] * 2}, seconds, status)
    monkeypatch.setattr(collect, "time", network)
    grid = RetryingGrid(network, lambda message: None)
    messages = [Message(CONTENT, 2, "train", ttl=600, group_id="3")]
    if ends:
        with pytest.raises(httpx.HTTPStatusError):
            grid.send_and_receive(messages)
        assert network.now < 40
        strategy = make_strategy()
        strategy._sites.use(network)
        with pytest.raises(httpx.HTTPStatusError):
            strategy._sites.ask_ready([2], strategy.coordinator.request(1), warn=False)
        assert network.now < 80
        return
    (reply,) = grid.send_and_receive(messages)
    assert reply.has_content()
