"""Faults to inject into the code under audit, each a small function on pytest's monkeypatch.

Sums are made patient by patient by the real kernels, on sites of a single patient, and then put
together wrongly: as a careless rewrite would.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np

from dpfact_flower.audit import subject as subject_module
from dpfact_flower.client import DPFactClient
from dpfact_flower.errors import RoundFailedError
from dpfact_flower.machine import files
from dpfact_flower.privacy import Noise, Release, release_nothing
from dpfact_flower.privacy.ledger import Ledger, ReleaseKey, key, ledger
from dpfact_flower.privacy.noise import SIGMA
from dpfact_flower.privacy.patient import kinds
from dpfact_flower.privacy.patient.statistics import BoundedSum
from dpfact_flower.privacy.release import replay
from dpfact_flower.site import admission, store
from dpfact_flower.site import patient as patient_site
from dpfact_flower.site.answer import Site
from dpfact_flower.site.patient import PatientRound
from dpfact_flower.site.round import RoundOutcome
from dpfact_flower.site.store import SiteState

FAR = 100.0
"""A bound that no patient reaches."""
_refinement, _cooccurrence, _code_counts = (
    kinds.refinement, kinds.cooccurrence, kinds.code_counts,
)  # fmt: skip
_release, _plan_patient = patient_site.release, patient_site.plan_patient


@dataclass(frozen=True)
class Mutant:
    """A fault, and what has to find it.

    Attributes
    ----------
    name : str
    inject : callable
        Takes monkeypatch.
    audit : str
        Which audit is run.
    finding : str
        Beginning of the name of a finding that must fail.
    """

    name: str
    inject: Callable
    audit: str
    finding: str

    def __str__(self) -> str:
        return f"{self.name} ({self.audit})".replace(" ", "-")


# --- Sums -----------------------------------------------------------------------------------------


def each_patient(tensor):
    return [tensor.select_patients([row]) for row in range(tensor.n_patients)]


def with_refinement(wrong):
    """Fault in place of `refinement`: `wrong` gives the total, in grid units."""

    def inject(monkeypatch):
        def refinement(tensor, factors, mode, *, ridge, bound, sigma):
            def real(some, bound=bound, ridge=ridge):
                return _refinement(
                    some, factors, mode, ridge=ridge, bound=bound, sigma=sigma
                ).total  # fmt: skip

            total = np.asarray(wrong(tensor, real, bound=bound, sigma=sigma, factors=factors))
            return BoundedSum(total.astype(np.int64), bound, sigma)

        monkeypatch.setattr(kinds, "refinement", refinement)

    return inject


def no_clip(tensor, real, **_):
    return real(tensor, bound=FAR)


def clip_after_the_sum(tensor, real, *, bound, sigma, **_):
    total = real(tensor, bound=FAR).astype(float)
    limit = bound / sigma * SIGMA
    return total * min(1.0, limit / max(np.linalg.norm(total), 1e-300))


def clip_each_part(tensor, real, *, bound, sigma, factors):
    """M and Gram of a patient, each clipped on its own."""
    rank = factors[0].shape[1]
    gram = rank * (rank + 1) // 2
    limit = bound / sigma * SIGMA
    total = 0.0
    for patient in each_patient(tensor):
        part = real(patient, bound=FAR).astype(float)
        for piece in (slice(None, -gram), slice(-gram, None)):
            part[piece] *= min(1.0, limit / max(np.linalg.norm(part[piece]), 1e-300))
        total = total + part
    return np.trunc(total)


def weight_of_the_patient_before(tensor, real, **_):
    """A weight that is not reset: each patient gets the smallest so far."""
    total, weight = 0.0, 1.0
    for patient in each_patient(tensor):
        free, clipped = real(patient, bound=FAR).astype(float), real(patient).astype(float)
        norm = np.linalg.norm(free)
        weight = min(weight, np.linalg.norm(clipped) / norm) if norm else weight
        total = total + weight * free
    return np.trunc(total)


def site_norm(tensor, real, **_):
    """Patients weighed by their share of the site's norm."""
    norms = [patient.norm_squared() for patient in each_patient(tensor)]
    total = 0.0
    for patient, norm in zip(each_patient(tensor), norms, strict=True):
        total = total + real(patient) * (norm / max(sum(norms), 1e-300))
    return np.trunc(total)


def round_up(tensor, real, **_):
    """Away from zero instead of toward it."""
    parts = [real(patient) for patient in each_patient(tensor)]
    return sum(part + np.sign(part) for part in parts)


