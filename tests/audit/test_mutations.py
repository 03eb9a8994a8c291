"""An audit is useful only if it fails when something is wrong, so these tests inject faults.

Each fault is a small function on pytest's monkeypatch. The real kernels compute sums on sites with
a single patient each. The sums are then combined wrongly, as a careless rewrite might do. ``python
-m pytest tests/audit/test_mutations.py -s`` prints the measured value for each fault.
"""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from dpfact_flower.privacy import Noise, Release
from dpfact_flower.privacy.ledger import Ledger
from dpfact_flower.privacy.noise import SIGMA
from dpfact_flower.privacy.patient import releases, statistics
from dpfact_flower.privacy.patient.statistics import BoundedSum
from dpfact_flower.privacy.release import replay
from dpfact_flower.site import patient as patient_site
from dpfact_flower.site.patient import PatientRound
from dpfact_flower.site.round import RoundOutcome
from dpfact_flower.site.store import SiteState

FAR = 100.0
"""A bound that no patient reaches."""


# --- Sums -----------------------------------------------------------------------------------------


def each_patient(tensor):
    return [tensor.select_patients([row]) for row in range(tensor.n_patients)]


def with_refinement(wrong):
    """Return a fault that replaces `refinement`: `wrong` gives the total, in grid units."""

    def inject(monkeypatch):
        def refinement(tensor, factors, mode, *, ridge, bound, sigma):
            def real(some, **given):
                given = {"ridge": ridge, "bound": bound, "sigma": sigma} | given
                return statistics.refinement(some, factors, mode, **given).total

            total = np.asarray(wrong(tensor, real, bound=bound, sigma=sigma, factors=factors))
            return BoundedSum(total.astype(np.int64), bound, sigma)

        monkeypatch.setattr(releases, "refinement", refinement)

    return inject


def no_clip(tensor, real, **_):
    return real(tensor, bound=FAR)


def clipped(part, limit):
    return part * min(1.0, limit / max(np.linalg.norm(part), 1e-300))


def clip_after_the_sum(tensor, real, *, bound, sigma, **_):
    return clipped(real(tensor, bound=FAR), bound / sigma * SIGMA)


def clip_each_part(tensor, real, *, bound, sigma, factors):
    """Clip M and the Gram matrix of a patient separately."""
    rank, limit = factors[0].shape[1], bound / sigma * SIGMA
    gram = rank * (rank + 1) // 2
    parts = [real(patient, bound=FAR) for patient in each_patient(tensor)]
    pieces = [(clipped(part[:-gram], limit), clipped(part[-gram:], limit)) for part in parts]
    return np.trunc(sum(map(np.concatenate, pieces)))


def round_up(tensor, real, **_):
    """Round away from zero instead of toward zero."""
    parts = [real(patient) for patient in each_patient(tensor)]
    return sum(part + np.sign(part) for part in parts)


