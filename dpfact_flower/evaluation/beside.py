"""The same phenotypes in other runs: which are found again, and how well.

Other noise, another seed, no noise at all, or other data: a phenotype that comes back in each is
more than one run's luck. Models are compared alone, so nothing of any patient is needed. What was
found lies in ``beside.json`` in the run's folder, so that a report can be written again.
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
    read_json,
    read_model,
    read_summary,
    write_json,
)
from dpfact_flower.evaluation.summary import Summary
from dpfact_flower.evaluation.typed import typed
from dpfact_flower.privacy import rounded_up
from dpfact_flower.tensor.match import match_columns

BESIDE = "beside.json"
_CHANCES = 20
_CHANCE_LEVEL = 95
_DIGITS = 6
"""Of likenesses: equal ones are to be equal."""
_FAIR = 0.85
"""Cosine from which two columns count as alike (Lorenzo-Seva and ten Berge, 2006)."""
Dense = tuple[NDArray[np.float64], ...]


@dataclass(frozen=True)
class Pair:
    """A phenotype and its partner in another run: numbers from 1, and their likeness.

    Attributes
    ----------
    number, other : int
    match : float
        Product over the modes of the cosines between the two; 1 means equal.
    least : float
        What it has to exceed to be the phenotype found again: cosines of .85, and what 95 in 100 of
        its partners stay below if the other run's modes are tied to each other at random. Codes
        that are frequent everywhere give such partners.
    """

    number: int
    other: int
    match: float
    least: float

    @property
    def again(self) -> bool:
        """Whether the phenotype is found again."""
        return self.match > self.least


@dataclass(frozen=True)
class Beside:
    """Another run beside this one.

    Attributes
    ----------
    name : str
        Of its folder.
    how : str
        What protected its patients, in words; never an epsilon without its claim.
    rank : int
        Of this run's model, which the pairs are of.
    modes : int
        Number of feature modes, which likenesses are products over.
    pairs : tuple of Pair
    """

    name: str
    how: str
    rank: int
    modes: int
    pairs: tuple[Pair, ...]

    @property
    def again(self) -> int:
        """How many phenotypes are found again."""
        return sum(pair.again for pair in self.pairs)


@dataclass(frozen=True)
class Found:
    """One phenotype in another run."""

    run: Beside
    pair: Pair

    @property
    def by_chance(self) -> bool:
        """Whether it is as alike as codes that stand in many phenotypes are anyhow."""
        return not self.pair.again and self.pair.match > _FAIR**self.run.modes


STABLE, PARTLY, UNCONFIRMED, NOT_FOUND = "stable", "partly", "unconfirmed", "not found"


def certainty(found: Sequence[Found]) -> str:
    """One word for a phenotype, from what it is in other runs; empty without any."""
    if not found:
        return ""
    again = sum(each.pair.again for each in found)
    if again:
        return STABLE if again == len(found) else PARTLY
    return UNCONFIRMED if any(each.by_chance for each in found) else NOT_FOUND


def beside(folder: Path, others: Sequence[Path]) -> tuple[Beside, ...]:
    """Match a run's phenotypes with those of other runs.

    Parameters
    ----------
    folder : Path
        Of a finished run.
    others : sequence of Path
        Of finished runs with the same modes; codes are found by their names, and one that a run
        does not have has weight zero there.

    Raises
    ------
    DataError
        If a folder holds no finished run, or one of other modes.
    """
    return tuple(_beside(folder, other) for other in others)


def write_beside(folder: Path, found: Sequence[Beside]) -> None:
    """Write ``beside.json``."""
    write_json(folder / BESIDE, [asdict(other) for other in found])


def read_beside(folder: Path, rank: int) -> tuple[Beside, ...]:
    """Read ``beside.json``; nothing where there is none.

    Raises
    ------
    DataError
        If it is damaged, or of another model.
    """
    path = folder / BESIDE
    if not path.exists():
        return ()
    try:
        found = tuple(typed(Beside, other) for other in read_json(path))
    except (DataError, TypeError) as error:
        raise DataError(f"{path}: {error}") from None
    if any(other.rank != rank for other in found):
        raise DataError(f"{path}: it is of another model; write it again: dpfact report --beside")
    return found


def found_again(runs: Sequence[Beside]) -> dict[int, tuple[Found, ...]]:
    """By phenotype, what it is in each other run."""
    found: dict[int, tuple[Found, ...]] = {}
    for run in runs:
        for pair in run.pairs:
            found[pair.number] = (*found.get(pair.number, ()), Found(run, pair))
    return found


def protection(summary: Summary) -> str:
    """What protects the patients of a run, in a few words."""
    if summary.spent is None:
        return "without noise"
    return f"epsilon {rounded_up(summary.spent.epsilon)}, {summary.claim}"


def _beside(folder: Path, other: Path) -> Beside:
    ours, theirs = read_model(folder), read_model(other)
    left, right = _aligned(ours, theirs, other)
    match = match_columns(left, right)
    least = _least(left, right)
    pairs = [
        Pair(int(mine) + 1, int(its) + 1, round(float(cosine), _DIGITS), least[mine])
        for mine, its, cosine in zip(match.estimate, match.truth, match.cosines, strict=True)
    ]
    return Beside(
        other.resolve().name,
        protection(read_summary(other)),
        left[0].shape[1],
        len(left),
        tuple(sorted(pairs, key=lambda pair: pair.number)),
    )


def _aligned(
    ours: tuple[tuple[NDArray[np.float32], ...], tuple[Vocabulary, ...]],
    theirs: tuple[tuple[NDArray[np.float32], ...], tuple[Vocabulary, ...]],
    other: Path,
) -> tuple[Dense, Dense]:
    """Both models with a row for every code that either has."""
    names = [[v.name for v in lists] for _, lists in (ours, theirs)]
    if names[0] != names[1]:
        raise DataError(f"{other}: its modes are {', '.join(names[1])}; need {', '.join(names[0])}")
    left: list[NDArray[np.float64]] = []
    right: list[NDArray[np.float64]] = []
    for a, v, b, w in zip(*ours, *theirs, strict=True):
        place = {code: i for i, code in enumerate(dict.fromkeys((*v.codes, *w.codes)))}
        for factor, codes, found in ((a, v.codes, left), (b, w.codes, right)):
            dense = np.zeros((len(place), factor.shape[1]))
            dense[[place[code] for code in codes]] = factor
            found.append(dense)
    return tuple(left), tuple(right)


def _least(ours: Dense, theirs: Dense) -> list[float]:
    """`Pair.least` of each phenotype: its partners when the other's modes are tied differently."""
    rank, fair = theirs[0].shape[1], _FAIR ** len(ours)
    partners: list[list[float]] = [[] for _ in range(ours[0].shape[1])]
    for shift in range(1, min(rank, _CHANCES + 1)):
        tied = tuple(np.roll(factor, mode * shift, axis=1) for mode, factor in enumerate(theirs))
        match = match_columns(ours, tied)
        for mine, cosine in zip(match.estimate, match.cosines, strict=True):
            partners[mine].append(float(cosine))
    chance = [float(np.percentile(own, _CHANCE_LEVEL)) if own else 0.0 for own in partners]
    return [round(max(fair, own), _DIGITS) for own in chance]
