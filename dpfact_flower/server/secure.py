"""Compute a round's secure sum on the server. `dpfact_flower.secure_rounds` sends the messages.

A round begins with an attempt to add up the vectors of all sites. If between 1 and
`Sharing.dropouts` sites do not answer, another attempt adds up the remaining sites' vectors.
Finally, the sites send secrets with which the server removes the masks (stage `open`). If no
dropouts are allowed, a round has only one attempt, and the masks cancel in the sum.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import MessageError
from dpfact_flower.privacy.patient.releases import PlannedRelease, rounded
from dpfact_flower.privacy.secure_sum import keys
from dpfact_flower.privacy.secure_sum import server as sums
from dpfact_flower.privacy.secure_sum.site import Masked, Opening
from dpfact_flower.wire.protocol import RoundRequest, SiteReply
from dpfact_flower.wire.secure import SecureStage, read_sealed


class Attempt(NamedTuple):
    """An attempt at a round's sum. `opened` is true once the server asks for unmasking secrets.

    `charged` names the sites that the server knows to be charged for the round.
    """

    round: int
    number: int
    asked: tuple[str, ...]
    opened: bool = False
    charged: tuple[str, ...] = ()


class SecureSum:
    """One round's secure sum: the attempts, the sites' unmasking secrets and the total.

    `members` lists the run's sites in sorted order, with their keys for the job. `last` is the
    newest attempt. After a crash, the server usually begins a new attempt with all sites. If it had
    already requested secrets, or if no dropouts are allowed, the server repeats the newest attempt.
    """

    def __init__(
        self,
        members: tuple[keys.Member, ...],
        last: Attempt,
        request: RoundRequest,
        planned: PlannedRelease,
    ) -> None:
        assert planned.sharing is not None
        self._members, self.last, self._request, self._planned = members, last, request, planned
        self._sharing, names = planned.sharing, [member.site for member in members]
        self._terms = self._sharing.terms(request.job, request.terms, names)
        self._masked: dict[str, Masked] = {}
        self._openings: dict[str, Opening] = {}
        self.charged = set(last.charged if last.round == request.round else ())
        """Sites that answered an attempt and were therefore charged."""
        self.next_attempt()

    @property
    def names(self) -> list[str]:
        """Names of the sites in the newest attempt."""
        return self._question.sites

    @property
    def complete(self) -> bool:
        """Whether every vector of the newest attempt has arrived."""
        return self._masked.keys() == set(self.names)

    def may_go_on(self, quorum: int) -> bool:
        """Whether a new attempt, with only the sites that answered, can succeed."""
        needed = max(self._sharing.sites - self._sharing.dropouts, quorum)
        return not self._is_last and needed <= len(self._masked) < len(self.names)

    @property
    def _is_last(self) -> bool:
        """Whether the sites would refuse a further attempt in this round."""
        begun = self.last.round == self._request.round
        return begun and (self.last.opened or not self._sharing.dropouts)

    @property
    def still_masked(self) -> list[str]:
        """Names of the sites whose masks the server cannot remove yet."""
        return sums.unopened(self._terms, self._question, self._openings)

    def next_attempt(self) -> None:
        """Begin the first attempt with all sites, or a new attempt with the sites that answered."""
        number = self._request.round
        if not self._is_last:
            attempt_number = self.last.number + 1 if self.last.round == number else 1
            names = tuple(sorted(self._masked)) or self._terms.sites
            self.last = Attempt(number, attempt_number, names, charged=tuple(sorted(self.charged)))
        asked = self.last.asked
        members = tuple(member for member in self._members if member.site in asked)
        self._question = self._planned.question(
            self._request.digest, self._request.privacy.patients, self.last.number, members
        )
        self._masked = {}
        self.stage = SecureStage("sum", self.last.number, self._members, asked)

    def take_vector(self, site: str, parts: Sequence[bytes]) -> None:
        """Check and store a site's masked vector."""
        context, words, sealed = parts
        size = self._planned.count * self._sharing.slots * self._question.width
        if len(words) != size:
            raise MessageError(f"reply of site {site!r}: need {size} bytes, got {len(words)}")
        if context != keys.context_of(self._terms, self._question):
            raise MessageError(f"reply of site {site!r}: answers another request")
        self.charged.add(site)
        self._masked[site] = Masked(context, words, read_sealed(sealed, self.names))

    def openings(self) -> dict[str, SecureStage]:
        """Return a request for each site that has not yet sent its secrets for unmasking."""
        self.last = self.last._replace(opened=True, charged=tuple(sorted(self.charged)))
        return {
            site: SecureStage(
                "open", self._question.attempt, self._members, tuple(self.names),
                sums.sealed_for(site, self._masked),
            )
            for site in self.names if site not in self._openings
        }  # fmt: skip

    def take_opening(self, site: str, parts: Sequence[bytes]) -> None:
        """Check and store a site's secrets for unmasking the sum."""
        seed, shares = parts
        self._openings[site] = Opening(seed, read_sealed(shares, self.names))

    def slots(self) -> list[SiteReply]:
        """Return the total of each group of sites as a `SiteReply`."""
        total = sums.unmasked(self._terms, self._question, self._masked, self._openings)
        return slot_totals(total, self._planned)


def slot_totals(total: NDArray[np.int64], planned: PlannedRelease) -> list[SiteReply]:
    """Split the integer sum into one vector of rounded values for each group of sites."""
    values = rounded(total, planned.own_sigma).astype(np.float32).reshape(-1, planned.count)
    return [SiteReply(f"slot-{slot + 1}", (row,)) for slot, row in enumerate(values)]
