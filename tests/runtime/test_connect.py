"""A SuperNode that gives up ends, so that whoever started it starts it again."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, repeat
from threading import Event, Thread
from types import SimpleNamespace

import httpx
import pytest
from flwr.app import Message, RecordDict
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate import NodeStateFactory

from dpfact_flower.runtime import connect
from dpfact_flower.runtime.connection import quiet_environment, tool
from dpfact_flower.runtime.superlink import free_port
from dpfact_flower.runtime.supervisor import supervised
from laboratory.campaign.deployed import CODE
from tests.patience import PATIENCE

ANSWERS = {
    "/v1/fleet/activate-node": ActivateNodeResponse(node_id=7),
    "/v1/fleet/pull-messages": PullMessagesResponse(),
    "/v1/fleet/send-node-heartbeat": SendNodeHeartbeatResponse(success=True),
}


@contextmanager
def centre(fails: str, statuses: Iterator[int]):
    """A SuperLink that fails where it is asked for one thing; paths that were asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = ANSWERS.get(self.path, PullMessagesResponse()).SerializeToString()
            self.send_response(next(statuses, 200) if self.path.endswith(fails) else 200)
            self.send_header("Content-Type", "application/protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", asked
        server.shutdown()


SOONER = """
import sys
from dpfact_flower.cli import main
from dpfact_flower.runtime import connect
connect._FAILING_SECONDS = 2.0
sys.argv[0] = "dpfact"
main()
"""


@contextmanager
def node(address: str, folder, command: Sequence[str] = (tool("dpfact"),)):
    command = [*command, "site", "connect", "--insecure", "--superlink", address]
    command += ["--isolation", "process", "--port", str(free_port())]
    environment = {**quiet_environment(), "FLWR_HOME": str(folder), "PYTHONPATH": str(CODE)}
    with (
        (folder / "node.log").open("wb") as log,
        supervised(command, env=environment, stdout=log, stderr=log) as process,
    ):
        yield process


@pytest.mark.process
@pytest.mark.parametrize(
    ("fails", "says"),
    [
        ("pull-messages", "no longer tries to reach"),
        ("send-node-heartbeat", "a part of the SuperNode"),
    ],
)
def test_a_supernode_that_gives_up_ends_with_all_of_its_threads(tmp_path, fails, says):
    """Flower's own goes on serving the executor, and nobody starts it again."""
    with centre(fails, repeat(404)) as (address, asked), node(address, tmp_path) as process:
        process.wait(PATIENCE)
    assert f"/v1/fleet/{fails}" in asked
    assert "/v1/fleet/deactivate-node" in asked  # so it is let in again at once
    assert says in (tmp_path / "node.log").read_text()


@pytest.mark.process
def test_a_superlink_that_fails_at_one_thing_each_time_ends_the_supernode(tmp_path):
    """Flower asks a busy one again without end, and the site is online and answers nobody."""
    fails, command = "pull-messages", [sys.executable, "-c", SOONER]
    with (
        centre(fails, repeat(500)) as (address, asked),
        node(address, tmp_path, command=command) as process,
    ):
        process.wait(PATIENCE)
    said = (tmp_path / "node.log").read_text()
    assert (
        said.count(f"has failed inside (500) at /v1/fleet/{fails} for 2 s: the SuperNode ends") == 1
    )
    assert asked.count(f"/v1/fleet/{fails}") > 1
    assert "/v1/fleet/deactivate-node" in asked


def test_a_superlink_that_fails_now_and_then_is_asked_on(monkeypatch):
    """What counts is the time without any answer."""
    ended, statuses = [], iter([500, 200] * 3 + [500, 500])
    clock = count(0, 50)
    monkeypatch.setattr(connect, "_end", ended.append)
    monkeypatch.setattr(connect.time, "monotonic", lambda: next(clock))
    send = connect._busy_for_failing(lambda *_: httpx.Response(next(statuses)))
    context = SimpleNamespace(request=httpx.Request("POST", "http://centre/v1/fleet/pull-object"))
    found = [send(None, context).status_code for _ in range(8)]
    assert found == [503, 200] * 3 + [503, 503]
    assert not ended


def test_a_reply_is_sent_though_no_message_has_come(monkeypatch):
    """Flower sends one after each message, and one that it makes for a lost one comes too many."""
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 7)
    state = NodeStateFactory(ObjectStoreFactory()).state()
    pull = connect._or_send(lambda *, state: None)
    message = Message(RecordDict(), 11, "train")
    message.metadata.__dict__["_message_id"] = "m" * 64
    state.store_message(message)
    assert pull(state=state) is None
    reply = Message(RecordDict(), reply_to=message)
    reply.metadata.__dict__["_message_id"] = "r" * 64
    state.store_message(reply)
    assert pull(state=state) == 7
    assert connect._or_send(lambda *, state: 9)(state=state) == 9
    assert len(state.get_messages_legacy(is_reply=True)) == 1
    assert pull(state=state) is None  # it has been sent


def test_a_reply_whose_parts_stop_coming_ends_the_supernode(monkeypatch):
    """The executor was killed in the middle of it. Flower's own SuperNode waits without end."""
    ended, whole = Event(), [(name, b"1") for name in "abc"]
    monkeypatch.setattr(connect, "_end", pytest.fail)
    assert list(connect._while_they_come(whole)) == whole
    monkeypatch.setattr(connect, "_PART_SECONDS", 0.01)
    monkeypatch.setattr(connect, "_end", lambda why: ended.set())

    def parts():
        yield "first", b"1"
        assert ended.wait(PATIENCE)

    assert list(connect._while_they_come(parts())) == [("first", b"1")]
