"""Compute a run's strength, which determines its chance of finding real phenotypes.

A run's strength is `Facts.start_signal` times the square root of the rank. All inputs are public.
"""

import math
from typing import NamedTuple

from dpfact_flower.privacy.patient.sharing import Sharing

_MIDDLE, _STEEP = 22.0, 4.0
"""Strength at which the forecast chance is one half, and slope of the chance's log-odds as a
function of the logarithm of the strength (docs/explanation/start.md)."""
_GOOD = 0.9
"""Lowest forecast chance that is called good."""
GOOD_STRENGTH = _MIDDLE * (_GOOD / (1 - _GOOD)) ** (1 / _STEEP)
"""Lowest strength for which the forecast's verdict is good."""


class Facts(NamedTuple):
    """A run's public facts. Unknown numbers are 0. `sizes` counts each mode's selected codes."""

    sizes: tuple[int, ...]
    rank: int
    sites: int
    patients: int
    sharing: Sharing | None = None

    @property
    def known(self) -> bool:
        """Whether the numbers of patients and sites are both known."""
        return bool(self.patients and self.sites)

    @property
    def noises(self) -> float:
        """Variance of the noise in a sum over all sites, in multiples of the release's sigma**2."""
        shared = self.sharing
        return shared.slots * shared.sites / shared.honest if shared else self.sites

    def start_signal(self, rho: float) -> float:
        """Return the signal-to-noise ratio of the run's start, a release of zCDP cost `rho`.

        For I patients, R phenotypes, n codes, T sites and noise level sigma, the ratio is
        ``I / (R sigma sqrt(2 n T))``. The term ``sigma sqrt(2 n T)`` approximates the
        largest eigenvalue of a co-occurrence matrix that contains only noise.
        """
        noise = math.sqrt(2 * sum(self.sizes) * self.noises)
        return self.patients / self.rank / noise * math.sqrt(2 * rho)

    def signal(self, rho: float) -> float:
        """Return a refinement's signal-to-noise ratio at zCDP cost `rho`, or 0 if `known` is false.

        The signal is the number of patients per phenotype. The noise is the norm of all sites'
        noise in one factor column of the mode with the most codes. A sensitivity of 1 is assumed.
        """
        if not self.known:
            return 0.0
        noise = math.sqrt(max(self.sizes) * self.noises / (2 * rho))
        return self.patients / self.rank / noise


def chance_of(strength: float) -> float:
    """Return the chance that a run with the given strength passes the test in docs/results.md."""
    return float(1 / (1 + (_MIDDLE / strength) ** _STEEP))
