"""The strategy with hand-made replies."""

from collections.abc import Iterable

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from dpfact_flower.client_app import app as client_app
from dpfact_flower.errors import QuorumError, SettingsError
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.server.elastic import elastic_average
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.strategy import DPFact
from dpfact_flower.wire import records
from tests.bits import assert_bits

pytestmark = pytest.mark.usefixtures("clock")
SHAPE = (5, 7)
SOLVER = SolverSettings(rank=3)


def make_strategy(**run) -> DPFact:
    return DPFact(SHAPE, solver=SOLVER, privacy=PrivacySettings(privacy="none"),
                  run=RunSettings(**{"rounds": 3, "start": "random", **run}))  # fmt: skip


class FakeGrid(InProcessGrid):
    """A grid whose nodes give the answers set by a test."""

    def __init__(self, answers: dict[int, object]) -> None:
        super().__init__(client_app, [{}] * len(answers))
        self.answers = {node: answers[n] for n, node in enumerate(self._contexts)}

    def _deliver(self, message: Message) -> Message:
        if message.metadata.message_type == "query":
            return Message(Error(2, "No query function registered"), reply_to=message)
        return Message(self.answers[message.metadata.dst_node_id], reply_to=message)

    def send_and_receive(self, messages: Iterable[Message], *, timeout=None) -> list[Message]:
        replies = super().send_and_receive(messages, timeout=timeout)
        return [r for r in replies if not (r.has_error() and r.error.reason == "silent")]


def reply(site: str, value: float = 0.5, shapes=((5, 3), (7, 3))):
    arrays = [np.full(shape, value, np.float32) for shape in shapes]
    return records.answer(arrays, 1, {"site": site})


def one_round(strategy: DPFact, grid: FakeGrid):
    messages = strategy.configure_train(1, strategy.arrays, ConfigRecord(), grid)
    return strategy.aggregate_train(1, grid.send_and_receive(messages))


def test_every_connected_node_gets_the_same_request_alive_for_the_rounds_timeout():
    strategy, grid = make_strategy(round_timeout=12.0), FakeGrid({0: reply("a"), 1: reply("b")})
    messages = list(strategy.configure_train(2, strategy.arrays, ConfigRecord(), grid))
    assert [m.metadata.dst_node_id for m in messages] == grid.get_node_ids()
    assert {m.metadata.ttl for m in messages} == {12.0}
    assert {m.metadata.group_id for m in messages} == {"2"}
    for message in messages:
        sent = message.content["fitins.parameters"].to_numpy_ndarrays()
        assert_bits(sent, strategy.coordinator.factors)


@pytest.mark.parametrize(("run", "step"), [({}, 1 / 2), ({"elastic_step": 0.3}, 0.3)])
def test_aggregate_pulls_the_global_factors_elastically(run, step):
    strategy = make_strategy(**run)
    grid = FakeGrid({0: reply("b", 0.25), 1: reply("a", 1.5)})
    before = strategy.coordinator.factors
    arrays, metrics = one_round(strategy, grid)
    replies = [[np.full(f.shape, v, np.float32) for f in before] for v in (1.5, 0.25)]
    assert_bits(arrays.to_numpy_ndarrays(), elastic_average(before, replies, step))
    assert (metrics["sites"], metrics["failures"]) == (2, 0)


BAD_REPLIES = {
    "wrong shape": reply("bad", shapes=((5, 3), (8, 3))),
    "array too many": reply("bad", shapes=((5, 3), (7, 3), (7, 3))),
    "no arrays": reply("bad", shapes=()),
    "not a number": reply("bad", np.nan),
    "site not a name": reply("../elsewhere"),
    "no records": RecordDict(),
    "no config": RecordDict({"fitres.parameters": ArrayRecord([np.zeros((5, 3), np.float32)])}),
    "error of the client app": Error(2, "dpfact:data (details are in the site's own log)"),
    "node gone": Error(5, "node unavailable"),
    "silent": Error(0, "silent"),
}


@pytest.mark.parametrize("bad", BAD_REPLIES.values(), ids=BAD_REPLIES)
def test_a_bad_reply_is_reported_and_the_others_count(bad):
    strategy, grid = make_strategy(), FakeGrid({0: reply("good"), 1: bad})
    arrays, metrics = one_round(strategy, grid)
    assert arrays is not None
    assert (metrics["sites"], metrics["failures"]) == (1, 1)
    (record,) = strategy.coordinator.records
    assert record.sites == ("good",)
    assert record.failures[0].who.endswith(f"node {grid.get_node_ids()[1]}")
    for factor in strategy.coordinator.factors:
        assert np.isfinite(factor).all()


