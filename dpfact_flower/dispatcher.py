"""Send requests and receive replies in asynchronous runs."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING

from flwr.app import Message, MessageType
from flwr.common import log

from dpfact_flower.collect import (
    POLL_SECONDS,
    RETURN_SECONDS,
    Exchange,
    InFlight,
    RetryingGrid,
    format_error,
    is_lost,
)
from dpfact_flower.server.on_arrival import OnArrival
from dpfact_flower.server.readiness import SiteNames, called
from dpfact_flower.wire import records
from dpfact_flower.wire.protocol import RoundRequest, SiteReply

Read = Callable[[Message, int, Sequence[tuple[int, ...]], Collection[int]], SiteReply | str]


@dataclass(eq=False)
class AsyncDispatcher:
    """Sends one run's requests to the sites, and receives the replies.

    Nodes in `left_out` get no requests. `read` checks the shapes of the arrays in a node's reply,
    adds the site's name to `names`, and returns the reply or the reason for rejecting the reply.
    `wait(False)` waits for the quorum, and `wait(True)` for all expected sites, up to a time limit.
    Both calls return the connected nodes, and `wait(True)` fails without a quorum.
    """

    grid: RetryingGrid
    coordinator: OnArrival
    names: SiteNames
    left_out: frozenset[int]
    timeout: float
    read: Read
    wait: Callable[[bool], list[int]]

    def __post_init__(self) -> None:
        self._exchange = Exchange(self.grid, MessageType.TRAIN, self._count_sent)
        self._flights = self._exchange.flights
        self._began = time.monotonic()

    def resume(self) -> None:
        """After a restart, ask for the nodes' names, and resend all unanswered requests."""
        nodes = self.wait(True)
        self._ask_names(nodes)
        waited_for = self.coordinator.waited_for
        for node in nodes:
            if request := waited_for.pop(self._who(node), None):
                self._add(node, request)
        for site in waited_for:
            self.coordinator.fail(site, "got a request before the run was resumed; not connected")
        self._send(nodes)

    def step(self) -> bool:
        """Receive replies and send requests, or sleep. Return whether a round was completed.

        The checkpoint is always written before a new request is sent.
        """
        coordinator = self.coordinator
        connected = sorted(set(self.grid.get_node_ids()) - self.left_out)
        if not self._flights and len(connected) < coordinator.run.min_sites:
            connected = self.wait(False)
        replies = self._exchange.pull()
        for node in sorted(replies, key=self._who):
            if node in self._flights:  # false if the site has just answered as another node
                self._take(node, replies[node], connected)
        changed = self._give_up() or bool(replies)
        finished = coordinator.finished_rounds
        coordinator.advance([self._who(node) for node in connected], time.monotonic() - self._began)
        closed = coordinator.finished_rounds > finished
        for node in () if coordinator.is_over else connected:
            if node not in self._flights and (request := coordinator.ask(self._who(node))):
                self._add(node, request)
                changed = True
        if changed or closed:
            coordinator.save()
        if closed:
            record = coordinator.records[-1]
            log(
                INFO, "round %d of %d: %d replies of %s in %.0f s", record.round,
                coordinator.rounds, len(record.arrivals), ", ".join(record.sites) or "no site",
                record.seconds,
            )  # fmt: skip
        if not self._send(connected) and not replies:
            time.sleep(POLL_SECONDS)
        return closed

    def _take(self, node: int, reply: Message, connected: Collection[int]) -> None:
        flight, coordinator = self._flights[node], self.coordinator
        coordinator.count(bytes_up=records.serialised_bytes(reply))
        if reply.has_error() and (flight.waiting or flight.may_be_sent):
            if is_lost(reply):
                flight.deadline = min(flight.deadline, time.monotonic() + RETURN_SECONDS)
            return
        del self._flights[node]
        shapes = coordinator.rule.reply_shapes(int(flight.group))
        outcome = self.read(reply, node, shapes, connected)
        if not isinstance(outcome, SiteReply):
            self._fail(node, flight, outcome)
            return
        coordinator.take(flight.who, outcome)
        # Before a restart, the site may have received a request under another node number.
        for other in [n for n, flight in self._flights.items() if flight.who == outcome.site]:
            del self._flights[other]

    def _give_up(self) -> bool:
        """Drop every request whose deadline has passed. Return whether any request was dropped."""
        now = time.monotonic()
        late = [node for node, flight in self._flights.items() if flight.deadline <= now]
        for node in late:
            flight = self._flights.pop(node)
            reason = f"no reply within {self.timeout:g} s"
            if flight.reply is not None and not flight.waiting:
                reason = format_error(flight.reply.error)
            self._fail(node, flight, reason)
        return bool(late)

    def _fail(self, node: int, flight: InFlight, reason: str) -> None:
        self.coordinator.fail(flight.who, reason, shown=called(node, self.names.of(node)))

    def _add(self, node: int, request: RoundRequest) -> None:
        content = records.ask(*request.to_wire())
        now = time.monotonic()
        self._flights[node] = InFlight(
            content, str(request.round), now, now + self.timeout, self._who(node)
        )

    def _send(self, connected: Collection[int]) -> bool:
        """Send new requests, resend lost requests, and return whether any request was sent."""
        due = self._exchange.due() & set(connected)
        self._exchange.send(due)
        return bool(due)

    def _count_sent(self, message: Message) -> None:
        self.coordinator.count(bytes_down=records.serialised_bytes(message))

    def _ask_names(self, nodes: Sequence[int]) -> None:
        patience = min(self.timeout, self.coordinator.run.wait_timeout)
        for request in self.coordinator.questions():
            unknown = [node for node in nodes if not self.names.of(node)]
            if not unknown:
                return
            sites = self.names.checked(
                self.grid.ask_ready(unknown, request, timeout=self.timeout, patience=patience)
            )
        for site in sites:
            if site.fault:
                log(WARNING, "resumed run: %s", site.message)

    def _who(self, node: int) -> str:
        return self.names.of(node) or called(node, "")
