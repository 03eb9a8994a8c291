"""Phenotypes as a page shows them: titled, with their codes, whom they concern and how surely."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.beside import Found, certainty
from dpfact_flower.evaluation.chapters import chapters
from dpfact_flower.evaluation.export import phenotype_rows
from dpfact_flower.evaluation.model import CodeRow
from dpfact_flower.evaluation.prose import leading_words, search_words
from dpfact_flower.evaluation.run_folder import read_model
from dpfact_flower.evaluation.tables import Association, Phenotype
from dpfact_flower.evaluation.titles import LAMBDA, leading, relevance, titles_of
from dpfact_flower.evaluation.words import outcome

SHOWN, LEAST_SHARE = 6, 0.01
"""So many codes of a mode are shown at once, if they have this share; the others unfold."""
_MOST_CODES = 16
_TOLD = 4
"""So many leading codes of a mode a sentence names."""
_MANY_LISTS = 60
"""Lists of codes, phenotypes times modes, from which each has half as many."""
_REACHES, _ROOM, _FAR = (1.5, 2, 3, 5, 10), 0.9, 3
_ORDERS = (1.0, LAMBDA, 0.2)
"""Weights of share against lift by each of which a page can order codes."""


@dataclass(frozen=True)
class Code:
    """A code of a phenotype; `system` is a word of `chapters.SYSTEMS`, or empty."""

    code: str
    text: str
    share: float
    lift: float
    system: str


@dataclass(frozen=True)
class CodeList:
    """Codes of one mode, the largest share first, of which the first `led` lead the phenotype."""

    mode: str
    codes: tuple[Code, ...]
    led: int

    @property
    def first(self) -> int:
        """How many are shown before anybody asks for more; one, if all are small."""
        return max(1, sum(abs(code.share) >= LEAST_SHARE for code in self.codes[:SHOWN]))

    @property
    def covered(self) -> float:
        """Share that those have together."""
        return math.fsum(abs(code.share) for code in self.codes[: self.first])


@dataclass(frozen=True)
class Card:
    """One phenotype.

    Attributes
    ----------
    number : int
    title : str
        The name that a person gave it, else one made of its codes.
    made : str
        The title made of its codes, where a person has given another; else empty.
    lists : tuple of CodeList
    measured : Phenotype or None
        What the patients of a simulation say of it.
    outcomes : dict of str to Association
        By what is associated; empty where there are no labels.
    found : tuple of Found
        The phenotype in other runs.
    search : str
        Words that people use for what its codes name.
    """

    number: int
    title: str
    made: str
    lists: tuple[CodeList, ...]
    measured: Phenotype | None
    outcomes: dict[str, Association]
    found: tuple[Found, ...]
    search: str

    @property
    def certainty(self) -> str:
        """One word for how sure it is; empty where no other run is beside this one."""
        return certainty(self.found)

    @property
    def leading(self) -> str:
        """Its leading codes in a sentence, for a page that knows of no patients."""
        return leading_words(
            {part.mode: [(c.code, c.text) for c in part.codes[: part.led]] for part in self.lists}
        )

    @property
    def patients(self) -> dict[str, float]:
        """Prevalence by site, of the sites where it is shown and not zero."""
        own = self.measured.by_site if self.measured else {}
        return {site: share for site, share in own.items() if isinstance(share, float) and share}


def cards(
    folder: Path,
    names: Mapping[int, str],
    measured: Sequence[Phenotype],
    found: Mapping[int, tuple[Found, ...]],
) -> list[Card]:
    """Phenotypes of a run's model, by number.

    Parameters
    ----------
    folder : Path
        The run's.
    names : mapping of int to str
        That people have given.
    measured : sequence of Phenotype
        One each, or none at all.
    found : mapping of int to tuple of Found
        In other runs.

    Raises
    ------
    DataError
        If the model has not as many phenotypes as were measured.
    """
    factors, vocabularies = read_model(folder)
    rank = factors[0].shape[1]
    by_number = {phenotype.number: phenotype for phenotype in measured}
    if by_number and sorted(by_number) != list(range(1, rank + 1)):
        raise DataError(f"{folder}: its files do not belong together: {rank} phenotypes in one")
    system = {
        (v.name, code): word
        for v in vocabularies
        for code, word in zip(v.codes, chapters(v.name, v.codes), strict=True)
    }
    most = _MOST_CODES // 2 if rank * len(vocabularies) > _MANY_LISTS else _MOST_CODES
    rows: dict[int, dict[str, list[CodeRow]]] = {
        r: {v.name: [] for v in vocabularies} for r in range(1, rank + 1)
    }
    for row in phenotype_rows(folder):
        rows[row.phenotype][row.mode].append(row)
    made = titles_of(rows)
    return [
        _card(number, own, names.get(number, ""), made[number], by_number.get(number), system,
              most, found.get(number, ()))
        for number, own in rows.items()
    ]  # fmt: skip


def titles(folder: Path, names: Mapping[int, str]) -> dict[int, str]:
    """Title of each phenotype of a run's model, by number."""
    return {card.number: card.title for card in cards(folder, names, (), {})}


def _card(
    number: int,
    rows: Mapping[str, list[CodeRow]],
    name: str,
    made: str,
    measured: Phenotype | None,
    system: Mapping[tuple[str, str], str],
    most: int,
    found: tuple[Found, ...],
) -> Card:
    made = made or "no code has any weight"
    outcomes = measured.outcomes if measured else {}
    return Card(
        number,
        name or made,
        made if name else "",
        tuple(_code_list(mode, own, system, most) for mode, own in rows.items()),
        measured,
        {outcome(label): found for label, found in outcomes.items()},
        found,
        search_words(row.description for own in rows.values() for row in leading(own)),
    )


def _code_list(
    mode: str, rows: Sequence[CodeRow], system: Mapping[tuple[str, str], str], most: int
) -> CodeList:
    """The codes that are among the first by any order that a page offers."""
    first: dict[str, CodeRow] = {}
    for place in _ORDERS:
        ranked = sorted(rows, key=lambda row, place=place: -relevance(row, place))  # type: ignore[misc]
        first |= {row.code: row for row in ranked[: most if place == 1 else most // 4]}
    kept = [row for row in rows if row.code in first]
    led = min(_TOLD, len(leading(rows)))
    codes = tuple(
        Code(row.code, _text(row), row.share, row.lift, system[mode, row.code]) for row in kept
    )
    return CodeList(mode, codes, led)


def _text(row: CodeRow) -> str:
    """A code's description; nothing where it only repeats the code."""
    return "" if row.description == row.code else row.description


def odds_reach(found: Iterable[Card], outcome: str) -> float:
    """Odds at the end of a scale that has room for nine in ten ends of the intervals.

    And for all estimates, but those beyond `_FAR`: one of these would squeeze all others.
    """
    associations = [card.outcomes[outcome] for card in found if outcome in card.outcomes]
    ends = sorted(abs(end) for each in associations for end in each.interval or ())
    near = [abs(each.coefficient) for each in associations if each.coefficient is not None]
    most = max(
        [*ends[: math.ceil(_ROOM * len(ends))], *(c for c in near if c <= math.log(_FAR))],
        default=0.0,
    )
    return next((reach for reach in _REACHES if math.log(reach) >= most), _REACHES[-1])


def systems_of(found: Iterable[Card]) -> list[str]:
    """Words of the colours that occur, the most frequent first."""
    counts: dict[str, int] = defaultdict(int)
    for card in found:
        for code in (code for part in card.lists for code in part.codes if code.system):
            counts[code.system] += 1
    return sorted(counts, key=lambda system: (-counts[system], system))
