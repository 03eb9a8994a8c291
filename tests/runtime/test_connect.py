"""A SuperNode that gives up ends, so that whoever started it starts it again."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat
from threading import Thread

import pytest
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse

from dpfact_flower.runtime.connection import quiet_environment, tool
from dpfact_flower.runtime.keeper import kept
from dpfact_flower.runtime.superlink import free_port
from tests.campaign.deployed import CODE
from tests.patience import PATIENCE, await_that

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


@contextmanager
def node(address: str, folder):
    command = [tool("dpfact"), "site", "connect", "--insecure", "--superlink", address]
    command += ["--isolation", "process", "--port", str(free_port())]
    environment = {**quiet_environment(), "FLWR_HOME": str(folder), "PYTHONPATH": str(CODE)}
    with (
        (folder / "node.log").open("wb") as log,
        kept(command, env=environment, stdout=log, stderr=log) as process,
    ):
        yield process


@pytest.mark.parametrize(
    ("fails", "says"),
    [("pull-messages", "has given up"), ("send-node-heartbeat", "a part of the SuperNode")],
)
def test_a_supernode_that_gives_up_ends_with_all_of_its_threads(tmp_path, fails, says):
    """Flower's own goes on serving the executor, and nobody starts it again."""
    with centre(fails, repeat(404)) as (address, asked), node(address, tmp_path) as process:
        process.wait(PATIENCE)
    assert f"/v1/fleet/{fails}" in asked
    assert "/v1/fleet/deactivate-node" in asked  # so it is let in again at once
    assert says in (tmp_path / "node.log").read_text()


@pytest.mark.parametrize("fails", ["activate-node", "pull-messages", "send-node-heartbeat"])
def test_a_superlink_that_fails_inside_is_asked_again(tmp_path, fails):
    """As Flower does where it is busy (503)."""
    busy = iter([500, 500])
    with centre(fails, busy) as (address, asked), node(address, tmp_path) as process:
        await_that(lambda: asked.count(f"/v1/fleet/{fails}") > 2, "a question after two failures")
        assert process.poll() is None
        process.terminate()
        assert process.wait(PATIENCE) == os.EX_OK
