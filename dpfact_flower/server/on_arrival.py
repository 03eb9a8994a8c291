"""Modes none and paper without waiting: every reply moves the model when it comes.

The first round is in step, and so are all rounds of a start: then it is known who is there, and
where the run begins. From then on a reply takes the place of its site's last one, and the rule
moves on from the last replies of all sites. So no site counts more for answering more often. The
last reply of a site counts fully for two rounds, as long as it takes where all are equally fast,
and then less and less: ``1 / (1 + age - 2)``, the hinge of FedAsync (Xie, Koyejo and Gupta 2019,
https://arxiv.org/abs/1903.03934). Without that, the few early replies of a slow site hold the model
where it was.

Rounds still have numbers, since budgets are planned over them, and a site answers each number once
at most. A round is over once the quorum and more than half of the sites that are there have
answered it. A slower site continues with the round that the others are in. A faster site may be a
round ahead, and waits then: more replies of the same site are charged for, and teach little.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Unpack, cast

import numpy as np

from dpfact_flower.server.coordinator import Coordinator, CoordinatorOptions, utc_now
from dpfact_flower.server.history import Arrival, Failure, RoundRecord
from dpfact_flower.server.rule import ArrivalRule, numbered, unnumbered
from dpfact_flower.tensor import Factors
from dpfact_flower.tensor.arrays import Array
from dpfact_flower.wire.protocol import RoundRequest, SiteReply

_logger = logging.getLogger(__name__)
_AHEAD = 1
"""Rounds that a site may be ahead of most."""
_FRESH = 2.0
"""Rounds since the question in which a site's last reply counts fully."""
_STATE = "on_arrival"


@dataclass
class _Site:
    """What is known of a site.

    Attributes
    ----------
    round, version : int
        That it was asked for last, and of the model that it was sent then.
    asked : RoundRequest or None
        While a reply is waited for.
    answered : int
        The last round that it answered.
    last : tuple of ndarray of float32
        Its last reply; if it answered the start alone, the factors of the start.
    based : int
        Version of the model that its last reply answers.
    failed : bool
        Whether it gave no usable reply to the last question.
    """

    round: int = 0
    version: int = 0
    asked: RoundRequest | None = None
    answered: int = 0
    last: Factors = ()
    based: int = 0
    failed: bool = False


_NOTED = ("round", "version", "answered", "based", "failed")
"""Of a site, in a checkpoint, beside its arrays."""


@dataclass
class _Open:
    """The round that is not over yet."""

    arrivals: list[Arrival] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    updated: bool = False
    bytes_down: int = 0
    bytes_up: int = 0
    began: float = 0.0


