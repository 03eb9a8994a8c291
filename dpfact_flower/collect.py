"""Send requests to sites, and repeat requests that were lost.

A site may charge a release to its budget and then fail before it replies. If the server repeats the
request, the site sends the recorded release without a second charge. The server repeats a request
if Flower reports the site as lost. Flower may also lose a message without reporting an error.
Halfway through the round, the server repeats the request to all sites that have not replied.
"""

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

from dpfact_flower import errors

T = TypeVar("T")
LOST = frozenset({3, 4, 5, 8})
"""Flower's error codes after which the server cannot know whether the site was charged."""
_MEANING = {
    3: "no answer in time",
    4: "its answer was lost on the way",
    5: "its SuperNode has disconnected",
    7: "its SuperNode refuses the app that Flower sends with a run; see --trusted-entities",
    8: "the process that answered there has died",
}
POLL_SECONDS = 0.5
MOST_ASKED = 3
"""Maximum number of times that the server sends the same request to a node."""
RETURN_SECONDS = 120.0
"""Seconds to wait for a lost SuperNode to return. The SuperLink readmits SuperNodes within 60 s."""
LEAST_SECONDS = 10.0
"""A request is repeated only if a site has this many seconds left to start a process and reply."""
_BUSY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_EXTRA = 1 / 4
"""Share of the time limit by which a required round is extended if connected sites are silent."""


class RoundPolicy(NamedTuple):
    """The policy for missing replies in a round.

    If sites charge the round to their budgets (`charged`), the server waits up to `RETURN_SECONDS`
    for lost sites to return. If later rounds need the sites' replies (`required`), sites that
    connect late also get the request. A required round is extended if connected sites have not
    replied, and these sites get the request again. If fewer than `quorum` sites have replied, the
    server extends the time limit by `grace` seconds. Nodes in `left_out` never get a request.
    """

    charged: bool = False
    required: bool = False
    left_out: frozenset[int] = frozenset()
    quorum: int = 0
    grace: float = 0.0


@dataclass
class InFlight:
    """A request to a node, together with the node's replies.

    `group` is Flower's `group_id` for the round. In an asynchronous run, `who` is the site's name.
    `waiting` contains the IDs of messages that may still get a reply. `seconds` is the time from
    the request to the first reply without an error.
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
        """Whether the request may be sent now, for the first time or again.

        A `RoundFailedError` allows one repetition, because the site may have recorded a release.
        """
        if self.reply is None:
            half = (self.began + self.deadline) / 2
            once_more = self.times == 1 and time.monotonic() >= half
            return once_more or (not self.waiting and self.times < MOST_ASKED)
        if self.waiting:
            return False
        if is_lost(self.reply):
            return self.times < MOST_ASKED
        return self.times == 1 and _says(self.reply, errors.RoundFailedError)


class Exchange:
    """All nodes' requests and replies. `send` passes each message to the callback `sent`."""

    def __init__(self, grid: Grid, kind: str, sent: Callable[[Message], None]) -> None:
        self._grid, self._kind, self._sent = grid, kind, sent
        self.flights: dict[int, InFlight] = {}

    def due(self) -> set[int]:
        """Return the nodes to which a request may be sent now, for the first time or again."""
        latest = time.monotonic() + LEAST_SECONDS
        return {
            node for node, flight in self.flights.items()
            if flight.may_be_sent and (not flight.times or flight.deadline >= latest)
        }  # fmt: skip

    def send(self, nodes: Iterable[int]) -> None:
        """Send requests to the given nodes."""
        now = time.monotonic()
        flights = ((node, self.flights[node]) for node in sorted(nodes))
        messages = [
            Message(f.content, node, self._kind, ttl=f.deadline - now, group_id=f.group)
            for node, f in flights
        ]
        self.push(messages)
        for message in messages:
            self._sent(message)

    def push(self, messages: list[Message]) -> None:
        """Send messages, and record each message in its node's `InFlight`."""
        if not messages:
            return
        for message, number in zip(messages, self._grid.push_messages(messages), strict=False):
            flight = self.flights[message.metadata.dst_node_id]
            flight.times += 1
            if number:  # None if the SuperLink did not accept the message
                flight.waiting.add(number)

    def pull(self) -> dict[int, Message]:
        """Return new replies by node. Ignore nodes that have already replied without an error."""
        numbers = {n: node for node, flight in self.flights.items() for n in flight.waiting}
        received = {}
        for reply in self._grid.pull_messages(list(numbers)) if numbers else ():
            number = reply.metadata.reply_to_message_id
            flight = self.flights[node := numbers[number]]
            if number not in flight.waiting:
                continue
            flight.waiting.discard(number)
            flight.reply = received[node] = reply
            if not reply.has_error():
                flight.seconds = time.monotonic() - flight.began
                flight.waiting.clear()
        return received


