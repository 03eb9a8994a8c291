"""What a SuperNode says to the processes that do its work: all that we use of Flower's inside.

Flower has no public way to answer a SuperNode with anything but the app that the SuperLink sent, so
this speaks the SuperNode's Runtime API as Flower 1.41's `flower-superexec` and `flwr-clientapp` do,
with their own parts. It never takes an app out of a message: nothing here, or in what calls it,
unpacks, installs or imports one. `dpfact_flower.runtime.executor` refuses any other Flower before
this is imported.
"""

from __future__ import annotations

from dataclasses import dataclass

import httpx
from flwr.app import Context, Message, RecordDict
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message

from dpfact_flower.errors import SettingsError
from dpfact_flower.settings import Scalar

_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_AWAY_SECONDS = 300.0
"""A SuperNode that is stopped or busy may be there again within this. One that is started again has
forgotten the message; one that stays away must not keep an executor from its next, or its end."""
_REFUSED = frozenset({httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN})


class Tasks:
    """The messages that wait at a SuperNode.

    Parameters
    ----------
    address : str
        The SuperNode's, HOST:PORT. What is said there is not encrypted: it is for one machine.
    secret : bytes
        What the SuperNode's `--superexec-auth-secret-file` holds.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={_ACQUIRE})
        self._client = RuntimeHttpClient.from_server_address(
            address, True, None, [RuntimeVersionHttpInterceptor("SuperExec"), signed]
        )

    def claim(self) -> str | None:
        """Token of the message that has waited longest, which nobody else gets then.

        A message for an app of another kind is not asked for, and stays where it is.

        Returns
        -------
        str or None
            Empty where no message waits; None where no SuperNode answers.

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
    """One message and the way back; a context that says to the SuperNode that it is at work.

    Attributes
    ----------
    message : Message
    node_config : mapping
        What the SuperNode has been given; the hospital's own file counts instead.
    """

    message: Message
    node_config: dict[str, Scalar]
    _context: Context
    _client: RuntimeHttpClient

    def own_context(self, node_config: dict[str, Scalar]) -> Context:
        """Context for the app: the hospital's settings, and nothing of what the SuperLink sent."""
        run, node = self._context.run_id, self._context.node_id
        return Context(
            run_id=run, node_id=node, node_config=dict(node_config), state=RecordDict(),
            run_config={},
        )  # fmt: skip

    def send(self, reply: Message) -> None:
        """Hand a reply to the SuperNode."""
        push_message(self._client, reply, self._context)


class Claimed:
    """A claimed message as a context: fetched at its start, and reported as done at its end."""

    def __init__(self, address: str, token: str) -> None:
        self._retries = make_simple_http_retry_invoker()
        self._retries.max_time = _AWAY_SECONDS
        self._client = RuntimeHttpClient.from_server_address(
            address, True, None,
            [RuntimeVersionHttpInterceptor("flwr-clientapp"), RuntimeTokenHttpInterceptor(token)],
            retry_invoker=self._retries,
        )  # fmt: skip
        self._heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(self._client))

    def __enter__(self) -> Work:
        self._heartbeat.start()
        message, context, _, _ = pull_task_input(self._client)
        return Work(message, dict(context.node_config), context, self._client)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        status = SubStatus.COMPLETED if kind is None else SubStatus.FAILED
        self._retries.max_tries = 1
        # No text of an error: it would go to the SuperNode, and nobody needs it there.
        self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
        if self._heartbeat.is_running:
            self._heartbeat.stop()
        self._client.close()