class OnArrival(Coordinator):
    """A run in which every reply counts when it comes; parameters as `Coordinator`.

    `close_round` is for the rounds in step. Sites go by their names, or by ``node 7`` until their
    name is known.
    """

    aggregation: ClassVar[str] = "async"
    _copies_of_each_site: ClassVar[int] = 4  # last reply and question, in two checkpoints

    def __init__(self, feature_shape: Sequence[int], **options: Unpack[CoordinatorOptions]) -> None:
        self._sites: dict[str, _Site] = {}
        self._version = 0
        self._round = _Open()
        super().__init__(feature_shape, **options)

    @property
    def current_round(self) -> int:
        """The round that most sites are in."""
        return min(self.finished_rounds + 1, self.rounds)

    @property
    def rounds_in_step(self) -> int:
        """Rounds in which sites wait for each other: the first, and all that a start has."""
        last = 1
        while last < self.rounds and self.rule.needs_quorum(last + 1):
            last += 1
        return last

    @property
    def is_over(self) -> bool:
        """Whether all rounds are over."""
        return self.finished_rounds >= self.rounds

    @property
    def waited_for(self) -> dict[str, RoundRequest]:
        """Open requests by site; after a resume, those that were open before."""
        return {name: site.asked for name, site in self._sites.items() if site.asked}

    def close_round(
        self,
        round_number: int,
        replies: Sequence[SiteReply],
        failures: Sequence[Failure],
        **measured: Any,
    ) -> RoundRecord:
        """Close a round in step, and keep what the sites replied; see `Coordinator`."""
        starts = self.rule.needs_quorum(round_number)
        record = super().close_round(round_number, replies, failures, **measured)
        self._version += 1
        if record.updated and round_number >= self.rounds_in_step:
            for reply in replies:
                if reply.site in record.sites:
                    last = self.factors if starts else reply.arrays
                    self._sites[reply.site] = _Site(round_number, answered=round_number, last=last)
        self.save()
        return record

    def ask(self, name: str) -> RoundRequest | None:
        """What to ask of a site that is there now; None if it has to answer first, or to wait.

        Save before sending it. Then whoever continues asks for the very same again, and a reply
        that was charged and did not come through comes then, for nothing.
        """
        number = self._next(name)
        if number is None:
            return None
        site = self._sites.setdefault(name, _Site())
        site.asked = self.request(number)
        site.round, site.version = number, self._version
        return site.asked

    def take(self, name: str, reply: SiteReply) -> None:
        """Move on from a reply that came from whom it was asked of."""
        site = self._sites.pop(name)
        before = self._sites.get(reply.site)
        if before and before.answered >= site.round:  # it has moved on under another number
            before.asked = None
            return
        self._sites[reply.site] = site
        site.asked, site.failed = None, False
        site.answered, site.last, site.based = site.round, reply.arrays, site.version
        staleness = self._version - site.version
        self._round.arrivals.append(Arrival(reply.site, site.round, staleness))
        latest = sorted((site, kept) for site, kept in self._sites.items() if kept.last)
        if len(latest) >= self.run.min_sites:
            replies = [SiteReply(site, kept.last) for site, kept in latest]
            shares = [self._share(kept, len(latest)) for _, kept in latest]
            cast(ArrivalRule, self.rule).arrive(site.round, replies, shares)
            self._version += 1
            self._round.updated = True

    def fail(self, name: str, reason: str, *, shown: str = "") -> None:
        """Note that a site gave no usable reply; it is asked again in the next round."""
        site = self._sites.setdefault(name, _Site())
        site.asked, site.failed = None, True
        failure = Failure(shown or name, reason)
        _logger.warning("round %d: %s: %s", self.current_round, failure.who, failure.reason)
        self._round.failures.append(failure)

    def count(self, *, bytes_down: int = 0, bytes_up: int = 0) -> None:
        """Add bytes that were sent to those of the round."""
        self._round.bytes_down += bytes_down
        self._round.bytes_up += bytes_up

    def advance(self, connected: Collection[str], now: float) -> None:
        """Close the round if most of the sites that are here have answered it, or none will.

        `now` are the seconds since the last round in step, or since this process took up the run.
        """
        if self.is_over or not self._is_done(connected):
            return
        noted, self._round = self._round, _Open(began=now)
        if not noted.updated:
            _logger.warning(
                "round %d: fewer sites than the quorum of %d: the global model stays as it was",
                self.current_round, self.run.min_sites,
            )  # fmt: skip
        self.records.append(
            RoundRecord(
                self.current_round, tuple(sorted({arrival.site for arrival in noted.arrivals})),
                tuple(noted.failures), noted.updated, noted.bytes_down, noted.bytes_up,
                now - noted.began, utc_now(), arrivals=tuple(noted.arrivals),
            )
        )  # fmt: skip

    def questions(self) -> list[RoundRequest]:
        """Requests to which, one or another, every site that belongs to the run would answer.

        For finding out, with no charge, which site a node is: one that has finished its rounds
        answers none.
        """
        last = [request for request in self.waited_for.values() if request.round == self.rounds]
        return [self.request(self.rounds), *last]

    def _next(self, name: str) -> int | None:
        """The round that a site may be asked for now."""
        site = self._sites.get(name, _Site())
        number = max(site.round + 1, self.current_round)
        ahead = 0 if site.failed else _AHEAD
        over = self._answered(self.rounds) >= self._enough(len(self._sites))
        if site.asked or over or number > min(self.current_round + ahead, self.rounds):
            return None
        return number

    def _is_done(self, connected: Collection[str]) -> bool:
        idle = not self.waited_for and all(self._next(name) is None for name in connected)
        if self.current_round == self.rounds:  # what was asked may have been charged
            return idle
        return idle or self._answered(self.current_round) >= self._enough(len(connected))

    def _answered(self, number: int) -> int:
        return sum(site.answered >= number for site in self._sites.values())

    def _enough(self, sites: int) -> int:
        return max(self.run.min_sites, sites // 2 + 1)

    def _share(self, site: _Site, sites: int) -> float:
        """By how much a site's last reply counts: less and less, the older its question is."""
        age = (self._version + 1 - site.based) / sites
        return 1 / (1 + max(age - _FRESH, 0.0))

    # --- Checkpoints

    def _state(self) -> dict[str, Array]:
        arrays = super()._state()
        noted = {
            "version": self._version,
            "open": asdict(self._round),
            "sites": {
                label: {name: getattr(site, name) for name in _NOTED}
                for label, site in self._sites.items()
            },
        }
        arrays[_STATE] = np.array(json.dumps(noted))
        for number, site in enumerate(self._sites.values()):
            arrays |= numbered(f"last_{number}", site.last)
            arrays |= numbered(f"asked_{number}", site.asked.anchors if site.asked else ())
        return arrays

    def _restore(self, arrays: Mapping[str, Array]) -> None:
        super()._restore(arrays)
        noted = json.loads(str(arrays[_STATE]))
        was = noted["open"]
        was["arrivals"] = [Arrival(*fields) for fields in was["arrivals"]]
        was["failures"] = [Failure(**fields) for fields in was["failures"]]
        was["began"] = 0.0  # seconds are those of a process, which is another by now
        self._version, self._round = noted["version"], _Open(**was)
        for number, (name, fields) in enumerate(noted["sites"].items()):
            anchors = unnumbered(arrays, f"asked_{number}")
            request = replace(self.request(fields["round"]), anchors=anchors) if anchors else None
            last = unnumbered(arrays, f"last_{number}")
            self._sites[name] = _Site(asked=request, last=last, **fields)
