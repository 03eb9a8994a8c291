"""What a SuperNode says to the processes that do its work.

Flower has no public way to answer a SuperNode with anything but the app that the SuperLink sent, so
this speaks the SuperNode's Runtime API as Flower's own `flower-superexec` and `flwr-clientapp` do,
with their own parts. It never takes an app out of a message: nothing here, or in what calls it,
unpacks, installs or imports one. `dpfact_flower.runtime.executor` refuses a Flower that is not
known from inside (`dpfact_flower.machine.flower`) before this is imported.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
from flwr.app import Context, Message

from dpfact_flower.errors import SettingsError
from dpfact_flower.machine.access import user_name
from dpfact_flower.machine.flower import (
    AcquireTaskRequest,
    HeartbeatSender,
    Node,
    ObjectPullError,
    ObjectUnavailableError,
    ProtobufRequestContext,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    RetryInvoker,
    RuntimeHttpClient,
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SendTaskHeartbeatRequest,
    SubStatus,
    SuperExecAuthHttpInterceptor,
    TaskType,
    context_from_proto,
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_simple_http_retry_invoker,
    message_from_proto,
    message_to_proto,
    pull_and_inflate_object_from_tree,
    push_message,
)
from dpfact_flower.machine.flower import Message as ProtoMessage
from dpfact_flower.machine.listeners import Listener, listeners

_logger = logging.getLogger(__name__)
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_AWAY_SECONDS = 300.0
"""A SuperNode that is stopped or busy may be there again within this. One that is started again has
forgotten the message; one that stays away must not keep an executor from its next, or its end."""
_REFUSED = frozenset({httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN})
_PATIENCE_SECONDS = 60.0
"""Longest time without any part of a message while it is fetched."""


class OwnSuperNode:
    """Lets requests through to the SuperNode of one user alone.

    The SuperNode shows no secret: whoever else binds its port while it is down would be answered
    like it, out of the hospital's budget. So it is looked who listens there, before a request and,
    with what was answered still unread, after it. Where nobody does nothing is asked, and no
    connection outlives its request: whoever had the port for a moment would go on answering.

    Parameters
    ----------
    server : str
        HOST:PORT.
    uid : int
        The user.
    """

    def __init__(self, server: str, uid: int) -> None:
        self._host, _, port = server.rpartition(":")
        self._port, self._uid, self._said = int(port), uid, ""

    def intercept(
        self,
        context: ProtobufRequestContext,
        call_next: Callable[[ProtobufRequestContext], httpx.Response],
    ) -> httpx.Response:
        """Send a request, as Flower's client has it.

        Raises
        ------
        httpx.ConnectError
            As if nobody listened, where somebody else does.
        """
        before = self._listening()
        context.request.headers["connection"] = "close"
        response = call_next(context)
        if self._listening() != before:
            response.close()
            raise httpx.ConnectError("the SuperNode went away meanwhile")
        return response

    def _listening(self) -> list[Listener]:
        found = listeners(self._host, self._port)
        if found is None:  # it cannot be seen, as was said at the start
            return []
        if not found:
            raise httpx.ConnectError("nobody listens there")
        said = ""
        if others := {user_name(each.uid) for each in found if each.uid != self._uid}:
            said = (
                f"user {', '.join(sorted(others))} listens on port {self._port}, and the SuperNode "
                f"is {user_name(self._uid)}'s (--node-user): nothing is asked or answered there"
            )
        if said and said != self._said:
            _logger.error("%s", said)
        self._said = said
        if said:
            raise httpx.ConnectError(said)
        return found


def _client(
    address: str, interceptors: list[Any], retries: RetryInvoker | None = None
) -> RuntimeHttpClient:
    user, _, server = address.rpartition("@")
    own = OwnSuperNode(server, int(user))
    return RuntimeHttpClient.from_server_address(
        server, True, None, [own, *interceptors], retry_invoker=retries
    )


class Tasks:
    """The messages that wait at a SuperNode.

    Parameters
    ----------
    address : str
        The SuperNode's, USER@HOST:PORT, with the number of the user who alone may listen there.
        What is said there is not encrypted: it is for one machine.
    secret : bytes
        What the SuperNode's `--superexec-auth-secret-file` holds.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={_ACQUIRE})
        self._client = _client(address, [RuntimeVersionHttpInterceptor("SuperExec"), signed])

    def claim(self) -> str | None:
        """Token of the message that has waited longest, which nobody else gets then.

        A message for an app of another kind is not asked for, and stays where it is.

        Returns
        -------
        str or None
            Empty where no message waits; None where no SuperNode of this user answers.

        Raises
        ------
        SettingsError
            If the SuperNode has another secret.
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
class Work:
    """One message and the way back.

    Attributes
    ----------
    message : Message
    context : Context
        As it came; the hospital's own settings count instead of what it says.
    """

    message: Message
    context: Context
    _client: RuntimeHttpClient

    def send(self, reply: Message) -> None:
        """Hand a reply to the SuperNode."""
        push_message(self._client, reply, self.context)


class Claimed:
    """A claimed message as a context: fetched at its start, and reported as done at its end.

    Where it ends with an error, nothing is reported: a SuperNode waits for ever for the reply to a
    message that was reported without one. A message of which it hears nothing more it answers
    itself, within a minute.

    Parameters
    ----------
    address : str
        As for `Tasks`.
    token : str
        What `Tasks.claim` gave.
    """

    def __init__(self, address: str, token: str) -> None:
        self._retries = make_simple_http_retry_invoker()
        self._retries.max_time = _AWAY_SECONDS
        named = [
            RuntimeVersionHttpInterceptor("flwr-clientapp"),
            RuntimeTokenHttpInterceptor(token),
        ]
        self._client = _client(address, named, self._retries)
        self._heartbeat = HeartbeatSender(self._alive)

    def __enter__(self) -> Work:
        self._heartbeat.start()  # which goes on while another process computes
        try:
            pulled = self._client.PullTaskInput(PullTaskInputRequest())
            context = context_from_proto(pulled.context)
            return Work(_fetched(self._client, context), context, self._client)
        except BaseException:
            self._close()
            raise

    def _alive(self) -> bool:
        """Say so; Flower's own way ends the process where the SuperNode waits no longer."""
        with suppress(httpx.HTTPError):
            self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        return True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._retries.max_tries = 1
        try:
            if kind is None:
                self._client.PushTaskOutput(
                    PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details="")
                )
        finally:
            self._close()

    def _close(self) -> None:
        """Say no more; a heart that went on beating would keep the message for ever."""
        if self._heartbeat.is_running:
            self._heartbeat.stop()
        self._client.close()


