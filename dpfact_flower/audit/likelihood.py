"""Test that a site's replies reveal no more to the strongest adversary than the ledger states.

The adversary knows everything except whether a group of patients is in the data. The audit
simulates many runs at a tiny site with and without the group of patients. By the Neyman-Pearson
lemma, the log likelihood ratio of the replies is the adversary's best test statistic. For a
Gaussian mechanism, the log ratio is normally distributed. The privacy loss mu is the distance
between the log ratio's means with and without the group, in standard deviations.

The group consists of identical patients, called canaries. With Gaussian noise, the privacy loss mu
for k canaries is k times the loss for one canary (Dong, Roth & Su 2022, Theorem 2.14). The audit
also checks that one canary contributes at least 99 % of the sensitivity to every release.
"""

import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from dpfact_flower.audit.finding import Z_LIMIT, Finding
from dpfact_flower.audit.hostile import Patient, joined, random_patients, site_of, with_only
from dpfact_flower.audit.target import (
    SIGMA,
    AuditTarget,
    Integers,
    SimulatedSite,
    Transcript,
    noise_of,
)
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.privacy.ledger import Ledger
from dpfact_flower.privacy.patient.releases import PlannedRelease
from dpfact_flower.tensor import Floats
from dpfact_flower.wire.protocol import SiteReply

_CODES, _KEPT, _RANK, _PATIENTS = 5, 4, 2, 6
_SEPARATION = 6.0
"""Intended mu for the whole group of canaries, from which the number of canaries is calculated."""
_LARGEST_GROUP = 10_000
_LEDGERS_READ = 3


class Estimate(NamedTuple):
    """An estimate of the distance `mu` between two means, and the estimate's standard error."""

    mu: float
    error: float


@dataclass(frozen=True, eq=False)
class _Game:
    """The data sets with and without the test patients (canaries), and the adversary's knowledge.

    `sums` maps each release to a pair. The first value is the integer sum without the canaries. The
    second value is the canaries' own sum, divided by the standard deviation of the noise.
    """

    target: AuditTarget
    transcript: Transcript
    without: SiteData
    with_group: SiteData
    canaries: int
    sums: dict[PlannedRelease, tuple[Integers, Floats]]


def audit_likelihood(
    target: AuditTarget, rng: np.random.Generator, *, runs: int = 1000
) -> tuple[Finding, ...]:
    """Compare the privacy loss of simulated runs with the privacy loss in the ledger.

    The first finding is a run's estimated loss minus the ledger's loss, divided by the estimate's
    standard error. The second finding is the largest such quotient (by absolute value) for a single
    release. The third finding is the smallest contribution of one canary, divided by sensitivity.
    """
    game = _game(target, rng)
    ratios, claimed, added_up = _simulated(game, runs)
    k, releases = game.canaries, game.target.plan.releases
    norms = [
        float(np.linalg.norm(part)) * r.sigma / r.sensitivity for r, (_, part) in game.sums.items()
    ]
    whole = estimate(*ratios.sum(axis=2))
    single = [estimate(*ratios[:, :, place]) for place in range(len(releases))]
    off = [(e.mu - k * mu) / e.error for e, mu in zip(single, claimed, strict=True)]
    worst = int(np.argmax(np.abs(off)))
    return (
        Finding(
            "likelihood ratio: whole run",
            (whole.mu - k * added_up) / whole.error,
            (-Z_LIMIT, Z_LIMIT),
            f"standard errors of mu: the replies give {whole.mu / k:.4g} "
            f"(+-{whole.error / k:.2g}), the ledger {added_up:.4g}; {runs} runs each, {k} canaries",
        ),
        Finding(
            "likelihood ratio: each release",
            off[worst],
            (-Z_LIMIT, Z_LIMIT),
            f"the worst ({releases[worst].kind}, round {releases[worst].round}): the replies give "
            f"{single[worst].mu / k:.4g} (+-{single[worst].error / k:.2g}), "
            f"the ledger {claimed[worst]:.4g}",
        ),
        Finding(
            "likelihood ratio: canaries",
            min(norms) / k,
            (0.99, math.inf),
            "smallest share of the sensitivity that a canary reached in a release",
        ),
    )


def estimate(without: Floats, with_group: Floats) -> Estimate:
    """Estimate the distance between the means of two samples, in pooled standard deviations."""
    spread = math.sqrt((without.var(ddof=1) + with_group.var(ddof=1)) / 2)
    mu = float(with_group.mean() - without.mean()) / spread
    runs = len(without)
    return Estimate(mu, math.sqrt(2 / runs + mu * mu / (4 * (runs - 1))))


