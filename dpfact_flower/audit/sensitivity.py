"""Test that adding a patient changes a release only by the patient's bounded contribution.

Two simulated sites get the same requests, but one site has an extra patient. Without noise, the
sites' sums must differ by exactly the extra patient's contribution, and by at most the sensitivity.
The audit also fails if no patient's contribution comes close to the sensitivity.
"""

import math
from fractions import Fraction

import numpy as np

from dpfact_flower.audit import hostile
from dpfact_flower.audit.finding import Finding, count_of
from dpfact_flower.audit.target import (
    SIGMA,
    AuditTarget,
    Integers,
    SimulatedSite,
    Transcript,
    subsample,
)
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.privacy.patient.releases import PlannedRelease

_PATIENTS = 6
_REACHED = 0.99
"""Fraction of the sensitivity that at least one patient's contribution must reach."""
_CANARIES_A_TRIAL = 2


def audit_sensitivity(
    target: AuditTarget, rng: np.random.Generator, *, trials: int = 24
) -> tuple[Finding, ...]:
    """Test every release's sensitivity by adding one extreme patient at a time to small sites."""
    planned = target.plan.releases
    farthest = {release: Fraction(0) for release in planned}
    changed = dict.fromkeys(planned, 0)
    canaries = list(hostile.CANARIES.values())
    for trial in range(trials):
        transcript = hostile.hostile_transcript(target, trial, rng)
        site = _small_site(target, trial, rng)
        without = _totals(target, transcript, site)
        for extra in range(_CANARIES_A_TRIAL):
            turn = trial * _CANARIES_A_TRIAL + extra + trial // len(canaries)
            patient = canaries[turn % len(canaries)](site, transcript, rng)
            at = int(rng.integers(site.tensor.n_patients + 1))
            with_extra = _totals(target, transcript, hostile.joined(site, [patient], at))
            part = _totals(target, transcript, hostile.with_only(site, [patient]))
            for release in planned:
                moved = with_extra[release] - without[release]
                farthest[release] = max(farthest[release], _share(moved, release))
                changed[release] += not np.array_equal(moved, part[release])
    pairs = trials * _CANARIES_A_TRIAL
    detail = f"in {pairs} pairs of sites, how often more than one patient's part changed"
    return (
        *(_reach(target, release, farthest[release]) for release in planned),
        *(count_of(f"others' parts: {target.name(r)}", changed[r], detail) for r in planned),
    )


def _small_site(target: AuditTarget, trial: int, rng: np.random.Generator) -> SiteData:
    sizes = target.site.tensor.feature_shape
    if trial % 8 == 3:
        return hostile.with_only(target.site, [hostile.empty(sizes)])
    if trial % 4 < 2:
        return subsample(target.site, _PATIENTS, rng)
    return hostile.with_only(target.site, hostile.random_patients(sizes, _PATIENTS, rng))


def _totals(
    target: AuditTarget, transcript: Transcript, site: SiteData
) -> dict[PlannedRelease, Integers]:
    """Run all rounds at a site, and return each release's sum before noise is added."""
    world = SimulatedSite(transcript, site)
    return {release: world.play(release)[0] for release in target.plan.releases}


def _share(moved: Integers, release: PlannedRelease) -> Fraction:
    """Return the squared norm of the change `moved`, divided by the squared sensitivity."""
    square = sum(int(value) ** 2 for value in moved[moved != 0])
    return square / (Fraction(release.sensitivity) * SIGMA / Fraction(release.sigma)) ** 2


def _reach(target: AuditTarget, release: PlannedRelease, share: Fraction) -> Finding:
    measured = math.sqrt(share)
    # The comparison with the bound is exact, and rounding must not hide its result.
    measured = max(measured, math.nextafter(1, 2)) if share > 1 else min(measured, 1.0)
    detail = f"largest change by one patient, as a share of {release.sensitivity:g}"
    if share > 1:
        detail += f": too large by {measured - 1:.2g}"
    elif measured < _REACHED:
        detail += ": no patient reached the bound, so it was not tested"
    return Finding(f"sensitivity: {target.name(release)}", measured, (_REACHED, 1.0), detail)
