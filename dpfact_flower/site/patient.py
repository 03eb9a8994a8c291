"""Compute the one statistic that a site releases per round in patient mode.

A release depends only on the patients' tensor cells, public settings, earlier releases and noise.
For later rounds, the site keeps only noisy results. In the last round, the site only stores the
request, so that `refit` can later fit the hospital's own model.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import MessageError, shown
from dpfact_flower.estimation.start import usage_of
from dpfact_flower.privacy import Noise, ReleaseEvent
from dpfact_flower.privacy.patient import release, share
from dpfact_flower.privacy.patient.plan import PatientPlan, plan_patient
from dpfact_flower.privacy.patient.releases import KINDS, PlannedRelease, carried_by
from dpfact_flower.privacy.patient.sharing import Sharing
from dpfact_flower.privacy.patient.statistics import BoundedSum
from dpfact_flower.site.round import JobState, RoundOutcome, RoundWork, check_modes, stream
from dpfact_flower.wire.protocol import RoundRequest

Usage = tuple[NDArray[np.float64], NDArray[np.float64]]


class PatientRound(RoundWork):
    """A site's work in a round of patient mode."""

    def __init__(
        self, vocabularies: Sequence[Vocabulary], request: RoundRequest, *, site: str,
        simulation: bool,
    ) -> None:  # fmt: skip
        if request.privacy.privacy != "patient":
            raise MessageError(f"request: 'patient' has no mode {request.privacy.privacy!r}")
        sizes = [len(vocabulary) for vocabulary in vocabularies]
        self._plan = plan_of(request, sizes)
        self.planned = self._plan.release_of(request.round)
        self.is_final = self.planned is None
        check_carries(request, self.planned)
        check_modes(request, sizes)
        self._modes = [vocabulary.name for vocabulary in vocabularies]
        self._request, self._site = request, site
        self._noise = Noise.from_settings(
            request.privacy, stream=stream(request, site), simulation=simulation
        )
        self.charged_rounds = len(self.cost())

    def cost(self) -> tuple[ReleaseEvent, ...]:
        """Return one `ReleaseEvent` for each release of this round and of all later rounds."""
        return tuple(
            planned.event(self._modes, seeded=self._noise.seeded)
            for planned in self._plan.releases
            if planned.round >= self._request.round
        )

    def run(self, data: SiteData, kept: JobState) -> RoundOutcome:
        """Compute the round's release. Do not call `run` in a final round (`is_final`)."""
        planned = self.planned
        assert planned is not None
        name, bounded = planned.name(self._modes), self.bounded(data, planned, kept)
        if planned.sharing is None:
            return RoundOutcome(release(bounded, self._noise, name=name, row_unit=data.row_unit))
        slot = self._slot(planned.sharing)
        made = share(bounded, self._noise, planned.sharing, slot, name=name, row_unit=data.row_unit)
        return RoundOutcome(made)

    def _slot(self, sharing: Sharing) -> int:
        assert self._request.secure is not None
        names = [member.site for member in self._request.secure.members]
        return names.index(self._site) % sharing.slots

    def bounded(self, data: SiteData, planned: PlannedRelease, kept: JobState) -> BoundedSum:
        """Sum patients' contributions, without noise. The noiseless sum must not leave the site."""
        request = self._request
        tensor = data.select_codes(request.selection).tensor
        return KINDS[planned.kind].statistic(
            tensor, planned, request.anchors, lambda: ridge_of(request, self._usage(kept))
        )

    def _usage(self, kept: JobState) -> Usage | None:
        """Estimate how strongly the site, or its group in a secure sum, uses each phenotype."""
        request, start = self._request, self._plan.start
        if start.sharing is not None and request.usages is not None:
            usage, spread = request.usages[self._slot(start.sharing)]
            return usage, spread
        started = kept.release(start.round) if request.solver.relative_l21 else None
        return usage_of(started.arrays[0], request.anchors, start.sigma) if started else None


def plan_of(request: RoundRequest, feature_shape: Sequence[int]) -> PatientPlan:
    """Return the run's schedule and costs, which the site computes from the request's settings."""
    plan = plan_patient(request.privacy, sizes=feature_shape, rank=request.solver.rank)
    if plan.settings != request.privacy:
        raise MessageError("request: start-share, refine-rounds and bound must have been planned")
    if request.rounds != plan.rounds:
        raise MessageError(
            f"rounds: the settings make a plan of {plan.rounds} rounds; the request has "
            f"{request.rounds}"
        )
    return plan


def check_carries(request: RoundRequest, planned: PlannedRelease | None) -> None:
    """Refuse a request unless it has exactly the factors, codes and usages that the round needs."""
    carries = carried_by(planned)
    where = f"request: round {request.round} ({planned.kind if planned else 'finish'})"
    if bool(request.anchors) != ("anchors" in carries):
        verb = "takes no" if request.anchors else "needs the"
        raise MessageError(f"{where} {verb} global factors")
    expected = request.privacy.codes_kept if "selection" in carries else ()
    selected = tuple(len(positions) for positions in request.selection)
    if selected != expected:
        needs = f"{where} needs a selection of {expected or 'no'} codes"
        raise MessageError(f"{needs}, got {shown(selected)}")
    shape = None
    if planned and planned.sharing and planned.kind == "refine":
        shape = (planned.sharing.slots, 2, request.solver.rank)
    usages = None if request.usages is None else request.usages.shape
    # If the l2,1 weight is 0, the usages have no effect.
    needed = shape is not None and request.solver.relative_l21 > 0
    if usages != shape and (usages is not None or needed):
        raise MessageError(f"{where} needs {shape or 'no'} usages of slots")


def ridge_of(request: RoundRequest, used: Usage | None) -> NDArray[np.float64]:
    """Return each phenotype's ridge penalty, which replaces the l2,1 penalty on patient factors.

    Apart from a constant, the ridge penalty is an upper bound of the l2,1 penalty. The bound is
    tightest if a phenotype's penalty is inversely proportional to the norm of the phenotype's
    column in the patient factor. This norm is estimated from released co-occurrences. A phenotype
    with average usage gets the penalty `relative_l21`. An infinite penalty removes each phenotype
    whose estimated usage does not exceed the estimate's standard deviation.
    """
    weight = request.solver.relative_l21
    if weight == 0 or used is None:
        return np.zeros(request.solver.rank)
    usage, spread = used
    usage_only = np.maximum(usage, 0)
    exist = max(1, np.count_nonzero(request.anchors[0].any(axis=0)))  # columns of 0 are padding
    norms, average = np.sqrt(usage_only), float(np.sqrt(usage_only.sum() / exist))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(usage > spread, weight * average / norms, np.inf)
