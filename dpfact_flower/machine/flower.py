"""Which Flower this package works with, and every name of Flower's inside that it uses.

All else is Flower's public API: `flwr.app`, `clientapp`, `serverapp`, `client`, `server`, `common`
and their strategies. A name of the inside may go with any release. So each stands here with what to
look at then, and is looked up when it is first used: one that is gone stops what needs it alone.
`tests/machine/test_flower.py` tries each with the Flower that is installed.
"""

# ruff: noqa: F401 - what is imported for mypy alone
from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from dpfact_flower.errors import MissingDependencyError

if TYPE_CHECKING:
    from flwr.common.constant import SubStatus
    from flwr.common.logger import LOGGER_NAME, console_handler
    from flwr.common.serde import context_from_proto, message_from_proto, message_to_proto
    from flwr.proto.message_pb2 import Message
    from flwr.proto.node_pb2 import Node, NodeInfo
    from flwr.proto.runtime_pb2 import (
        AcquireTaskRequest,
        PullAppMessagesRequest,
        PullTaskInputRequest,
        PushTaskOutputRequest,
        SendTaskHeartbeatRequest,
    )
    from flwr.server.client_proxy import ClientProxy
    from flwr.supercore import constant
    from flwr.supercore.constant import TaskType
    from flwr.supercore.heartbeat import HeartbeatSender
    from flwr.supercore.inflatable.inflatable_object import no_object_id_recompute
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_confirm_message_received_fn_protobuf,
        make_pull_object_fn_protobuf,
    )
    from flwr.supercore.inflatable.inflatable_utils import (
        ObjectPullError,
        ObjectUnavailableError,
        pull_and_inflate_object_from_tree,
    )
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.protobuf.client import ProtobufRequestContext
    from flwr.supercore.retry import RetryInvoker, make_simple_http_retry_invoker
    from flwr.supercore.run import Run
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.cli import flower_superlink
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.runtime.run_clientapp import push_message

KNOWN = ("1.41", "1.42")
"""Releases that this was tried with, the newest last. A deployment starts with no other."""
RANGE = ">=1.41,<1.43"
"""The same for pip, as pyproject.toml has it."""

_CLIENTAPP = "runtime/supernode: how flwr.supernode.runtime.run_clientapp says it now"
_SUPEREXEC = "runtime/supernode: how flwr.supercore.superexec.run_superexec says it now"
INSIDE: dict[str, tuple[str, str]] = {
    "flwr.common.constant": ("SubStatus", _CLIENTAPP),
    "flwr.common.logger": (
        "LOGGER_NAME console_handler",
        "machine/logs: which logger and handler Flower's own lines go through now",
    ),
    "flwr.common.serde": ("context_from_proto message_from_proto message_to_proto", _CLIENTAPP),
    "flwr.proto.message_pb2": ("Message", _CLIENTAPP),
    "flwr.proto.node_pb2": (
        "Node NodeInfo",
        "collect: what Grid.get_nodes gives of a node, its name above all; runtime/supernode",
    ),
    "flwr.proto.runtime_pb2": (
        "AcquireTaskRequest PullAppMessagesRequest PullTaskInputRequest PushTaskOutputRequest "
        "SendTaskHeartbeatRequest",
        "runtime/supernode: the Runtime API in flwr/proto/runtime.proto",
    ),
    "flwr.server.client_proxy": ("ClientProxy", "legacy: what flwr.server.strategy hands over"),
    "flwr.supercore": ("constant", "runtime/centre: SQLITE_PRAGMAS, how long a database is waited"),
    "flwr.supercore.constant": ("TaskType", _SUPEREXEC),
    "flwr.supercore.heartbeat": ("HeartbeatSender", _CLIENTAPP),
    "flwr.supercore.inflatable.inflatable_object": (
        "no_object_id_recompute",
        "wire/records: how Flower avoids hashing each part of a message at every level",
    ),
    "flwr.supercore.inflatable.inflatable_protobuf_utils": (
        "make_confirm_message_received_fn_protobuf make_pull_object_fn_protobuf",
        _CLIENTAPP,
    ),
    "flwr.supercore.inflatable.inflatable_utils": (
        "ObjectPullError ObjectUnavailableError pull_and_inflate_object_from_tree",
        _CLIENTAPP,
    ),
    "flwr.supercore.interceptors": (
        "RuntimeTokenHttpInterceptor RuntimeVersionHttpInterceptor SuperExecAuthHttpInterceptor",
        _SUPEREXEC,
    ),
    "flwr.supercore.protobuf.client": ("ProtobufRequestContext", _SUPEREXEC),
    "flwr.supercore.retry": ("RetryInvoker make_simple_http_retry_invoker", _CLIENTAPP),
    "flwr.supercore.run": ("Run", "runtime/grid: what Grid.run gives older servers"),
    "flwr.supercore.runtime": ("RuntimeHttpClient", _CLIENTAPP),
    "flwr.supercore.task_identity": (
        "TaskIdentity",
        "runtime/grid: how a process is told which node it is, or no Message can be made in it",
    ),
    "flwr.superlink.cli": ("flower_superlink", "runtime/centre: what flower-superlink starts"),
    "flwr.supernode": (
        "start_client_internal",
        "runtime/connect: what pushes the parts of a reply, and waits for them",
    ),
    "flwr.supernode.cli": ("flower_supernode", "runtime/connect: what flower-supernode starts"),
    "flwr.supernode.fleet_http_client": (
        "FleetHttpClient",
        "runtime/connect: its _send, through which a SuperNode's requests go",
    ),
    "flwr.supernode.runtime.run_clientapp": ("push_message", _CLIENTAPP),
}
"""Names by their module, and where they are used or what to look at when they are gone."""
_HOMES = {name: home for home, (names, _) in INSIDE.items() for name in names.split()}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = inside(_HOMES[name], name)
        return found


def inside(home: str, name: str) -> Any:
    """A name of Flower's inside.

    Raises
    ------
    MissingDependencyError
        If this Flower has it no more.
    """
    try:
        module = import_module(home)
        return getattr(module, name) if hasattr(module, name) else import_module(f"{home}.{name}")
    except ImportError:
        raise MissingDependencyError(
            f"Flower {_installed()} has no {home}.{name}, which this needs: "
            f"pip install 'flwr{RANGE}'"
        ) from None


def _installed() -> str:
    try:
        return version("flwr")
    except PackageNotFoundError:
        return "of no known version"


def other_flower() -> list[str]:
    """What is wrong with the version of Flower that is installed; nothing if it is a known one."""
    found = _installed()
    if ".".join(found.split(".")[:2]) in KNOWN:
        return []
    return [
        f"Flower {found} is installed, and a deployment knows {' and '.join(KNOWN)} alone from "
        f"inside: pip install 'flwr{RANGE}'"
    ]


def refuse_other_flower() -> None:
    """Refuse a Flower whose inside may differ from the known ones'.

    Raises
    ------
    MissingDependencyError
        Naming the versions to install.
    """
    if faults := other_flower():
        raise MissingDependencyError(f"nothing was started: {faults[0]}")
