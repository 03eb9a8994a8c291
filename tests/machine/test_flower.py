"""The private parts of Flower that this package uses: each name and each text.

A failure names the part that the installed Flower lacks, and the module that uses it.
"""

import ast
import re
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import flwr
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from packaging.specifiers import SpecifierSet

from dpfact_flower import connected
from dpfact_flower.machine import flower
from dpfact_flower.runtime import supernode
from tests.test_house import MODULES, ROOT

PUBLIC = {
    "flwr.app", "flwr.client", "flwr.clientapp", "flwr.common", "flwr.server",
    "flwr.server.strategy", "flwr.serverapp", "flwr.serverapp.strategy",
}  # fmt: skip
INSIDE = sorted(
    (module, each.module, name.name)
    for module, path in MODULES.items()
    for each in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(each, ast.ImportFrom) and (each.module or "").startswith("flwr.")
    for name in each.names
    if each.module not in PUBLIC
)
"""Every private name of Flower: the module that uses it, its origin, and its kind."""
ATTRIBUTES = {
    "start_client_internal": ("_pull_and_store_message", "push_object_contents_from_iterable"),
    "SuperLinkLifespan": ("startup", "shutdown"),
    "TaskIdentity": ("task_id", "run_id", "node_id"),
    "Run": ("create_empty",),
    "constant": ("SQLITE_PRAGMAS",),
    "TaskType": ("CLIENT_APP",),
    "SubStatus": ("COMPLETED",),
    "RuntimeHttpClient": (
        "from_server_address", "AcquireTask", "PullTaskInput", "PullMessages", "PullObject",
        "ConfirmMessageReceived", "PushTaskOutput", "SendTaskHeartbeat",
    ),
    "HeartbeatSender": ("start", "stop"),
    "RetryInvoker": ("invoke",),
    "runtime_pb2": (
        "AcquireTaskRequest", "PullAppMessagesRequest", "PullTaskInputRequest",
        "PushTaskOutputRequest", "SendTaskHeartbeatRequest",
    ),
}  # fmt: skip
"""Attributes of these that mypy does not see, or that this package changes."""
TEXTS = {
    supernode._ACQUIRE: ("supercore/runtime/runtime_http_client.py", "runtime/supernode: _ACQUIRE"),
    "self.superexec_process": ("superlink/cli/flower_superlink.py", "runtime/services: startup"),
    'FINISHED = "finished"': ("common/constant.py", "runtime/superlink: _FINISHED, COMPLETED"),
    'COMPLETED = "completed"': ("common/constant.py", "runtime/superlink: COMPLETED"),
    "%s raised an exception": ("superlink/runtime/run_serverapp.py", "machine/logs: in_one_line"),
    "MESSAGE_UNAVAILABLE = 3": ("common/constant.py", "collect: LOST and _MEANING"),
    "REPLY_MESSAGE_UNAVAILABLE = 4": ("common/constant.py", "collect: LOST and _MEANING"),
    "NODE_UNAVAILABLE = 5": ("common/constant.py", "collect: LOST and _MEANING"),
    "INVALID_FAB = 7": ("common/constant.py", "collect: _MEANING"),
    "CLIENT_APP_CRASHED = 8": ("common/constant.py", "collect: LOST and _MEANING"),
    "CLIENT_APP_RAISED_EXCEPTION = 2": ("common/constant.py", "wire/records: CLIENT_APP_RAISED"),
}


@pytest.mark.parametrize(("module", "home", "name"), INSIDE)
def test_a_name_of_flowers_inside_is_there(module, home, name):
    found = getattr(import_module(home), name, None) or import_module(f"{home}.{name}")
    gone = set(ATTRIBUTES.get(name, ())).difference(dir(found), dir(type(found)))
    assert not gone, f"{home}.{name} has no {', '.join(sorted(gone))} any more. Look at {module}"


def test_what_is_used_of_them_is_listed_for_names_that_are_used():
    assert ATTRIBUTES.keys() <= {name for _, _, name in INSIDE}


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_of_flowers_that_is_matched_is_there(text):
    file, look = TEXTS[text]
    found = (Path(flwr.__file__).parent / file).read_text(encoding="utf-8")
    assert text in found, f"flwr/{file} says {text!r} no more. Look at {look}"


def test_a_client_app_without_a_query_says_so_in_the_words_that_are_known():
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    message = Message(RecordDict(), 2, "query")
    with pytest.raises(ValueError, match="query") as raised:
        ClientApp()(message, Context(1, 2, {}, RecordDict(), {}))
    assert any(text in str(raised.value) for text in connected._UNKNOWN), "See connected: _UNKNOWN"


def test_the_range_is_that_of_the_known_releases_everywhere():
    text = (ROOT / "pyproject.toml").read_text()
    app = (ROOT / "simulation" / "dpfact-app" / "pyproject.toml").read_text()
    assert re.findall(r'"flwr(?:\[simulation\])?([<>=][^"]*)"', text + app) == [flower.RANGE] * 3
    allowed = SpecifierSet(flower.RANGE)
    first, last = ((int(part) for part in each.split(".")) for each in flower.KNOWN)
    (major, low), (_, high) = first, last
    assert high == low + 1  # the newest and the previous release
    for minor in range(low - 1, high + 2):
        assert (f"{major}.{minor}.3" in allowed) == (low <= minor <= high)
    assert version("flwr") in allowed
    for installs in ("docs/how-to/faults.md", "deploy/Dockerfile"):
        assert f"'flwr{flower.RANGE}'" in (ROOT / installs).read_text()
