"""Audit 4: whole runs of a site, message by message, against its ledger.

From the bytes of the messages and the un-noised sums the noise is measured again, and with it what
each release cost: that is what the ledger must say. Each message has its row with the same bytes, a
repeated request is answered with the same bytes at no cost, the last round sends nothing, and a
message holds nothing but the release. A second site, with one more patient, must look the same in
everything but the released values.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpfact_flower.audit.finding import Z_LIMIT, Finding, Tell, count_of, silent
from dpfact_flower.audit.hostile import CANARIES, as_release, joined
from dpfact_flower.audit.subject import (
    Closed,
    Subject,
    Transcript,
    World,
    noise_of,
    plain_factors,
    random_selection,
    scratch_folder,
)
from dpfact_flower.client import DPFactClient, RoundRefusedError
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.privacy import ReleaseEvent
from dpfact_flower.privacy.ledger import Ledger, LedgerRow
from dpfact_flower.site.store import has_state

_ACCURACY = 0.01
"""Standard error of the cost that is measured from the messages, as a share of it."""
_TOLERANCE = 0.05
_JOBS_A_LEDGER = 10
_FREE = 5
"""A site reads its whole ledger with every request, so hundreds of jobs in one would take long."""
_COUNT, _LARGEST_COUNT = ".refusals.json", 1000
"""A site's own figure of refusals, and more bytes than a number for each code needs."""


