"""Flower's SuperLink and SuperNode end if a part has failed, so that they are restarted."""

import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from types import SimpleNamespace

import pytest
from flwr.app import Message, RecordDict
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate import NodeStateFactory

from dpfact_flower.errors import MissingDependencyError
from dpfact_flower.machine import flower
from dpfact_flower.runtime import services as module
from dpfact_flower.runtime.services import refuse_damaged
from dpfact_flower.runtime.superlink import free_port, quiet_environment, tool
from dpfact_flower.runtime.supervisor import supervised
from laboratory.campaign.deployed import CODE
from tests.patience import PATIENCE
from tests.runtime.page import written

ANSWERS = {
    "/v1/fleet/activate-node": ActivateNodeResponse(node_id=7),
    "/v1/fleet/pull-messages": PullMessagesResponse(),
    "/v1/fleet/send-node-heartbeat": SendNodeHeartbeatResponse(success=True),
}


@contextmanager
def centre(fails: str):
    """A SuperLink that fails for one path; yield the requested paths."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = ANSWERS.get(self.path, PullMessagesResponse()).SerializeToString()
            self.send_response(404 if self.path.endswith(fails) else 200)
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
    """Flower's own SuperNode keeps serving the executor, and nothing restarts it."""
    with centre(fails) as (address, asked), node(address, tmp_path) as process:
        process.wait(PATIENCE)
    assert f"/v1/fleet/{fails}" in asked
    assert "/v1/fleet/deactivate-node" in asked  # so it is readmitted at once
    assert says in (tmp_path / "node.log").read_text()


def test_a_reply_is_sent_though_no_message_has_come(monkeypatch):
    """Flower sends one reply after each message, so one reply for a lost message is left over."""
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 7)
    state = NodeStateFactory(ObjectStoreFactory()).state()
    pull = module._including_unsent(lambda *, state: None)
    message = Message(RecordDict(), 11, "train")
    message.metadata.__dict__["_message_id"] = "m" * 64
    state.store_message(message)
    assert pull(state=state) is None
    reply = Message(RecordDict(), reply_to=message)
    reply.metadata.__dict__["_message_id"] = "r" * 64
    state.store_message(reply)
    assert pull(state=state) == 7
    assert module._including_unsent(lambda *, state: 9)(state=state) == 9
    assert len(state.get_messages_legacy(is_reply=True)) == 1
    assert pull(state=state) is None  # it has been sent


def test_a_reply_whose_parts_stop_coming_ends_the_supernode(monkeypatch):
    """The executor was killed during the reply. Flower's own SuperNode waits for ever."""
    ended, whole = Event(), [(name, b"1") for name in "abc"]
    monkeypatch.setattr(module, "_end", pytest.fail)
    assert list(module._with_time_limit(whole)) == whole
    monkeypatch.setattr(module, "_PART_SECONDS", 0.01)
    monkeypatch.setattr(module, "_end", lambda why: ended.set())

    def parts():
        yield "first", b"1"
        assert ended.wait(PATIENCE)

    assert list(module._with_time_limit(parts())) == [("first", b"1")]


@pytest.mark.process
def test_the_superlink_waits_for_who_writes_to_its_database():
    """The test needs a new process, in which Flower is not imported yet."""
    code = """if True:
        import sqlite3
        from dpfact_flower.runtime.services import extend_database_timeout
        extend_database_timeout()
        from flwr.superlink.cli import flower_superlink
        from flwr.supercore.sql_mixin import _set_sqlite_pragmas
        database = sqlite3.connect(":memory:")
        _set_sqlite_pragmas(database, None)
        print(*database.execute("PRAGMA busy_timeout").fetchone())
    """
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CODE, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["25000"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("option", "damage"),
    [("--database {}", "not a database"), ("--database={}", "a page of another")],
)
def test_a_damaged_database_is_named_and_nothing_is_started(tmp_path, option, damage):
    """After this exit code, the unit is not restarted."""
    path = tmp_path / "superlink.db"
    for options in ([], option.format(path).split()):
        refuse_damaged(options)
    assert not path.exists()  # Flower creates it
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            "CREATE TABLE runs (name TEXT PRIMARY KEY); PRAGMA user_version = 1;"
            "INSERT INTO runs SELECT value FROM json_each('[1,2,3]');"
        )
    refuse_damaged(option.format(path).split())  # it is undamaged
    whole = path.read_bytes()
    path.write_bytes(b"x" * 4096 if damage == "not a database" else whole[:4096] + b"x" * 8192)
    done = subprocess.run(
        [tool("dpfact"), "superlink", "--insecure", *option.format(path).split()],
        env={"PYTHONPATH": str(CODE)}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"{path}: the SuperLink's database is damaged" in done.stderr
    assert "RestartPreventExitStatus=2" in written("dpfact-centre.service")


@pytest.mark.parametrize("stopped", [False, True])
def test_a_superlink_ends_with_its_helper_and_calls_its_own_stop_no_failure(monkeypatch, stopped):
    """Flower's own SuperLink continues without its helper, and every run stays `pending`."""
    helper, ended = Event(), []  # an event, too, has a method `wait`
    link = SimpleNamespace(superexec_process=helper)
    lifespan = SimpleNamespace(startup=lambda _: None, shutdown=lambda _: helper.set())
    monkeypatch.setattr(module, "_end", ended.append)
    module._end_with_helper(lifespan)
    lifespan.startup(link)
    (watching,) = (each for each in module.threading.enumerate() if "await_helper" in each.name)
    lifespan.shutdown(link) if stopped else helper.set()
    watching.join(PATIENCE)
    assert bool(ended) is not stopped


def test_with_another_flower_no_superlink_is_started(monkeypatch):
    monkeypatch.setattr(flower, "version", lambda name: "1.43.0")
    monkeypatch.setattr(module, "extend_database_timeout", None)
    with pytest.raises(MissingDependencyError, match=r"Flower 1\.43\.0"):
        module.run_superlink([])
