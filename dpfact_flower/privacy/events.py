"""What left a site: one immutable record per perturbed array, separate from what it costs.

An event holds everything an accountant needs and nothing about the data. Costs are in
`conversions` and `guarantee`; the records are made where releases are, in `paper` and `patient`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, get_args

from dpfact_flower.errors import SettingsError, shown

Unit = Literal["entry", "patient"]
Neighbours = Literal["replace", "add-remove"]

PATIENT_CLAIM = "proven: patient-level, add or remove one patient"
ALONE_CLAIM = f"{PATIENT_CLAIM}; even if all other sites collude"
PAPER_CLAIM = "claimed by DPFact, Theorem 4.1; entry-level; not proven"
SEEDED_CLAIM = "seeded: not private"
NO_CLAIM = "none: no privacy guarantee"


@dataclass(frozen=True)
class ReleaseEvent:
    """One release of Gaussian-perturbed values; a bad value is named in a SettingsError.

    Attributes
    ----------
    name : str
        What was released, e.g. ``"round 3, diagnoses"``; never anything of a patient.
    sensitivity : float
        L2 distance that neighbouring data sets are taken to move the values by, at most.
    sigma : float
        Standard deviation (not variance) of the noise on each value.
    count : int
        Number of values released.
    unit : {"entry", "patient"}
        What neighbouring data sets differ in: one tensor entry, or all entries of one patient.
    neighbours : {"replace", "add-remove"}
        Whether that unit is changed, or is present in only one of the two.
    claim : str
        Who claims that `sensitivity` holds; every figure computed from the event repeats it.
    seeded : bool
        Whether the noise can be recomputed from a seed, and so hides nothing.
    own_sigma : float
        Under secure sums, where sites share one noise: standard deviation of what this site adds
        of it, less than `sigma`. 0 where it adds all of it.
    """

    name: str
    sensitivity: float
    sigma: float
    count: int
    unit: Unit
    neighbours: Neighbours
    claim: str
    seeded: bool = False
    own_sigma: float = 0.0

    def __post_init__(self) -> None:
        for text in ("name", "claim"):
            if not isinstance(getattr(self, text), str) or not getattr(self, text):
                raise SettingsError(f"release event: {text} must be a non-empty string")
        for number in ("sensitivity", "sigma"):
            object.__setattr__(self, number, positive(number, getattr(self, number)))
        if self.own_sigma and not positive("own_sigma", self.own_sigma) < self.sigma:
            raise SettingsError("own_sigma: a site adds less noise than all sites together")
        object.__setattr__(self, "count", at_least_one("count", self.count))
        for field, allowed in (("unit", get_args(Unit)), ("neighbours", get_args(Neighbours))):
            if (value := getattr(self, field)) not in allowed:
                raise SettingsError(
                    f"{field}: must be one of {', '.join(allowed)}; got {shown(value)}"
                )
        if type(self.seeded) is not bool:
            raise SettingsError(f"seeded: need bool, got {shown(self.seeded)}")
        # A ratio that underflows would be charged as nothing.
        if not 0 < self.rho < math.inf:
            raise SettingsError(
                f"sensitivity {self.sensitivity:g} and sigma {self.sigma:g}: "
                "their ratio is out of floating-point range"
            )

    @property
    def shared(self) -> bool:
        """Whether what was released is hidden by the noise of several sites, in secure sums."""
        return self.own_sigma > 0

    @property
    def alone(self) -> ReleaseEvent:
        """The release as it costs if all other sites collude: under this site's noise alone."""
        if not self.shared:
            return self
        return dataclasses.replace(self, sigma=self.own_sigma, own_sigma=0.0, claim=ALONE_CLAIM)

    @property
    def mu(self) -> float:
        """Gaussian-DP parameter, sensitivity / sigma."""
        return self.sensitivity / self.sigma

    @property
    def noise_multiplier(self) -> float:
        """Ratio sigma / sensitivity, as Opacus and dp-accounting take it."""
        return self.sigma / self.sensitivity

    @property
    def rho(self) -> float:
        """Parameter of zCDP, sensitivity**2 / (2 * sigma**2): Proposition 2.7 of the paper."""
        return 0.5 * self.mu * self.mu

    def to_dict(self) -> dict[str, str | float | int | bool]:
        """Plain scalars, fit for JSON, which make an equal event."""
        return dataclasses.asdict(self)


def patient_event(
    name: str,
    sensitivity: float,
    sigma: float,
    count: int,
    *,
    seeded: bool,
    own_sigma: float = 0.0,
    claim: str = PATIENT_CLAIM,
) -> ReleaseEvent:
    """A release of patient mode."""
    return ReleaseEvent(
        name, sensitivity, sigma, count, "patient", "add-remove", claim, seeded, own_sigma
    )


def claim_of(events: Sequence[ReleaseEvent]) -> str:
    """Everything that the events claim, in the words to print; seeded noise comes first."""
    if not events:
        return NO_CLAIM
    claim = "; and ".join(sorted({event.claim for event in events}))
    return f"{SEEDED_CLAIM} ({claim})" if any(event.seeded for event in events) else claim


def positive(name: str, value: object) -> float:
    """`value` as a float, if it is a finite number above 0; else a SettingsError names it."""
    # NumPy's scalars are Real and Integral too; so is bool, which is a mistake here.
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not 0 < number < math.inf:
        raise SettingsError(f"{name}: must be a finite number above 0, got {shown(value)}")
    return number


def at_least_one(name: str, value: object) -> int:
    """`value` as an int, if it is an integer of 1 or more; else a SettingsError names it."""
    number = 0 if isinstance(value, bool) or not isinstance(value, Integral) else int(value)
    if number < 1:
        raise SettingsError(f"{name}: must be an integer of 1 or more, got {shown(value)}")
    return number
