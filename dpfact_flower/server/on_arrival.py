"""Coordinate asynchronous runs (modes "none" and "paper"), where each reply updates the model.

Round 1 is synchronous, and so are all rounds that compute the initial factors. In asynchronous
rounds, each reply replaces its site's previous reply, and the model is updated from all sites'
latest replies. A site gains no weight by answering more often. A reply has full weight for two
rounds. An older reply has weight ``1 / (age - 1)``, with the age in rounds. The formula is
FedAsync's hinge function (Xie, Koyejo and Gupta 2019, https://arxiv.org/abs/1903.03934).

Each reply belongs to a round, because sites plan their budgets per round. A round ends when more
than half of the connected sites, and at least the quorum, have answered. A late site skips to the
current round. A site that is one round ahead waits, because its next reply would add little.
"""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Unpack

import numpy as np

from dpfact_flower.machine.parsed import parse_as
from dpfact_flower.server.coordinator import Coordinator, CoordinatorOptions, utc_now
from dpfact_flower.server.history import Arrival, Failure, RoundRecord
from dpfact_flower.server.rule import numbered, unnumbered
from dpfact_flower.tensor import Array, Factors
from dpfact_flower.wire.protocol import RoundRequest, SiteReply

_logger = logging.getLogger(__name__)
_AHEAD = 1  # maximum number of rounds by which a site may be ahead
_FRESH = 2.0  # maximum age of a reply with full weight, in rounds since the request
_STATE = "on_arrival"


@dataclass
class _Site:
    """The server's record of a site.

    `round` and `version` are the round and the model version of the last request. `asked` is the
    unanswered request, if any. `answered` is the last answered round. `last` contains the factors
    of the last reply, or the initial factors if that reply had none. `based` is the model version
    from which the site computed its last reply. `failed` is set if the last request failed.
    """

    round: int = 0
    version: int = 0
    asked: RoundRequest | None = None
    answered: int = 0
    last: Factors = ()
    based: int = 0
    failed: bool = False


@dataclass
class _OpenRound:
    """The replies, failures and traffic of the current round so far."""

    arrivals: list[Arrival] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    updated: bool = False
    bytes_down: int = 0
    bytes_up: int = 0
    began: float = 0.0


