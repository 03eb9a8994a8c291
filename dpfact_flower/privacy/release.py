"""Define `Release` (values that a site sends) and `ReleaseEvent` (a record of the privacy cost).

Values derived from patients' data leave the Flower client only in a `Release`. A release has one
immutable `ReleaseEvent` for each array with noise. Events contain no information about patients'
data. Only `paper.perturb`, `patient.release` and the functions in this module make a `Release`.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import SettingsError, shown
from dpfact_flower.tensor.arrays import Array

Unit = Literal["entry", "patient"]
Neighbours = Literal["replace", "add-remove"]

PATIENT_CLAIM = "proven: patient-level, add or remove one patient"
ALONE_CLAIM = f"{PATIENT_CLAIM}; even if all other sites collude"
PAPER_CLAIM = "claimed by DPFact, Theorem 4.1; entry-level; not proven"
SEEDED_CLAIM = "seeded: not private"
NO_CLAIM = "none: no privacy guarantee"


@dataclass(frozen=True)
class ReleaseEvent:
    """A record of one array that was released with Gaussian noise.

    `name`, such as ``"round 3, diagnoses"``, never contains information about a patient.
    `sensitivity` is the claimed bound on the L2 distance between the noiseless values from two
    neighbouring data sets. `sigma` is the standard deviation of the noise in each value.
    Neighbouring data sets differ in one `unit`, which is one tensor entry or one patient. If
    `neighbours` is ``"add-remove"``, one of the neighbouring data sets lacks the unit. Otherwise,
    the unit's values differ. `claim` states whether the sensitivity is proven, and is printed with
    every epsilon computed from the event. Seeded noise can be recomputed and gives no privacy.
    `own_sigma` is the standard deviation of the site's own noise in a secure sum, and 0 otherwise.
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
        for number in ("sensitivity", "sigma"):
            object.__setattr__(self, number, positive(number, getattr(self, number)))
        if self.own_sigma and not positive("own_sigma", self.own_sigma) < self.sigma:
            raise SettingsError("own_sigma: must be below sigma, the noise of several sites")
        object.__setattr__(self, "count", at_least_one("count", self.count))
        # If the ratio underflowed to 0, the release would seem to cost nothing.
        if not 0 < self.rho < math.inf:
            raise SettingsError(
                f"sensitivity {self.sensitivity:g} and sigma {self.sigma:g}: ratio out of range"
            )

    @property
    def shared(self) -> bool:
        """Whether the values belong to a secure sum, to which several sites add noise."""
        return bool(self.own_sigma)

    @property
    def alone(self) -> "ReleaseEvent":
        """The event with only this site's own noise, as if all other sites colluded."""
        if not self.shared:
            return self
        claim = about_rows_of(self.claim, ALONE_CLAIM)
        return dataclasses.replace(self, sigma=self.own_sigma, own_sigma=0.0, claim=claim)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier sigma / sensitivity, as defined by Opacus and dp-accounting."""
        return self.sigma / self.sensitivity

    @property
    def rho(self) -> float:
        """The zCDP parameter, sensitivity**2 / (2 * sigma**2) (DPFact paper, Proposition 2.7)."""
        ratio = self.sensitivity / self.sigma
        return 0.5 * ratio * ratio


def about_rows(text: str, row_unit: str) -> str:
    """Replace the word *patient* in `text` with a data file's row unit, such as ``discharge``."""
    return re.sub(r"\bpatient(?=\b|s\b)", row_unit, text)


def about_rows_of(claim: str, text: str) -> str:
    """Replace the word *patient* in `text` with the row unit that a privacy claim names."""
    return about_rows(text, *re.findall(r"add or remove one ([\w.-]+)", claim)[:1] or ["patient"])


def claim_of(events: Sequence[ReleaseEvent]) -> str:
    """Return the events' privacy claims as text, with a note if any noise has a seed."""
    if not events:
        return NO_CLAIM
    claim = "; and ".join(sorted({event.claim for event in events}))
    return f"{SEEDED_CLAIM} ({claim})" if any(event.seeded for event in events) else claim


def positive(name: str, value: object) -> float:
    """Return `value` as a float. Raise a SettingsError unless `value` is finite and above 0."""
    # Real and Integral include NumPy scalars, but also bool, which is not allowed here.
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise SettingsError(f"{name}: must be a finite number above 0, got {shown(value)}")
    return float(value)


def at_least_one(name: str, value: object) -> int:
    """Return `value` as an int. Raise a SettingsError unless `value` is an integer of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise SettingsError(f"{name}: must be an integer of 1 or more, got {shown(value)}")
    return int(value)


@dataclass(frozen=True, eq=False, repr=False)
class Release:
    """The values that a site sends, with one event for each array that contains noise.

    `arrays` holds read-only float32 values: either feature factors, with one row per code and one
    column per phenotype, or one vector of statistics. In a secure sum, `arrays` holds masked bytes,
    and `events` is empty, because the events belong to the `Share`.
    """

    arrays: tuple[Array, ...]
    events: tuple[ReleaseEvent, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Share:
    """A site's noisy contribution to a secure sum, which must be masked before it leaves the site.

    `values` holds noisy integers, one vector after another (see `Sharing`). The server learns only
    the sum of all sites' shares, and `events` gives the privacy cost of the sum.
    """

    values: NDArray[np.int64]
    events: tuple[ReleaseEvent, ...]

    @property
    def arrays(self) -> tuple[NDArray[np.int64], ...]:
        """The share's values as a tuple, in the form of `Release.arrays`."""
        return (self.values,)


def release_masked(*parts: bytes) -> Release:
    """Make a release from masked bytes. The privacy cost is recorded with the `Share`."""
    return Release(tuple(np.frombuffer(part, np.uint8) for part in parts), ())


def replay(arrays: Sequence[Array], events: Sequence[ReleaseEvent]) -> Release:
    """Make a release from arrays that already contain noise, with the given events."""
    return Release(tuple(map(fixed, arrays)), tuple(events))


def release_nothing() -> Release:
    """Make an empty release, for a round in which nothing leaves the site."""
    return Release((), ())


def release_unprotected(arrays: Sequence[Array]) -> Release:
    """Release factors or a sum in privacy mode "none", without noise and without a guarantee."""
    return replay(arrays, ())


def fixed(values: Array) -> NDArray[np.float32]:
    """Return a read-only float32 copy. Refuse values that are infinite or not numbers."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32)
    if not np.isfinite(rounded).all():
        raise SettingsError("release: values or noise are not finite, or too large for float32")
    rounded.flags.writeable = False
    return rounded
