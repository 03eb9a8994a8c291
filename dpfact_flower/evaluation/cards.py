"""Phenotypes as a page shows them: titled, with their codes, whom they concern and how surely."""

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
"""So many codes of a mode are shown at once, if they have this share; the others unfold."""
_MOST_CODES = 16
_MANY_LISTS = 60
"""Lists of codes, phenotypes times modes, from which each has half as many."""
_REACHES, _ROOM, _FAR = (1.5, 2, 3, 5, 10), 0.9, 3
_ORDERS = (1.0, LAMBDA, 0.2)
"""Weights of share against lift by each of which a page can order codes."""


@dataclass(frozen=True)
class CodeList:
    """Codes of one mode, the largest share first.

    `systems` has by code a word of `dpfact_flower.data.icd.SYSTEMS`, or nothing.
    """

    mode: str
    codes: tuple[CodeRow, ...]
    systems: Mapping[str, str]

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

    Its `title` is the name that a person gave it, and then `made` is the title made of its codes;
    else that is its title. The `text` tells of its patients, how sure it is and its chart review;
    `certainty` says the second in a word, or nothing where neither this run nor another tells.
    `measured` comes from the patients of a simulation. `search` has words that people use for what
    its codes name.
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
    """Phenotypes of a run's model, by number.

    `table` is None where no patient was counted, and `unit` is what is counted, in the plural.
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
    """The codes that are among the first by any order that a page offers."""
    first: set[str] = set()
    for place in _ORDERS:
        ranked = sorted(rows, key=lambda row, place=place: -relevance(row, place))  # type: ignore[misc]
        first |= {row.code for row in ranked[: most if place == 1 else most // 4]}
    return tuple(row for row in rows if row.code in first)


def odds_reach(associations: Iterable[Association]) -> float:
    """Odds at the end of a scale that has room for nine in ten ends of the intervals.

    And for all estimates, but those beyond `_FAR`: one of these would squeeze all others.
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
    """Words of the colours that occur, the most frequent first."""
    counts = Counter(
        part.systems[row.code] for card in cards for part in card.lists for row in part.codes
    )
    del counts[""]
    return sorted(counts, key=lambda system: (-counts[system], system))
