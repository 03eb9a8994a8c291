"""The messages of a round: sent, waited for, and sent again where a reply got lost on the way.

Flower's own `send_and_receive` asks each node once. But a site whose process is killed, or whose
SuperNode is restarted, between the charge and the reply has paid, and its ledger has the bytes: if
it is asked the same again they come, and cost nothing more. So who was lost is asked again, as long
as the round lasts; and so is once, half-way, who is there and has said nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from logging import WARNING
from typing import NamedTuple, TypeVar

import httpx
from flwr.app import Error, Message
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
"""Times a node is asked in a round; a site that fails each time has a person to look first."""
RETURN_SECONDS = 120.0
"""A SuperNode with a key is let in again within a minute of its end, and starts in seconds."""
LEAST_SECONDS = 10.0
"""What is left of a round must suffice for a process to start and to send kept bytes."""
_BUSY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_SILENT = 1 / 2
"""Of a round's time: then who is there and has said nothing is asked once more. Flower's
SuperNode forgets a message without a word where the SuperLink fails inside while it is fetched, or
where the answer that brings it is cut off."""
_EXTRA = 1 / 4
"""Of a round's time, if later rounds build on it and a site that is there is missing."""


class Stake(NamedTuple):
    """What a round is worth.

    Attributes
    ----------
    paid : bool
        Whether sites are charged for it: then who was lost is waited for, for a while.
    builds : bool
        Whether later rounds build on it: then who connects late is asked too, and who is there and
        missing at the end is asked once more.
    left_out : frozenset of int
        Nodes that are not asked in any case.
    quorum : int
        Replies that are needed.
    more : float
        Seconds for who is missing, if the quorum is: where the round was to end early. Until then
        nobody was charged whose reply did not come.
    """

    paid: bool
    builds: bool
    left_out: frozenset[int] = frozenset()
    quorum: int = 0
    more: float = 0.0


class CollectingGrid(Grid):
    """A Grid that asks again who was lost on the way, and a SuperLink that fails for a moment.

    All else is the given Grid's. Flower answers 500 where its database is busy for longer than
    five seconds, as with two runs on a slow machine, and its own Grid lets that end the run.

    Parameters
    ----------
    grid : Grid
    stake : callable
        Of the round whose messages are sent.
    sent : callable
        Called with every message that is sent beyond those of the round.

    Attributes
    ----------
    seconds : dict of int to float
        From sending until the reply, of each node that answered what was sent last.
    registered : dict of int to str
        Names with which nodes' keys are registered, of all nodes that have been there.
    """

    def __init__(
        self, grid: Grid, stake: Callable[[], Stake], sent: Callable[[Message], None]
    ) -> None:
        self._grid, self._stake, self._sent = grid, stake, sent
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
        found = _again_while_busy(lambda: list(self._grid.get_nodes()))
        self.registered |= {node.node_id: heard(node.name) for node in found if node.name}
        return found

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
        asked = list(messages)
        if not asked:
            return []
        seconds = min(asked[0].metadata.ttl, math.inf if timeout is None else timeout)
        round_ = _Round(self, self._stake(), self._sent, asked, seconds * _SILENT)
        round_.collect(seconds)
        more = round_.stake.more if len(round_.seconds) < round_.stake.quorum else 0.0
        more = more or seconds * _EXTRA * round_.stake.builds
        if more and (missing := round_.missing()):
            round_.ask(missing, more)
            round_.collect(more)
        self.seconds = round_.seconds
        return list(round_.replies.values())


