"""Phenotypes as a page shows them: titled, with their codes, whom they concern and how surely."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpfact_flower.data.code_names import body_systems
from dpfact_flower.evaluation.formatting import outcome
from dpfact_flower.evaluation.model import CodeRow, GlobalModel
from dpfact_flower.evaluation.prose import (
    LAMBDA,
    leading,
    leading_sentence,
    relevance,
    search_words,
    titles_of,
)
from dpfact_flower.evaluation.replication import Replicate, certainty
from dpfact_flower.evaluation.tables import Association, Phenotype

SHOWN, LEAST_SHARE = 6, 0.01
"""So many codes of a mode are shown at once, if they have this share; the others unfold."""
_MOST_CODES = 16
_IN_SENTENCE = 4
"""So many leading codes of a mode a sentence names."""
_MANY_LISTS = 60
"""Lists of codes, phenotypes times modes, from which each has half as many."""
_REACHES, _ROOM, _FAR = (1.5, 2, 3, 5, 10), 0.9, 3
_ORDERS = (1.0, LAMBDA, 0.2)
"""Weights of share against lift by each of which a page can order codes."""


@dataclass(frozen=True)
class Code:
    """A code of a phenotype; `system` is a word of `dpfact_flower.data.icd.SYSTEMS`, or empty."""

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
    title : str
        The name that a person gave it, else one made of its codes.
    made : str
        The title made of its codes, where a person has given another; else empty.
    measured : Phenotype or None
        From the patients of a simulation.
    outcomes : dict of str to Association
        By the outcome in words; empty where there are no labels.
    replicates : tuple of Replicate
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
    replicates: tuple[Replicate, ...]
    search: str

    @property
    def certainty(self) -> str:
        """One word for how sure it is; empty where no other run is beside this one."""
        return certainty(self.replicates)

    @property
    def leading(self) -> str:
        """Its leading codes in a sentence, for a page that knows of no patients."""
        return leading_sentence(
            {part.mode: [(c.code, c.text) for c in part.codes[: part.led]] for part in self.lists}
        )

    @property
    def patients(self) -> dict[str, float]:
        """Prevalence by site, of the sites where it is shown and not zero."""
        own = self.measured.by_site if self.measured else {}
        return {site: share for site, share in own.items() if isinstance(share, float) and share}


def cards(
    model: GlobalModel,
    measured: Sequence[Phenotype] = (),
    replicates: Mapping[int, tuple[Replicate, ...]] | None = None,
) -> list[Card]:
    """Phenotypes of a run's model, by number.

    All of its phenotypes were `measured`, or none; `replicates` are those in other runs, by number.
    """
    by_number = {phenotype.number: phenotype for phenotype in measured}
    system = {
        (v.name, code): word
        for v in model.vocabularies
        for code, word in zip(v.codes, body_systems(v.name, v.codes), strict=True)
    }
    lists = model.rank * len(model.vocabularies)
    most = _MOST_CODES // 2 if lists > _MANY_LISTS else _MOST_CODES
    rows = _rows_of(model)
    made = titles_of(rows)
    return [
        Card(
            n,
            model.names.get(n, made[n]),
            made[n] if n in model.names else "",
            tuple(_code_list(mode, own, system, most) for mode, own in rows[n].items()),
            by_number.get(n),
            {outcome(k): found for k, found in by_number[n].outcomes.items()} if measured else {},
            (replicates or {}).get(n, ()),
            search_words(row.description for own in rows[n].values() for row in leading(own)),
        )
        for n in rows
    ]


def titles(model: GlobalModel) -> dict[int, str]:
    """Title of each phenotype of a run's model, by number."""
    return {n: model.names.get(n, made) for n, made in titles_of(_rows_of(model)).items()}


def _rows_of(model: GlobalModel) -> dict[int, dict[str, list[CodeRow]]]:
    """A model's codes by phenotype and mode."""
    rows: dict[int, dict[str, list[CodeRow]]] = {
        r: {v.name: [] for v in model.vocabularies} for r in range(1, model.rank + 1)
    }
    for row in model.rows():
        rows[row.phenotype][row.mode].append(row)
    return rows


def _code_list(
    mode: str, rows: Sequence[CodeRow], system: Mapping[tuple[str, str], str], most: int
) -> CodeList:
    """The codes that are among the first by any order that a page offers."""
    first: dict[str, CodeRow] = {}
    for place in _ORDERS:
        ranked = sorted(rows, key=lambda row, place=place: -relevance(row, place))  # type: ignore[misc]
        first |= {row.code: row for row in ranked[: most if place == 1 else most // 4]}
    kept = [row for row in rows if row.code in first]
    led = min(_IN_SENTENCE, len(leading(rows)))
    codes = tuple(
        Code(row.code, _text(row), row.share, row.lift, system[mode, row.code]) for row in kept
    )
    return CodeList(mode, codes, led)


def _text(row: CodeRow) -> str:
    """A code's description; nothing where it only repeats the code."""
    return "" if row.description == row.code else row.description


def odds_reach(cards: Iterable[Card], outcome: str) -> float:
    """Odds at the end of a scale that has room for nine in ten ends of the intervals.

    And for all estimates, but those beyond `_FAR`: one of these would squeeze all others.
    """
    associations = [card.outcomes[outcome] for card in cards if outcome in card.outcomes]
    ends = sorted(abs(end) for a in associations for end in a.interval or ())
    near = [abs(a.coefficient) for a in associations if a.coefficient is not None]
    most = max(
        [*ends[: math.ceil(_ROOM * len(ends))], *(c for c in near if c <= math.log(_FAR))],
        default=0.0,
    )
    return next((reach for reach in _REACHES if math.log(reach) >= most), _REACHES[-1])


def systems_of(cards: Iterable[Card]) -> list[str]:
    """Words of the colours that occur, the most frequent first."""
    codes = (code for card in cards for part in card.lists for code in part.codes)
    counts = Counter(code.system for code in codes if code.system)
    return sorted(counts, key=lambda system: (-counts[system], system))