def _fetched(client: RuntimeHttpClient, context: Context) -> Message:
    """The claimed message, as `flwr.supernode.runtime.run_clientapp.pull_task_input` fetches it.

    But for the app, which is left in its bundle, and for what that does where parts are missing: it
    waits for them for more than an hour. They never come if the server ended while it sent them,
    and a site answers one message at a time.
    """
    pulled = client.PullMessages(PullAppMessagesRequest())
    if not pulled.messages_list:
        raise ObjectPullError("", "no message waits any more")
    tree, node, run = pulled.message_object_trees[0], Node(node_id=context.node_id), context.run_id
    message = pull_and_inflate_object_from_tree(
        tree,
        while_they_come(make_pull_object_fn_protobuf(client.PullObject, node, run)),
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, run),
        return_type=Message,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id  # a message does not hold its own
    return message


def message_to_bytes(message: Message) -> bytes:
    """A message with all that it holds, as Flower writes it."""
    return bytes(message_to_proto(message).SerializeToString())


def message_from_bytes(data: bytes) -> Message:
    """Read what `message_to_bytes` wrote."""
    return message_from_proto(ProtoMessage.FromString(data))


def while_they_come(
    pull: Callable[[str], bytes],
    patience: float = _PATIENCE_SECONDS,
    now: Callable[[], float] = time.monotonic,
) -> Callable[[str], bytes]:
    """`pull`, which gives up once nothing has come for a while.

    Parameters
    ----------
    pull : callable
        Gives the object of an identifier, or raises ObjectUnavailableError where it may yet come.
    patience : float
        Seconds without any object until ObjectPullError ends the fetching.
    now : callable
        A clock, in seconds.

    Returns
    -------
    callable
        As `pull`; for several threads.
    """
    last = now()

    def pulled(identifier: str) -> bytes:
        nonlocal last
        try:
            found = pull(identifier)
        except ObjectUnavailableError:
            if now() - last < patience:
                raise
            reason = f"no part of the message has come for {patience:g} s; its server has gone"
            raise ObjectPullError(identifier, reason) from None
        last = now()
        return found

    return pulled
