"""Cards of phenotypes for a page: their titles, codes, patients and certainty."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpfact_flower.data.code_names import body_systems
from dpfact_flower.evaluation.model import CodeRow, GlobalModel
from dpfact_flower.evaluation.prose import (
    LAMBDA,
    certainty_sentence,
    chance_sentence,
    leading,
    leading_sentence,
    made_titles,
    paragraph,
    relevance,
    review_sentence,
    search_words,
)
from dpfact_flower.evaluation.replication import Replication, certainty
from dpfact_flower.evaluation.run_folder import Review
from dpfact_flower.evaluation.tables import Association, Phenotype, PhenotypeTable

SHOWN, LEAST_SHARE = 6, 0.01
"""A page first shows up to `SHOWN` codes of a mode, each with a share of `LEAST_SHARE` or more."""
_MOST_CODES = 16
_MANY_LISTS = 60
"""Number of code lists (phenotypes times modes) above which each list is half as long."""
_REACHES, _ROOM, _FAR = (1.5, 2, 3, 5, 10), 0.9, 3
_ORDERS = (1.0, LAMBDA, 0.2)
"""Weights of share against lift. A page can order codes by each weight."""


@dataclass(frozen=True)
class CodeList:
    """Codes of one mode, the largest share first.

    `systems` maps each code to a word of `dpfact_flower.data.icd.SYSTEMS`, or to an empty text.
    """

    mode: str
    codes: tuple[CodeRow, ...]
    systems: Mapping[str, str]

    @property
    def first(self) -> int:
        """Number of codes that a page shows first, one or more."""
        return max(1, sum(abs(code.share) >= LEAST_SHARE for code in self.codes[:SHOWN]))

    @property
    def covered(self) -> float:
        """Total share of the codes that a page shows first."""
        return math.fsum(abs(code.share) for code in self.codes[: self.first])


@dataclass(frozen=True)
class Card:
    """The card of one phenotype.

    If a person named the phenotype, `title` is that name and `made` is the title made of the codes.
    Otherwise `title` is made of the codes, and `made` is empty. The `text` describes the patients,
    the certainty and the chart review. `certainty` is one word, or empty if no run provides
    evidence. `measured` comes from the patients of a simulation. `search` has everyday words for
    the codes.
    """

    number: int
    title: str
    made: str
    text: str
    lists: tuple[CodeList, ...]
    measured: Phenotype | None
    certainty: str
    search: str


def cards(
    model: GlobalModel,
    table: PhenotypeTable | None,
    replications: Sequence[Replication],
    reviews: Mapping[int, Review],
    unit: str,
) -> list[Card]:
    """Return the cards of a run's phenotypes, ordered by number.

    `table` is None if no patients were counted. `unit` names a row of the data, in the plural.
    """
    systems = {
        v.name: dict(zip(v.codes, body_systems(v.name, v.codes), strict=True))
        for v in model.vocabularies
    }
    most = _MOST_CODES // 2 if model.rank * len(systems) > _MANY_LISTS else _MOST_CODES
    codes = model.codes_by_mode()
    made = made_titles(codes)
    chances = dict(enumerate(model.false_discovery, start=1))
    found = []
    for number, by_mode in codes.items():
        measured = table.phenotypes[number - 1] if table else None
        pairs = [pair for run in replications if (pair := run.partner(number))]
        chance = chances.get(number)
        sentences = [
            *(
                paragraph(measured, table, unit)
                if table and measured
                else [leading_sentence(by_mode)]
            ),
            chance_sentence(chance),
            certainty_sentence(pairs) if pairs or chance is None else "",
            review_sentence(reviews.get(number)),
        ]
        named = model.names.get(number)
        found.append(
            Card(
                number=number,
                title=named or made[number],
                made=made[number] if named else "",
                text=" ".join(filter(None, sentences)),
                lists=tuple(
                    CodeList(mode, _first_by_any_order(rows, most), systems[mode])
                    for mode, rows in by_mode.items()
                ),
                measured=measured,
                certainty=certainty(pairs, chance),
                search=search_words(
                    row.description for rows in by_mode.values() for row in leading(rows)
                ),
            )
        )
    return found


def _first_by_any_order(rows: Sequence[CodeRow], most: int) -> tuple[CodeRow, ...]:
    """Return the codes that are among the first in any order that a page offers."""
    first: set[str] = set()
    for place in _ORDERS:
        ranked = sorted(rows, key=lambda row, place=place: -relevance(row, place))  # type: ignore[misc]
        first |= {row.code for row in ranked[: most if place == 1 else most // 4]}
    return tuple(row for row in rows if row.code in first)


def odds_reach(associations: Iterable[Association]) -> float:
    """Return the odds at the end of a scale that fits nine in ten ends of the intervals.

    The scale also fits all estimates up to `_FAR`. A larger estimate would squeeze all others.
    """
    given = list(associations)
    ends = sorted(abs(end) for a in given for end in a.interval or ())
    near = [abs(a.coefficient) for a in given if a.coefficient is not None]
    most = max(
        [*ends[: math.ceil(_ROOM * len(ends))], *(c for c in near if c <= math.log(_FAR))],
        default=0.0,
    )
    return next((reach for reach in _REACHES if math.log(reach) >= most), _REACHES[-1])


def systems_of(cards: Iterable[Card]) -> list[str]:
    """Return the body systems that occur, the most frequent first."""
    counts = Counter(
        part.systems[row.code] for card in cards for part in card.lists for row in part.codes
    )
    del counts[""]
    return sorted(counts, key=lambda system: (-counts[system], system))
