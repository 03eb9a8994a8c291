"""The kinds of release of patient mode: what each sums up over patients, and what it needs for it.

A new kind is an object in `KINDS`, a place in the schedule of `plan`, and what the server does with
it (`server.patient`). Everybody else looks it up by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.privacy.events import ReleaseEvent, patient_event
from dpfact_flower.privacy.patient.statistics import (
    BoundedSum,
    code_counts,
    cooccurrence,
    refinement,
)
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.triangle import strict_size, whole_size


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
        Number of values.
    rho : float
        Cost in zCDP; the Gaussian-DP cost is ``sqrt(2 rho)``.
    """

    kind: str
    round: int
    mode: int | None
    sensitivity: float
    sigma: float
    count: int
    rho: float

    def name(self, modes: Sequence[str]) -> str:
        """What is released, in words; `modes` are the names of the feature modes."""
        what = self.kind if self.mode is None else f"{self.kind} {modes[self.mode]}"
        return f"round {self.round}, {what}"

    def event(self, modes: Sequence[str], *, seeded: bool) -> ReleaseEvent:
        """The release as an accountant takes it."""
        return patient_event(
            self.name(modes), self.sensitivity, self.sigma, self.count, seeded=seeded
        )


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
        ridge=ridge(), bound=planned.sensitivity, sigma=planned.sigma,
    )  # fmt: skip


def _refined_size(_: Sequence[int], kept: Sequence[int], mode: int | None, rank: int) -> int:
    assert mode is not None
    return kept[mode] * rank + whole_size(rank)


KINDS: Mapping[str, ReleaseKind] = {
    "codes": ReleaseKind(
        statistic=lambda tensor, planned, *_: code_counts(tensor, sigma=planned.sigma),
        size=lambda every, *_: sum(every),
        clipped=False,
        carries=(),
    ),
    "start": ReleaseKind(
        statistic=lambda tensor, planned, *_: cooccurrence(tensor, sigma=planned.sigma),
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
