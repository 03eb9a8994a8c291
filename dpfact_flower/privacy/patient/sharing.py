"""Plan how sites share the noise in secure sums.

A secure sum consists of vectors, called slots. Each site adds its statistic to one of the sum's
vectors, and adds noise to all vectors. The server learns only each vector's total. A sum is
protected if at least `honest` non-colluding sites add noise (docs/explanation/secure-sums.md).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from dpfact_flower.errors import MessageError, SettingsError
from dpfact_flower.privacy.secure_sum.keys import Terms
from dpfact_flower.settings import PrivacySettings

LEAST_SITES = 3
_SLOTS = 2
"""Largest default number of slots. A single slot would hide the phenotypes of a single site."""


class Sharing(NamedTuple):
    """The numbers of sites, colluding sites, sites that may drop out, and slots (vectors)."""

    sites: int
    colluding: int
    dropouts: int
    slots: int

    @property
    def honest(self) -> int:
        """Smallest number of sites that neither collude nor drop out."""
        return self.sites - self.colluding - self.dropouts

    def own_sigma(self, sigma: float) -> float:
        """Return the noise level per site with which `honest` sites together reach `sigma`."""
        return sigma / math.sqrt(self.honest)

    def terms(self, job: str, settings: str, names: Sequence[str]) -> Terms:
        """Return the terms that every site signs for a job's secure sums."""
        if len(names) != self.sites:
            raise MessageError(f"secure sum: {len(names)} names for {self.sites} sites")
        return Terms(job, settings, tuple(names), self.colluding, self.dropouts)

    @property
    def claim(self) -> str:
        """The privacy claim for secure sums, with the maximum number of colluding sites."""
        return (
            "proven under secure sums: patient-level, add or remove one patient, at most "
            f"{self.colluding} of {self.sites} sites collude"
        )


def sharing_of(settings: PrivacySettings, sites: int) -> Sharing | None:
    """Plan a run's secure sums, or return None if the settings disable secure sums."""
    if not settings.secure_sums:
        return None
    number = settings.secure_sites or sites
    if number < LEAST_SITES:
        raise SettingsError(
            f"sites: secure sums need the number of sites, at least {LEAST_SITES}; got {number}"
        )
    colluding, dropouts = settings.secure_colluding, settings.secure_dropouts
    tenth = math.ceil(number / 10)
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
    slots = settings.secure_slots or min(_SLOTS, honest - 1)
    if slots > number:
        raise SettingsError(f"secure-slots: need at most {number}, one per site; got {slots}")
    return Sharing(number, colluding, dropouts, slots)
