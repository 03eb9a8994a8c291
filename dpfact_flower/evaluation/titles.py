"""Titles of phenotypes, made of the names of their own codes: ``Stroke with hypertension``.

A title names the codes that lead a phenotype, so it says no more than the table below it; a name
that a person gives is better. The same model gives the same titles.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from dpfact_flower.evaluation.membership import LEADING
from dpfact_flower.evaluation.model import CodeRow

LAMBDA = 0.6
"""Weight of a code's share against its lift; Sievert and Shirley's choice for pyLDAvis."""
_NAMED = 2
"""So many codes of the first mode a title names at most; of others one."""
_COMMON, _ENOUGH = 1 / 3, 1 / 2
"""A code that leads more of the phenotypes tells none of them; what is left must weigh so much."""
TREATMENTS = re.compile(r"proc|cpt|hcpcs|drug|med|treat|lab|atc", re.IGNORECASE)
"""Names of modes that hold what was done, not what patients had."""
_FILLERS = re.compile(
    r"\b(NEC/NOS|NOS|NEC|not otherwise specified|not elsewhere classified)\b|"
    r"[ ,]+(unspecified( (site|type|cause|chronic))?|unsp\.?|so stated)$|"
    r"^(other )?(and )?unspecified |^other (and ill-defined |forms of )",
    re.IGNORECASE,
)


def relevance(row: CodeRow, weight: float = LAMBDA) -> float:
    """How well a code tells what its phenotype is about (Sievert and Shirley, 2014, eq. 1).

    ``weight * log(share) + (1 - weight) * log(lift)``; codes of weight zero have none.
    """
    return weight * math.log(abs(row.share)) + (1 - weight) * math.log(abs(row.lift))


Rows = Mapping[str, Sequence[CodeRow]]
"""A phenotype's codes by mode, the largest share first."""


def titles_of(phenotypes: Mapping[int, Rows]) -> dict[int, str]:
    """Title of each phenotype of a model, each once.

    Diagnoses come before treatments. Codes that lead more than a third of all phenotypes are left
    out, unless that leaves too little of a phenotype.

    Parameters
    ----------
    phenotypes : mapping of int to Rows
        All of the model, by number.
    """
    led = Counter(
        (mode, row.code)
        for rows in phenotypes.values()
        for mode, own in rows.items()
        for row in leading(own)
    )
    common = {code for code, times in led.items() if times > max(1, _COMMON * len(phenotypes))}
    found = {number: _title(rows, common) for number, rows in phenotypes.items()}
    taken = Counter(found.values())
    whole = {n: _title(rows, set()) if taken[found[n]] > 1 else found[n]
             for n, rows in phenotypes.items()}  # fmt: skip
    taken = Counter(whole.values())
    return {n: text if taken[text] == 1 else f"{text} ({n})" for n, text in whole.items()}


def leading(rows: Sequence[CodeRow]) -> list[CodeRow]:
    """Codes that lead one mode of a phenotype, the most relevant first."""
    most = max((abs(row.weight) for row in rows), default=0.0)
    return sorted((row for row in rows if abs(row.weight) >= LEADING * most), key=_rank)


def phrase(description: str, code: str) -> str:
    """A code's name as a sentence has it: of a path its end, without fillers; else the code.

    The fourth level of a path says which kind of the third it is: ``sepsis – severe``.
    """
    path = description.split("|")
    text = " – ".join(path[-2:] if len(path) > 3 else path[-1:]) or code
    text = " ".join(_FILLERS.sub("", text).split()).strip(" ,;-/") or code
    return text[0].lower() + text[1:] if text[:2].istitle() and text[1:2].islower() else text


def _rank(row: CodeRow) -> float:
    return -relevance(row)


def _title(rows: Rows, common: set[tuple[str, str]]) -> str:
    """One phenotype's title without the `common` codes; empty if no code has any weight."""
    parts: list[str] = []
    for mode in sorted(rows, key=lambda mode: TREATMENTS.search(mode) is not None):
        own = leading(rows[mode])
        kept = [row for row in own if (mode, row.code) not in common]
        if kept and max(abs(row.weight) for row in kept) < _ENOUGH * abs(rows[mode][0].weight):
            kept = []
        short = (phrase(row.description, row.code).split(", ")[0] for row in kept)
        names = [name for name in dict.fromkeys(short) if name not in parts]
        if names:
            parts.append(_either(names, _NAMED if not parts else 1))
    if not parts and common:
        return _title(rows, set())
    text = " with ".join(parts)
    return text[:1].upper() + text[1:]


def _either(names: Sequence[str], most: int) -> str:
    """``a``, ``a or b``; of more than `most` the first ones: ``a, b or others``."""
    told = list(names) if len(names) <= most else [*names[:most], "others"]
    return " or ".join(filter(None, (", ".join(told[:-1]), told[-1])))
