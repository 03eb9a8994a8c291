"""The executor fetches a message, lets a process answer it, and sends the reply.

In `test_kill`, the system kills an answering process in a deployment.
"""

import sys
import time

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import context_to_proto
from flwr.proto.runtime_pb2 import PullTaskInputResponse, PushTaskOutputRequest
from flwr.supercore.task_identity import TaskIdentity

from dpfact_flower.client_app import app
from dpfact_flower.runtime import supernode, worker
from dpfact_flower.runtime.supernode import OwnSuperNode, claimed
from dpfact_flower.runtime.worker import (
    Answering,
    app_reply,
    message_to_bytes,
    question_from_bytes,
    question_to_bytes,
)
from dpfact_flower.site.disclosure import ReplyDelay
from dpfact_flower.site.hospital import ANSWERING, answering_seconds, read_site_settings
from tests.patience import PATIENCE
from tests.runtime.deployment import site_config

pytestmark = pytest.mark.process
NODE = OwnSuperNode("127.0.0.1", 1, 0)
FAILED = "dpfact:failed (details are in the site's own log)"
CANARY = "canary-4711"
BEGUN = "import os, sys, time; sys.stdin.read(); print(5.5, flush=True); "


class Client:
    """A replacement for the connection to a SuperNode that records all calls."""

    def __init__(self):
        self.said = []
        self.node_config = {}

    def PullTaskInput(self, _):  # noqa: N802 - Flower's name
        context = Context(7, 11, self.node_config, RecordDict(), {"data": "canary"})
        return PullTaskInputResponse(context=context_to_proto(context))

    def PushTaskOutput(self, request):  # noqa: N802 - Flower's name
        self.said.append(request)

    def SendTaskHeartbeat(self, request):  # noqa: N802 - Flower's name
        raise AssertionError("the heart does not beat here")

    def close(self):
        self.said.append("closed")


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """The task that Flower needs to make a message."""
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 7)


@pytest.fixture
def message():
    content = RecordDict({"x": ConfigRecord({"number": 2.5})})
    message = Message(content, 11, "train", ttl=600.0, group_id="3")
    message.metadata.__dict__["_message_id"] = "m" * 64
    return message


@pytest.fixture
def client(monkeypatch, message):
    client = Client()
    monkeypatch.setattr(supernode.HeartbeatSender, "start", lambda self: None)
    monkeypatch.setattr(supernode.HeartbeatSender, "stop", lambda self: client.said.append("still"))
    monkeypatch.setattr(supernode.RuntimeHttpClient, "from_server_address", lambda *_, **__: client)
    monkeypatch.setattr(supernode, "_fetched", lambda *_: message)
    monkeypatch.setattr(supernode, "push_message", lambda _, reply, __: client.said.append(reply))
    return client


@pytest.fixture
def config(tmp_path):
    config = tmp_path / "north.toml"
    (tmp_path / "state").mkdir()
    config.write_text(
        f'site = "north"\ndata-path = "{tmp_path}/n.npz"\nstate-dir = "{tmp_path}/state"\n'
        'allow-privacy = "patient"\nmax-epsilon = 1.0\nreply-after = 3.0\n'
    )
    return config


@pytest.fixture
def waited(monkeypatch):
    """The delays of the replies, with their starting times."""
    found = []
    monkeypatch.setattr(ReplyDelay, "wait", lambda it: found.append((it._seconds, it._came_in)))
    return found


def answering(config, code: str) -> Answering:
    return Answering(config, NODE, [sys.executable, "-S", "-c", code])


def assert_failed(client, waited, came_in=5.5):
    """Check that the only reply is that of a failed round, at the time of such a reply."""
    reply, still, done, closed = client.said
    assert (reply.error.code, reply.error.reason) == (2, FAILED)
    assert reply.metadata.reply_to_message_id == "m" * 64
    assert (reply.metadata.dst_node_id, reply.metadata.src_node_id) == (7, 11)
    assert reply.metadata.group_id == "3"
    # A later heartbeat, without a valid token, would end the executor.
    assert still == "still"
    assert isinstance(done, PushTaskOutputRequest)
    assert closed == "closed"
    assert waited == [(3.0, came_in)]


def test_a_question_has_the_hospitals_settings_and_none_of_the_run(client, message, config):
    own = read_site_settings(config).to_config()
    given = Context(7, 11, {"a": "stranger's"}, RecordDict(), {"rank": 3})
    asked, context, held = question_from_bytes(question_to_bytes(message, given, own))
    assert asked.metadata.message_id == "m" * 64
    # This counts in the check of memory.
    assert held == 2 * len(message_to_bytes(message))
    assert (context.run_id, context.node_id) == (7, 11)
    assert context.node_config == own
    assert (context.run_config, dict(context.state)) == ({}, {})


def test_a_process_answers_and_the_executor_sends(client, message, config, monkeypatch, waited):
    """The real process has no data. It reports this with a code, and gets no token."""
    monkeypatch.setenv("DPFACT_LOG", "json")
    Answering(config, NODE).answer("a-token")
    reply = client.said[0]
    assert reply.error.reason.startswith("dpfact:data")
    assert reply.metadata.reply_to_message_id == "m" * 64
    assert waited == []  # not here: the process delays its replies


def test_a_process_that_died_in_its_reply_is_answered_for(client, config, waited, message, caplog):
    """The partial reply is not sent, as a SuperNode would wait for the rest."""
    whole = message_to_bytes(Message(RecordDict(), reply_to=message))
    for part in (b"", b"1", str(len(whole)).encode() + b"\n" + whole[:-3]):
        client.said.clear()
        waited.clear()
        write = f"os.write(1, {part!r}); os.kill(os.getpid(), 9)"
        answering(config, BEGUN + write).answer("t")
        assert_failed(client, waited)
        assert "has died" in caplog.text


