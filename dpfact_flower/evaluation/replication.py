"""Replication: the phenotypes of a run that return in other runs, and how well they match.

A phenotype that returns in runs with other noise, without noise, or of other data is unlikely to be
the luck of one run. Only models are compared. ``beside.json`` keeps the result for the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.run_folder import read_json_as, read_model, read_summary, write_json
from dpfact_flower.evaluation.summary import Summary
from dpfact_flower.machine.parsed import parse_as
from dpfact_flower.privacy import rounded_up
from dpfact_flower.tensor.match import match_columns

BESIDE = "beside.json"
_CHANCES = 20
_CHANCE_LEVEL = 95
_DIGITS = 6
"""Decimals to which likenesses are rounded, so that equal likenesses compare as equal."""
FAIR = 0.85
"""Cosine from which two columns count as alike (Lorenzo-Seva and ten Berge, 2006)."""
Model = tuple[tuple[NDArray[np.float32], ...], tuple[Vocabulary, ...]]
Dense = tuple[NDArray[np.float64], ...]


@dataclass(frozen=True)
class Pair:
    """A phenotype and its partner in another run: numbers from 1, and their likeness.

    `match` is the product over the modes of the cosines between the two, `fair` the product of
    cosines of .85, and `chance` the 95th percentile of matches when the modes of the other run's
    phenotypes are recombined at random. Frequent codes alone can produce a match up to `chance`.
    """

    number: int
    other: int
    match: float
    fair: float
    chance: float

    @property
    def is_replicated(self) -> bool:
        """Whether the other run has the phenotype too."""
        return self.match > max(self.fair, self.chance)

    @property
    def is_by_chance(self) -> bool:
        """Whether codes that are in many phenotypes could explain the match."""
        return self.fair < self.match <= self.chance


@dataclass(frozen=True)
class Replication:
    """The matches of a run's phenotypes in another run, whose folder is `name`.

    `how` describes the `protection` of the other run's patients. `rank` is that of the first run.
    """

    name: str
    how: str
    rank: int
    pairs: tuple[Pair, ...]

    @property
    def count(self) -> int:
        """Number of replicated phenotypes."""
        return sum(pair.is_replicated for pair in self.pairs)

    def partner(self, number: int) -> Pair | None:
        """Return a phenotype's pair, or None if the phenotype has no partner."""
        return next((pair for pair in self.pairs if pair.number == number), None)


STABLE, PARTLY, UNCONFIRMED, NOT_FOUND = "stable", "partly", "unconfirmed", "not found"
LIKELY, UNCERTAIN, DOUBTFUL = "likely real", "uncertain", "doubtful"
MOST_FALSE, _EVEN = 0.1, 0.5
"""A phenotype is likely real if the chance that other patients lack it is at most `MOST_FALSE`, and
uncertain if this chance is at most `_EVEN`."""


def certainty(pairs: Sequence[Pair], chance: float | None = None) -> str:
    """Return one word for a phenotype's certainty, from its pair in each other run.

    Without pairs, it follows from the `chance` that the phenotype is missing in other patients.
    """
    if not pairs:
        if chance is None:
            return ""
        return LIKELY if chance <= MOST_FALSE else UNCERTAIN if chance <= _EVEN else DOUBTFUL
    count = sum(pair.is_replicated for pair in pairs)
    if count:
        return STABLE if count == len(pairs) else PARTLY
    return UNCONFIRMED if any(pair.is_by_chance for pair in pairs) else NOT_FOUND


def replications(folder: Path, others: Sequence[Path]) -> tuple[Replication, ...]:
    """Match a run's phenotypes with those of other runs with the same modes, by names of codes."""
    ours = read_model(folder)
    return tuple(_replication(ours, other) for other in others)


def write_replications(folder: Path, runs: Sequence[Replication]) -> None:
    """Write ``beside.json``."""
    write_json(folder / BESIDE, [asdict(run) for run in runs])


def read_replications(folder: Path, rank: int) -> tuple[Replication, ...]:
    """Read ``beside.json``. The result is empty if the file does not exist."""
    path = folder / BESIDE
    if not path.exists():
        return ()
    runs = read_json_as(path, lambda content: parse_as(tuple[Replication, ...], content))
    if any(run.rank != rank for run in runs):
        raise DataError(f"{path}: it is of another model; write it again: dpfact report --beside")
    return runs


def protection(summary: Summary) -> str:
    """Describe the protection of a run's patients. Every epsilon comes with its claim."""
    if summary.spent is None:
        return "without noise"
    return f"epsilon {rounded_up(summary.spent.epsilon)}, {summary.claim}"


def _replication(ours: Model, other: Path) -> Replication:
    left, right = _aligned(ours, read_model(other), other)
    match, chance = match_columns(left, right), by_chance(left, right)
    fair = round(FAIR ** len(left), _DIGITS)
    pairs = [
        Pair(int(mine) + 1, int(its) + 1, round(float(cosine), _DIGITS), fair, chance[mine])
        for mine, its, cosine in zip(match.estimate, match.truth, match.cosines, strict=True)
    ]
    pairs.sort(key=lambda pair: pair.number)
    how = protection(read_summary(other))
    return Replication(other.resolve().name, how, left[0].shape[1], tuple(pairs))


def _aligned(ours: Model, theirs: Model, other: Path) -> tuple[Dense, Dense]:
    """Return both models with a row for every code of either model."""
    names = [[v.name for v in lists] for _, lists in (ours, theirs)]
    if names[0] != names[1]:
        raise DataError(f"{other}: its modes are {', '.join(names[1])}; need {', '.join(names[0])}")
    left: list[NDArray[np.float64]] = []
    right: list[NDArray[np.float64]] = []
    for a, v, b, w in zip(*ours, *theirs, strict=True):
        place = {code: i for i, code in enumerate(dict.fromkeys((*v.codes, *w.codes)))}
        for factor, codes, aligned in ((a, v.codes, left), (b, w.codes, right)):
            dense = np.zeros((len(place), factor.shape[1]))
            dense[[place[code] for code in codes]] = factor
            aligned.append(dense)
    return tuple(left), tuple(right)


def by_chance(ours: Dense, theirs: Dense) -> list[float]:
    """Return `Pair.chance` of each phenotype, computed by recombining the other run's modes."""
    partners: list[list[float]] = [[] for _ in range(ours[0].shape[1])]
    for shift in range(1, min(theirs[0].shape[1], _CHANCES + 1)):
        tied = tuple(np.roll(factor, mode * shift, axis=1) for mode, factor in enumerate(theirs))
        match = match_columns(ours, tied)
        for mine, cosine in zip(match.estimate, match.cosines, strict=True):
            partners[mine].append(float(cosine))
    return [
        round(float(np.percentile(cosines, _CHANCE_LEVEL)), _DIGITS) if cosines else 0.0
        for cosines in partners
    ]
