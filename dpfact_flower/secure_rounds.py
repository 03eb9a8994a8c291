"""Secure sums over Flower: one exchange of keys per run, and the messages of each round."""

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flwr.app import Message

from dpfact_flower.collect import MOST_ASKED, format_error
from dpfact_flower.errors import DataError, MessageError, QuorumError
from dpfact_flower.machine.files import replacing
from dpfact_flower.machine.parsed import from_json
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.history import Failure
from dpfact_flower.server.readiness import SiteNames, called
from dpfact_flower.server.secure import Attempt, SecureSum, SecureSums
from dpfact_flower.wire import records
from dpfact_flower.wire.protocol import RoundRequest, SiteReply
from dpfact_flower.wire.secure import MemberKey, SecureStage, read_parts

_logger = logging.getLogger(__name__)
SECURE = "secure.json"
_KEY_PARTS, _VECTOR_PARTS, _OPENING_PARTS = 2, 3, 2

Ask = Callable[[Mapping[int, RoundRequest], bool], Mapping[int, Message]]
"""A function that sends requests to nodes, waits for lost sites if asked to, and returns
replies."""


class SecureRounds:
    """The secure sums that a run computes with Flower's nodes."""

    def __init__(self, coordinator: Coordinator, names: SiteNames, ask: Ask) -> None:
        self._coordinator, self._names, self._ask = coordinator, names, ask
        self._sums: SecureSums | None = None
        self._sum: SecureSum | None = None
        self._nodes: dict[str, int] = {}
        self._failed: dict[str, str] = {}

    def agree(self, nodes: Sequence[int], number: int) -> None:
        """Get every site's key, and plan sums over these sites. A resumed run reads stored keys."""
        coordinator = self._coordinator
        self._nodes = {self._names.of(node): node for node in nodes if self._names.of(node)}
        self._sums = self._begin()
        if coordinator.resumed and _read(coordinator.run_dir, self._sums):
            return
        for _ in range(MOST_ASKED):
            if len(self._nodes) < coordinator.run.min_sites:
                break
            if len(self._nodes) != self._begin().sharing.sites:
                coordinator.resize(len(self._nodes))
            self._sums = self._begin()
            stage = SecureStage("keys", asked=tuple(sorted(self._nodes)))
            request = replace(coordinator.request(number), secure=stage)
            came = self._ask(dict.fromkeys(self._nodes.values(), request), False)
            replies = self._replies(self._nodes, came, _KEY_PARTS)
            if replies.keys() == self._nodes.keys():
                self._sums.members = tuple(
                    MemberKey(site, *replies[site]) for site in sorted(replies)
                )
                self._keep()
                return
            self._nodes = {site: self._nodes[site] for site in replies}
        why = "; ".join(f"{site}: {reason}" for site, reason in sorted(self._failed.items()))
        raise QuorumError(
            f"secure sums: {len(self._nodes)} sites sent keys, but the quorum (min-sites) is "
            f"{coordinator.run.min_sites}; nothing was charged. {why}"
        )

    def _begin(self) -> SecureSums:
        assert self._coordinator.secure is not None
        return SecureSums(self._coordinator.secure)

    def requests(self, number: int, nodes: Sequence[int]) -> dict[int, RoundRequest]:
        """Return a round's first requests. In a secure sum, nodes without a key get no request."""
        coordinator = self._coordinator
        self._sum, self._failed = None, {}
        request, planned = coordinator.request(number), coordinator.planned_release(number)
        self._nodes |= {self._names.of(node): node for node in nodes if self._names.of(node)}
        if planned is None or self._sums is None:
            return dict.fromkeys(nodes, request)
        self._sum = self._sums.begin(request, planned)
        return self._attempt(request)

    def _attempt(self, request: RoundRequest) -> dict[int, RoundRequest]:
        assert self._sum is not None
        staged = replace(request, secure=self._sum.attempt())
        self._keep()
        return {self._nodes[site]: staged for site in self._sum.names if site in self._nodes}

    def _keep(self) -> None:
        """Write the sites' public keys and the latest attempt to the run's folder."""
        sums, coordinator = self._sums, self._coordinator
        if sums is not None and coordinator.run_dir is not None:
            members = [[m.site, m.key.hex(), m.signature.hex()] for m in sums.members]
            with replacing(coordinator.run_dir / SECURE, durable=coordinator.durable) as file:
                file.write(json.dumps({"members": members, "last": sums.last}).encode())

    @property
    def adding(self) -> bool:
        """Whether the current round is a secure sum."""
        return self._sum is not None

    def finish(
        self, number: int, replies: Mapping[int, Message]
    ) -> tuple[list[SiteReply], list[Failure], list[SiteReply]]:
        """Finish the sum from the first attempt's replies. Return sites, failures and slot totals.

        If the sum fails, the totals are empty, and only the sites that were charged are returned.
        """
        assert self._sum is not None
        adding, request = self._sum, self._coordinator.request(number)
        while True:
            self._take(adding.names, replies, _VECTOR_PARTS, adding.take_vector)
            if adding.complete or not adding.may_go_on:
                break
            replies = self._ask(self._attempt(request), True)
        if not adding.complete:
            return self._paid(), self._failures(), []
        for _ in range(MOST_ASKED):
            if not adding.closed:
                break
            stages = adding.openings()
            self._keep()
            requests = {self._nodes[site]: replace(request, secure=stages[site]) for site in stages}
            self._take(stages, self._ask(requests, True), _OPENING_PARTS, adding.take_opening)
        for site in adding.closed:
            self._failed.setdefault(site, "too few sites helped to open its mask")
        if adding.closed:
            return self._paid(), self._failures(), []
        return [SiteReply(site, ()) for site in adding.names], self._failures(), adding.slots()

    def _paid(self) -> list[SiteReply]:
        assert self._sum is not None
        return [SiteReply(site, ()) for site in sorted(self._sum.paid)]

    def _take(
        self,
        sites: Collection[str],
        replies: Mapping[int, Message],
        number: int,
        take: Callable[[str, Sequence[bytes]], None],
    ) -> None:
        for site, parts in self._replies(sites, replies, number).items():
            try:
                take(site, parts)
                self._failed.pop(site, None)
            except MessageError as error:
                self._failed[site] = str(error)

    def _replies(
        self, asked: Collection[str], replies: Mapping[int, Message], number: int
    ) -> dict[str, list[bytes]]:
        """Return the parts of each site's reply. Record in `_failed` why a reply is unusable."""
        parts_of: dict[str, list[bytes]] = {}
        sites = {node: site for site, node in self._nodes.items()}
        for node, reply in replies.items():
            try:
                if reply.has_error():
                    raise MessageError(format_error(reply.error))
                payload = records.read_reply(reply)
                site, parts = read_parts(payload.arrays, payload.config, number)
                if site != sites.get(node):
                    raise MessageError(f"calls itself {site!r}")
                parts_of[site] = parts
            except MessageError as error:
                self._failed[sites.get(node, str(node))] = str(error)
        for site in set(asked) - parts_of.keys() - self._failed.keys():
            self._failed[site] = "no reply in time"
        return parts_of

    def _failures(self) -> list[Failure]:
        return [
            Failure(called(self._nodes.get(site, 0), site), reason)
            for site, reason in sorted(self._failed.items())
        ]


def _read(folder: Path | None, sums: SecureSums) -> bool:
    """Read the file that `_keep` wrote. Return False if there is no such file."""
    path = (folder or Path()) / SECURE
    if folder is None or not path.exists():
        return False
    try:
        content = from_json(path.read_bytes())
        sums.members = tuple(MemberKey(s, *map(bytes.fromhex, k)) for s, *k in content["members"])
        number, attempt, names, opened = content["last"]
        sums.last = Attempt(number, attempt, tuple(names), opened)
    except (OSError, KeyError, TypeError, ValueError):
        raise DataError(f"{path}: damaged; restore it from a copy, or start a new run") from None
    return True