def test_a_reply_does_not_wait_for_its_process_to_end_and_the_next_does(client, config, message):
    """The time to end a process grows with its memory, which depends on the patients."""
    whole = message_to_bytes(Message(RecordDict(), reply_to=message))
    reply = str(len(whole)).encode() + b"\n" + whole
    ends = f"os.write(1, {reply!r}); os.close(1); time.sleep(900)"
    asked = answering(config, BEGUN + ends)
    began = time.monotonic()
    asked.answer("t")
    first = asked._last
    asked.answer("u")
    assert first.returncode == -9
    assert time.monotonic() - began < PATIENCE / 2
    assert [each.has_error() for each in client.said if isinstance(each, Message)] == [False] * 2


def test_a_process_that_died_before_it_began_is_answered_for(client, config, waited):
    before = time.monotonic()
    answering(config, "raise SystemExit(1)").answer("t")
    (since,) = [came_in for _, came_in in waited]
    assert before <= since <= time.monotonic()
    assert_failed(client, waited, since)


@pytest.mark.parametrize("hang", ["time.sleep(900)", "os.kill(os.getpid(), 19)"])
def test_a_process_that_hangs_is_ended_when_its_round_is_over(
    client, config, waited, message, monkeypatch, caplog, hang
):
    """The longer of the message's time and `reply-after` counts."""
    monkeypatch.setattr(worker, "_GRACE_SECONDS", 0.0)
    message.metadata.ttl = 1.0
    config.write_text(config.read_text().replace("reply-after = 3.0", "reply-after = 1.5"))
    began = time.monotonic()
    answering(config, f"{BEGUN} {hang}").answer("t")
    assert 1.5 <= time.monotonic() - began < PATIENCE / 2
    assert waited == [(1.5, 5.5)]
    assert client.said[0].error.reason == FAILED
    assert "was ended: it hung" in caplog.text


@pytest.mark.parametrize("ttl", [float("inf"), float("nan"), 1e300])
def test_a_round_without_end_is_waited_for(client, config, waited, message, ttl):
    message.metadata.ttl = ttl
    answering(config, "raise SystemExit(1)").answer("t")
    assert client.said[0].error.reason == FAILED


def test_since_when_a_message_is_answered_can_be_seen(client, config, waited, tmp_path):
    state, seen = tmp_path / "state", tmp_path / "seen"
    code = f"import os; open({str(seen)!r}, 'w').write(str(os.listdir({str(state)!r})))"
    answering(config, f"{code}; raise SystemExit(1)").answer("t")
    assert seen.read_text() == f"['{ANSWERING}']"
    assert answering_seconds(state) == 0


def test_a_supernode_that_has_settings_too_is_refused(client, config, waited, caplog):
    client.node_config = {"max-epsilon": 99.0}
    Answering(config, NODE).answer("t")
    config.write_text('site = "north"')  # damaged between two messages
    Answering(config, NODE).answer("t")
    reasons = [each.error.reason for each in client.said if isinstance(each, Message)]
    assert [reason.startswith("dpfact:settings") for reason in reasons] == [True] * 2
    assert "start the SuperNode without one" in caplog.text
    assert [seconds for seconds, _ in waited] == [3.0, 0.0]


def test_what_ends_in_an_error_is_not_reported_as_done(client):
    """A SuperNode would wait for ever for its reply."""
    with pytest.raises(ValueError, match="broken"), claimed(NODE, "t"):
        raise ValueError("broken")
    assert client.said == ["still", "closed"]


def test_the_heart_stops_where_a_message_cannot_be_fetched(client, config, monkeypatch, caplog):
    """Heartbeats would hold the message for ever in a running process."""
    stopped = []
    monkeypatch.setattr(supernode, "_fetched", lambda *_: 1 / 0)
    monkeypatch.setattr(supernode.HeartbeatSender, "stop", lambda _: stopped.append(True))
    # The executor survives, and Flower reports the message as lost.
    Answering(config, NODE).answer("t")
    assert "site north: unexpected ZeroDivisionError" in caplog.text
    assert len(stopped) == 1
    assert client.said == ["closed"]


# --- the process uses only its own settings and the installed app


@pytest.fixture
def settings(tmp_path, cohort_folder):
    return site_config(cohort_folder, tmp_path, "site-1")


def reason(settings, kind: str = "train", answering_app=app) -> str:
    """Return the reason for refusing a message with settings from a SuperLink."""
    message = Message(RecordDict({"x": ConfigRecord({"x": CANARY})}), 7, kind)
    reply = app_reply(message, Context(1, 7, settings, RecordDict(), {}), 0.0, answering_app)
    assert reply.has_error()
    return reply.error.reason


@pytest.mark.parametrize(
    ("kind", "code"),
    [("train", "message"), ("evaluate", "internal"), ("query", "message"),
     ("train.other", "internal")],
)  # fmt: skip
def test_whatever_is_asked_is_refused_with_a_code_at_its_time(settings, kind, code, monkeypatch):
    slept = []
    monkeypatch.setattr(ReplyDelay, "wait", lambda self: slept.append(self._seconds))
    said = reason({**settings, "reply-after": 7.0}, kind)
    assert said == f"dpfact:{code} (details are in the site's own log)"
    assert slept == [7.0]


def test_nothing_of_an_unexpected_error_leaves(settings, caplog):
    def broken(message, context):
        raise ValueError(CANARY)

    assert reason(settings, answering_app=broken).startswith("dpfact:internal")
    assert CANARY not in caplog.text