class _Round:
    """Who was asked, who is waited for, and what came, by node."""

    def __init__(
        self,
        grid: Grid,
        stake: Stake,
        sent: Callable[[Message], None],
        messages: list[Message],
        silent: float,
    ) -> None:
        self._grid, self._sent, self.stake = grid, sent, stake
        self._request = messages[0]
        self._waiting: dict[str, int] = {}
        self._times: dict[int, int] = {}
        self._began = time.monotonic()
        self._silent = self._began + silent
        self.replies: dict[int, Message] = {}
        self.seconds: dict[int, float] = {}
        self._push(messages)

    def collect(self, seconds: float) -> None:
        """Take replies, and ask again, until all are there or the time is over."""
        end, patience = time.monotonic() + seconds, 0.0
        while True:
            if self._pull() and self.stake.paid:
                patience = time.monotonic() + RETURN_SECONDS
            left = end - time.monotonic()
            self._ask_again(left)
            if time.monotonic() >= self._silent:
                self._silent = math.inf
                self._ask_silent(left)
            if left <= 0 or not (self._waiting or (self._lost() and time.monotonic() < patience)):
                return
            time.sleep(min(POLL_SECONDS, left))

    def _ask_again(self, left: float) -> None:
        """Ask who was lost and is there, and in some rounds who has come since."""
        lost = self._lost()
        if left < LEAST_SECONDS or not (lost or self.stake.builds):
            return
        here = set(self._grid.get_node_ids()) - self.stake.left_out
        self.ask(lost & here, left)
        if self.stake.builds or lost - here:  # who has no key comes back under a new number
            self.ask(here - self._times.keys(), left)

    def _ask_silent(self, left: float) -> None:
        """Ask who is there and has said nothing; a reply to either message counts."""
        silent = self._times.keys() - self.replies.keys()
        if silent and left >= LEAST_SECONDS:
            self.ask(silent & set(self._grid.get_node_ids()), left)

    def _lost(self) -> set[int]:
        """Nodes whose last reply is that they were lost, and that may be asked again."""
        return {
            node
            for node, reply in self.replies.items()
            if node not in self._waiting.values() and may_be_asked(reply, self._times[node])
        }

    def missing(self) -> set[int]:
        """Nodes that are there, and of which there is no reply, or that were lost or late."""
        here = set(self._grid.get_node_ids())
        return {
            node
            for node in self._times.keys() & here
            if (reply := self.replies.get(node)) is None or is_lost(reply) or _is_late(reply)
        }

    def ask(self, nodes: Iterable[int], seconds: float) -> None:
        """Send these nodes what the others were sent."""
        again = [
            Message(
                content=self._request.content,
                dst_node_id=node,
                message_type=self._request.metadata.message_type,
                ttl=seconds,
                group_id=self._request.metadata.group_id,
            )
            for node in sorted(nodes)
        ]
        self._push(again)
        for message in again:
            self._sent(message)

    def _push(self, messages: list[Message]) -> None:
        if not messages:
            return
        ids = list(self._grid.push_messages(messages))
        for message, number in zip(messages, ids, strict=False):
            node = message.metadata.dst_node_id
            self._times[node] = self._times.get(node, 0) + 1
            if number:  # None where the SuperLink did not take it
                self._waiting[number] = node

    def _pull(self) -> bool:
        """Take what is there; whether somebody was lost."""
        lost = False
        for reply in self._grid.pull_messages(list(self._waiting)):
            node = self._waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is None or node in self.seconds:
                continue
            self.replies[node] = reply
            if not reply.has_error():
                self.seconds[node] = time.monotonic() - self._began
                self._waiting = {key: who for key, who in self._waiting.items() if who != node}
            lost |= is_lost(reply)
        return lost


def _again_while_busy(ask: Callable[..., T], *arguments: object) -> T:
    """What a SuperLink says, asked again for half a minute while it fails inside."""
    for seconds in _BUSY_SECONDS:
        try:
            return ask(*arguments)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.INTERNAL_SERVER_ERROR:
                raise
            log(WARNING, "the SuperLink fails inside (500); asking again in %g s", seconds)
        time.sleep(seconds)
    return ask(*arguments)


def words_of(error: Error) -> str:
    """An error in place of a reply, as the history has it."""
    if error.code in _MEANING:
        return f"{_MEANING[error.code]} (error {error.code})"
    return f"error {error.code}: {error.reason}"


def is_lost(reply: Message) -> bool:
    """Whether Flower says that a message, its node or its reply was lost on the way."""
    return reply.has_error() and reply.error.code in LOST


def may_be_asked(reply: Message, times: int) -> bool:
    """Whether asking the same again may bring what a site has kept, after so many times.

    `RoundFailedError` is what a site says, too, whose reply was not ready when it was due, and may
    be by now.
    """
    if is_lost(reply):
        return times < MOST_ASKED
    return times == 1 and _says(reply, RoundFailedError)


def _is_late(reply: Message) -> bool:
    """Whether a site says, for nothing, that its reply would have come after the end.

    Some of a round's time is for sending, so that may be heard before it.
    """
    return _says(reply, LateError)


def _says(reply: Message, what: type[DPFactError]) -> bool:
    return reply.has_error() and code_in(reply.error.reason or "") == what.code
