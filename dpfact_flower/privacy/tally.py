"""What was released so far, added up: as much as a budget needs, of any number of releases.

Costs are added up as fractions, so a tally loses nothing: its total is, to the last bit, that of
`dpfact_flower.privacy.guarantee.account` over all events, whatever the order they came in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from dpfact_flower.errors import SettingsError
from dpfact_flower.privacy.events import Neighbours, ReleaseEvent, Unit, claim_of
from dpfact_flower.privacy.guarantee import Guarantee, guarantee_of


class Kind(NamedTuple):
    """What tells events apart that are not one sum, or not one claim."""

    unit: Unit
    neighbours: Neighbours
    claim: str
    seeded: bool


class Sum(NamedTuple):
    """Events of one kind: how many, of how many values, and their exact rho."""

    releases: int
    values: int
    rho: Fraction


@dataclass(frozen=True)
class Tally:
    """Releases, added up; begin with an empty one.

    Attributes
    ----------
    sums : mapping of Kind to Sum
        At most as many as there are kinds, however many the releases.
    unprotected : int
        Releases of values without noise, which no sum covers.
    """

    sums: Mapping[Kind, Sum] = field(default_factory=dict)
    unprotected: int = 0

    def plus(self, events: Iterable[ReleaseEvent], *, unprotected: int = 0) -> Tally:
        """With further releases."""
        sums = dict(self.sums)
        for event in events:
            kind = Kind(event.unit, event.neighbours, event.claim, event.seeded)
            releases, values, rho = sums.get(kind, Sum(0, 0, Fraction()))
            sums[kind] = Sum(releases + 1, values + event.count, rho + Fraction(event.rho))
        return Tally(sums, self.unprotected + unprotected)

    @property
    def relations(self) -> set[tuple[Unit, Neighbours]]:
        """Units and neighbours of what was released: only one of them adds up."""
        return {(kind.unit, kind.neighbours) for kind in self.sums}

    def guarantee(self, delta: float) -> Guarantee:
        """What `account` says of the events.

        Raises
        ------
        SettingsError
            If there are none, they do not share a unit and relation, or delta is out of range.
        """
        if len(self.relations) != 1:
            raise SettingsError("tally: need releases of one unit and neighbouring relation")
        ((unit, neighbours),) = self.relations
        return guarantee_of(
            float(sum(part.rho for part in self.sums.values())),  # rounded once, like math.fsum
            delta,
            releases=sum(part.releases for part in self.sums.values()),
            count=sum(part.values for part in self.sums.values()),
            unit=unit,
            neighbours=neighbours,
            claim=claim_of(tuple(self.sums)),
        )
