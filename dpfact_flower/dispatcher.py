"""Send requests and receive replies in asynchronous runs."""

import time
from collections.abc import Collection, Sequence
from logging import INFO, WARNING

from flwr.app import Message, MessageType
from flwr.common import log

from dpfact_flower.collect import (
    POLL_SECONDS,
    RETURN_SECONDS,
    Exchange,
    InFlight,
    format_error,
    is_lost,
)
from dpfact_flower.connected import ConnectedSites
from dpfact_flower.server.on_arrival import OnArrival
from dpfact_flower.server.readiness import called
from dpfact_flower.wire import records
from dpfact_flower.wire.protocol import RoundRequest, SiteReply


class AsyncDispatcher:
    """Sends one run's requests to the sites, and receives the replies."""

    def __init__(self, coordinator: OnArrival, sites: ConnectedSites) -> None:
        self._coordinator, self._sites = coordinator, sites
        self._exchange = Exchange(
            sites.grid, MessageType.TRAIN,
            lambda message: coordinator.count(bytes_down=records.serialised_bytes(message)),
        )  # fmt: skip
        self._flights = self._exchange.flights
        self._began = time.monotonic()

    def resume(self) -> None:
        """After a restart, ask for the nodes' names, and resend all unanswered requests."""
        nodes = self._sites.wait(first=True)
        self._ask_names(nodes)
        waited_for = self._coordinator.waited_for
        for node in nodes:
            if request := waited_for.pop(self._who(node), None):
                self._add(node, request)
        for site in waited_for:
            self._coordinator.fail(site, "got a request before the run was resumed; not connected")
        self._send(nodes)

    def step(self) -> bool:
        """Receive replies and send requests, or sleep if idle. Return whether a round has ended.

        The checkpoint is always written before a new request is sent.
        """
        coordinator = self._coordinator
        connected = sorted(set(self._sites.grid.get_node_ids()) - self._sites.left_out)
        if not self._flights and len(connected) < coordinator.run.min_sites:
            connected = self._sites.wait(first=False)
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
        flight, coordinator = self._flights[node], self._coordinator
        coordinator.count(bytes_up=records.serialised_bytes(reply))
        if reply.has_error() and (flight.waiting or flight.may_be_sent):
            if is_lost(reply):
                flight.deadline = min(flight.deadline, time.monotonic() + RETURN_SECONDS)
            return
        del self._flights[node]
        shapes = coordinator.rule.reply_shapes(int(flight.group))
        outcome = self._sites.read(reply, node, shapes, connected)
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
            reason = f"no reply within {self._sites.timeout:g} s"
            if flight.reply is not None and not flight.waiting:
                reason = format_error(flight.reply.error)
            self._fail(node, flight, reason)
        return bool(late)

    def _fail(self, node: int, flight: InFlight, reason: str) -> None:
        self._coordinator.fail(flight.who, reason, shown=called(node, self._sites.names.of(node)))

    def _add(self, node: int, request: RoundRequest) -> None:
        content = records.ask(*request.to_wire())
        now = time.monotonic()
        self._flights[node] = InFlight(
            content, str(request.round), now, now + self._sites.timeout, self._who(node)
        )

    def _send(self, connected: Collection[int]) -> bool:
        """Send new requests, resend lost requests, and return whether any request was sent."""
        due = self._exchange.due() & set(connected)
        self._exchange.send(due)
        return bool(due)

    def _ask_names(self, nodes: Sequence[int]) -> None:
        for request in self._coordinator.questions():
            unknown = [node for node in nodes if not self._sites.names.of(node)]
            if not unknown:
                return
            answers = self._sites.ask_ready(unknown, request, warn=True)
        for answer in answers:
            if answer.fault:
                log(WARNING, "resumed run: %s", answer.message)

    def _who(self, node: int) -> str:
        return self._sites.names.of(node) or called(node, "")
