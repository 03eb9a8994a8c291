"""A process that dies while it answers: its executor says that the round failed, when that is due.

`test_killed` has the system end one, in a deployment.
"""

import os
import subprocess
import sys

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.proto.runtime_pb2 import PushTaskOutputRequest
from flwr.supercore.task_identity import TaskIdentity

from dpfact_flower.runtime import clientapp, executor, stand_in, supernode
from dpfact_flower.runtime.stand_in import Notes, answer_for_the_dead
from dpfact_flower.runtime.supernode import Claimed, Noted, Work
from dpfact_flower.site.hold import Hold
from tests.runtime.test_executor import EndedError, Tasks


class Client:
    """Stands for the connection to a SuperNode, and notes what is said."""

    def __init__(self):
        self.said = []

    def PushTaskOutput(self, request):  # noqa: N802 - Flower's name
        self.said.append(request)

    def SendTaskHeartbeat(self, request):  # noqa: N802 - Flower's name
        raise AssertionError("the heart does not beat here")

    def close(self):
        self.said.append("closed")


@pytest.fixture
def sent(monkeypatch):
    """What a SuperNode is handed."""
    replies = []
    client = Client()
    monkeypatch.setattr(supernode.HeartbeatSender, "start", lambda self: None)
    monkeypatch.setattr(supernode.RuntimeHttpClient, "from_server_address", lambda *_, **__: client)
    monkeypatch.setattr(supernode, "push_message", lambda _, reply, context: replies.append(reply))
    replies.append(client)
    return replies


@pytest.fixture
def work(monkeypatch):
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 7)
    message = Message(RecordDict({}), 11, "train", ttl=60.0, group_id="3")
    message.metadata.__dict__["_message_id"] = "m" * 64
    return Work(message, {}, Context(7, 11, {}, RecordDict(), {}), None)


@pytest.fixture
def config(tmp_path):
    config = tmp_path / "north.toml"
    config.write_text(
        f'site = "north"\ndata-path = "{tmp_path}/n.npz"\nstate-dir = "{tmp_path}/state"\n'
        'allow-privacy = "patient"\nmax-epsilon = 1.0\nreply-after = 3.0\n'
    )
    return config


def noted(work, *, sending=False, came_in=0.0, reply_after=0.0) -> bytes:
    out, handle = os.pipe()
    notes = Notes(handle)
    notes.answering(work, came_in, reply_after)
    if sending:
        notes.sending()
    os.close(handle)
    with os.fdopen(out, "rb") as file:
        return file.read()


def test_the_reply_of_a_process_that_died_says_what_any_round_does_that_failed(sent, work, caplog):
    answer_for_the_dead("127.0.0.1:1", "token", noted(work))
    client, reply = sent
    assert reply.error.code == 2
    assert reply.error.reason == "dpfact:failed (details are in the site's own log)"
    assert reply.metadata.reply_to_message_id == "m" * 64
    assert (reply.metadata.dst_node_id, reply.metadata.src_node_id) == (7, 11)
    assert reply.metadata.group_id == "3"
    assert isinstance(client.said[0], PushTaskOutputRequest)
    assert client.said[1:] == ["closed"]
    assert "has died" in caplog.text


def test_it_leaves_when_any_reply_to_that_message_would(sent, work, monkeypatch):
    waited = []
    monkeypatch.setattr(
        Hold, "wait", lambda self: waited.append((self._seconds, self._came_in, len(sent)))
    )
    answer_for_the_dead("127.0.0.1:1", "token", noted(work, came_in=5.5, reply_after=30.0))
    assert waited == [(30.0, 5.5, 1)]  # before anything was sent
    assert len(sent) == 2


@pytest.mark.parametrize("told", [b"", b"[7, 11, ", b"sending"])
def test_nothing_is_said_for_a_process_that_had_not_begun(sent, told):
    answer_for_the_dead("127.0.0.1:1", "token", told)
    assert len(sent) == 1


def test_nothing_is_said_once_the_supernode_may_have_the_reply(sent, work):
    answer_for_the_dead("127.0.0.1:1", "token", noted(work, sending=True))
    assert len(sent) == 1


def test_a_message_that_is_too_long_to_be_noted_is_refused(work, config, monkeypatch):
    """Names are the server's choice: it must not choose that nobody answers for a process."""
    message = Message(RecordDict({}), 11, "train", group_id="x" * 5000)
    monkeypatch.setattr(clientapp, "app", None)
    reply = clientapp.answer(Work(message, {}, work._context, None), config)
    assert reply.error.reason.startswith("dpfact:message")


def test_a_note_is_made_before_the_app_is_asked(work, config, monkeypatch):
    order = []

    class Watched(Notes):
        def answering(self, work, came_in, reply_after):
            order.append(("noted", reply_after))

    monkeypatch.setattr(clientapp, "app", lambda *_: order.append("asked"))
    clientapp.answer(work, config, Watched())
    assert order == [("noted", 3.0), "asked"]


def test_what_ends_in_an_error_is_not_reported_as_done(sent, work):
    """A SuperNode waits for ever for the reply to a message that was."""
    noted_work = Noted(7, 11, work.noted().message)
    with pytest.raises(ValueError, match="broken"), Claimed("127.0.0.1:1", "t", noted_work):
        raise ValueError("broken")
    assert sent[0].said == ["closed"]


KILLED = "import os; os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(("code", "stands_in"), [("", 0), ("raise SystemExit(1)", 1), (KILLED, 1)])
def test_the_executor_answers_for_who_died_before_it_asks_for_the_next(code, stands_in):
    order = []

    class Noting(Tasks):
        def claim(self):
            token = super().claim()
            order.append(token)
            return token

    def start(token):
        process = subprocess.Popen([sys.executable, "-S", "-c", code])
        process.wait()
        return process

    with pytest.raises(EndedError):
        executor._serve(Noting("a", "b"), start, lambda: order.append("died"))
    died = ["died"] * stands_in
    assert order == ["a", *died, "b", *died]


def test_the_executor_reads_the_note_of_the_process_that_died(monkeypatch, caplog):
    asked = []
    monkeypatch.setattr(stand_in, "answer_for_the_dead", lambda *given: asked.append(given))
    code = (
        "import os, sys; token = input(); os.write(int(sys.argv[1]), token.encode()); sys.exit(1)"
    )
    answering = executor._Answering([sys.executable, "-c", code], "127.0.0.1:1")
    for token in ("a", "b"):
        assert answering.start(token).wait() == 1
        answering.died()
    assert asked == [("127.0.0.1:1", "a", b"a"), ("127.0.0.1:1", "b", b"b")]
    monkeypatch.setattr(stand_in, "answer_for_the_dead", lambda *_: 1 / 0)
    answering.start("c").wait()
    answering.died()  # the executor lives on, and Flower says that the process is gone
    assert "ZeroDivisionError" in caplog.text
