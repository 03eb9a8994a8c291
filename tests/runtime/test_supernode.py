"""Requests for messages. `test_secure_deployment` uses a real SuperNode."""

import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace

import httpx
import pytest
from flwr.app import Context, RecordDict
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import AcquireTaskResponse, PullAppMessagesResponse
from flwr.proto.task_pb2 import Task
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

from dpfact_flower.errors import SettingsError
from dpfact_flower.machine.files import user_name
from dpfact_flower.machine.processes import Listener
from dpfact_flower.runtime import supernode
from dpfact_flower.runtime.supernode import OwnSuperNode, Tasks, claimed

ME = os.geteuid()
NOBODY = OwnSuperNode("127.0.0.1", 9, 0)


class Client:
    """A replacement for the connection, which gives each request the same answer or fails."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def AcquireTask(self, request):  # noqa: N802 - Flower's name
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def tasks(answer) -> tuple[Tasks, Client]:
    found, client = Tasks(NOBODY, b"x" * 32), Client(answer)
    found._client = client
    return found, client


def failed(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1:9")
    return httpx.HTTPStatusError("", request=request, response=httpx.Response(status))


def test_only_messages_for_a_clientapp_are_asked_for():
    found, client = tasks(AcquireTaskResponse(task=Task(task_id=1), token="t"))
    assert found.claim() == "t"
    (request,) = client.asked
    assert list(request.supported_task_types) == ["flwr-clientapp"]
    assert list(request.agentapp_fab_hashes) == []


@pytest.mark.parametrize(
    ("answer", "token"),
    [(AcquireTaskResponse(), ""), (httpx.ConnectError(""), None), (failed(503), None)],
)
def test_no_message_and_no_supernode_are_told_apart(answer, token):
    assert tasks(answer)[0].claim() == token


@pytest.mark.parametrize("status", [401, 403])
def test_a_supernode_with_another_secret_ends_the_executor(status):
    with pytest.raises(SettingsError, match="different secret"):
        tasks(failed(status))[0].claim()


def test_a_message_whose_parts_never_come_is_given_up(monkeypatch):
    """The server ended while sending. With Flower's time limit, the site would be blocked."""
    monkeypatch.setattr(supernode, "_FETCH_SECONDS", 0.0)
    tree = ObjectTree(object_id="a")
    pulled = PullAppMessagesResponse(messages_list=[ProtoMessage()], message_object_trees=[tree])
    client = SimpleNamespace(
        PullMessages=lambda _: pulled,
        PullObject=lambda _: PullObjectResponse(object_found=True, object_available=False),
        ConfirmMessageReceived=None,
    )
    with pytest.raises(ObjectPullError, match="timeout"):
        supernode._fetched(client, Context(1, 7, {}, RecordDict(), {}))


def test_a_supernode_that_stays_away_is_not_waited_for_without_end(monkeypatch):
    """Otherwise, the executor would get no other message, and would not end."""
    monkeypatch.setattr(supernode, "_AWAY_SECONDS", 0.0)
    with pytest.raises(httpx.ConnectError), claimed(NOBODY, "token"):
        pass


class SuperNode(BaseHTTPRequestHandler):
    """A server on the port that has a message for every request."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.server.asked.append(self.path)
        self.server.connections.add(self.client_address)
        content = AcquireTaskResponse(task=Task(task_id=1), token="t").SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Log nothing."""


@pytest.fixture
def listening():
    with ThreadingHTTPServer(("127.0.0.1", 0), SuperNode) as server:
        server.asked, server.connections = [], set()
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/net")
def test_nobody_but_the_nodes_user_is_asked_or_answered(listening, caplog, monkeypatch):
    """Another process could take the port while the SuperNode is down, and send messages."""
    own, other = (OwnSuperNode("127.0.0.1", listening.server_port, ME + more) for more in (0, 1))
    assert Tasks(own, b"x" * 32).claim() == "t"
    listening.asked.clear()
    tasks = Tasks(other, b"x" * 32)
    assert [tasks.claim(), tasks.claim()] == [None, None]
    monkeypatch.setattr(supernode, "_AWAY_SECONDS", 0.0)
    refused = pytest.raises(httpx.ConnectError, match="the executor does not use")
    with refused, claimed(other, "token"):
        pass
    assert listening.asked == []
    (said,) = (record.getMessage() for record in caplog.records)  # only once
    assert said.startswith(f"user {user_name(ME)} listens on port {listening.server_port}, ")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/net")
def test_what_came_from_a_port_that_changed_hands_is_not_read(listening, monkeypatch):
    before = [Listener(7, 1)]
    seen = iter([before, [Listener(8, 2)], before, [Listener(7, 2)], before, []])
    monkeypatch.setattr(supernode, "listeners", lambda host, port: next(seen))
    tasks = Tasks(OwnSuperNode("127.0.0.1", listening.server_port, 7), b"x" * 32)
    assert [tasks.claim() for _ in range(3)] == [None] * 3
    assert len(listening.asked) == 3


def test_nothing_is_asked_of_a_port_where_nobody_was_seen(listening, monkeypatch):
    """A process may take the port right after one check, and release it before the next."""
    monkeypatch.setattr(supernode, "listeners", lambda host, port: [])
    assert Tasks(OwnSuperNode("127.0.0.1", listening.server_port, 7), b"x" * 32).claim() is None
    assert listening.asked == []


def test_no_connection_outlives_its_request(listening, monkeypatch):
    """A process that had the port briefly could keep answering."""
    monkeypatch.setattr(SuperNode, "protocol_version", "HTTP/1.1")
    tasks = Tasks(OwnSuperNode("127.0.0.1", listening.server_port, ME), b"x" * 32)
    assert [tasks.claim() for _ in range(3)] == ["t"] * 3
    assert len(listening.connections) == 3
