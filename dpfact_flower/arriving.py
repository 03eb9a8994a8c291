"""The messages of a run whose replies are used on arrival: Flower's push and pull, site by site.

What is decided is `dpfact_flower.server.on_arrival.OnArrival`'s; this sends it, and brings what
came. As in a round in step, who was lost on the way is asked the same again, and the checkpoint is
written before anything is sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING

from flwr.app import Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from dpfact_flower.collect import (
    LEAST_SECONDS,
    MOST_ASKED,
    POLL_SECONDS,
    RETURN_SECONDS,
    is_lost,
    may_be_asked,
    words_of,
)
from dpfact_flower.preflight import ask_ready
from dpfact_flower.server.names import SiteNames
from dpfact_flower.server.on_arrival import OnArrival
from dpfact_flower.wire import records
from dpfact_flower.wire.protocol import RoundRequest, SiteReply

Read = Callable[[Message, int, Sequence[tuple[int, ...]], Collection[int]], SiteReply | str]


@dataclass
class _Flight:
    """A question that is on its way, at a site, or on its way back.

    Attributes
    ----------
    who : str
        As the coordinator knows the site.
    round : int
    content : RecordDict
    deadline : float
        By `time.monotonic`.
    number : str
        The message's; empty where it has to be sent, again if anything came back.
    times : int
        It was sent.
    said : str
        The error that came back last.
    """

    who: str
    round: int
    content: RecordDict
    deadline: float
    number: str = ""
    times: int = 0
    said: str = ""


class Arriving:
    """Sends questions to sites and takes replies, one turn after another.

    Parameters
    ----------
    grid : Grid
    coordinator : OnArrival
        After its rounds in step.
    names : SiteNames
        Kept up to date by `read`.
    left_out : frozenset of int
        Nodes that are never asked.
    timeout : float
        Seconds that a site has for a reply.
    read : callable
        What a reply of a node says, of these shapes, if its name is not that of one of these nodes;
        or why that cannot be used.
    wait : callable
        Waits for the quorum, for a while, and gives the nodes that are there, but for those left
        out; for the expected number, and it ends the run below the quorum, if told to begin.
    """

    def __init__(
        self,
        grid: Grid,
        coordinator: OnArrival,
        *,
        names: SiteNames,
        left_out: frozenset[int],
        timeout: float,
        read: Read,
        wait: Callable[[bool], list[int]],
    ) -> None:
        self._grid, self._coordinator, self._names = grid, coordinator, names
        self._left_out, self._timeout = left_out, timeout
        self._read, self._wait = read, wait
        self._flights: dict[int, _Flight] = {}
        self._began = time.monotonic()

    def begin(self, *, again: bool) -> None:
        """Ask again what was asked before a resume, of the sites that were asked it.

        Parameters
        ----------
        again : bool
            Whether this is a resume: then it is not known which node is which site.
        """
        if not again:
            return
        nodes = self._wait(True)
        self._ask_names(nodes)
        waited_for = self._coordinator.waited_for
        for node in nodes:
            if request := waited_for.pop(self._who(node), None):
                self._flights[node] = self._flight(node, request)
        for who in waited_for:
            self._coordinator.fail(who, "was asked before the run was gone on with; is not there")
        self._send(nodes)

    def turn(self) -> None:
        """Take what came, ask who may be asked, and rest if there was nothing to do."""
        coordinator = self._coordinator
        here = self._here()
        came = self._take(here)
        late = self._give_up()
        finished = coordinator.finished_rounds
        coordinator.advance([self._who(node) for node in here], time.monotonic() - self._began)
        closed = coordinator.finished_rounds > finished
        asked = False if coordinator.is_over else self._ask(here)
        if came or late or closed or asked:
            coordinator.save()
        if closed:
            record = coordinator.records[-1]
            log(
                INFO, "round %d of %d: %d replies of %s in %.0f s", record.round,
                coordinator.rounds, len(record.arrivals), ", ".join(record.sites) or "no site",
                record.seconds,
            )  # fmt: skip
        if not self._send(here) and not came:
            time.sleep(POLL_SECONDS)

    def _here(self) -> list[int]:
        """Nodes that are there; the quorum is waited for only where no reply is."""
        nodes = sorted(set(self._grid.get_node_ids()) - self._left_out)
        if not self._flights and len(nodes) < self._coordinator.run.min_sites:
            nodes = self._wait(False)
        return nodes

    def _take(self, here: Collection[int]) -> bool:
        """Take the replies that are there, in the order of the sites' names."""
        flights = {each.number: node for node, each in self._flights.items() if each.number}
        replies = {
            flights[reply.metadata.reply_to_message_id]: reply
            for reply in (self._grid.pull_messages(list(flights)) if flights else ())
            if reply.metadata.reply_to_message_id in flights
        }
        for node in sorted(replies, key=self._who):
            self._take_one(node, replies[node], here)
        return bool(replies)

    def _take_one(self, node: int, reply: Message, here: Collection[int]) -> None:
        if node not in self._flights:  # the site has answered as another node, in this very turn
            return
        flight, coordinator = self._flights[node], self._coordinator
        coordinator.count(bytes_up=records.serialised_bytes(reply))
        if reply.has_error() and may_be_asked(reply, flight.times):
            flight.number, flight.said = "", words_of(reply.error)
            if is_lost(reply):
                flight.deadline = min(flight.deadline, time.monotonic() + RETURN_SECONDS)
            return
        del self._flights[node]
        outcome = self._read(reply, node, coordinator.reply_shapes(flight.round), here)
        if not isinstance(outcome, SiteReply):
            coordinator.fail(flight.who, outcome, shown=self._shown(node, flight))
            return
        coordinator.take(flight.who, outcome)
        for other, same in list(self._flights.items()):  # the site's, before it came back
            if same.who == outcome.site:
                del self._flights[other]

    def _give_up(self) -> bool:
        """Wait no longer for what is too late."""
        late = [n for n, each in self._flights.items() if each.deadline <= time.monotonic()]
        for node in late:
            flight = self._flights.pop(node)
            silent = f"no reply within {self._timeout:g} s"
            reason = silent if flight.number else flight.said or "could not be sent"
            self._coordinator.fail(flight.who, reason, shown=self._shown(node, flight))
        return bool(late)

    def _ask(self, here: Collection[int]) -> bool:
        """Make questions for the sites that have none; whether there are any."""
        asked = False
        for node in here:
            if node in self._flights:
                continue
            if request := self._coordinator.ask(self._who(node)):
                self._flights[node] = self._flight(node, request)
                asked = True
        return asked

    def _flight(self, node: int, request: RoundRequest) -> _Flight:
        content = records.ask(*request.to_wire())
        deadline = time.monotonic() + self._timeout
        return _Flight(self._who(node), request.round, content, deadline)

    def _send(self, here: Collection[int]) -> bool:
        """Send what is new or was lost to the nodes that are there; whether there was any."""
        ready: dict[int, Message] = {}
        for node, flight in self._flights.items():
            left = flight.deadline - time.monotonic()
            if flight.number or flight.times == MOST_ASKED or node not in here:
                continue
            if flight.times and left < LEAST_SECONDS:
                continue
            ready[node] = Message(
                content=flight.content,
                dst_node_id=node,
                message_type=MessageType.TRAIN,
                ttl=left,
                group_id=str(flight.round),
            )
        if not ready:
            return False
        numbers = self._grid.push_messages(list(ready.values()))
        for (node, message), number in zip(ready.items(), numbers, strict=False):
            flight = self._flights[node]
            flight.number, flight.times = number or "", flight.times + 1
            self._coordinator.count(bytes_down=records.serialised_bytes(message))
        return True

    def _ask_names(self, nodes: Sequence[int]) -> None:
        """Find out which sites nodes are, for no charge."""
        patience = min(self._timeout, self._coordinator.run.wait_timeout)
        for request in self._coordinator.questions():
            unknown = [node for node in nodes if not self._names.of(node)]
            if not unknown:
                return
            found = self._names.checked(
                ask_ready(self._grid, unknown, request, timeout=self._timeout, patience=patience)
            )
        for each in found:
            if each.fault:
                log(WARNING, "going on: %s", each.words)

    def _who(self, node: int) -> str:
        return self._names.of(node) or f"node {node}"

    def _shown(self, node: int, flight: _Flight) -> str:
        return flight.who if flight.who == f"node {node}" else f"{flight.who} (node {node})"
