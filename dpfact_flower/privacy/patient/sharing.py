"""How sites share one noise under secure sums: how many there are, and what each adds.

Of `sites`, at most `colluding` tell the server what they added, and at most `dropouts` are lost
while a sum is made. So whatever happens, the noise of `honest` sites is in a sum, and hides what is
known of it. A sum has `slots`: the statistic of a site stands in one, its noise in all, and the
server learns each slot's total. Proof: ``docs/explanation/secure-sums.md``.
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
"""With one sum of all sites, phenotypes that exist at one site alone are lost."""


class Sharing(NamedTuple):
    """Who takes part in secure sums."""

    sites: int
    colluding: int
    dropouts: int
    slots: int

    @property
    def honest(self) -> int:
        """Sites whose noise hides a sum, whatever happens."""
        return self.sites - self.colluding - self.dropouts

    def own_sigma(self, sigma: float) -> float:
        """Noise of one site, such that the honest ones together have `sigma`."""
        return sigma / math.sqrt(self.honest)

    def sum_sigma(self, sigma: float) -> float:
        """Noise of a slot's total: that of all sites."""
        return self.own_sigma(sigma) * math.sqrt(self.sites)

    def slot(self, place: int) -> int:
        """Slot of the site at a place in the sorted list of names."""
        return place % self.slots

    def terms(self, job: str, settings: str, names: Sequence[str]) -> Terms:
        """What these sites sign to take part in a job; `settings` is a digest of all they share."""
        if len(names) != self.sites:
            raise MessageError(f"secure sum: {len(names)} names for {self.sites} sites")
        return Terms(job, settings, tuple(names), self.colluding, self.dropouts)

    @property
    def claim(self) -> str:
        """What holds of what the sites release together, and on which condition."""
        return (
            f"proven under secure sums: patient-level, add or remove one patient, at most "
            f"{self.colluding} of {self.sites} sites collude"
        )


def sharing_of(settings: PrivacySettings, sites: int) -> Sharing | None:
    """Plan secure sums over so many sites; None where the settings ask for none.

    Raises
    ------
    SettingsError
        If sites are too few or unknown, or fewer than two honest ones may be left. A sum can be
        finished after a loss only if the honest sites that may be lost are less than half of them.
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
        raise SettingsError(f"secure-slots: {slots} for {number} sites; at most one for each")
    return Sharing(number, colluding, dropouts, slots)
