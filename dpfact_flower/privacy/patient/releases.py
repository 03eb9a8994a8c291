"""Define the kinds of releases in patient mode, and add noise to sums.

To add a kind of release, add its sum to `statistics`, and extend `KINDS`, `carried_by`, the
schedule in `plan`, and `server.patient`.

`release` adds all of the noise to a sum. In secure sums, `share` adds only one site's part of the
noise. `release` and `share` take the sensitivity and the noise level from the `BoundedSum` itself.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.privacy.noise import SIGMA_BITS
from dpfact_flower.privacy.noise_source import Noise
from dpfact_flower.privacy.patient.sharing import Sharing
from dpfact_flower.privacy.patient.statistics import (
    BoundedSum,
    code_counts,
    cooccurrence,
    refinement,
)
from dpfact_flower.privacy.release import (
    PATIENT_CLAIM,
    Release,
    ReleaseEvent,
    Share,
    about_rows,
    replay,
)
from dpfact_flower.privacy.secure_sum.keys import Member, Question
from dpfact_flower.privacy.secure_sum.masks import width_of
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.triangle import strict_size, whole_size


@dataclass(frozen=True)
class PlannedRelease:
    """One release in a plan.

    `mode` is the index of the feature mode that a refinement updates. `sensitivity` bounds the norm
    of a patient's contribution. `sigma` is the standard deviation of the noise in each value. In
    secure sums, `sigma` includes only the honest sites' noise. `rho` is the release's zCDP cost.
    `count` is the number of released values or, in secure sums, the number of values per slot.
    """

    kind: str
    round: int
    mode: int | None
    sensitivity: float
    sigma: float
    count: int
    rho: float
    sharing: Sharing | None = None

    @property
    def own_sigma(self) -> float:
        """Standard deviation of the noise that a site adds to each value."""
        return self.sharing.own_sigma(self.sigma) if self.sharing else self.sigma

    @property
    def seen_sigma(self) -> float:
        """Standard deviation of the noise in each value that the server sees."""
        return self.own_sigma * math.sqrt(self.sharing.sites) if self.sharing else self.sigma

    def question(
        self, digest: str, patients: int, attempt: int, members: Sequence[Member]
    ) -> Question:
        """Return the server's request for the masked vectors of a secure sum's members."""
        width = width_of(patients, self.sensitivity / self.own_sigma)
        return Question(self.round, bytes.fromhex(digest), attempt, width, tuple(members))

    def name(self, modes: Sequence[str]) -> str:
        """Return the name of the release's event, given the feature modes' names."""
        kind = self.kind if self.mode is None else f"{self.kind} {modes[self.mode]}"
        return f"round {self.round}, {kind}"

    def event(self, modes: Sequence[str], *, seeded: bool) -> ReleaseEvent:
        """Return the record of the release's privacy cost, for the accountant."""
        count, claim, own_sigma = self.count, PATIENT_CLAIM, 0.0
        if self.sharing:
            count, claim = count * self.sharing.slots, self.sharing.claim
            own_sigma = self.own_sigma
        name, size = self.name(modes), (self.sensitivity, self.sigma, count)
        return ReleaseEvent(name, *size, "patient", "add-remove", claim, seeded, own_sigma)


Ridge = Callable[[], NDArray[np.float64]]
"""Function that computes a refinement's ridge penalties from earlier releases."""


class ReleaseKind(NamedTuple):
    """A kind of release.

    ``size(before, after, mode, rank)`` computes the number of released values. `before` and `after`
    list each mode's number of codes before and after code selection. `mode` is the updated mode. If
    `clipped` is true, patients' contributions depend on the request's factors, and are clipped to
    the run's `bound`. If `clipped` is false, a patient's contribution has norm 1 or less.
    """

    statistic: Callable[[SparseTensor, PlannedRelease, Factors, Ridge], BoundedSum]
    size: Callable[[Sequence[int], Sequence[int], int | None, int], int]
    clipped: bool