def ridge_from_own_norms(tensor, real, *, factors, **_):
    """Compute l2,1 weights from the usage of the site's own patients, without noise."""
    score = tensor.values.astype(float)[:, None] * np.ones(factors[0].shape[1])
    for mode, factor in enumerate(factors, start=1):
        score = score * factor[tensor.indices[:, mode]]
    usage = np.zeros((tensor.n_patients, score.shape[1]))
    np.add.at(usage, tensor.indices[:, 0], score)
    norms = np.linalg.norm(usage, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return real(tensor, ridge=np.where(norms > 0, 0.3 * norms.mean() / norms, np.inf))


def start_of_other_norm(monkeypatch):
    """Scale blocks by the norm of one triangle, then multiply values by sqrt(2)."""

    def cooccurrence(tensor, *, sigma):
        bounded = statistics.cooccurrence(tensor, sigma=sigma)
        return replace(bounded, total=(bounded.total * np.sqrt(2)).astype(np.int64))

    monkeypatch.setattr(releases, "cooccurrence", cooccurrence)


def codes_not_scaled(monkeypatch):
    """Count each of a patient's codes as 1, however many the patient has."""

    def code_counts(tensor, *, sigma):
        total = np.zeros(sum(tensor.feature_shape))
        for patient in each_patient(tensor):
            part = statistics.code_counts(patient, sigma=sigma).total
            total += np.where(part > 0, SIGMA / sigma * (1 - 1e-9), 0)
        return BoundedSum(total.astype(np.int64), 1.0, sigma)

    monkeypatch.setattr(releases, "code_counts", code_counts)


def state_carried_over(monkeypatch):
    """Add momentum: half of the previous round's sum without noise."""
    real_bounded, real_run = PatientRound.bounded, PatientRound.run

    def bounded(self, data, planned, kept):
        made = real_bounded(self, data, planned, kept)
        state = kept.state
        if state is None:
            return made
        carried = np.resize(state.factors[0].ravel(), made.total.shape)
        return replace(made, total=made.total + (carried / 2).astype(np.int64))

    def run(self, data, kept):
        outcome = real_run(self, data, kept)
        planned = self._plan.release_of(self._request.round)
        if planned is None:
            return outcome
        sums = self.bounded(data, planned, kept).total.astype(np.float32)[:, None]
        return RoundOutcome(outcome.release, SiteState(self._request.round, (sums,), 0.1))

    monkeypatch.setattr(PatientRound, "bounded", bounded)
    monkeypatch.setattr(PatientRound, "run", run)


# --- Noise ----------------------------------------------------------------------------------------


def with_integers(wrong):
    """Return a fault in the integers from `Noise`, which stay random."""

    def inject(monkeypatch):
        real = Noise.integers
        monkeypatch.setattr(Noise, "integers", lambda self, count: wrong(real(self, count)))

    return inject


def uniform(values):
    width = np.sqrt(3) * SIGMA
    return np.random.default_rng().uniform(-width, width, len(values)).astype(np.int64)


def none_on_the_last(values):
    """Omit the noise on the last values, as if the Gram matrix were forgotten."""
    return np.where(np.arange(len(values)) < 0.8 * len(values), values, 0)


def in_blocks(values):
    """Repeat each value once."""
    return np.repeat(values[::2], 2)[: len(values)]


def variance_for_deviation(monkeypatch):
    """Use sigma squared, in real units, in place of sigma."""

    def release(bounded, noise, **names):
        sent = releases.release(bounded, noise, **names)
        noisy = bounded.total + (noise.integers(len(bounded.total)) * bounded.sigma).astype(int)
        return replay([(noisy * bounded.grid).astype(np.float32)], sent.events)

    monkeypatch.setattr(patient_site, "release", release)


def with_seed(*parts):
    """Make noise from a seed of public values, although the noise claims not to be seeded.

    `parts` names what distinguishes streams: "job", "round", "site" or "run" (the same settings).
    "secret" is drawn once in each process and unknown to everybody, so only reuse shows.
    """

    def inject(monkeypatch):
        real = PatientRound.__init__
        secret = np.random.default_rng().bytes(8)

        def init(self, vocabularies, request, *, site, simulation):
            real(self, vocabularies, request, site=site, simulation=simulation)
            known = {
                "job": request.job, "round": request.round, "site": site, "run": request.seed,
                "secret": secret,
            }  # fmt: skip
            key = repr([known[part] for part in parts]).encode()
            seed = int.from_bytes(hashlib.sha256(key).digest(), "big")
            self._noise = Noise(np.random.Generator(np.random.PCG64DXSM(seed)).bytes, seeded=False)

        monkeypatch.setattr(PatientRound, "__init__", init)

    return inject


# --- Ledger ---------------------------------------------------------------------------------------


def half_the_sensitivity(monkeypatch):
    """State half of the actual sensitivity in the event."""

    def release(bounded, noise, **names):
        sent = releases.release(bounded, noise, **names)
        event = replace(sent.events[0], sensitivity=sent.events[0].sensitivity / 2)
        return Release(sent.arrays, (event,))

    monkeypatch.setattr(patient_site, "release", release)


def second_not_charged(monkeypatch):
    """Send round 2 without a row."""
    real = Ledger.charge

    def charge(self, key, *more):
        return self.head() if key.round == 2 else real(self, key, *more)

    monkeypatch.setattr(Ledger, "charge", charge)


def events_left_out(monkeypatch):
    """Add up all events of the ledger except the last."""
    real = Ledger.events
    monkeypatch.setattr(Ledger, "events", lambda self, job=None: real(self, job)[:-1])


MUTANTS = {
    ("no clip", "sensitivity"): (with_refinement(no_clip), "sensitivity: round 2"),
    ("clip after the sum", "sensitivity"): (with_refinement(clip_after_the_sum), "others' parts"),
    ("M and Gram clipped apart", "sensitivity"): (
        with_refinement(clip_each_part), "sensitivity: round 2"),
    ("rounded up", "sensitivity"): (with_refinement(round_up), "sensitivity: round 2"),
    ("counted twice", "sensitivity"): (
        with_refinement(lambda tensor, real, **_: 2 * real(tensor)), "sensitivity: round 2"),
    ("ridge from own norms", "sensitivity"): (
        with_refinement(ridge_from_own_norms), "others' parts"),
    ("start of norm sqrt 2", "sensitivity"): (start_of_other_norm, "sensitivity: round 1"),
    ("codes not scaled", "sensitivity of codes"): (codes_not_scaled, "sensitivity: round 1"),
    ("un-noised state carried over", "sensitivity"): (state_carried_over, "others' parts"),
    ("variance for deviation", "noise"): (variance_for_deviation, "noise scale"),
    ("no noise on the last values", "noise"): (with_integers(none_on_the_last), "noise scale"),
    ("noise off centre", "noise"): (with_integers(lambda v: v + SIGMA // 4), "noise mean"),
    ("uniform noise", "noise"): (with_integers(uniform), "noise shape"),
    ("noise in blocks", "noise"): (with_integers(in_blocks), "noise within a release"),
    ("noise reused across rounds", "noise"): (
        with_seed("secret", "job", "site"), "noise between rounds"),
    ("noise reused across sites", "noise"): (
        with_seed("secret", "job", "round"), "noise between sites"),
    ("noise reused across jobs", "noise"): (
        with_seed("secret", "round", "site"), "noise between jobs"),
    ("noise seeded by the run", "noise"): (
        with_seed("run", "job", "round", "site"), "noise asked again"),
    ("one release not charged", "likelihood"): (second_not_charged, "likelihood ratio: each"),
}  # fmt: skip
"""Faults by name and audit: a function that injects the fault, and the beginning of the name of the
finding that must fail."""
NIGHTLY = {
    ("noise 5 percent small", "noise, 40000 values"): (
        with_integers(lambda v: (v * 0.95).astype(np.int64)), "noise scale"),
    ("no clip", "likelihood"): (with_refinement(no_clip), "likelihood ratio: whole"),
    ("variance for deviation", "likelihood"): (variance_for_deviation, "likelihood ratio: each"),
    ("half the noise", "likelihood"): (
        with_integers(lambda v: v // 2), "likelihood ratio: whole"),
    ("event of half the sensitivity", "likelihood"): (
        half_the_sensitivity, "likelihood ratio: whole"),
    ("one release not charged", "likelihood, 1000 runs"): (
        second_not_charged, "likelihood ratio: whole"),
    ("last event not added up", "likelihood, 1000 runs"): (
        events_left_out, "likelihood ratio: whole"),
}  # fmt: skip
"""Slow cases. In the others, a cheaper audit finds the fault, or the same audit finds another."""
CASES = [*MUTANTS, *(pytest.param(each, marks=pytest.mark.nightly) for each in NIGHTLY)]


def shown(measured):
    """Format four digits or, if they hide the excess over 1, the excess."""
    excess = measured - 1
    return f"1 + {excess:.2g}" if 0 < excess < 1e-3 else f"{measured:.4g}"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", CASES, ids=", ".join)
def test_an_audit_finds(mutant, target, counting_target, run, monkeypatch):
    (fault, audit), (inject, begins) = mutant, (MUTANTS | NIGHTLY)[mutant]
    inject(monkeypatch)
    chosen = counting_target if audit.endswith("of codes") else target
    findings = run(audit.removesuffix(" of codes"), chosen)
    monkeypatch.undo()
    named = [found for found in findings if not found.passed and found.name.startswith(begins)]
    assert named, "\n".join(map(str, findings))
    worst = named[0]
    print("\n", fault, audit, worst.name, shown(worst.measured), worst.allowed_text, "", sep=" | ")
