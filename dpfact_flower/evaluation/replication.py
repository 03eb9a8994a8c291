"""Which phenotypes of a run return in other runs, and how well.

Other noise, another seed, no noise at all, or other data: a phenotype that returns in each is more
than one run's luck. Models are compared alone, so nothing of any patient is needed. The result is
kept in ``beside.json`` in the run's folder, so that its report can be written again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.run_folder import (
    read_json_as,
    read_model,
    read_summary,
    write_json,
)
from dpfact_flower.evaluation.summary import Summary
from dpfact_flower.machine.parsed import parse_as
from dpfact_flower.privacy import rounded_up
from dpfact_flower.tensor.match import match_columns

BESIDE = "beside.json"
_CHANCES = 20
_CHANCE_LEVEL = 95
_DIGITS = 6
"""Of likenesses, so that equal ones are equal."""
FAIR = 0.85
"""Cosine from which two columns count as alike (Lorenzo-Seva and ten Berge, 2006)."""
Model = tuple[tuple[NDArray[np.float32], ...], tuple[Vocabulary, ...]]
Dense = tuple[NDArray[np.float64], ...]


@dataclass(frozen=True)
class Pair:
    """A phenotype and its partner in another run: numbers from 1, and their likeness.

    `match` is the product over the modes of the cosines between the two; 1 means equal. It has to
    exceed `fair`, cosines of .85, and `chance`, which 95 in 100 of its partners stay below if the
    other run's modes are tied to each other at random. Codes that are frequent everywhere give such
    partners.
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
        """Whether codes that stand in many phenotypes would make it as alike."""
        return self.fair < self.match <= self.chance


@dataclass(frozen=True)
class Replication:
    """A run's phenotypes in another run, `name` by its folder.

    `how` says what protected the other run's patients, never an epsilon without its claim. `rank`
    is that of the run whose phenotypes are looked for.
    """

    name: str
    how: str
    rank: int
    pairs: tuple[Pair, ...]

    @property
    def count(self) -> int:
        """How many phenotypes are replicated."""
        return sum(pair.is_replicated for pair in self.pairs)

    def partner(self, number: int) -> Pair | None:
        """A phenotype's pair, where it has a partner."""
        return next((pair for pair in self.pairs if pair.number == number), None)


STABLE, PARTLY, UNCONFIRMED, NOT_FOUND = "stable", "partly", "unconfirmed", "not found"
LIKELY, UNCERTAIN, DOUBTFUL = "likely real", "uncertain", "doubtful"
MOST_FALSE, _EVEN = 0.1, 0.5
"""Chance that other patients lack a phenotype, up to which it is likely real; and uncertain."""


def certainty(pairs: Sequence[Pair], chance: float | None = None) -> str:
    """One word for a phenotype, from its pair in each other run.

    Without any, from the `chance` that other patients lack it; without that, empty.
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
    """Match a run's phenotypes with those of other runs with the same modes.

    Codes are found by their names; one that a run does not have has weight zero there.
    """
    return tuple(_replication(folder, other) for other in others)


def write_replications(folder: Path, runs: Sequence[Replication]) -> None:
    """Write ``beside.json``."""
    write_json(folder / BESIDE, [asdict(run) for run in runs])


def read_replications(folder: Path, rank: int) -> tuple[Replication, ...]:
    """Read ``beside.json``; nothing where there is none."""
    path = folder / BESIDE
    if not path.exists():
        return ()
    runs = read_json_as(path, lambda content: parse_as(tuple[Replication, ...], content))
    if any(run.rank != rank for run in runs):
        raise DataError(f"{path}: it is of another model; write it again: dpfact report --beside")
    return runs


def protection(summary: Summary) -> str:
    """What protects the patients of a run, in a few words."""
    if summary.spent is None:
        return "without noise"
    return f"epsilon {rounded_up(summary.spent.epsilon)}, {summary.claim}"


def _replication(folder: Path, other: Path) -> Replication:
    left, right = _aligned(read_model(folder), read_model(other), other)
    match, chance = match_columns(left, right), by_chance(left, right)
    fair = round(FAIR ** len(left), _DIGITS)
    pairs = [
        Pair(int(mine) + 1, int(its) + 1, round(float(cosine), _DIGITS), fair, chance[mine])
        for mine, its, cosine in zip(match.estimate, match.truth, match.cosines, strict=True)
    ]
    return Replication(
        other.resolve().name,
        protection(read_summary(other)),
        left[0].shape[1],
        tuple(sorted(pairs, key=lambda pair: pair.number)),
    )


def _aligned(ours: Model, theirs: Model, other: Path) -> tuple[Dense, Dense]:
    """Both models with a row for every code that either has."""
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
    """`Pair.chance` of each phenotype: its partners when the other's modes are tied differently."""
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
