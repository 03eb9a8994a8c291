"""The kinds of release of patient mode: what each sums up over patients, and what it needs for it.

A new kind is an object in `KINDS`, a place in the schedule of `plan`, and what the server does with
it (`server.patient`). Everybody else looks it up by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.privacy.events import ReleaseEvent, patient_event
from dpfact_flower.privacy.patient.sharing import Sharing
from dpfact_flower.privacy.patient.statistics import (
    BoundedSum,
    code_counts,
    cooccurrence,
    refinement,
)
from dpfact_flower.privacy.secure_sum.keys import Member, Question
from dpfact_flower.privacy.secure_sum.masks import width_of
from dpfact_flower.settings import PrivacySettings
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.triangle import strict_size, whole_size


class Asked(Protocol):
    """A round's request, as far as a sum depends on it."""

    @property
    def privacy(self) -> PrivacySettings:
        """The run's."""

    @property
    def digest(self) -> str:
        """SHA-256 of everything asked."""


@dataclass(frozen=True)
class PlannedRelease:
    """One release of a plan.

    Attributes
    ----------
    kind : str
        Name in `KINDS`.
    round : int
        Flower round, from 1.
    mode : int or None
        Feature mode that a refinement updates, from 0.
    sensitivity : float
        Largest norm of one patient's part.
    sigma : float
        Standard deviation of the noise on each value, in real units.
    count : int
        Number of values; under secure sums, of each slot.
    rho : float
        Cost in zCDP; the Gaussian-DP cost is ``sqrt(2 rho)``.
    sharing : Sharing or None
        How sites share the noise; None where each adds all of it.
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
        """Noise that a site adds."""
        return self.sharing.own_sigma(self.sigma) if self.sharing else self.sigma

    @property
    def seen_sigma(self) -> float:
        """Noise on what the server learns: a site's values, or a slot's total."""
        return self.sharing.sum_sigma(self.sigma) if self.sharing else self.sigma

    def question(self, asked: Asked, attempt: int, members: Sequence[Member]) -> Question:
        """What is added up in an attempt, as the sites and the server must agree on it."""
        width = width_of(asked.privacy.patients or None, self.sensitivity / self.own_sigma)
        return Question(self.round, bytes.fromhex(asked.digest), attempt, width, tuple(members))

    def name(self, modes: Sequence[str]) -> str:
        """What is released, in words; `modes` are the names of the feature modes."""
        kind = self.kind if self.mode is None else f"{self.kind} {modes[self.mode]}"
        return f"round {self.round}, {kind}"

    def event(self, modes: Sequence[str], *, seeded: bool) -> ReleaseEvent:
        """The release as an accountant takes it."""
        name, sharing = self.name(modes), self.sharing
        if sharing is None:
            return patient_event(name, self.sensitivity, self.sigma, self.count, seeded=seeded)
        return patient_event(
            name, self.sensitivity, self.sigma, self.count * sharing.slots, seeded=seeded,
            own_sigma=self.own_sigma, claim=sharing.claim,
        )  # fmt: skip


Ridge = Callable[[], NDArray[np.float64]]
"""Makes the ridge of a refinement, from what was released before."""


@dataclass(frozen=True, eq=False)
class ReleaseKind:
    """A kind of release.

    Attributes
    ----------
    statistic : callable
        From the patients, what is planned, the released factors and the ridge to the sum that noise
        is added to.
    size : callable
        Number of values, from each mode's codes before any are chosen, those that are kept, the
        mode, and the rank.
    clipped : bool
        Whether a patient's part is clipped to the run's `bound`. Otherwise its norm is 1 at most.
    carries : tuple of str
        Fields that a request for it has beside its settings, where the run has them.
    """

    statistic: Callable[[SparseTensor, PlannedRelease, Factors, Ridge], BoundedSum]
    size: Callable[[Sequence[int], Sequence[int], int | None, int], int]
    clipped: bool
    carries: tuple[str, ...]

    def sensitivity(self, bound: float) -> float:
        """Largest norm of one patient's part."""
        return bound if self.clipped else 1.0


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
        carries=(),
    ),
    "start": ReleaseKind(
        statistic=lambda tensor, planned, *_: cooccurrence(tensor, sigma=planned.own_sigma),
        size=lambda _, kept, *__: strict_size(sum(kept)),
        clipped=False,
        carries=("selection", "weights"),
    ),
    "refine": ReleaseKind(
        statistic=_refined,
        size=_refined_size,
        clipped=True,
        carries=("anchors", "selection", "weights"),
    ),
}


def carried_by(planned: PlannedRelease | None) -> tuple[str, ...]:
    """Fields that a round's request has beside its settings, where the run has them.

    The last round plans no release, and ends the run with the model.
    """
    return KINDS[planned.kind].carries if planned else ("anchors", "selection")
