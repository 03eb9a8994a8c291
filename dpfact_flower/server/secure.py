"""The server's half of secure sums, without messages: the stages of a round, and the total.

A round begins with an attempt to add up all sites. If a site is lost before its vector arrives,
another attempt adds up the sites that answered: at least all but `Sharing.dropouts`. Then every
site opens the last attempt. Without dropouts there is one attempt, and no opening.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import MessageError
from dpfact_flower.privacy.noise import SIGMA
from dpfact_flower.privacy.patient.kinds import PlannedRelease
from dpfact_flower.privacy.patient.sharing import Sharing
from dpfact_flower.privacy.secure_sum import keys
from dpfact_flower.privacy.secure_sum import server as rules
from dpfact_flower.privacy.secure_sum.site import Masked, Opening
from dpfact_flower.wire.protocol import RoundRequest, SiteReply
from dpfact_flower.wire.secure import MemberKey, SecureStage, read_sealed

_ROUNDING_BITS = 16
"""Bits to round off, so that a sum keeps the same precision as a release of one site."""


class Attempt(NamedTuple):
    """An attempt at a round's sum: its sites, and whether some of them may have opened it."""

    round: int
    number: int
    asked: tuple[str, ...]
    opened: bool = False


class SecureSums:
    """A run's secure sums.

    Attributes
    ----------
    members : tuple of MemberKey
        All sites with their keys of the job, sorted; empty until the exchange of keys is complete.
    last : Attempt
        The newest attempt. After a crash, the server repeats this attempt if it was opened or if no
        site may be lost. Otherwise it begins again with all sites.
    """

    def __init__(self, sharing: Sharing) -> None:
        self.sharing = sharing
        self.members: tuple[MemberKey, ...] = ()
        self.last = Attempt(0, 0, ())

    # --- Keys, once a job

    def ask_keys(self, names: Sequence[str]) -> SecureStage:
        """Request the keys of these sites; the plan fixes their number."""
        return SecureStage("keys", asked=tuple(sorted(names)))

    def take_keys(self, replies: Mapping[str, Sequence[bytes]]) -> None:
        """Take every site's key and signature; the sites verify the signatures."""
        self.members = tuple(
            MemberKey(site, key, signature) for site, (key, signature) in sorted(replies.items())
        )

    # --- The sum of a round

    def begin(self, request: RoundRequest, planned: PlannedRelease) -> SecureSum:
        """Begin a round's sum, before its first attempt."""
        terms = self.sharing.terms(request.job, request.terms, [m.site for m in self.members])
        return SecureSum(self, terms, request, planned)


class SecureSum:
    """One round's sum: attempts, openings, total."""

    def __init__(
        self, run: SecureSums, terms: keys.Terms, request: RoundRequest, planned: PlannedRelease
    ) -> None:
        self._run, self._terms, self._request, self._planned = run, terms, request, planned
        self._question: keys.Question | None = None
        self._masked: dict[str, Masked] = {}
        self._openings: dict[str, Opening] = {}
        self.paid: set[str] = set()
        """Sites that answered an attempt and so were charged."""

    @property
    def names(self) -> list[str]:
        """Sites in the last attempt."""
        assert self._question is not None
        return self._question.sites

    @property
    def needed(self) -> int:
        """Least number of sites for a sum."""
        return self._run.sharing.sites - self._run.sharing.dropouts

    @property
    def complete(self) -> bool:
        """Whether every vector of the last attempt has arrived."""
        return self._question is not None and self._masked.keys() == set(self.names)

    @property
    def may_go_on(self) -> bool:
        """Whether another attempt with the sites that answered can succeed."""
        return not self._is_last and self.needed <= len(self._masked) < len(self.names)

    @property
    def _is_last(self) -> bool:
        """Whether sites accept no further attempt in this round."""
        last = self._run.last
        begun = last.round == self._request.round
        return begun and (last.opened or not self._run.sharing.dropouts)

    @property
    def closed(self) -> list[str]:
        """Sites whose masks are still unknown."""
        assert self._question is not None
        return rules.unopened(self._terms, self._question, self._openings)

    def attempt(self) -> SecureStage:
        """The next attempt: with all sites, or with those that answered the previous one."""
        last, number = self._run.last, self._request.round
        names = last.asked
        if not self._is_last:
            attempt_number = last.number + 1 if last.round == number else 1
            names = tuple(sorted(self._masked)) or self._terms.sites
            self._run.last = last = Attempt(number, attempt_number, names)
        members = tuple(
            keys.Member(*member) for member in self._run.members if member.site in set(names)
        )
        self._question = self._planned.question(self._request, last.number, members)
        self._masked = {}
        return SecureStage("sum", last.number, self._run.members, names)

    def take_vector(self, site: str, parts: Sequence[bytes]) -> None:
        """Take a site's masked vector."""
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
        """Requests to open the last attempt, for each site that has not opened it."""
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
        """Take a site's opening."""
        seed, shares = parts
        self._openings[site] = Opening(seed, read_sealed(shares, self.names))

    def slots(self) -> list[SiteReply]:
        """The total of each slot, in the form of a site's reply."""
        assert self._question is not None
        total = rules.summed(self._terms, self._question, self._masked, self._openings)
        return slot_totals(total, self._planned)


def slot_totals(total: NDArray[np.int64], planned: PlannedRelease) -> list[SiteReply]:
    """Convert a sum from grid units to values by slot, rounded like a site's own release."""
    fine = (total + (1 << (_ROUNDING_BITS - 1))) >> _ROUNDING_BITS
    unit = planned.own_sigma / (SIGMA >> _ROUNDING_BITS)
    values = (fine * unit).astype(np.float32).reshape(-1, planned.count)
    return [SiteReply(f"slot-{slot + 1}", (row,)) for slot, row in enumerate(values)]
