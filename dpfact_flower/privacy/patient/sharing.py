"""How sites share one noise under secure sums.

Of `sites`, at most `colluding` tell the server their noise, and at most `dropouts` are lost during
a sum. So each sum has noise of at least `honest` sites that the server does not know. A sum has
`slots`: a site's statistic is in one, its noise in all, and the server learns each slot's total.
Proof: ``docs/explanation/secure-sums.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dpfact_flower.errors import MessageError, SettingsError
from dpfact_flower.privacy.secure_sum.keys import Terms
from dpfact_flower.settings import PrivacySettings

LEAST_SITES = 3
_TENTH = 10
_SLOTS = 2
"""With one sum of all sites, phenotypes of a single site are lost."""


class Sharing(NamedTuple):
    """Numbers of sites and slots in secure sums."""

    sites: int
    colluding: int
    dropouts: int
    slots: int

    @property
    def honest(self) -> int:
        """Least number of sites whose noise hides a sum."""
        return self.sites - self.colluding - self.dropouts

    def own_sigma(self, sigma: float) -> float:
        """Deviation of one site's noise, such that the honest sites together have `sigma`."""
        return sigma / math.sqrt(self.honest)

    def sum_sigma(self, sigma: float) -> float:
        """Deviation of the noise on a slot's total, which has all sites' noise."""
        return self.own_sigma(sigma) * math.sqrt(self.sites)

    def slot(self, place: int) -> int:
        """Slot of the site at a place in the sorted list of names."""
        return place % self.slots

    def terms(self, job: str, settings: str, names: Sequence[str]) -> Terms:
        """The terms that the sites sign for a job; `settings` is a digest of shared settings."""
        if len(names) != self.sites:
            raise MessageError(f"secure sum: {len(names)} names for {self.sites} sites")
        return Terms(job, settings, tuple(names), self.colluding, self.dropouts)

    @property
    def claim(self) -> str:
        """The claim for the sites' releases together, with its condition."""
        return (
            f"proven under secure sums: patient-level, add or remove one patient, at most "
            f"{self.colluding} of {self.sites} sites collude"
        )


def sharing_of(settings: PrivacySettings, sites: int) -> Sharing | None:
    """Plan secure sums over this number of sites; None if the settings have no secure sums.

    Raises
    ------
    SettingsError
        If there are too few sites, their number is unknown, or fewer than two honest ones may be
        left. Fewer than half of the sites that do not collude may be lost.
    """
    if not settings.secure_sums:
        return None
    number = settings.secure_sites or sites
    if number < LEAST_SITES:
        raise SettingsError(
            f"sites: secure sums need the number of sites, {LEAST_SITES} at least; got {number}"
        )
    colluding, dropouts = settings.secure_colluding, settings.secure_dropouts
    tenth = math.ceil(number / _TENTH)
    colluding = tenth if colluding < 0 else colluding
    if dropouts < 0:
        dropouts = tenth if 2 * tenth < number - colluding else 0
    honest = number - colluding - dropouts
    if colluding < 1 or honest < 2 or 2 * dropouts >= number - colluding:
        raise SettingsError(
            f"secure-colluding, secure-dropouts: of {number} sites, {colluding} colluding and "
            f"{dropouts} lost leave {honest}; need 1 or more colluding, 2 or more left, and fewer "
            "lost than left"
        )
    slots = settings.secure_slots or max(1, min(_SLOTS, honest - 1))
    if slots > number:
        raise SettingsError(
            f"secure-slots: need at most one a site; got {slots} for {number} sites"
        )
    return Sharing(number, colluding, dropouts, slots)
