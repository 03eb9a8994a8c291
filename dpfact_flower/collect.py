"""The messages of a round: sent, waited for, and sent again where a reply got lost on the way.

Flower's own `send_and_receive` asks each node once. But if a site's process is killed, or its
SuperNode restarted, between the charge and the reply, the site has paid, and its ledger has the
bytes: asked the same again it sends them, and pays nothing more. So the server asks lost sites
again until the round ends. Half-way through, it asks every silent site once more, because Flower's
SuperNode forgets a message without a word where the SuperLink fails inside while it is fetched, or
where the answer that brings it is cut off.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from logging import WARNING
from typing import NamedTuple, TypeVar

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.common import log
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from dpfact_flower.errors import DPFactError, LateError, RoundFailedError, code_in, heard

T = TypeVar("T")
LOST = frozenset({3, 4, 5, 8})
"""Flower's codes of a message or reply that cannot be had (any more), a node that is gone, and a
ClientApp that was killed: what the site has done by then is not known."""
_MEANING = {
    3: "no answer in the time that it had",
    4: "its answer was lost on the way",
    5: "its SuperNode has gone",
    7: "its SuperNode refuses the app that Flower sends with a run, see --trusted-entities",
    8: "the process that answered there has died",
}
"""What Flower's codes mean at the centre; its own texts name what may be, at length."""
POLL_SECONDS = 0.5
MOST_ASKED = 3
"""Times that a node is sent a question; a person should look at a site that fails each time."""
RETURN_SECONDS = 120.0
"""A SuperNode with a key is let in again within a minute of its end, and starts in seconds."""
LEAST_SECONDS = 10.0
"""What is left of a round must suffice for a process to start and to send kept bytes."""
_BUSY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_EXTRA = 1 / 4
"""Of a round's time, if later rounds build on it and a site that is there is missing."""


class RoundPolicy(NamedTuple):
    """How far a round goes for replies that are missing.

    Attributes
    ----------
    charged : bool
        Whether sites are charged for it: then lost sites are waited for, for a while.
    required : bool
        Whether later rounds build on it: then sites that connect late are asked too, and sites that
        are there and missing at the end are asked once more.
    left_out : frozenset of int
        Nodes that are not asked in any case.
    quorum : int
        Replies that are needed.
    grace : float
        Seconds for missing sites if the quorum is missing, where the round was to end early. Until
        then no site was charged whose reply did not come.
    """

    charged: bool = False
    required: bool = False
    left_out: frozenset[int] = frozenset()
    quorum: int = 0
    grace: float = 0.0


@dataclass
class InFlight:
    """A question to a node: on its way, at the site, or on its way back.

    Attributes
    ----------
    group : str
        Flower's name of the round.
    began, deadline : float
        From when and until when a reply is waited for, by `time.monotonic`.
    who : str
        The site, as whoever asks knows it.
    times : int
        It was sent.
    waiting : set of str
        Messages that may still bring a reply.
    reply : Message or None
        The last one.
    seconds : float
        Until a reply that is no error.
    """

    content: RecordDict
    group: str
    began: float
    deadline: float
    who: str = ""
    times: int = 0
    waiting: set[str] = field(default_factory=set)
    reply: Message | None = None
    seconds: float = math.inf

    @property
    def may_be_sent(self) -> bool:
        """Whether the question is new, or the same again may bring what a site has kept.

        A site says `RoundFailedError`, too, if its reply was not ready when it was due: it may be
        ready by now.
        """
        if self.reply is None:
            half = (self.began + self.deadline) / 2
            once_more = self.times == 1 and time.monotonic() >= half
            return once_more or (not self.waiting and self.times < MOST_ASKED)
        if self.waiting:
            return False
        if is_lost(self.reply):
            return self.times < MOST_ASKED
        return self.times == 1 and _says(self.reply, RoundFailedError)


class Exchange:
    """Questions to nodes, and what came back; `sent` is told of every message."""

    def __init__(self, grid: Grid, kind: str, sent: Callable[[Message], None]) -> None:
        self._grid, self._kind, self._sent = grid, kind, sent
        self.flights: dict[int, InFlight] = {}

    def due(self) -> set[int]:
        """Nodes to which a question may be sent, for the first time or again."""
        latest = time.monotonic() + LEAST_SECONDS
        return {
            node
            for node, flight in self.flights.items()
            if flight.may_be_sent and (not flight.times or flight.deadline >= latest)
        }

    def send(self, nodes: Iterable[int]) -> None:
        """Send these nodes their questions."""
        now, messages = time.monotonic(), []
        for node in sorted(nodes):
            flight = self.flights[node]
            left = flight.deadline - now
            messages.append(
                Message(flight.content, node, self._kind, ttl=left, group_id=flight.group)
            )
        self.push(messages)
        for message in messages:
            self._sent(message)

    def push(self, messages: list[Message]) -> None:
        """Send messages with the nodes' questions."""
        if not messages:
            return
        for message, number in zip(messages, self._grid.push_messages(messages), strict=False):
            flight = self.flights[message.metadata.dst_node_id]
            flight.times += 1
            if number:  # None where the SuperLink did not take it
                flight.waiting.add(number)

    def pull(self) -> dict[int, Message]:
        """Replies that came since, by node; none after one that is no error."""
        numbers = {n: node for node, flight in self.flights.items() for n in flight.waiting}
        came = {}
        for reply in self._grid.pull_messages(list(numbers)) if numbers else ():
            number = reply.metadata.reply_to_message_id
            flight = self.flights[node := numbers[number]]
            if number not in flight.waiting:
                continue
            flight.waiting.discard(number)
            flight.reply = came[node] = reply
            if not reply.has_error():
                flight.seconds = time.monotonic() - flight.began
                flight.waiting.clear()
        return came