def test_a_lost_node_is_told_by_its_message_though_the_error_comes_from_the_superlink():
    strategy, grid = make_strategy(), FakeGrid({0: reply("a"), 1: reply("b")})
    messages = list(strategy.configure_train(1, strategy.arrays, ConfigRecord(), grid))
    replies = grid.send_and_receive(messages)
    lost = Message(Error(5, "node unavailable"), reply_to=messages[1])
    lost.metadata.__dict__["_src_node_id"] = 1
    strategy.aggregate_train(1, [replies[0], lost])
    (failure,) = strategy.coordinator.records[0].failures
    assert str(grid.get_node_ids()[1]) in failure.who


def test_a_lost_site_that_answers_under_another_number_has_not_failed():
    """Without a key, Flower treats a restarted SuperNode as another node."""
    strategy, grid = make_strategy(), FakeGrid({0: reply("a"), 1: reply("b"), 2: reply("a")})
    ids = grid.get_node_ids()
    grid.get_node_ids = lambda: ids[:2]
    one_round(strategy, grid)
    messages = list(strategy.configure_train(2, strategy.arrays, ConfigRecord(), grid))
    replies = grid.send_and_receive(messages)
    lost = Message(Error(5, "node unavailable"), reply_to=messages[0])
    again = Message(messages[0].content, ids[2], "train")
    strategy._sites.sent.append(again)
    strategy.aggregate_train(2, [lost, replies[1], *grid.send_and_receive([again])])
    record = strategy.coordinator.records[1]
    assert (record.sites, record.failures) == (("a", "b"), ())


def test_replies_of_another_round_are_ignored():
    strategy, grid = make_strategy(), FakeGrid({0: reply("a", 0.9)})
    stale = grid.send_and_receive(
        strategy.configure_train(1, strategy.arrays, ConfigRecord(), grid)
    )
    list(strategy.configure_train(1, strategy.arrays, ConfigRecord(), grid))
    _, metrics = strategy.aggregate_train(1, stale)
    assert metrics["sites"] == 0


def test_waiting_for_sites_ends_with_a_clear_error(clock):
    strategy, grid = make_strategy(min_sites=3, wait_timeout=60.0), FakeGrid({0: reply("a")})
    with pytest.raises(QuorumError, match=r"1 site\(s\) connected within 60 s .* is 3"):
        list(strategy.configure_train(1, strategy.arrays, ConfigRecord(), grid))
    assert 60 <= clock.now < 70  # it checks at least every ten seconds


def test_a_site_that_connects_in_time_is_waited_for(clock, monkeypatch):
    strategy = make_strategy(min_sites=2, wait_timeout=60.0)
    grid = FakeGrid({0: reply("a"), 1: reply("b")})
    nodes = grid.get_node_ids()
    monkeypatch.setattr(grid, "get_node_ids", lambda: nodes[: 1 if clock.now < 30 else 2])
    assert len(list(strategy.configure_train(1, strategy.arrays, ConfigRecord(), grid))) == 2
    assert 30 <= clock.now < 40


def test_start_uses_its_arguments_or_refuses_them():
    for timeout in (7.0, 1200.0):  # shorter and longer than round-timeout
        strategy = make_strategy(rounds=1)
        strategy.start(FakeGrid({0: reply("a", 0.5)}), timeout=timeout)
        assert {message.metadata.ttl for message in strategy._sites.sent} == {timeout}
        assert strategy._sites.grid.policy.grace == 0.0
    grid, strategy = FakeGrid({0: reply("a")}), make_strategy(rounds=3)
    strategy.start(grid, num_rounds=2)
    for number in (1, 4):  # 1 round remains, but num_rounds counts all
        with pytest.raises(SettingsError, match=f"from 2 to 3 here, got {number}"):
            strategy.start(grid, num_rounds=number)
    given = ArrayRecord([np.full((n, 3), 0.5, np.float32) for n in SHAPE])
    for unused in ({"train_config": ConfigRecord({"tau": 7})}, {"initial_arrays": given}):
        with pytest.raises(SettingsError, match="not used"):
            make_strategy().start(grid, **unused)
