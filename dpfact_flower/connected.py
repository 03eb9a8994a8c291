"""Reach a run's sites through Flower, and read their replies."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from logging import INFO

from flwr.app import Message, MessageType
from flwr.common import log
from flwr.serverapp import Grid

from dpfact_flower.collect import RetryingGrid, RoundPolicy, format_error, is_lost
from dpfact_flower.errors import MessageError
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.history import Failure
from dpfact_flower.server.readiness import (
    Readiness,
    SiteNames,
    called,
    judge,
    read_readiness,
    write_readiness,
)
from dpfact_flower.wire import records
from dpfact_flower.wire.protocol import ROUND_TIMEOUT, VERSION, RoundRequest, SiteReply

_POLL_SECONDS = 0.2
_BUSY_SECONDS = 180.0
"""Time in seconds that sites may need to recover after the server is killed. Flower ends the killed
run within a minute. An executor that waits for parts of a message gives up two minutes later."""


class ConnectedSites:
    """A run's sites, and the messages of the current round.

    `names` maps nodes to sites. Nodes in `left_out` get no requests. `timeout` is the time limit in
    seconds for answers to a request. `seconds` is the current round's limit: `timeout` or less.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.grid: RetryingGrid
        self.names = SiteNames()
        self.left_out: frozenset[int] = frozenset()
        self.timeout = self.seconds = coordinator.run.round_timeout
        self.sent: list[Message] = []
        self._received: list[Message] = []
        self._began = 0.0

    def use(self, grid: Grid) -> RetryingGrid:
        """Send all messages through `grid`. Return a Grid that also repeats lost requests."""
        self.grid = RetryingGrid(grid, self.sent.append)
        self.names.registered = self.grid.registered
        return self.grid

    def wait(self, *, first: bool) -> list[int]:
        """Wait up to `wait-timeout` for the quorum (`first`: all expected sites). Return nodes."""
        run = self._coordinator.run
        expected = run.expected_sites if first else run.min_sites
        deadline = time.monotonic() + run.wait_timeout
        while (
            len(nodes := set(self.grid.get_node_ids()) - self.left_out) < expected
            and time.monotonic() < deadline
        ):
            time.sleep(_POLL_SECONDS)
        self._coordinator.check_connected(len(nodes), first=first)
        return sorted(nodes)

    def leave_out_unready(self, nodes: Sequence[int], request: RoundRequest) -> None:
        """Ask whether nodes accept `request`. If a node refuses, raise an error or leave it out."""
        coordinator, run = self._coordinator, self._coordinator.run
        judged = run.preflight != "off" and coordinator.durable
        if not judged and coordinator.secure is None:
            return
        sites = self.ask_ready(nodes, request, warn=judged)
        if not judged:  # secure sums need only the names
            return
        if coordinator.run_dir is not None:
            write_readiness(coordinator.run_dir, sites)
        self.left_out |= judge(sites, quorum=run.min_sites, leave_out=run.preflight == "leave-out")

    def ask_ready(
        self, nodes: Sequence[int], request: RoundRequest, *, warn: bool
    ) -> list[Readiness]:
        """Ask nodes whether they would accept `request`, and check the names that they state.

        The nodes answer without reading patients' data.
        """
        patience = min(self.timeout, self._coordinator.run.wait_timeout)
        if self._coordinator.resumed:
            patience = max(patience, _BUSY_SECONDS)
            log(INFO, "asking whether the sites are ready, for at most %g s: a site may need "
                "three minutes to answer after a run was killed",
                patience)  # fmt: skip
        arrays, config = request.to_wire()
        content = records.ask(arrays, {**config, ROUND_TIMEOUT: float(self.timeout)})
        messages = [
            Message(content, node, MessageType.QUERY, ttl=patience, group_id=str(request.round))
            for node in nodes
        ]
        self.grid.policy = RoundPolicy()
        self.sent += messages
        began = time.time()
        replies = self.grid.send_and_receive(messages)
        ended = time.time()
        answers = {n: Readiness(n, fault=f"no answer within {patience:g} s") for n in nodes}
        for node, reply in self.by_node(replies).items():
            answers[node] = _read_ready(node, reply, began, ended)
        return self.names.checked(list(answers.values()), warn=warn)

    def leave_out_again(self) -> None:
        """In a resumed run, leave out the nodes that were left out before the first round."""
        coordinator = self._coordinator
        if coordinator.run_dir and coordinator.resumed and coordinator.run.preflight == "leave-out":
            known = read_readiness(coordinator.run_dir)
            self.left_out |= {site.node for site in known if site.fault}

    def begin(self, seconds: float) -> None:
        """Begin a round. Sites must answer within `seconds` or `timeout`, whichever is shorter."""
        self.sent.clear()
        self._received.clear()
        self._began, self.seconds = time.perf_counter(), min(self.timeout, seconds)

    def messages(
        self, requests: Mapping[int, RoundRequest], nodes: Iterable[int], policy: RoundPolicy
    ) -> list[Message]:
        """Make one message per request, and set the Grid's policy for missing replies.

        Connected `nodes` that have a name but no request are left out of the round. A node
        without a name may be a lost site that has returned, so it can get a request later.
        """
        others = {node for node in nodes if self.names.of(node) and node not in requests}
        self.grid.policy = policy._replace(left_out=self.left_out | others)
        # Nodes with the same request share the packed content.
        contents = {id(each): records.ask(*each.to_wire()) for each in requests.values()}
        messages = [
            Message(
                contents[id(request)], node, MessageType.TRAIN, ttl=self.seconds,
                group_id=str(request.round),
            )
            for node, request in requests.items()
        ]  # fmt: skip
        self.sent += messages
        return messages

    def ask(self, requests: Mapping[int, RoundRequest], *, charged: bool) -> dict[int, Message]:
        """Send additional requests in a round, and return the replies by node."""
        messages = self.messages(requests, self.grid.get_node_ids(), RoundPolicy(charged=charged))
        return self.by_node(self.grid.send_and_receive(messages, timeout=self.seconds))

    def by_node(self, replies: Iterable[Message]) -> dict[int, Message]:
        """Return replies to this round's messages, keyed by the nodes that got the requests."""
        # An error about a lost node comes from the SuperLink and has the SuperLink's node ID, so a
        # reply's own node ID is not used.
        node_of = {sent.metadata.message_id: sent.metadata.dst_node_id for sent in self.sent}
        answered = ((reply.metadata.reply_to_message_id, reply) for reply in replies)
        received = {node_of[number]: reply for number, reply in answered if number in node_of}
        self._received += received.values()
        return received

    def usable(
        self, received: Mapping[int, Message], shapes: Sequence[tuple[int, ...]]
    ) -> tuple[list[SiteReply], list[Failure]]:
        """Return the usable replies, and a `Failure` for each other site that got a request."""
        lost = {n: self.names.of(n) for n, reply in received.items() if is_lost(reply)}
        nodes = dict.fromkeys(message.metadata.dst_node_id for message in self.sent)
        usable: list[SiteReply] = []
        failed: dict[int, str] = {}
        for node, reply in received.items():
            outcome = self.read(reply, node, shapes, nodes.keys() - lost.keys())
            if isinstance(outcome, SiteReply):
                usable.append(outcome)
            else:
                failed[node] = outcome
        failed |= {n: f"no reply within {self.seconds:g} s" for n in nodes if n not in received}
        back = {reply.site for reply in usable}  # a site may return with a new node number
        return usable, [
            Failure(called(node, self.names.of(node)), reason)
            for node, reason in failed.items()
            if lost.get(node) not in back
        ]

    def read(
        self,
        reply: Message,
        node: int,
        shapes: Sequence[tuple[int, ...]],
        connected: Collection[int],
    ) -> SiteReply | str:
        """Return the checked reply, or the reason why the reply cannot be used."""
        if reply.has_error():
            return format_error(reply.error)
        try:
            payload = records.read_reply(reply)
            outcome = SiteReply.from_wire(payload.arrays, payload.config, shapes)
        except MessageError as error:
            return str(error)
        return self.names.refusal(node, outcome.site, connected) or outcome

    @property
    def elapsed(self) -> float:
        """Seconds since the round began."""
        return time.perf_counter() - self._began

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received in the round."""
        return records.serialised_bytes(*self.sent), records.serialised_bytes(*self._received)


_UNKNOWN = ("No query function registered", "Invalid message type: query")
"""Error texts of ClientApps that have no `query` function and thus cannot answer a preflight."""


def _read_ready(node: int, reply: Message, began: float, ended: float) -> Readiness:
    if reply.has_error():
        reason = format_error(reply.error)
        can_answer = not any(text in reason for text in _UNKNOWN)
        return Readiness(node, fault=reason if can_answer else "")
    try:
        payload = records.read_reply(reply)
        site = SiteReply.from_wire(payload.arrays, payload.config, []).site
    except MessageError as error:
        return Readiness(node, fault=str(error))
    replied = reply.metadata.created_at
    clock = replied - ended if replied > ended else min(replied - began, 0.0)
    return Readiness(node, site, "", str(payload.config.get(VERSION, ""))[:40], clock)
