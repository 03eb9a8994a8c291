"""Audit 5: what a site does with folders of others, and with files that are damaged.

The record of releases is the hospital's only means to hold a run to its cap. So a place that
somebody else could have prepared, or could exchange, is refused before a patient is read; and
whatever a file of the state-dir holds, the answer is one of this package's own codes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from dpfact_flower.audit.finding import Finding, Tell, count_of, silent
from dpfact_flower.audit.subject import (
    JOB,
    Closed,
    Subject,
    Transcript,
    plain_factors,
    random_selection,
    scratch_folder,
)
from dpfact_flower.client import DPFactClient, RoundRefusedError
from dpfact_flower.errors import code_in
from dpfact_flower.privacy.ledger import LEDGER

_OTHER = 65534
"""A user who is not this one; root alone can give a folder away."""


def audit_folders(
    subject: Subject, rng: np.random.Generator, *, trials: int = 60, tell: Tell = silent
) -> tuple[Finding, ...]:
    """Ask a site whose state-dir others may have prepared, and one whose files are damaged.

    Parameters
    ----------
    subject : Subject
    rng : numpy.random.Generator
        Chooses the transcript and the damage.
    trials : int
        Damaged files.
    tell : callable

    Returns
    -------
    tuple of Finding
        Counts of what must not happen.
    """
    transcript = subject.transcript(
        plain_factors(subject.sizes, subject.solver.rank, rng), random_selection(subject, rng)
    )
    with scratch_folder() as folder:
        state = folder / "state"
        client = subject.client(state)
        for number in range(1, subject.plan.rounds):
            client.fit(*transcript.request(number).to_wire())
        client.fit(*transcript.request(subject.plan.rounds).to_wire())
        foreign, asked = _foreign(subject, transcript, state)
        tell(0.3)
        damaged = _damaged(subject, transcript, state, rng, trials, tell)
    return (
        count_of(
            "folders: others'",
            foreign,
            f"answered, or refused after a look at patients, of {asked} places that others could "
            "have prepared",
        ),
        count_of(
            "folders: damaged files",
            damaged,
            f"of {trials} that led to an error of somebody else's",
        ),
    )


# --- Folders of others ----------------------------------------------------------------------------


def _foreign(subject: Subject, transcript: Transcript, state: Path) -> tuple[int, int]:
    """How many foreign places were not refused, and how many there were."""
    client = subject.client(state, Closed(subject.site))
    site = state / subject.site.name
    ways = [_linked, _writable, *([_given_away] if _may_give_away() else [])]
    wrong = asked = 0
    for path in (state, site, site / JOB, site / LEDGER):
        for way in ways:
            with way(path):
                wrong += _outcome(client, transcript, 1) != "state"
            asked += 1
    return wrong, asked


@contextmanager
def _linked(path: Path) -> Iterator[None]:
    elsewhere = path.with_name(".elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    try:
        yield
    finally:
        path.unlink()
        elsewhere.rename(path)


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    before = path.stat().st_mode
    path.chmod(before | 0o022)
    try:
        yield
    finally:
        path.chmod(before)


@contextmanager
def _given_away(path: Path) -> Iterator[None]:
    user = path.stat().st_uid
    os.chown(path, _OTHER, -1)
    try:
        yield
    finally:
        os.chown(path, user, -1)


def _may_give_away() -> bool:
    return os.name != "nt" and os.geteuid() == 0


# --- Damaged files --------------------------------------------------------------------------------


def _damaged(
    subject: Subject,
    transcript: Transcript,
    state: Path,
    rng: np.random.Generator,
    trials: int,
    tell: Tell,
) -> int:
    """How many damaged files led to an error that is not this package's own."""
    site = state / subject.site.name
    files = [site / LEDGER, *sorted(path for path in (site / JOB).iterdir() if path.is_file())]
    whole = {path: path.read_bytes() for path in files}
    client = subject.client(state)
    wrong = 0
    for trial in range(trials):
        path = files[0] if trial % 2 else files[1 + trial // 2 % (len(files) - 1)]
        path.write_bytes(_changed(whole[path], rng))
        number = int(rng.integers(1, subject.plan.rounds + 1))
        wrong += _outcome(client, transcript, number) in ("internal", "failed")
        for other in files:
            other.write_bytes(whole[other])
        with suppress(FileNotFoundError):
            (site / f"{LEDGER}-journal").unlink()
        tell(0.3 + 0.7 * (trial + 1) / trials)
    return wrong


def _changed(content: bytes, rng: np.random.Generator) -> bytes:
    """Cut off, overwritten in the middle, or with a few bits turned."""
    ways: tuple[Callable[[int], bytes], ...] = (
        lambda at: content[:at],
        lambda at: content[:at] + rng.bytes(40) + content[at + 40 :],
        lambda at: (
            content[:at] + bytes([255 - b for b in content[at : at + 3]]) + content[at + 3 :]
        ),
    )
    # Where a file says what it is, more of its readers come to harm.
    at = int(rng.integers(len(content)) if rng.random() < 0.5 else rng.integers(200)) % len(content)
    return ways[int(rng.integers(len(ways)))](at)


def _outcome(client: DPFactClient, transcript: Transcript, number: int) -> str:
    """The code that leaves the site; "" where it answers."""
    try:
        client.fit(*transcript.request(number).to_wire())
    except RoundRefusedError as refusal:
        return code_in(str(refusal))
    return ""
