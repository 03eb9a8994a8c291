"""Fetch messages from a SuperNode for the executor, and send the executor's replies.

Flower has no public way to answer messages without running the app that the SuperLink sends. This
module therefore calls the SuperNode's Runtime API through Flower's private modules. Private modules
may change, so the executor refuses untested versions of Flower.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import httpx
from flwr.app import Context, Message
from flwr.common.constant import SubStatus
from flwr.common.serde import context_from_proto
from flwr.proto import runtime_pb2 as api
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supercore.retry import RetryInvoker, make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import push_message

from dpfact_flower.errors import SettingsError
from dpfact_flower.machine.files import user_name
from dpfact_flower.machine.processes import Listener, listeners

Claimed = tuple[Message, Context, Callable[[Message], None]]
_logger = logging.getLogger(__name__)
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_AWAY_SECONDS = 300.0
"""Longest wait for a stopped or busy SuperNode. A restarted SuperNode has forgotten the message."""
_FETCH_SECONDS = 120.0
"""Longest time to fetch a message, of which some parts never arrive if the sender has exited."""


class OwnSuperNode:
    """A SuperNode's address, not used if another user's process is seen to listen there.

    A SuperNode does not prove its identity. While the SuperNode is down, another user's process
    could bind the port and spend the hospital's privacy budget with forged messages. `intercept`
    therefore checks the listening process before each request and before reading the response. Each
    request uses a new connection, which only the listening process can accept.
    """

    def __init__(self, host: str, port: int, uid: int) -> None:
        self._host, self._port, self._uid, self._logged = host, port, uid, ""

    def client(
        self, interceptors: list[Any], retries: RetryInvoker | None = None
    ) -> RuntimeHttpClient:
        """Return an HTTP client that connects to the SuperNode without encryption."""
        return RuntimeHttpClient.from_server_address(
            f"{self._host}:{self._port}", True, None, [self, *interceptors], retry_invoker=retries
        )

    def intercept(
        self,
        context: ProtobufRequestContext,
        call_next: Callable[[ProtobufRequestContext], httpx.Response],
    ) -> httpx.Response:
        """Send a request. Raise a ConnectError if another user's process listens on the port."""
        before = self._listening()
        context.request.headers["connection"] = "close"
        response = call_next(context)
        if self._listening() != before:
            response.close()
            raise httpx.ConnectError("the SuperNode disconnected in the meantime")
        return response

    def _listening(self) -> list[Listener]:
        listening = listeners(self._host, self._port)
        if listening is None:  # the processes are not visible; the executor has logged a warning
            return []
        if not listening:
            raise httpx.ConnectError("nobody listens there")
        strangers = {listener.uid for listener in listening} - {self._uid}
        if not strangers:
            self._logged = ""
            return listening
        note = (
            f"user {', '.join(sorted(map(user_name, strangers)))} listens on port {self._port}, "
            f"but the SuperNode belongs to {user_name(self._uid)} (--node-user): the executor does "
            "not use this port"
        )
        if note != self._logged:
            _logger.error("%s", note)
        self._logged = note
        raise httpx.ConnectError(note)


class Tasks:
    """Access to a SuperNode's unanswered messages. `claim` signs requests with `secret`."""

    def __init__(self, node: OwnSuperNode, secret: bytes) -> None:
        signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={_ACQUIRE})
        self._client = node.client([RuntimeVersionHttpInterceptor("SuperExec"), signed])

    def claim(self) -> str | None:
        """Claim the oldest message for the ClientApp, and return the message's token.

        Return an empty string if no message is waiting, or None if the SuperNode does not answer.
        """
        request = api.AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        try:
            reply = self._client.AcquireTask(request)
        except httpx.HTTPStatusError as error:
            if error.response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                text = "the SuperNode has a different secret: give both a copy of the same file"
                raise SettingsError(text) from None
            return None
        except httpx.TransportError:
            return None
        return reply.token if reply.HasField("task") else ""


@contextmanager
def claimed(node: OwnSuperNode, token: str) -> Iterator[Claimed]:
    """Fetch a claimed message on entry, and report the message as done on exit.

    Yield the message, its `Context`, and a function that sends the reply to the SuperNode. After an
    error, stop the heartbeats and report nothing, so that the SuperNode replies with an error after
    one minute. If the message were reported as done, the SuperNode would wait forever for a reply.
    """
    retries = make_simple_http_retry_invoker()
    retries.max_time = _AWAY_SECONDS
    named = [RuntimeVersionHttpInterceptor("flwr-clientapp"), RuntimeTokenHttpInterceptor(token)]
    client = node.client(named, retries)

    def alive() -> bool:
        """Send a heartbeat to the SuperNode, and ignore errors."""
        with suppress(httpx.HTTPError):
            client.SendTaskHeartbeat(api.SendTaskHeartbeatRequest())
        return True

    heartbeat = HeartbeatSender(alive)
    with closing(client):
        heartbeat.start()  # heartbeats continue while another process computes
        try:
            context = context_from_proto(client.PullTaskInput(api.PullTaskInputRequest()).context)
            message = _fetched(client, context)
            yield message, context, lambda reply: push_message(client, reply, context)
        finally:
            retries.max_tries = 1
            # More heartbeats would keep the message claimed forever. After the report, the token is
            # no longer valid, and a heartbeat would make Flower's client terminate this process.
            heartbeat.stop()
        client.PushTaskOutput(api.PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""))


def _fetched(client: RuntimeHttpClient, context: Context) -> Message:
    """Fetch the claimed message. Unlike Flower's `run_clientapp`, do not fetch the app."""
    pulled = client.PullMessages(api.PullAppMessagesRequest())
    tree, node, run = pulled.message_object_trees[0], Node(node_id=context.node_id), context.run_id
    message = pull_and_inflate_object_from_tree(
        tree,
        make_pull_object_fn_protobuf(client.PullObject, node, run),
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, run),
        return_type=Message,
        max_time=_FETCH_SECONDS,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id  # not part of the message
    return message
