"""Flower's inside, as far as this package uses it: each name and each text, one by one.

A failure here names what is gone from the Flower that is installed, and what to look at. All else
that is imported of Flower is public.
"""

import ast
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import flwr
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from packaging.specifiers import SpecifierSet

from dpfact_flower import preflight
from dpfact_flower.errors import MissingDependencyError
from dpfact_flower.machine import flower
from dpfact_flower.runtime import centre, connection, supernode
from tests.test_house import MODULES, PACKAGE, ROOT

NAMES = [(home, name) for home, (names, _) in flower.INSIDE.items() for name in names.split()]
PUBLIC = {
    "flwr.app", "flwr.client", "flwr.clientapp", "flwr.common", "flwr.server",
    "flwr.server.strategy", "flwr.serverapp", "flwr.serverapp.strategy",
}  # fmt: skip
ATTRIBUTES = {
    "FleetHttpClient": ("_send",),
    "TaskIdentity": ("task_id", "run_id", "node_id"),
    "Run": ("create_empty",),
    "constant": ("SQLITE_PRAGMAS",),
    "TaskType": ("CLIENT_APP",),
    "SubStatus": ("COMPLETED",),
    "RuntimeHttpClient": (
        "from_server_address", "AcquireTask", "PullTaskInput", "PullMessages", "PullObject",
        "ConfirmMessageReceived", "PushTaskOutput", "SendTaskHeartbeat",
    ),
    "HeartbeatSender": ("start", "stop", "is_running"),
    "RetryInvoker": ("invoke",),
}  # fmt: skip
"""What is used of these that mypy does not see, or that is changed."""
TEXTS = {
    supernode._ACQUIRE: ("supercore/runtime/runtime_http_client.py", "runtime/supernode: _ACQUIRE"),
    connection._AWAY: ("cli/utils.py", "runtime/connection: _AWAY, a SuperLink that is away"),
    "flower-superexec": ("superlink/cli/flower_superlink.py", "runtime/centre: _HELPER"),
    'FINISHED = "finished"': ("common/constant.py", "runtime/connection: _FINISHED, COMPLETED"),
    'COMPLETED = "completed"': ("common/constant.py", "runtime/connection: COMPLETED"),
    "%s raised an exception": ("superlink/runtime/run_serverapp.py", "machine/logs: in_one_line"),
    "MESSAGE_UNAVAILABLE = 3": ("common/constant.py", "collect: LOST and _MEANING"),
    "REPLY_MESSAGE_UNAVAILABLE = 4": ("common/constant.py", "collect: LOST and _MEANING"),
    "NODE_UNAVAILABLE = 5": ("common/constant.py", "collect: LOST and _MEANING"),
    "INVALID_FAB = 7": ("common/constant.py", "collect: _MEANING"),
    "CLIENT_APP_CRASHED = 8": ("common/constant.py", "collect: LOST and _MEANING"),
    "CLIENT_APP_RAISED_EXCEPTION = 2": ("common/constant.py", "wire/records: CLIENT_APP_RAISED"),
}


@pytest.mark.parametrize(("home", "name"), NAMES, ids=[name for _, name in NAMES])
def test_a_name_of_flowers_inside_is_there(home, name):
    look = flower.INSIDE[home][1]
    try:
        found = flower.inside(home, name)
    except MissingDependencyError as error:
        pytest.fail(f"{error}. Look at {look}")
    gone = set(ATTRIBUTES.get(name, ())).difference(dir(found), dir(type(found)))
    assert not gone, f"{home}.{name} has no {', '.join(sorted(gone))} any more. Look at {look}"


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_of_flowers_that_is_matched_is_there(text):
    file, look = TEXTS[text]
    found = (Path(flwr.__file__).parent / file).read_text(encoding="utf-8")
    assert text in found, f"flwr/{file} says {text!r} no more. Look at {look}"