class RetryingGrid(Grid):
    """A Grid that repeats requests to lost sites, and retries calls to a busy SuperLink.

    The callback `sent` gets each repeated request, and each request to a site that connected late.
    Set `policy` before each round. `seconds` contains the reply time of each node that answered in
    the last round. `registered` contains each node's registered name, even after the node has left.
    """

    def __init__(self, grid: Grid, sent: Callable[[Message], None]) -> None:
        self._grid, self._sent = grid, sent
        self.policy = RoundPolicy()
        self.seconds: dict[int, float] = {}
        self.registered: dict[int, str] = {}

    def set_run(self, run: Run) -> None:
        """Set the run of the wrapped Grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run of the wrapped Grid."""
        return self._grid.run

    def create_message(self, *args: object, **options: object) -> Message:
        """Create a message with the wrapped Grid."""
        return self._grid.create_message(*args, **options)  # type: ignore[arg-type]

    def get_node_ids(self) -> Iterable[int]:
        """Return the IDs of the connected nodes."""
        return [node.node_id for node in self.get_nodes()]

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the connected nodes, and remember their registered names."""
        nodes = _again_while_busy(lambda: list(self._grid.get_nodes()))
        self.registered |= {node.node_id: errors.heard(node.name) for node in nodes if node.name}
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages through the wrapped Grid."""
        return _again_while_busy(self._grid.push_messages, list(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull messages through the wrapped Grid."""
        return _again_while_busy(self._grid.pull_messages, list(message_ids))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send one message to each node, and return the latest reply of each node that answered."""
        messages = list(messages)
        if not messages:
            return []
        policy, first = self.policy, messages[0].metadata
        seconds = min(first.ttl, math.inf if timeout is None else timeout)
        began = time.monotonic()
        end = began + seconds
        exchange = Exchange(self, first.message_type, self._sent)
        flights = exchange.flights
        for each in messages:
            node = each.metadata.dst_node_id
            flights[node] = InFlight(each.content, first.group_id, began, end)
        exchange.push(messages)
        self._collect(exchange, end)
        answered = sum(flight.seconds < math.inf for flight in flights.values())
        extra = policy.grace if answered < policy.quorum else 0.0
        extra = extra or seconds * _EXTRA * policy.required
        connected = flights.keys() & set(self.get_node_ids()) if extra else ()
        if missing := [node for node in connected if _is_missing(flights[node].reply)]:
            end = time.monotonic() + extra
            for node in missing:
                flights[node].deadline = end
            exchange.send(missing)
            self._collect(exchange, end)
        self.seconds = {n: f.seconds for n, f in flights.items() if f.seconds < math.inf}
        return [flight.reply for flight in flights.values() if flight.reply is not None]

    def _collect(self, exchange: Exchange, end: float) -> None:
        """Receive replies and repeat requests until all replies have arrived or the time is up."""
        patience, flights = 0.0, exchange.flights
        example = next(iter(flights.values()))
        same = all(flight.content is example.content for flight in flights.values())
        while True:
            if any(map(is_lost, exchange.pull().values())) and self.policy.charged:
                patience = time.monotonic() + RETURN_SECONDS
            remaining = end - time.monotonic()
            lost = {node for node, flight in flights.items() if flight.reply and flight.may_be_sent}
            due = exchange.due()
            if remaining >= LEAST_SECONDS and (due or self.policy.required):
                connected = set(self.get_node_ids()) - self.policy.left_out
                # A lost site may return as a new node, but must not get another site's request.
                if same and (self.policy.required or lost - connected):
                    for node in connected - flights.keys():
                        now = end - remaining
                        flights[node] = InFlight(example.content, example.group, now, end)
                exchange.send(exchange.due() & connected)
            waiting = any(flight.waiting for flight in flights.values())
            if remaining <= 0 or not (waiting or (lost and time.monotonic() < patience)):
                return
            time.sleep(min(POLL_SECONDS, remaining))


def _again_while_busy(ask: Callable[..., T], *arguments: object) -> T:
    """Call `ask`. While the SuperLink is busy (HTTP error 500), retry for about 30 seconds."""
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
    """Return an error's text, as recorded in the run's history."""
    if error.code in _MEANING:
        return f"{_MEANING[error.code]} (error {error.code})"
    return f"error {error.code}: {error.reason}"


def is_lost(reply: Message) -> bool:
    """Return whether Flower reports that a message, its node or its reply was lost."""
    return reply.has_error() and reply.error.code in LOST


def _is_missing(reply: Message | None) -> bool:
    """Return whether a node's reply is missing: not received, lost, or too late."""
    return reply is None or is_lost(reply) or _says(reply, errors.LateError)


def _says(reply: Message, error: type[errors.DPFactError]) -> bool:
    return reply.has_error() and errors.code_in(reply.error.reason or "") == error.code
