"""Secure sums on the server: the stages of a round, and the total. No messages are sent here.

A round begins with an attempt to add up the vectors of all sites. If at most `Sharing.dropouts`
sites are lost, another attempt adds up the vectors of the sites that answered. Then the sites open
the last attempt. To do so, they send the secrets with which the server removes the masks. If no
dropouts are allowed, there is only one attempt and no opening.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import MessageError
from dpfact_flower.privacy.noise import SIGMA
from dpfact_flower.privacy.patient.releases import PlannedRelease
from dpfact_flower.privacy.patient.sharing import Sharing
from dpfact_flower.privacy.secure_sum import keys
from dpfact_flower.privacy.secure_sum import server as rules
from dpfact_flower.privacy.secure_sum.site import Masked, Opening
from dpfact_flower.wire.protocol import RoundRequest, SiteReply
from dpfact_flower.wire.secure import MemberKey, SecureStage, read_sealed

_ROUNDING_BITS = 16
"""Number of bits to round off, so that a sum is as precise as a single site's release."""


class Attempt(NamedTuple):
    """One attempt at a round's sum. `opened` is true once the server has asked sites to open it."""

    round: int
    number: int
    asked: tuple[str, ...]
    opened: bool = False


class SecureSums:
    """The secure sums of a run.

    `members` lists all sites with their keys for the job, sorted, and is empty until all keys have
    arrived. `last` is the newest attempt. After a crash, the server repeats this attempt if it was
    opened or if no dropouts are allowed. Otherwise the server begins again with all sites.
    """

    def __init__(self, sharing: Sharing) -> None:
        self.sharing = sharing
        self.members: tuple[MemberKey, ...] = ()
        self.last = Attempt(0, 0, ())

    def begin(self, request: RoundRequest, planned: PlannedRelease) -> "SecureSum":
        """Return a new sum for a round, before its first attempt."""
        terms = self.sharing.terms(request.job, request.terms, [m.site for m in self.members])
        return SecureSum(self, terms, request, planned)


class SecureSum:
    """The sum of one round, with its attempts, openings and total."""

    def __init__(
        self, run: SecureSums, terms: keys.Terms, request: RoundRequest, planned: PlannedRelease
    ) -> None:
        self._run, self._terms, self._request, self._planned = run, terms, request, planned
        self._question: keys.Question | None = None
        self._masked: dict[str, Masked] = {}
        self._openings: dict[str, Opening] = {}
        self.paid: set[str] = set()
        """Sites that answered an attempt and were therefore charged."""

    @property
    def names(self) -> list[str]:
        """Names of the sites in the last attempt."""
        assert self._question is not None
        return self._question.sites

    @property
    def complete(self) -> bool:
        """Whether every vector of the last attempt has arrived."""
        return self._question is not None and self._masked.keys() == set(self.names)

    @property
    def may_go_on(self) -> bool:
        """Whether a new attempt, with only the sites that answered, can succeed."""
        needed = self._run.sharing.sites - self._run.sharing.dropouts
        return not self._is_last and needed <= len(self._masked) < len(self.names)

    @property
    def _is_last(self) -> bool:
        """Whether sites would refuse another attempt in this round."""
        last = self._run.last
        begun = last.round == self._request.round
        return begun and (last.opened or not self._run.sharing.dropouts)

    @property
    def closed(self) -> list[str]:
        """Names of the sites whose masks are still unknown."""
        assert self._question is not None
        return rules.unopened(self._terms, self._question, self._openings)

    def attempt(self) -> SecureStage:
        """Begin an attempt with all sites or, later, with the sites that answered the last one."""
        last, number = self._run.last, self._request.round
        names = last.asked
        if not self._is_last:
            attempt_number = last.number + 1 if last.round == number else 1
            names = tuple(sorted(self._masked)) or self._terms.sites
            self._run.last = last = Attempt(number, attempt_number, names)
        members = tuple(
            keys.Member(*member) for member in self._run.members if member.site in set(names)
        )
        self._question = self._planned.question(
            self._request.digest, self._request.privacy.patients, last.number, members
        )
        self._masked = {}
        return SecureStage("sum", last.number, self._run.members, names)

    def take_vector(self, site: str, parts: Sequence[bytes]) -> None:
        """Check and keep a site's masked vector."""
        context, words, sealed = parts
        assert self._question is not None
        if site not in self.names:
            raise MessageError(f"reply of site {site!r}: this site was not asked")
        size = self._planned.count * self._run.sharing.slots * self._question.width
        if len(words) != size:
            raise MessageError(f"reply of site {site!r}: need {size} bytes, got {len(words)}")
        if context != keys.context_of(self._terms, self._question):
            raise MessageError(f"reply of site {site!r}: answers another request")
        self.paid.add(site)
        self._masked[site] = Masked(context, words, read_sealed(sealed, self.names))

    def openings(self) -> dict[str, SecureStage]:
        """For each site that has not opened the last attempt, return a request to open it."""
        assert self._question is not None
        self._run.last = self._run.last._replace(opened=True)
        return {
            site: SecureStage(
                "open", self._question.attempt, self._run.members, tuple(self.names),
                rules.sealed_for(site, self._masked),
            )
            for site in self.names if site not in self._openings
        }  # fmt: skip

    def take_opening(self, site: str, parts: Sequence[bytes]) -> None:
        """Check and keep a site's opening."""
        seed, shares = parts
        self._openings[site] = Opening(seed, read_sealed(shares, self.names))

    def slots(self) -> list[SiteReply]:
        """Return the total of each slot as a `SiteReply`."""
        assert self._question is not None
        total = rules.summed(self._terms, self._question, self._masked, self._openings)
        return slot_totals(total, self._planned)


def slot_totals(total: NDArray[np.int64], planned: PlannedRelease) -> list[SiteReply]:
    """Convert a sum in grid units to slot values, with the precision of one site's release."""
    fine = (total + (1 << (_ROUNDING_BITS - 1))) >> _ROUNDING_BITS
    unit = planned.own_sigma / (SIGMA >> _ROUNDING_BITS)
    values = (fine * unit).astype(np.float32).reshape(-1, planned.count)
    return [SiteReply(f"slot-{slot + 1}", (row,)) for slot, row in enumerate(values)]