def _game(target: AuditTarget, rng: np.random.Generator) -> _Game:
    """Create a tiny site with and without canaries, and plan a run with the audited epsilon."""
    modes = len(target.site.vocabularies)
    counted = bool(target.privacy.codes)
    privacy = replace(  # equal costs, so that omitting any one release is noticed
        target.privacy,
        start_share=1 / (1 + modes),
        refine_rounds=1,
        codes="x".join([str(_KEPT)] * modes) if counted else "",
        codes_share=1 / (2 + modes) if counted else target.privacy.codes_share,
    )
    vocabularies = tuple(
        Vocabulary(v.name, tuple(f"C{n}" for n in range(_CODES)), ("",) * _CODES)
        for v in target.site.vocabularies
    )
    shell = site_of("tiny", vocabularies, random_patients((_CODES,) * modes, _PATIENTS, rng))
    tiny = AuditTarget.of(shell, replace(target.solver, rank=_RANK), privacy)
    mu = math.sqrt(sum((r.sensitivity / r.sigma) ** 2 for r in tiny.plan.releases))
    number = min(_LARGEST_GROUP, max(1, math.ceil(_SEPARATION / mu)))
    # The canaries have exactly the codes of the first phenotype in `_transcript`.
    group = [Patient(np.array([[1] * modes, [2] * modes]), np.array([1.0, 1.0]))] * number
    transcript, joint = _transcript(tiny), joined(shell, group)
    without, part = (SimulatedSite(transcript, site) for site in (shell, with_only(shell, group)))
    sums = {r: (without.play(r)[0], part.play(r)[0] / SIGMA) for r in tiny.plan.releases}
    return _Game(tiny, transcript, shell, joint, number, sums)


def _transcript(tiny: AuditTarget) -> Transcript:
    """Return a transcript: phenotype 1 has the canaries' codes, and phenotype 2 all other codes."""
    size = tiny.sizes[0]
    factor = np.zeros((size, _RANK), np.float32)
    factor[1:3, 0] = 0.5
    factor[[0, *range(3, size)], 1] = 0.5
    kept = tuple(np.arange(size, dtype=np.int32) for _ in tiny.sizes)
    return tiny.transcript((factor,) * len(tiny.sizes), kept if tiny.privacy.codes else ())


def _simulated(game: _Game, runs: int) -> tuple[Floats, Floats, float]:
    """Simulate runs with and without canaries. Return likelihood ratios and privacy losses.

    The log likelihood ratios have shape (2, runs, releases). Index 0 of the first axis is for runs
    without canaries. The ledgers' privacy loss mu is returned for each release and in total.
    """
    releases = game.target.plan.releases
    ratios = np.empty((2, runs, len(releases)))
    claimed, added_up = np.zeros(len(releases)), 0.0
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a disk would take longer
    with TemporaryDirectory(prefix="dpfact-audit-", dir=memory) as name:
        for run in range(runs):
            for world, site in enumerate((game.without, game.with_group)):
                place = Path(name) / f"{run}-{world}"
                ratios[world, run] = _log_ratios(game, site, place)
                if run < _LEDGERS_READ:
                    each, total = _ledger_mu(place / site.name, releases)
                    claimed, added_up = np.maximum(claimed, each), max(added_up, total)
                shutil.rmtree(place)
    return ratios, claimed, added_up


def _log_ratios(game: _Game, site: SiteData, state_dir: Path) -> list[float]:
    """Run all rounds with a new ledger, and return the log likelihood ratio of each reply."""
    # No sum depends on earlier replies (there is no ridge), so the replies' log ratios add up.
    client, ratios = game.target.client(state_dir, site), []
    for planned, (base, part) in game.sums.items():
        arrays, _, config = client.fit(*game.transcript.requests[planned.round].to_wire())
        reply = SiteReply.from_wire(arrays, config, [(planned.count,)])
        noise = noise_of(planned, base, reply.arrays[0])
        ratios.append(float(noise @ part) - float(part @ part) / 2)
    return ratios


def _ledger_mu(folder: Path, releases: Sequence[PlannedRelease]) -> tuple[Floats, float]:
    """Return the privacy loss mu of each release in a site's ledger, and of the whole ledger."""
    with Ledger(folder, create=False) as ledger:
        rows = {row.round: row.events for row in ledger.rows()}
        total = math.fsum(event.rho for event in ledger.events())
    each = [math.fsum(event.rho for event in rows.get(r.round, ())) for r in releases]
    return np.sqrt(2 * np.array(each)), math.sqrt(2 * total)