def _refined(
    tensor: SparseTensor, planned: PlannedRelease, factors: Factors, ridge: Ridge
) -> BoundedSum:
    assert planned.mode is not None
    return refinement(
        tensor, factors, planned.mode,
        ridge=ridge(), bound=planned.sensitivity, sigma=planned.own_sigma,
    )  # fmt: skip


def _refined_size(_: Sequence[int], sizes: Sequence[int], mode: int | None, rank: int) -> int:
    assert mode is not None
    return sizes[mode] * rank + whole_size(rank)


KINDS: Mapping[str, ReleaseKind] = {
    "codes": ReleaseKind(
        statistic=lambda tensor, planned, *_: code_counts(tensor, sigma=planned.own_sigma),
        size=lambda every, *_: sum(every),
        clipped=False,
    ),
    "start": ReleaseKind(
        statistic=lambda tensor, planned, *_: cooccurrence(tensor, sigma=planned.own_sigma),
        size=lambda _, kept, *__: strict_size(sum(kept)),
        clipped=False,
    ),
    "refine": ReleaseKind(statistic=_refined, size=_refined_size, clipped=True),
}


def carried_by(planned: PlannedRelease | None) -> tuple[str, ...]:
    """Return which of `anchors` and `selection` a request has. Pass None for the last round."""
    if planned is None or KINDS[planned.kind].clipped:
        return "anchors", "selection"
    return () if planned.kind == "codes" else ("selection",)


_FINE_BITS = 8
"""Released values are rounded to multiples of 1/256 of the noise's standard deviation. The rounding
increases the variance of the noise by a millionth."""


def release(bounded: BoundedSum, noise: Noise, *, name: str, row_unit: str = "patient") -> Release:
    """Add discrete Gaussian noise to a sum, and return the result as a release.

    The release's event records the privacy cost of adding or removing one row, such as a patient.
    Rounding to multiples of a step (see `step_of`) and to float32 is post-processing.
    """
    noisy = bounded.total + noise.integers(len(bounded.total))
    size = bounded.sensitivity, bounded.sigma, len(noisy)
    claim = about_rows(PATIENT_CLAIM, row_unit)
    event = ReleaseEvent(name, *size, "patient", "add-remove", claim, noise.seeded)
    return replay([rounded(noisy, event.sigma)], [event])


def step_of(release: Release) -> float:
    """Return a release's rounding step, or 0 if the step is unknown."""
    events = release.events
    return _step(events[0].sigma) if len(events) == 1 and events[0].unit == "patient" else 0.0


def rounded(noisy: NDArray[np.int64], sigma: float) -> NDArray[np.float64]:
    """Convert noisy integers to the nearest multiples of the rounding step. Round ties up."""
    fine = SIGMA_BITS - _FINE_BITS
    return ((noisy + (1 << (fine - 1))) >> fine) * np.float64(_step(sigma))


def _step(sigma: float) -> float:
    return sigma / (1 << _FINE_BITS)


def share(
    bounded: BoundedSum, noise: Noise, sharing: Sharing, slot: int, *, name: str,
    row_unit: str = "patient",
) -> Share:  # fmt: skip
    """Add one site's part of the noise to the site's sum, and return the result.

    The sum goes into one of the share's vectors (slots), and noise goes into all slots. The share
    is not rounded, because only rounding the sum of all shares is free post-processing. The share
    must be masked before it leaves the site. `bounded.sigma` must describe one site's noise.
    """
    slots = np.zeros((sharing.slots, len(bounded.total)), np.int64)
    slots[slot] = bounded.total
    noisy = slots.ravel() + noise.integers(slots.size)
    size = bounded.sensitivity, bounded.sigma * math.sqrt(sharing.honest), len(noisy)
    claim = about_rows(sharing.claim, row_unit)
    event = ReleaseEvent(name, *size, "patient", "add-remove", claim, noise.seeded, bounded.sigma)
    return Share(noisy, (event,))
