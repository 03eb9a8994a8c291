"""Collect the sites' keys and masked vectors through Flower, to compute secure sums."""

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from flwr.app import Message

from dpfact_flower.collect import MOST_ASKED, format_error, is_lost
from dpfact_flower.connected import ConnectedSites
from dpfact_flower.errors import DataError, MessageError, QuorumError
from dpfact_flower.machine.files import disk_errors, replacing
from dpfact_flower.machine.parsed import from_json
from dpfact_flower.privacy.patient.sharing import LEAST_SITES
from dpfact_flower.privacy.secure_sum.keys import Member
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.history import Failure
from dpfact_flower.server.readiness import called
from dpfact_flower.server.secure import Attempt, SecureSum
from dpfact_flower.wire import records
from dpfact_flower.wire.protocol import RoundRequest, SiteReply, read_parts
from dpfact_flower.wire.secure import SecureStage

_logger = logging.getLogger(__name__)
SECURE = "secure.json"
_KEY_PARTS, _VECTOR_PARTS, _OPENING_PARTS = 2, 3, 2


class SecureRounds:
    """The secure sums of one run."""

    def __init__(self, coordinator: Coordinator, sites: ConnectedSites) -> None:
        self._coordinator, self._sites, self._names = coordinator, sites, sites.names
        self._members: tuple[Member, ...] = ()
        self._last = Attempt(0, 0, ())
        self.current: SecureSum | None = None
        """The current round's sum, or None if the round has no sum."""
        self._nodes: dict[str, int] = {}
        self._failed: dict[str, str] = {}

    def _agree(self, number: int) -> None:
        """Collect the sites' public keys."""
        coordinator, least = self._coordinator, max(self._coordinator.run.min_sites, LEAST_SITES)
        members: dict[str, Member] = {}

        def take(site: str, parts: Sequence[bytes]) -> None:
            members[site] = Member(site, *parts)

        for _ in range(MOST_ASKED):
            assert coordinator.secure is not None
            if len(self._nodes) < least:
                break
            if len(self._nodes) != coordinator.secure.sites:
                coordinator.resize(len(self._nodes))
            stage = SecureStage("keys", asked=tuple(sorted(self._nodes)))
            request = replace(coordinator.request(number), secure=stage)
            replies = self._sites.ask(dict.fromkeys(self._nodes.values(), request), charged=False)
            members.clear()
            self._take(self._nodes, replies, _KEY_PARTS, take)
            if members.keys() == self._nodes.keys():
                self._members = tuple(members[site] for site in sorted(members))
                self._keep(self._last)
                return
            self._nodes = {site: self._nodes[site] for site in members}
        fault = f"in each of {MOST_ASKED} attempts, a site failed to send its key"
        if len(self._nodes) < least:
            fault = f"sites left: {len(self._nodes)}, but min-sites or the sums need {least}"
        raise QuorumError(f"secure sums: {fault}; nothing was charged", self._failures())

    def requests(self, number: int, nodes: Sequence[int]) -> dict[int, RoundRequest]:
        """Return a round's first requests. Nodes that sent no key take no part in secure sums."""
        coordinator = self._coordinator
        self._nodes |= {self._names.of(node): node for node in nodes if self._names.of(node)}
        if not (self._members or (coordinator.resumed and self._read())):
            self._agree(number)  # before the first round
        self.current, self._failed = None, {}
        request, planned = coordinator.request(number), coordinator.planned_release(number)
        if planned is None:
            return dict.fromkeys(nodes, request)
        self.current = SecureSum(self._members, self._last, request, planned)
        return self._attempt(self.current, request)

    def _attempt(self, secure_sum: SecureSum, request: RoundRequest) -> dict[int, RoundRequest]:
        staged = replace(request, secure=secure_sum.stage)
        self._keep(secure_sum.last)
        return {self._nodes[site]: staged for site in secure_sum.names if site in self._nodes}

    def _keep(self, last: Attempt) -> None:
        """Save the sites' public keys and the latest attempt at a sum in the run's folder."""
        self._last, coordinator = last, self._coordinator
        if (folder := coordinator.run_dir) is not None:
            stage = SecureStage("sum", last.number, self._members, last.asked).to_text()
            kept = {"round": last.round, "opened": last.opened, "charged": last.charged}
            path, durable = folder / SECURE, coordinator.durable
            with disk_errors(folder), replacing(path, durable=durable) as file:
                file.write(json.dumps({**kept, "stage": stage}).encode())

    def finish(
        self, number: int, replies: Mapping[int, Message]
    ) -> tuple[list[SiteReply], list[Failure], list[SiteReply]]:
        """Finish a round's secure sum, given the replies to the round's first request.

        Return three lists: replies without arrays, failures, and a total for each group of sites.
        If the sum fails, there are no totals, and the replies name all sites that spent budget.
        """
        assert self.current is not None
        secure_sum, request = self.current, self._coordinator.request(number)
        while True:
            self._take(secure_sum.names, replies, _VECTOR_PARTS, secure_sum.take_vector)
            if not secure_sum.may_go_on(self._coordinator.run.min_sites):
                break
            secure_sum.next_attempt()
            replies = self._sites.ask(self._attempt(secure_sum, request), charged=True)
        if secure_sum.complete:
            for _ in range(MOST_ASKED):
                if not secure_sum.still_masked:
                    break
                stages = secure_sum.openings()
                self._keep(secure_sum.last)
                opening = {self._nodes[s]: replace(request, secure=stages[s]) for s in stages}
                opened = self._sites.ask(opening, charged=True)
                self._take(stages, opened, _OPENING_PARTS, secure_sum.take_opening)
            for site in secure_sum.still_masked:
                self._failed.setdefault(site, "too few sites helped to open its mask")
            if not secure_sum.still_masked:
                summed = [SiteReply(site, ()) for site in secure_sum.names]
                return summed, self._failures(), secure_sum.slots()
        return [SiteReply(site, ()) for site in sorted(secure_sum.charged)], self._failures(), []

    def _take(
        self,
        asked: Collection[str],
        replies: Mapping[int, Message],
        number: int,
        take: Callable[[str, Sequence[bytes]], None],
    ) -> None:
        """Pass each reply's byte strings to `take`, and store each failure's reason."""
        lost = {node for node, reply in replies.items() if is_lost(reply)}
        nodes = {*self._nodes.values(), *replies} - lost
        for node, reply in replies.items():
            try:
                if reply.has_error():
                    raise MessageError(format_error(reply.error))
                payload = records.read_reply(reply)
                site, parts = read_parts(payload.arrays, payload.config, number)
                if fault := self._names.refusal(node, site, nodes):
                    raise MessageError(fault)
                if site not in asked:
                    raise MessageError(f"reply of site {site!r}: this site was not asked")
                take(site, parts)
                self._nodes[site] = node  # the site may have returned as another node
                self._failed.pop(site, None)
            except MessageError as error:
                self._failed[self._names.of(node) or called(node, "")] = str(error)
        for site in asked:
            if self._nodes.get(site) not in replies:
                self._failed.setdefault(site, "no reply in time")

    def _failures(self) -> list[Failure]:
        return [
            Failure(called(self._nodes[site], site) if site in self._nodes else site, reason)
            for site, reason in sorted(self._failed.items())
        ]

    def _read(self) -> bool:
        """Read what `_keep` saved. Return False if nothing was saved."""
        if (folder := self._coordinator.run_dir) is None or not (folder / SECURE).exists():
            return False
        try:
            content = from_json((folder / SECURE).read_bytes())
            stage = SecureStage.from_text(content["stage"])
            number, opened, charged = content["round"], content["opened"], content["charged"]
        except (OSError, KeyError, TypeError, ValueError):
            raise DataError(
                f"{folder / SECURE}: damaged; restore it from a copy, or start a new run"
            ) from None
        self._members = stage.members
        self._last = Attempt(number, stage.attempt, stage.asked, opened, tuple(charged))
        return True