class _Message(NamedTuple):
    """What a site sent in answer to a request."""

    job: str
    round: int
    arrays: list[NDArray[Any]]
    examples: int
    config: dict[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 of the arrays' bytes."""
        return _digest(self.arrays)

    @property
    def beside(self) -> tuple[Any, ...]:
        """All of the message except the values."""
        shapes = [(array.shape, str(array.dtype)) for array in self.arrays]
        return (self.round, self.examples, sorted(self.config.items()), shapes)


class _Played(NamedTuple):
    """Runs of one site: all its messages, and its ledger after them."""

    messages: list[_Message]
    rows: tuple[LedgerRow, ...]
    problems: list[str]
    changed_answers: int
    """Repeated requests that were answered with other bytes, or wrote to the ledger."""
    remembered: int
    """Un-noised state that a round left for the next, and releases not kept as sent."""


def audit_ledger(
    subject: Subject, rng: np.random.Generator, *, tell: Tell = silent
) -> tuple[Finding, ...]:
    """Play whole runs through `DPFactClient.fit` and check its ledger against the messages.

    Parameters
    ----------
    subject : Subject
    rng : numpy.random.Generator
        Chooses transcript and canary; not involved in the noise.
    tell : callable

    Returns
    -------
    tuple of Finding
        What the messages cost over what the ledger says (0.95 to 1.05), each release's own cost in
        standard errors, the delta at the planned epsilon, and counts of what must not happen.
    """
    transcript = subject.transcript(
        plain_factors(subject.sizes, subject.solver.rank, rng), random_selection(subject, rng)
    )
    jobs = _jobs(subject)
    canary = CANARIES["counts times a million"](subject.site, transcript, rng)
    neighbour = joined(subject.site, [canary])
    with scratch_folder() as folder:
        played = _play(subject, transcript, subject.site, folder / "site", jobs, tell)
        other = _play(subject, transcript, neighbour, folder / "other", 1, silent)
        free = _free_rounds(subject, transcript, folder / "site" / "state-0")
    return (
        *_costs(subject, transcript, played),
        _epsilon(subject, played),
        count_of("ledger: messages", _unrecorded(played), "sent without a row of the same bytes"),
        count_of("ledger: verify", len(played.problems), "; ".join(played.problems[:3])),
        count_of(
            "ledger: repeated requests",
            played.changed_answers,
            "refused, answered with other bytes, or charged again",
        ),
        count_of(
            "ledger: memory",
            played.remembered,
            "rounds that left un-noised state for the next, and releases kept otherwise than sent",
        ),
        count_of(
            "messages: last round",
            sum(len(m.arrays) for m in played.messages if m.round == subject.plan.rounds),
            "arrays sent in the round that releases nothing",
        ),
        count_of(
            "ledger: free rounds",
            free,
            "last rounds that were answered for nothing, or looked at patients, or left files",
        ),
        count_of(
            "messages: neighbours",
            _told_apart(played, other),
            "what is sent beside the values, or charged, and differs with one patient more",
        ),
    )


# --- Playing --------------------------------------------------------------------------------------


def _jobs(subject: Subject) -> int:
    """Runs that are needed to measure the total cost: each release's variance has 2/n of error."""
    costs = {r: (subject.sensitivity(r) / r.sigma) ** 2 for r in subject.plan.releases}
    total = sum(costs.values())
    variance = sum(2 / r.count * (cost / total) ** 2 for r, cost in costs.items())
    return max(2, math.ceil(variance / _ACCURACY**2))


def _play(
    subject: Subject, transcript: Transcript, site: SiteData, folder: Path, jobs: int, tell: Tell
) -> _Played:
    """Runs one after the other, a few in each ledger; the first to its last round, and again."""
    messages: list[_Message] = []
    rows: list[LedgerRow] = []
    problems: list[str] = []
    remembered = 0
    for job in range(jobs):
        name = f"audit-{job}"
        state_dir = folder / f"state-{job // _JOBS_A_LEDGER}"
        if job % _JOBS_A_LEDGER == 0:
            client = subject.client(state_dir, site)
        last = subject.plan.rounds if job == 0 else subject.plan.rounds - 1
        for number in range(1, last + 1):
            messages.append(_ask(subject, client, transcript, name, number))
            remembered += number < subject.plan.rounds and has_state(state_dir / site.name / name)
        if job == jobs - 1 or (job + 1) % _JOBS_A_LEDGER == 0:
            with Ledger(state_dir / site.name, create=False) as ledger:
                rows += ledger.rows()
                problems += ledger.verify()
        tell((job + 1) / jobs)
    first = folder / "state-0"
    remembered += _kept_otherwise(first / site.name, messages)
    changed = _changed_answers(subject, transcript, site, first, messages)
    return _Played(messages, tuple(rows), problems, changed, remembered)


def _kept_otherwise(folder: Path, messages: list[_Message]) -> int:
    """Releases of the first job that later rounds would not read as they were sent."""
    with Ledger(folder, create=False) as ledger:
        charged = {row.round for row in ledger.rows() if row.job == "audit-0"}
        return sum(
            _digest(ledger.release_of(message.job, message.round).arrays) != message.digest
            for message in messages
            if message.job == "audit-0" and message.round in charged
        )


def _changed_answers(
    subject: Subject, transcript: Transcript, site: SiteData, state_dir: Path, sent: list[_Message]
) -> int:
    """Ask the first run again; how many answers differ, and whether the ledger grew."""
    before = _length(state_dir / site.name)
    changed = 0
    for number in range(1, subject.plan.rounds + 1):
        # By a restarted site: what it remembers is on its disk.
        try:
            client = subject.client(state_dir, site)
            again = _ask(subject, client, transcript, "audit-0", number)
        except RoundRefusedError:
            changed += 1
            continue
        changed += again.digest != sent[number - 1].digest
    return changed + (_length(state_dir / site.name) != before)


def _free_rounds(subject: Subject, transcript: Transcript, state_dir: Path) -> int:
    """Ask for last rounds: of runs that nothing was paid in, and of one that was paid for.

    The first are to be refused, the second to be answered, neither with a look at a patient, and
    nothing on the disk may grow but the site's own count of refusals, a number for each code.
    """
    client, last = subject.client(state_dir, Closed(subject.site)), subject.plan.rounds
    before = _files(state_dir)
    wrong = 0
    for job in range(_FREE):
        try:
            _ask(subject, client, transcript, f"free-{job}", last)
            wrong += 1
        except RoundRefusedError as refusal:
            wrong += "dpfact:message" not in str(refusal)
        try:
            _ask(subject, client, transcript, "audit-0", last)
        except RoundRefusedError:
            wrong += 1
    return wrong + len(_files(state_dir) ^ before)


def _files(folder: Path) -> set[tuple[str, int]]:
    """Files and their sizes, but for a count of refusals that is as small as it should be."""
    found = {(path, path.stat().st_size) for path in folder.rglob("*") if path.is_file()}
    return {
        (str(path), size) for path, size in found if path.name != _COUNT or size > _LARGEST_COUNT
    }


def _length(folder: Path) -> int:
    with Ledger(folder, create=False) as ledger:
        return ledger.head().rows


def _ask(
    subject: Subject, client: DPFactClient, transcript: Transcript, job: str, number: int
) -> _Message:
    request = transcript.request(number, job)
    sent, examples, config = client.fit(*request.to_wire())
    return _Message(job, number, subject.read(number, sent, config), examples, dict(config))


# --- Looking --------------------------------------------------------------------------------------


def _costs(subject: Subject, transcript: Transcript, played: _Played) -> tuple[Finding, Finding]:
    """What the messages cost, measured, against what the ledger has for them."""
    squares = dict.fromkeys(subject.plan.releases, 0.0)
    values = dict.fromkeys(subject.plan.releases, 0)
    by_job: dict[str, dict[int, _Message]] = {}
    for message in played.messages:
        by_job.setdefault(message.job, {})[message.round] = message
    for job, messages in by_job.items():
        heard = {n: as_release(m.arrays[0]) for n, m in messages.items() if m.arrays}
        for release in subject.plan.releases:
            world = World(subject, replace(transcript, releases=heard), job=job)
            sent = messages[release.round].arrays[0]
            noise = noise_of(release, world.bounded(release), sent)
            squares[release] += float(noise @ noise)
            values[release] += noise.size
    charged = _charged(played)
    measured, farthest, worst = 0.0, 0.0, ""
    for release in subject.plan.releases:
        # The variance of a chi-square of n is 2n.
        sigma = release.sigma * math.sqrt(squares[release] / values[release])
        cost = (subject.sensitivity(release) / sigma) ** 2 / 2
        measured += cost
        own = charged.get(release.round, 0.0) / len(by_job)
        error = cost * math.sqrt(2 / values[release])
        z = (cost - own) / error
        if abs(z) > abs(farthest):
            farthest, worst = z, subject.name(release)
    total = sum(charged.values()) / len(by_job)
    return (
        Finding(
            "ledger: cost of a run",
            measured / total if total else math.inf,
            (1 - _TOLERANCE, 1 + _TOLERANCE),
            f"rho measured from messages, {measured:.5g}, over the ledger's, {total:.5g}; "
            f"{len(by_job)} runs, {sum(values.values()):,} values",
        ),
        Finding(
            "ledger: cost of each release",
            farthest,
            (-Z_LIMIT, Z_LIMIT),
            f"standard errors between measured and charged, the farthest ({worst or 'none'})",
        ),
    )


def _digest(arrays: Sequence[NDArray[Any]]) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def _charged(played: _Played) -> dict[int, float]:
    """Rho that the ledger has for each round, over all jobs."""
    charged: dict[int, float] = {}
    for row in played.rows:
        rho = math.fsum(event.rho for event in row.events)
        charged[row.round] = charged.get(row.round, 0.0) + rho
    return charged


def _epsilon(subject: Subject, played: _Played) -> Finding:
    """Delta of the ledger's first run at the planned epsilon (Balle & Wang 2018, Theorem 8)."""
    events = [e for row in played.rows if row.job == "audit-0" for e in row.events]
    mu = math.sqrt(math.fsum((e.sensitivity / e.sigma) ** 2 for e in events))
    epsilon = subject.privacy.epsilon
    if mu == 0:
        delta = 0.0
    else:
        first = stats.norm.cdf(-epsilon / mu + mu / 2)
        delta = float(first - np.exp(epsilon + stats.norm.logcdf(-epsilon / mu - mu / 2)))
    return Finding(
        "ledger: planned epsilon",
        delta,
        (0.0, subject.privacy.delta),
        f"delta of a run's charges at epsilon {epsilon:g}",
    )


def _unrecorded(played: _Played) -> int:
    """Messages without their row, rows without their message, and rows that charge too little.

    A message without a value costs nothing, and has no row: or a ledger would grow for nothing.
    """
    rows = {(row.job, row.round): row for row in played.rows}
    missing = len(set(rows) ^ {(m.job, m.round) for m in played.messages if m.arrays})
    for message in played.messages:
        row = rows.get((message.job, message.round))
        if row is None:
            continue
        counts = [event.count for event in row.events]
        right = row.payload_sha256 == message.digest
        missing += not (right and counts == [array.size for array in message.arrays])
    return missing


def _told_apart(played: _Played, other: _Played) -> int:
    """Differences between two neighbours' first runs, apart from the released values."""
    rounds = min(len(played.messages), len(other.messages))
    pairs = zip(played.messages[:rounds], other.messages, strict=False)
    different = sum(one.beside != two.beside for one, two in pairs)
    return different + (_first_charges(played) != _first_charges(other))


def _first_charges(played: _Played) -> list[tuple[ReleaseEvent, ...]]:
    return [row.events for row in played.rows if row.job == "audit-0"]
