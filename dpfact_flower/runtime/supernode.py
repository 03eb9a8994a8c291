"""What an executor and a SuperNode say to each other.

Flower has no public way to answer a SuperNode with anything but the app that the SuperLink sent. So
this speaks the SuperNode's Runtime API with the parts of Flower's own `flower-superexec` and
`flwr-clientapp`, but it never unpacks, installs or imports an app. The executor refuses a version
of Flower that is not known before it imports this.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
from flwr.app import Context, Message
from flwr.common.constant import SubStatus
from flwr.common.serde import context_from_proto, message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
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
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import push_message

from dpfact_flower.errors import SettingsError
from dpfact_flower.machine.access import user_name
from dpfact_flower.machine.processes import Listener, listeners

_logger = logging.getLogger(__name__)
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_AWAY_SECONDS = 300.0
"""A stopped or busy SuperNode may be back within this. One that was started again has forgotten the
message; one that stays away must not keep an executor from its next message, or its end."""
_REFUSED = frozenset({httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN})
_PATIENCE_SECONDS = 60.0
"""Longest time without any part of a message while it is fetched."""


class OwnSuperNode:
    """A SuperNode's place; lets requests through to that of one user (a number) alone.

    The SuperNode shows no secret: whoever else binds its port while it is down would be answered
    like it, out of the hospital's budget. So this looks who listens there before a request and,
    with the answer still unread, after it. If nobody does, nothing is asked. No connection outlives
    its request: whoever had the port for a moment would go on answering.
    """

    def __init__(self, host: str, port: int, uid: int) -> None:
        self._host, self._port, self._uid, self._said = host, port, uid, ""

    def client(
        self, interceptors: list[Any], retries: RetryInvoker | None = None
    ) -> RuntimeHttpClient:
        """A connection to it, which is not encrypted: it is for one machine."""
        return RuntimeHttpClient.from_server_address(
            f"{self._host}:{self._port}", True, None, [self, *interceptors], retry_invoker=retries
        )

    def intercept(
        self,
        context: ProtobufRequestContext,
        call_next: Callable[[ProtobufRequestContext], httpx.Response],
    ) -> httpx.Response:
        """Send a request, as Flower's client has it; a ConnectError where somebody else listens."""
        before = self._listening()
        context.request.headers["connection"] = "close"
        response = call_next(context)
        if self._listening() != before:
            response.close()
            raise httpx.ConnectError("the SuperNode went away meanwhile")
        return response

    def _listening(self) -> list[Listener]:
        listening = listeners(self._host, self._port)
        if listening is None:  # it cannot be seen, as the executor said at its start
            return []
        if not listening:
            raise httpx.ConnectError("nobody listens there")
        note = ""
        strangers = {listener.uid for listener in listening} - {self._uid}
        if strangers:
            names = ", ".join(sorted(map(user_name, strangers)))
            note = (
                f"user {names} listens on port {self._port}, and the SuperNode is "
                f"{user_name(self._uid)}'s (--node-user): nothing is asked or answered there"
            )
        if note and note != self._said:
            _logger.error("%s", note)
        self._said = note
        if note:
            raise httpx.ConnectError(note)
        return listening


class Tasks:
    """The messages that wait at a SuperNode; `secret` is in its superexec-auth-secret-file."""

    def __init__(self, node: OwnSuperNode, secret: bytes) -> None:
        signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={_ACQUIRE})
        self._client = node.client([RuntimeVersionHttpInterceptor("SuperExec"), signed])

    def claim(self) -> str | None:
        """Token of the message that has waited longest, which no other executor gets then.

        Empty where no message waits; None where no SuperNode of this user answers. Messages for
        other kinds of app are not asked for, and stay where they are.
        """
        request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        try:
            reply = self._client.AcquireTask(request)
        except httpx.HTTPStatusError as error:
            if error.response.status_code in _REFUSED:
                raise SettingsError(
                    "the SuperNode has another secret: give both a copy of the same file"
                ) from None
            return None
        except httpx.TransportError:
            return None
        return reply.token if reply.HasField("task") else ""


@dataclass(frozen=True)
class ClaimedMessage:
    """A message and the way back; of the context, the hospital's own settings count instead."""

    message: Message
    context: Context
    _client: RuntimeHttpClient

    def send(self, reply: Message) -> None:
        """Hand a reply to the SuperNode."""
        push_message(self._client, reply, self.context)


@contextmanager
def claimed(node: OwnSuperNode, token: str) -> Iterator[ClaimedMessage]:
    """The message of a token: fetched at the start, and reported as done at the end.

    After an error nothing is reported: a SuperNode waits for ever for the reply to a message that
    was reported without one. It answers a message itself when it hears nothing of it for a minute.
    """
    retries = make_simple_http_retry_invoker()
    retries.max_time = _AWAY_SECONDS
    named = [RuntimeVersionHttpInterceptor("flwr-clientapp"), RuntimeTokenHttpInterceptor(token)]
    client = node.client(named, retries)

    def alive() -> bool:
        """Say so; Flower's own way ends the process where the SuperNode waits no longer."""
        with suppress(httpx.HTTPError):
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        return True

    heartbeat = HeartbeatSender(alive)
    with closing(client):
        heartbeat.start()  # which goes on while another process computes
        try:
            context = context_from_proto(client.PullTaskInput(PullTaskInputRequest()).context)
            yield ClaimedMessage(_fetched(client, context), context, client)
        finally:
            retries.max_tries = 1
            # One that went on would keep the message for ever. After the message is reported as
            # done its token is not valid any more, at which Flower's client ends this process.
            heartbeat.stop()
        client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""))


def _fetched(client: RuntimeHttpClient, context: Context) -> Message:
    """The claimed message, fetched as `flwr.supernode.runtime.run_clientapp` does, without its app.

    Flower's own waits more than an hour for parts. They never come if the server ended while it
    sent them, and a site answers one message at a time.
    """
    pulled = client.PullMessages(PullAppMessagesRequest())
    if not pulled.messages_list:
        raise ObjectPullError("", "no message is waiting")
    tree, node, run = pulled.message_object_trees[0], Node(node_id=context.node_id), context.run_id
    message = pull_and_inflate_object_from_tree(
        tree,
        while_they_come(make_pull_object_fn_protobuf(client.PullObject, node, run)),
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, run),
        return_type=Message,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id  # a message does not hold its own
    return message


def while_they_come(
    pull: Callable[[str], bytes],
    patience: float = _PATIENCE_SECONDS,
    now: Callable[[], float] = time.monotonic,
) -> Callable[[str], bytes]:
    """`pull`, for several threads, which gives up after `patience` seconds without any object."""
    last = now()

    def pulled(identifier: str) -> bytes:
        nonlocal last
        try:
            response = pull(identifier)
        except ObjectUnavailableError:
            if now() - last < patience:
                raise
            reason = f"no part of the message has come for {patience:g} s; its server has gone"
            raise ObjectPullError(identifier, reason) from None
        last = now()
        return response

    return pulled


def message_to_bytes(message: Message) -> bytes:
    """A message with all that it holds, as Flower writes it."""
    return bytes(message_to_proto(message).SerializeToString())


def message_from_bytes(data: bytes) -> Message:
    """Read what `message_to_bytes` wrote."""
    return message_from_proto(ProtoMessage.FromString(data))