def twice(tensor, real, **_):
    return 2 * real(tensor)


def ridge_from_own_norms(tensor, real, *, factors, **_):
    """l2,1 weights from the un-noised usage of the site's own patients."""
    score = tensor.values.astype(float)[:, None] * np.ones(factors[0].shape[1])
    for mode, factor in enumerate(factors, start=1):
        score = score * factor[tensor.indices[:, mode]]
    usage = np.zeros((tensor.n_patients, score.shape[1]))
    np.add.at(usage, tensor.indices[:, 0], score)
    norms = np.linalg.norm(usage, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return real(tensor, ridge=np.where(norms > 0, 0.3 * norms.mean() / norms, np.inf))


def start_of_other_norm(monkeypatch):
    """Blocks scaled by the norm of one triangle, their values then by sqrt(2) for the two."""

    def cooccurrence(tensor, *, sigma):
        bounded = _cooccurrence(tensor, sigma=sigma)
        return replace(bounded, total=(bounded.total * np.sqrt(2)).astype(np.int64))

    monkeypatch.setattr(kinds, "cooccurrence", cooccurrence)


def codes_not_scaled(monkeypatch):
    """Every code of a patient counts 1, however many they have."""

    def code_counts(tensor, *, sigma):
        total = np.zeros(sum(tensor.feature_shape))
        for patient in each_patient(tensor):
            part = _code_counts(patient, sigma=sigma).total
            total += np.where(part > 0, SIGMA / sigma * (1 - 1e-9), 0)
        return BoundedSum(total.astype(np.int64), 1.0, sigma)

    monkeypatch.setattr(kinds, "code_counts", code_counts)


def state_carried_over(monkeypatch):
    """Momentum: half of the un-noised sum of the round before is added."""
    real_bounded, real_run = PatientRound.bounded, PatientRound.run

    def bounded(self, planned, kept):
        made = real_bounded(self, planned, kept)
        state = kept.state()
        if state is None:
            return made
        carried = np.resize(state.factors[0].ravel(), made.total.shape)
        return replace(made, total=made.total + (carried / 2).astype(np.int64))

    def run(self, kept):
        outcome = real_run(self, kept)
        planned = self._plan.release_of(self._request.round)
        if planned is None:
            return outcome
        sums = self.bounded(planned, kept).total.astype(np.float32)[:, None]
        return RoundOutcome(outcome.release, SiteState(self._request.round, (sums,), 0.1))

    monkeypatch.setattr(PatientRound, "bounded", bounded)
    monkeypatch.setattr(PatientRound, "run", run)


# --- Noise ----------------------------------------------------------------------------------------


def with_integers(wrong):
    """Fault in the integers that `Noise` gives, which stay random."""

    def inject(monkeypatch):
        real = Noise.integers
        monkeypatch.setattr(Noise, "integers", lambda self, count: wrong(real(self, count)))

    return inject


def uniform(values):
    rng = np.random.default_rng()
    return (rng.uniform(-1, 1, len(values)) * np.sqrt(3) * SIGMA).astype(np.int64)


def none_on_the_last(values):
    """The Gram matrix is forgotten, say."""
    return np.where(np.arange(len(values)) < 0.8 * len(values), values, 0)


def in_blocks(values):
    """Every second value is the one before."""
    return np.repeat(values[::2], 2)[: len(values)]


def a_little_small(values):
    return (values * 0.95).astype(np.int64)


def halved(values):
    return values // 2


def off_centre(values):
    return values + SIGMA // 4


def variance_for_deviation(monkeypatch):
    """sigma squared in real units where sigma belongs."""

    def release(bounded, noise, *, name):
        sent = _release(bounded, noise, name=name)
        noisy = bounded.total + (noise.integers(len(bounded.total)) * bounded.sigma).astype(int)
        return replay([(noisy * bounded.grid).astype(np.float32)], sent.events)

    monkeypatch.setattr(patient_site, "release", release)


def with_seed(*parts):
    """Noise from a seed that is made of public things and still says that it is not seeded.

    `parts` name what tells streams apart: of "job", "round", "site", "run" (the same settings).
    "secret" is drawn once in each process and known to nobody: only reuse shows.
    """

    def inject(monkeypatch):
        real = PatientRound.__init__
        secret = np.random.default_rng().bytes(8)

        def init(self, data, request, *, site, simulation):
            real(self, data, request, site=site, simulation=simulation)
            known = {
                "job": request.job, "round": request.round, "site": site, "run": request.seed,
                "secret": secret,
            }  # fmt: skip
            key = repr([known[part] for part in parts]).encode()
            seed = int.from_bytes(hashlib.sha256(key).digest(), "big")
            bytes_of = np.random.Generator(np.random.PCG64DXSM(seed)).bytes
            self._noise = Noise(bytes_of, seeded=False)

        monkeypatch.setattr(PatientRound, "__init__", init)

    return inject


# --- Ledger and messages --------------------------------------------------------------------------


def with_event(**factors):
    """The event says something else than what was done: fields are multiplied."""

    def inject(monkeypatch):
        def release(bounded, noise, *, name):
            sent = _release(bounded, noise, name=name)
            changes = {f: getattr(sent.events[0], f) * times for f, times in factors.items()}
            return Release(sent.arrays, (replace(sent.events[0], **changes),))

        monkeypatch.setattr(patient_site, "release", release)

    return inject


def not_charged(*rounds):
    """Rounds that send without a row."""

    def inject(monkeypatch):
        real = Ledger.charge

        def charge(self, key, terms, release, *look):
            if key.round in rounds:
                return self.head()
            return real(self, key, terms, release, *look)

        monkeypatch.setattr(Ledger, "charge", charge)

    return inject


def events_left_out(monkeypatch):
    """The ledger adds up everything but its last event."""
    real = Ledger.events
    monkeypatch.setattr(Ledger, "events", lambda self, job=None: real(self, job)[:-1])


def row_without_event(monkeypatch):
    """The last release is written down at no cost."""
    real = Ledger.charge

    def charge(self, key, terms, release, *look):
        free = key.round == 3
        return real(self, key, terms, Release(release.arrays, ()) if free else release, *look)

    monkeypatch.setattr(Ledger, "charge", charge)


def other_bytes_kept(monkeypatch):
    """What is kept is not what was sent."""
    real = Ledger.charge

    def charge(self, key, terms, release, *look):
        kept = replay([array + np.float32(1) for array in release.arrays], release.events)
        return real(self, key, terms, kept, *look)

    monkeypatch.setattr(Ledger, "charge", charge)


def answers_forgotten(monkeypatch):
    """A repeated request is taken for a new one."""
    monkeypatch.setattr(Ledger, "answer", lambda self, key: None)
    monkeypatch.setattr(admission, "check_follows", lambda request, last: None)
    monkeypatch.setattr(Ledger, "_has", _answered)


def _answered(ledger, rows, key, *_):
    return (key.job, key.round) in {(row.job, row.round) for row in rows}


def number_of_patients_sent(monkeypatch):
    real = DPFactClient.fit

    def fit(self, parameters, config):
        arrays, _, reply = real(self, parameters, config)
        source = getattr(self.site._source, "_data", self.site._source)  # where it is watched
        tensor = getattr(source, "tensor", None)  # none where patients are closed off
        return arrays, tensor.n_patients if tensor else 1, reply

    monkeypatch.setattr(DPFactClient, "fit", fit)


def refit_sent(monkeypatch):
    """The last round sends the site's own factors."""
    real = DPFactClient.fit

    def fit(self, parameters, config):
        arrays, examples, reply = real(self, parameters, config)
        nothing = sum(array.size for array in arrays) == 0
        return [np.ones((3, 2), np.float32)] if nothing else arrays, examples, reply

    monkeypatch.setattr(DPFactClient, "fit", fit)


def free_rounds_answered(monkeypatch):
    """A last round is answered whether or not anything was charged in its run."""
    real = admission.check_paid

    def check(request, ledger):
        return real(replace(request, job="audit-0"), ledger)

    monkeypatch.setattr(admission, "check_paid", check)


def patients_read_at_the_end(monkeypatch):
    """The last round looks whether there is anything to refit, as it once did."""
    real = Site._end

    def end(self, request, folder):
        self._source.read()
        return real(self, request, folder)

    monkeypatch.setattr(Site, "_end", end)


def refit_before_the_last_reply(monkeypatch):
    """The last round writes what it found in the patients, as it once did; the disk may be full."""
    real = Site._end

    def end(self, request, folder):
        if self._source.read().tensor.n_patients % 2:  # of two neighbours, one
            (folder / "model").write_bytes(bytes(200_000))
        return real(self, request, folder)

    monkeypatch.setattr(Site, "_end", end)


def patients_read_for_what_is_over(monkeypatch):
    """A round that was answered is looked for by the data's fingerprint, as it once was."""
    real = Site._again

    def again(self, request, work, ledger, last, hold):
        self._source.read()
        return real(self, request, work, ledger, last, hold)

    monkeypatch.setattr(Site, "_again", again)


def failures_explained(monkeypatch):
    """What fails after the patients were read says what it was."""
    monkeypatch.setattr(Site, "_failed", lambda self, request, error: error)


def failures_charged(monkeypatch):
    """A round that failed is written down."""

    def failed(self, request, error):
        key = ReleaseKey("f" * 64, f"{request.job}-failed-{os.urandom(4).hex()}", 1, "asked")
        with Ledger(self._root / self.name) as ledger:
            ledger.charge(key, "terms", release_nothing())
        return RoundFailedError()

    monkeypatch.setattr(Site, "_failed", failed)


def jobs_begun_before_they_are_refused(monkeypatch):
    """A job's folder is made for whoever asks, before it is known whether there is room."""
    real = Site._room

    def room(self, work, folder):
        self._store(work._request.job).begin()
        return real(self, work, folder)

    monkeypatch.setattr(Site, "_room", room)


def overspent(monkeypatch):
    """The plan spends a tenth more than its epsilon allows; server and site agree on it."""

    def plan(settings, **given):
        made = _plan_patient(settings, **given)
        less = (replace(r, sigma=r.sigma / 1.1**0.5, rho=r.rho * 1.1) for r in made.releases)
        return replace(made, releases=tuple(less))

    monkeypatch.setattr(patient_site, "plan_patient", plan)
    monkeypatch.setattr(subject_module, "plan_patient", plan)


def variance_planned(monkeypatch):
    """The plan takes sensitivity^2 / (2 rho) for the standard deviation, as the paper's text."""

    def plan(settings, **given):
        made = _plan_patient(settings, **given)
        less = (replace(r, sigma=r.sensitivity**2 / (2 * r.rho)) for r in made.releases)
        return replace(made, releases=tuple(less))

    monkeypatch.setattr(patient_site, "plan_patient", plan)
    monkeypatch.setattr(subject_module, "plan_patient", plan)


def folders_not_checked(monkeypatch):
    """A site takes whatever folder there is."""
    for module in (admission, files, key, ledger, store):
        monkeypatch.setattr(module, "check_own", lambda path, reading=False: None)


def owner_not_checked(monkeypatch):
    """Links and modes are looked at, and whose it is is not."""
    real = files.check_own
    for module in (admission, files, key, ledger, store):
        monkeypatch.setattr(
            module, "check_own", lambda path, reading=False: real(path, reading=True)
        )


def others_errors_let_through(monkeypatch):
    """What SQLite raises is not made an error of ours."""
    monkeypatch.setattr(ledger, "translated", lambda path: nullcontext())


# Who is not root cannot give a folder away, so the audit cannot try.
ROOTS_MUTANTS = (
    (Mutant("folders of another user", owner_not_checked, "folders", "folders: others'"),)
    if os.name != "nt" and os.geteuid() == 0
    else ()
)
MUTANTS = (
    Mutant("no clip", with_refinement(no_clip), "sensitivity", "sensitivity: round 2"),
    Mutant(
        "clip after the sum", with_refinement(clip_after_the_sum), "sensitivity", "others' parts"
    ),
    Mutant(
        "M and Gram clipped apart",
        with_refinement(clip_each_part),
        "sensitivity",
        "sensitivity: round 2",
    ),
    Mutant(
        "weight not reset",
        with_refinement(weight_of_the_patient_before),
        "sensitivity",
        "others' parts",
    ),
    Mutant("scaled by the site's norm", with_refinement(site_norm), "sensitivity", "others' parts"),
    Mutant("rounded up", with_refinement(round_up), "sensitivity", "sensitivity: round 2"),
    Mutant("counted twice", with_refinement(twice), "sensitivity", "sensitivity: round 2"),
    Mutant(
        "ridge from own norms",
        with_refinement(ridge_from_own_norms),
        "sensitivity",
        "others' parts",
    ),
    Mutant("start of norm sqrt 2", start_of_other_norm, "sensitivity", "sensitivity: round 1"),
    Mutant("codes not scaled", codes_not_scaled, "sensitivity of codes", "sensitivity: round 1"),
    Mutant("un-noised state carried over", state_carried_over, "sensitivity", "others' parts"),
    Mutant("variance for deviation", variance_for_deviation, "noise", "noise scale"),
    Mutant(
        "noise 5 percent small", with_integers(a_little_small), "noise, 40000 values", "noise scale"
    ),
    Mutant("no noise on the last values", with_integers(none_on_the_last), "noise", "noise scale"),
    Mutant("noise off centre", with_integers(off_centre), "noise", "noise mean"),
    Mutant("uniform noise", with_integers(uniform), "noise", "noise shape"),
    Mutant("noise in blocks", with_integers(in_blocks), "noise", "noise within a release"),
    Mutant(
        "noise reused across rounds",
        with_seed("secret", "job", "site"),
        "noise",
        "noise between rounds",
    ),
    Mutant(
        "noise reused across sites",
        with_seed("secret", "job", "round"),
        "noise",
        "noise between sites",
    ),
    Mutant(
        "noise reused across jobs",
        with_seed("secret", "round", "site"),
        "noise",
        "noise between jobs",
    ),
    Mutant(
        "noise seeded by the run",
        with_seed("run", "job", "round", "site"),
        "noise",
        "noise asked again",
    ),
    Mutant("no clip", with_refinement(no_clip), "likelihood", "likelihood ratio: whole"),
    Mutant(
        "variance for deviation", variance_for_deviation, "likelihood", "likelihood ratio: each"
    ),
    Mutant("half the noise", with_integers(halved), "likelihood", "likelihood ratio: whole"),
    Mutant(
        "event of half the sensitivity",
        with_event(sensitivity=0.5),
        "likelihood",
        "likelihood ratio: whole",
    ),
    Mutant("one release not charged", not_charged(2), "likelihood", "likelihood ratio: each"),
    Mutant("one release not charged", not_charged(2), "ledger", "ledger: messages"),
    Mutant("one release not charged", not_charged(2), "ledger", "ledger: cost of each"),
    Mutant("row without its event", row_without_event, "ledger", "ledger: broke off"),
    Mutant(
        "event of smaller sensitivity",
        with_event(sensitivity=0.9),
        "ledger",
        "ledger: cost of a run",
    ),
    Mutant("event of larger sigma", with_event(sigma=1.1), "ledger", "ledger: cost of a run"),
    Mutant("other bytes kept", other_bytes_kept, "ledger", "ledger: messages"),
    Mutant("un-noised state carried over", state_carried_over, "ledger", "ledger: memory"),
    Mutant("answers forgotten", answers_forgotten, "ledger", "ledger: repeated requests"),
    Mutant("number of patients sent", number_of_patients_sent, "ledger", "messages: neighbours"),
    Mutant("free rounds answered", free_rounds_answered, "ledger", "ledger: free rounds"),
    Mutant("patients read at the end", patients_read_at_the_end, "ledger", "ledger: free rounds"),
    Mutant(
        "refit before the last reply",
        refit_before_the_last_reply,
        "replies",
        "replies: neighbours",
    ),
    Mutant("patients read at the end", patients_read_at_the_end, "replies", "replies: free"),
    Mutant(
        "patients read for a repeat", patients_read_for_what_is_over, "replies", "replies: free"
    ),
    Mutant("jobs begun at once", jobs_begun_before_they_are_refused, "replies", "replies: left"),
    Mutant("failures explained", failures_explained, "replies", "replies: failures"),
    Mutant("failures charged", failures_charged, "replies", "replies: charges"),
    Mutant("number of patients sent", number_of_patients_sent, "replies", "replies: neighbours"),
    Mutant("own factors sent", refit_sent, "ledger", "messages: last round"),
    Mutant("folders not checked", folders_not_checked, "folders", "folders: others'"),
    *ROOTS_MUTANTS,
    Mutant(
        "others' errors let through", others_errors_let_through, "folders", "folders: damaged files"
    ),
    Mutant("plan overspends", overspent, "ledger", "ledger: planned epsilon"),
    Mutant("variance planned", variance_planned, "ledger", "ledger: planned epsilon"),
)
SLOW_MUTANTS = (
    Mutant(
        "one release not charged",
        not_charged(2),
        "likelihood, 1000 runs",
        "likelihood ratio: whole",
    ),
    Mutant(
        "last event not added up",
        events_left_out,
        "likelihood, 1000 runs",
        "likelihood ratio: whole",
    ),
)
