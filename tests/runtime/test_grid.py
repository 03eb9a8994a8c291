"""The Grid in one process, and the private parts of Flower on which it relies."""

import threading

import numpy as np
import pytest
from flwr.app import Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from dpfact_flower.errors import SettingsError
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.wire import records
from tests.patience import PATIENCE


@pytest.fixture
def echo():
    app = ClientApp()

    @app.train()
    def train(message, context):
        if context.node_config.get("fails"):
            raise RuntimeError("broken on purpose")
        asked = records.read_request(message)
        content = records.answer(asked.arrays, 1, {"site": context.node_config["n"]})
        return Message(content, reply_to=message)

    return app


def request(node: int) -> Message:
    return Message(records.ask([np.eye(2, dtype=np.float32)], {"a": 1}), node, MessageType.TRAIN)


def test_each_node_has_its_own_config_and_its_reply_is_told_by_message_id(echo):
    grid = InProcessGrid(echo, [{"n": "x"}, {"n": "y"}])
    asked = [request(node) for node in grid.get_node_ids()]
    replies = list(grid.send_and_receive(asked))
    assert [r.content["fitres.metrics"]["site"] for r in replies] == ["x", "y"]
    ids = [message.metadata.message_id for message in asked]
    assert [r.metadata.reply_to_message_id for r in replies] == ids
    np.testing.assert_array_equal(records.read_reply(replies[0]).arrays[0], np.eye(2))
    assert grid.pull_messages(ids) == []  # each reply is pulled once


def test_an_exception_and_an_unknown_node_become_error_replies(echo):
    grid = InProcessGrid(echo, [{"fails": True}])
    failed, unknown = grid.send_and_receive([request(*grid.get_node_ids()), request(999)])
    assert failed.error.code == 2
    assert records.serialised_bytes(failed) > 0
    assert unknown.has_error()


def test_no_nodes_and_a_shared_folder_are_refused(echo):
    with pytest.raises(SettingsError, match="at least one node"):
        InProcessGrid(echo, [])
    with pytest.raises(SettingsError, match="state-dir: nodes share 'a'; give each its own"):
        InProcessGrid(echo, [{"state-dir": folder} for folder in "baca"])


@pytest.mark.parametrize("threads", ["1", "2"])
def test_as_many_nodes_work_at_a_time_as_there_are_threads(threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    app, at_work, most, lock = ClientApp(), [0], [0], threading.Lock()
    together = threading.Barrier(int(threads), timeout=PATIENCE)

    @app.train()
    def train(message, context):
        with lock:
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
        together.wait()  # with fewer threads, it would wait for ever
        with lock:
            at_work[0] -= 1
        return Message(RecordDict(), reply_to=message)

    grid = InProcessGrid(app, [{}] * 6)
    replies = grid.send_and_receive([request(node) for node in grid.get_node_ids()])
    assert [reply.metadata.src_node_id for reply in replies] == list(grid.get_node_ids())
    assert most[0] == int(threads)