def test_a_client_app_without_a_query_says_so_in_the_words_that_are_known():
    flower.TaskIdentity.task_id = flower.TaskIdentity.run_id = flower.TaskIdentity.node_id = 1
    message = Message(RecordDict(), 2, "query")
    with pytest.raises(ValueError, match="query") as raised:
        ClientApp()(message, Context(1, 2, {}, RecordDict(), {}))
    assert any(known in str(raised.value) for known in preflight._UNKNOWN), (
        "Look at preflight: _UNKNOWN"
    )


def test_the_helpers_name_is_as_linux_shows_it():
    assert "flower-superexec".startswith(centre._HELPER)


@pytest.mark.parametrize("module", MODULES)
def test_flowers_inside_is_used_through_one_module(module):
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    homes = {each.module for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
    homes |= {
        name.name for each in ast.walk(tree) if isinstance(each, ast.Import) for name in each.names
    }
    flowers = {home for home in homes if home and home.split(".")[0] == "flwr"}
    assert flowers <= (PUBLIC if module != "machine.flower" else set(flower.INSIDE))


def test_what_mypy_sees_is_what_is_tried():
    tree = ast.parse((PACKAGE / "machine" / "flower.py").read_text(encoding="utf-8"))
    seen = {
        (each.module, name.name)
        for each in ast.walk(tree)
        if isinstance(each, ast.ImportFrom) and each.module.startswith("flwr")
        for name in each.names
    }
    assert seen == set(NAMES)


GONE = """
import importlib, sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name in {gone!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Gone())
from dpfact_flower.machine import flower
flower.INSIDE  # it is not imported by itself
import dpfact_flower
for name in dpfact_flower.__all__:
    getattr(dpfact_flower, name)
import dpfact_flower.client_app, dpfact_flower.server_app, dpfact_flower.legacy
try:
    flower.push_message
except ImportError as error:
    print(error)
"""


def test_one_that_is_gone_stops_what_needs_it_alone():
    """Not the import of the package, nor that of a door that all use."""
    gone = sorted(
        home for home in flower.INSIDE
        if home.startswith(("flwr.superlink.cli", "flwr.supernode"))
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", GONE.format(gone=gone)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "has no flwr.supernode.runtime.run_clientapp.push_message" in done.stdout
    assert f"pip install 'flwr{flower.RANGE}'" in done.stdout


@pytest.mark.parametrize("name", ["NodeInfo", "Run", "no_object_id_recompute", "ClientProxy"])
def test_no_name_of_a_door_is_needed_to_import_it(name):
    """Were it looked up at import, every user of the package would be stopped."""
    code = (
        "from dpfact_flower.machine import flower\n"
        f"flower._HOMES.pop({name!r})\n"
        "import dpfact_flower.strategy, dpfact_flower.legacy, dpfact_flower.client_app\n"
        "import dpfact_flower.wire.records, dpfact_flower.runtime.grid\n"
        f"assert {name!r} not in vars(flower)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_range_is_that_of_the_known_releases_everywhere():
    text = (ROOT / "pyproject.toml").read_text()
    app = (ROOT / "simulation" / "dpfact-app" / "pyproject.toml").read_text()
    asked = re.findall(r'"flwr(?:\[simulation\])?([<>=][^"]*)"', text + app)
    assert asked == [flower.RANGE] * 3
    allowed = SpecifierSet(flower.RANGE)
    first, last = ((int(part) for part in each.split(".")) for each in flower.KNOWN)
    (major, low), (_, high) = first, last
    assert high == low + 1  # the newest and the one before
    for minor in range(low - 1, high + 2):
        assert (f"{major}.{minor}.3" in allowed) == (low <= minor <= high)
    assert version("flwr") in allowed
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
    assert f"'flwr{flower.RANGE}'" in page
    assert f"'flwr{flower.RANGE}'" in (ROOT / "deploy" / "Dockerfile").read_text()