class RetryingGrid(Grid):
    """A Grid that asks lost sites again, and a SuperLink that fails for a moment.

    All else is the given Grid's. Flower answers 500 where its database is busy for longer than
    five seconds, as with two runs on a slow machine, and its own Grid lets that end the run. `sent`
    is told of every message that is sent beyond those of the round.

    Attributes
    ----------
    policy : RoundPolicy
        Of the round whose messages are sent next.
    seconds : dict of int to float
        From sending until the reply, of each node that answered what was sent last.
    registered : dict of int to str
        Names with which nodes' keys are registered, of all nodes that have been there.
    """

    def __init__(self, grid: Grid, sent: Callable[[Message], None]) -> None:
        self._grid, self._sent = grid, sent
        self.policy = RoundPolicy()
        self.seconds: dict[int, float] = {}
        self.registered: dict[int, str] = {}

    def set_run(self, run: Run) -> None:
        """As the given Grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """As the given Grid."""
        return self._grid.run

    def create_message(self, *args: object, **options: object) -> Message:
        """As the given Grid."""
        return self._grid.create_message(*args, **options)  # type: ignore[arg-type]

    def get_node_ids(self) -> Iterable[int]:
        """As the given Grid."""
        return [node.node_id for node in self.get_nodes()]

    def get_nodes(self) -> Iterable[NodeInfo]:
        """As the given Grid."""
        nodes = _again_while_busy(lambda: list(self._grid.get_nodes()))
        self.registered |= {node.node_id: heard(node.name) for node in nodes if node.name}
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the given Grid."""
        return _again_while_busy(self._grid.push_messages, list(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As the given Grid."""
        return _again_while_busy(self._grid.pull_messages, list(message_ids))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages, one a node, and give the last reply of each that came in time."""
        messages = list(messages)
        if not messages:
            return []
        policy, first = self.policy, messages[0].metadata
        seconds = min(first.ttl, math.inf if timeout is None else timeout)
        began = time.monotonic()
        end = began + seconds
        exchange = Exchange(self, first.message_type, self._sent)
        for message in messages:
            flight = InFlight(message.content, first.group_id, began, end)
            exchange.flights[message.metadata.dst_node_id] = flight
        exchange.push(messages)
        self._collect(exchange, end)
        flights = exchange.flights
        answered = sum(flight.seconds < math.inf for flight in flights.values())
        extra = policy.grace if answered < policy.quorum else 0.0
        extra = extra or seconds * _EXTRA * policy.required
        connected = set(self.get_node_ids()) if extra else ()
        missing = [
            node for node in connected if node in flights and _is_missing(flights[node].reply)
        ]
        if missing:
            end = time.monotonic() + extra
            for node in missing:
                flights[node].deadline = end
            exchange.send(missing)
            self._collect(exchange, end)
        times = {node: flight.seconds for node, flight in flights.items()}
        self.seconds = {node: seconds for node, seconds in times.items() if seconds < math.inf}
        return [flight.reply for flight in flights.values() if flight.reply is not None]

    def _collect(self, exchange: Exchange, end: float) -> None:
        """Take replies, and ask again, until all are there or the time is over."""
        patience, flights = 0.0, exchange.flights
        while True:
            if any(map(is_lost, exchange.pull().values())) and self.policy.charged:
                patience = time.monotonic() + RETURN_SECONDS
            left = end - time.monotonic()
            lost = {node for node, flight in flights.items() if flight.reply and flight.may_be_sent}
            due = exchange.due()
            if left >= LEAST_SECONDS and (due or self.policy.required):
                connected = set(self.get_node_ids()) - self.policy.left_out
                if self.policy.required or lost - connected:  # without a key it has a new number
                    example = next(iter(flights.values()))
                    for node in connected - flights.keys():
                        flights[node] = InFlight(example.content, example.group, example.began, end)
                exchange.send(exchange.due() & connected)
            waiting = any(flight.waiting for flight in flights.values())
            if left <= 0 or not (waiting or (lost and time.monotonic() < patience)):
                return
            time.sleep(min(POLL_SECONDS, left))


def _again_while_busy(ask: Callable[..., T], *arguments: object) -> T:
    """What a SuperLink says, asked again for half a minute while it fails inside."""
    for seconds in _BUSY_SECONDS:
        try:
            return ask(*arguments)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.INTERNAL_SERVER_ERROR:
                raise
            log(WARNING, "the SuperLink has an internal error (500); trying again in %g s", seconds)
        time.sleep(seconds)
    return ask(*arguments)


def format_error(error: Error) -> str:
    """An error in place of a reply, as the history has it."""
    if error.code in _MEANING:
        return f"{_MEANING[error.code]} (error {error.code})"
    return f"error {error.code}: {error.reason}"


def is_lost(reply: Message) -> bool:
    """Whether Flower says that a message, its node or its reply was lost on the way."""
    return reply.has_error() and reply.error.code in LOST


def _is_missing(reply: Message | None) -> bool:
    """Whether a site is silent, lost, or says, for nothing, that it would be late.

    Some of a round's time is for sending, so that may be heard before its end.
    """
    return reply is None or is_lost(reply) or _says(reply, LateError)


def _says(reply: Message, error: type[DPFactError]) -> bool:
    return reply.has_error() and code_in(reply.error.reason or "") == error.code