class OnArrival(Coordinator):
    """The coordinator of an asynchronous run."""

    def __init__(self, feature_shape: Sequence[int], **options: Unpack[CoordinatorOptions]) -> None:
        self._sites: dict[str, _Site] = {}
        self._version = 0
        self._round = _OpenRound()
        super().__init__(feature_shape, **options)
        self._last = self.rounds

    def run_until(self, last: int) -> None:
        """Send no new request for a round after `last`, and restart the clock of `advance`."""
        self._last, self._round.began = last, 0.0

    @property
    def current_round(self) -> int:
        """The earliest unfinished round."""
        return min(self.finished_rounds + 1, self.rounds)

    @property
    def asked_rounds(self) -> int:
        """See `Coordinator.asked_rounds`. A site may be one round ahead of the current round."""
        return max([self.finished_rounds, *(site.round for site in self._sites.values())])

    @property
    def rounds_in_step(self) -> int:
        """Number of synchronous rounds: round 1 and all rounds that compute the initial factors."""
        ends = (n for n in range(1, self.rounds) if not self.rule.needs_quorum(n + 1))
        return next(ends, self.rounds)

    @property
    def is_over(self) -> bool:
        """Whether all rounds are finished, up to the last round of `run_until`."""
        return self.finished_rounds >= self._last

    @property
    def waited_for(self) -> dict[str, RoundRequest]:
        """Each site's unanswered request, including requests sent before the run was resumed."""
        return {name: site.asked for name, site in self._sites.items() if site.asked}

    def ask(self, name: str) -> RoundRequest | None:
        """Return a connected site's next request, or None if the site must wait or has finished.

        Call `save` before sending the request, so that a resumed run repeats the same request.
        """
        number = self._next(name)
        if number is None:
            return None
        site = self._sites.setdefault(name, _Site())
        site.asked = self.request(number)
        site.round, site.version = number, self._version
        return site.asked

    def take(self, name: str, reply: SiteReply) -> None:
        """Update the model with a site's reply to the server's latest request to that site."""
        site = self._sites.pop(name)
        before = self._sites.get(reply.site)
        if before and before.answered >= site.round:  # the site answered this round as another node
            before.asked = None
            return
        self._sites[reply.site] = site
        site.asked, site.failed = None, False
        site.answered, site.last, site.based = site.round, reply.arrays, site.version
        self._round.arrivals.append(Arrival(reply.site, site.round, self._version - site.version))
        latest = sorted((name, state) for name, state in self._sites.items() if state.last)
        if len(latest) >= self.run.min_sites:
            replies = [SiteReply(name, state.last) for name, state in latest]
            shares = [self._share(state, len(latest)) for _, state in latest]
            self.rule.arrive(site.round, replies, shares)
            self._version += 1
            self._round.updated = True

    def fail(self, name: str, reason: str, *, shown: str = "") -> None:
        """Record a site's failure. The next request to the site is for a later round."""
        site = self._sites.setdefault(name, _Site())
        site.asked, site.failed = None, True
        failure = Failure(shown or name, reason)
        _logger.warning("round %d: %s", self.current_round, failure)
        self._round.failures.append(failure)

    def count(self, *, bytes_down: int = 0, bytes_up: int = 0) -> None:
        """Add bytes to the current round's traffic."""
        self._round.bytes_down += bytes_down
        self._round.bytes_up += bytes_up

    def advance(self, connected: Collection[str], now: float) -> None:
        """Close the round if enough sites have answered, or if no further reply can arrive.

        `now` is the time in seconds since the last synchronous round, or since the run was resumed.
        """
        if self.is_over or not self._is_done(connected):
            return
        closed, self._round = self._round, _OpenRound(began=now)
        if not closed.updated:
            text = "round %d: fewer sites than the quorum of %d: the global model is unchanged"
            _logger.warning(text, self.current_round, self.run.min_sites)
        self.records.append(
            RoundRecord(
                self.current_round, tuple(sorted({arrival.site for arrival in closed.arrivals})),
                tuple(closed.failures), closed.updated, closed.bytes_down, closed.bytes_up,
                now - closed.began, utc_now(), arrivals=tuple(closed.arrivals),
            )
        )  # fmt: skip

    def questions(self) -> list[RoundRequest]:
        """Return preflight requests. Each unfinished site would accept at least one request."""
        last = [request for request in self.waited_for.values() if request.round == self.rounds]
        return [self.request(self.rounds), *last]

    def _update(self, round_number: int, replies: Sequence[SiteReply]) -> None:
        """Update the model from a synchronous round, and store the sites' replies."""
        starts = self.rule.needs_quorum(round_number)
        super()._update(round_number, replies)
        self._version += 1
        if round_number >= self.rounds_in_step:
            for reply in replies:
                last = self.factors if starts else reply.arrays
                self._sites[reply.site] = _Site(round_number, answered=round_number, last=last)

    def _next(self, name: str) -> int | None:
        """Return a site's next round, or None if the site must wait or has finished."""
        site = self._sites.get(name, _Site())
        number = max(site.round + 1, self.current_round)
        ahead = 0 if site.failed else _AHEAD
        over = self._answered(self._last) >= self._enough(len(self._sites))
        if site.asked or over or number > min(self.current_round + ahead, self._last):
            return None
        return number

    def _is_done(self, connected: Collection[str]) -> bool:
        idle = not self.waited_for and all(self._next(name) is None for name in connected)
        if self.current_round == self._last:  # wait: unanswered requests may be charged
            return idle
        return idle or self._answered(self.current_round) >= self._enough(len(connected))

    def _answered(self, number: int) -> int:
        return sum(site.answered >= number for site in self._sites.values())

    def _enough(self, sites: int) -> int:
        return max(self.run.min_sites, sites // 2 + 1)

    def _share(self, site: _Site, sites: int) -> float:
        age = (self._version + 1 - site.based) / sites
        return 1 / (1 + max(age - _FRESH, 0.0))

    def _state(self) -> dict[str, Array]:
        arrays = super()._state()
        in_arrays = {"asked": None, "last": ()}
        sites = {name: {**vars(site), **in_arrays} for name, site in self._sites.items()}
        saved = {"version": self._version, "open": asdict(self._round), "sites": sites}
        arrays[_STATE] = np.array(json.dumps(saved))
        for number, site in enumerate(self._sites.values()):
            arrays |= numbered(f"last_{number}", site.last)
            arrays |= numbered(f"asked_{number}", site.asked.anchors if site.asked else ())
        return arrays

    def _restore(self, arrays: Mapping[str, Array]) -> None:
        super()._restore(arrays)
        saved = json.loads(str(arrays[_STATE]))
        self._version = saved["version"]
        self._round = parse_as(_OpenRound, saved["open"])  # `run_until` sets its clock
        for number, (name, fields) in enumerate(saved["sites"].items()):
            anchors = unnumbered(arrays, f"asked_{number}")
            request = replace(self.request(fields["round"]), anchors=anchors) if anchors else None
            last = unnumbered(arrays, f"last_{number}")
            self._sites[name] = _Site(**{**fields, "asked": request, "last": last})
