"""Simulate a network: a Grid with faults and its own clock."""

import errno
import os
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from flwr.app import Error, Message

from dpfact_flower import client_app, collect, connected
from dpfact_flower.privacy.ledger import Ledger
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.site import answer, disclosure
from dpfact_flower.wire import records
from tests.crash import answered_in_a_child, failing_at

NEVER = float("inf")
MOST_WRITES = 60
"""Number of disk accesses in a round, including the ledger's statements."""
FAULTS = (
    "killed", "killed after", "reply lost", "stopped", "slow", "full disk", "twice", "garbage",
    "not finite", "altered", "away", "lost",
)  # fmt: skip


class ServerKilled(BaseException):
    """The server's process is killed at this step."""


class Clock:
    """A replacement for the module `time` in this package's code."""

    def __init__(self) -> None:
        self.now = 0.0
        self._epoch = time.time()

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic

    def time(self) -> float:
        return self._epoch + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Faults:
    """A run's faults: the share of messages with a fault, and the step at which the server dies."""

    rng: random.Random
    rate: float
    kinds: tuple[str, ...]
    server: int | None = None
    happened: list[str] = field(default_factory=list)

    def draw(self, node: int) -> str:
        if self.rng.random() >= self.rate:
            return ""
        kind = self.rng.choice(self.kinds)
        self.happened.append(f"{node}: {kind}")
        return kind

    def step(self, what: str) -> None:
        """Count one step of the server."""
        if self.server is not None:
            self.server -= 1
            if self.server <= 0:
                self.server = None
                self.happened.append(f"server killed at {what}")
                raise ServerKilled


class Network(InProcessGrid):
    """A Grid whose nodes are real sites and whose messages can be lost."""

    def __init__(self, nodes: list[dict], clock: Clock, faults: Faults) -> None:
        super().__init__(client_app.app, nodes)
        self.clock, self.faults = clock, faults
        self.asked: list[Message] = []
        self.late_charges = 0
        self._away: dict[int, float] = {}
        self._busy: dict[int, float] = {}
        self._due: dict[str, tuple[float, Message]] = {}

    def get_node_ids(self) -> list[int]:
        self.faults.step("looking who is there")
        return [n for n in super().get_node_ids() if self._away.get(n, 0) <= self.clock.now]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            self.faults.step("sending")
            number = message.metadata.__dict__["_message_id"] = f"m{len(self.asked)}"
            message.metadata.created_at = self.clock.time()
            self.asked.append(message)
            ids.append(number)
            self._due[number] = self._carried(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.faults.step("asking for replies")
        ready = [i for i in message_ids if self._due.get(i, (NEVER,))[0] <= self.clock.now]
        return [self._due.pop(i)[1] for i in ready]

    def again(self, message: Message) -> bool:
        """Send a request again, and return whether it is answered."""
        message.metadata.created_at = self.clock.time()
        return not self._deliver(message).has_error()

    def _carried(self, message: Message) -> tuple[float, Message]:
        """Return the time at which the reply is available, and the reply or Flower's error."""
        node, now = message.metadata.dst_node_id, self.clock.now
        end = now + message.metadata.ttl
        expired = end, Message(Error(3, "expired"), reply_to=message)
        kind = self.faults.draw(node)
        if kind == "away":
            self._away[node] = now + 90
            return now + 50, Message(Error(5, "node unavailable"), reply_to=message)
        if kind == "killed":
            self._killed(message, self.faults.rng.randrange(MOST_WRITES))
        if kind == "killed after":
            self._killed(message, None)
        if kind.startswith("killed"):
            return now + 60, Message(Error(8, "crashed"), reply_to=message)
        if kind == "lost":  # without notice
            return expired
        stopped = message.metadata.ttl if kind == "stopped" else 0.0
        # A site handles one message at a time, and a SuperLink delivers no expired messages.
        begins = max(now + self.faults.rng.uniform(4, 9), self._busy.get(node, 0))
        if begins >= end:
            return expired
        self.clock.now = begins + stopped
        reply = self._answered(message, kind)
        self._busy[node] = ready = self.clock.now
        self.clock.now = now
        if kind == "reply lost":
            self._away[node] = ready + 70
            return ready + 50, Message(Error(5, "node unavailable"), reply_to=message)
        return (ready, reply) if ready < end else expired

    def _answered(self, message: Message, kind: str) -> Message:
        work = 1e4 if kind == "slow" else self.faults.rng.uniform(0, 20)
        times = 2 if kind == "twice" else 1
        step = self.faults.rng.randrange(MOST_WRITES) if kind == "full disk" else None
        if kind == "altered":
            message = _altered(message)
        with self._charging(message), taking(self.clock, work), failing_at(step, _full):
            for _ in range(times):
                reply = self._deliver(message)
        return _spoilt(reply, kind)

    def _killed(self, message: Message, step: int | None) -> None:
        def answer() -> bytes:
            self._deliver(message)
            return b""

        answered_in_a_child(answer, step=step)

    @contextmanager
    def _charging(self, message: Message) -> Iterator[None]:
        """Count the charges to the ledger that are made after the message's round has ended."""
        charge, end = Ledger.charge, message.metadata.created_at + message.metadata.ttl

        def watched(*arguments: object) -> object:
            head = charge(*arguments)
            self.late_charges += self.clock.time() > end
            return head

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ledger, "charge", watched)
            yield


@contextmanager
def on_this_clock(clock: Clock) -> Iterator[None]:
    """Make all code that waits or reads the time use this clock."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (client_app, collect, connected, disclosure):
            patch.setattr(module, "time", clock)
        yield


@contextmanager
def taking(clock: Clock, seconds: float) -> Iterator[None]:
    """Make a round take the given seconds."""
    compute = answer.compute

    def slow(*arguments: object) -> object:
        clock.now += seconds
        return compute(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer, "compute", slow)
        yield


def _full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _altered(message: Message) -> Message:
    """Return a copy of the request with an unknown protocol version."""
    asked = records.read_request(message)
    config = {**asked.config, "protocol": 99}
    other = Message(
        records.ask(asked.arrays, config), message.metadata.dst_node_id,
        message.metadata.message_type, ttl=message.metadata.ttl,
    )  # fmt: skip
    other.metadata.__dict__.update(message.metadata.__dict__)
    return other


def _spoilt(reply: Message, kind: str) -> Message:
    """Damage a reply in a way that Flower's own checksums would not notice."""
    if kind not in ("garbage", "not finite") or reply.has_error():
        return reply
    found = records.read_reply(reply)
    arrays = [np.full(array.shape, np.nan, np.float32) for array in found.arrays]
    if kind == "garbage":
        arrays = [np.zeros(3, np.float32)] * 3
    reply.content = records.answer(arrays, 1, dict(found.config))
    return reply
