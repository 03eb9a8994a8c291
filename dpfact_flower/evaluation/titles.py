"""A phenotype's title in a few words, made of its own codes: ``renal: dialysis, CKD 5``.

The words are the codes' descriptions, so a title says no more than the table below it; a name that
a person gives is better. The same model gives the same titles.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from dpfact_flower.evaluation.model import CodeRow

LAMBDA = 0.6
"""Weight of a code's share against its lift; Sievert and Shirley's choice for pyLDAvis."""
_LEAST_SHARE = 0.02
_MAJORITY = 0.5
_WORDS = 3
_LONGEST = 34
_FILLERS = re.compile(
    r"\b(NEC/NOS|NOS|NEC|unspecified|not otherwise specified|not elsewhere classified)\b",
    re.IGNORECASE,
)


def relevance(row: CodeRow, weight: float = LAMBDA) -> float:
    """How well a code tells what its phenotype is about (Sievert and Shirley, 2014, eq. 1).

    ``weight * log(share) + (1 - weight) * log(lift)``; codes of weight zero have none.
    """
    return weight * math.log(abs(row.share)) + (1 - weight) * math.log(abs(row.lift))


def title(rows: Iterable[CodeRow], chapter: Mapping[tuple[str, str], str]) -> str:
    """Title of one phenotype.

    Parameters
    ----------
    rows : iterable of CodeRow
        All codes of the phenotype.
    chapter : mapping of (mode, code) to str
        As `dpfact_flower.evaluation.chapters.chapters` has it; empty where there is none.

    Returns
    -------
    str
        The body system that has most of the weight, if one has, and the most relevant codes, one of
        each mode first; empty if no code has any weight.
    """
    by_mode: dict[str, list[CodeRow]] = defaultdict(list)
    for row in rows:
        by_mode[row.mode].append(row)
    ranked = [sorted(own, key=_rank) for own in by_mode.values()]
    words: list[str] = []
    for place in range(max(map(len, ranked), default=0)):
        for own in ranked:
            word = phrase(own[place]) if place < len(own) else ""
            if word and word.lower() not in map(str.lower, words):
                words.append(word)
        if len(words) >= min(_WORDS, 2):
            break
    system = _majority(by_mode.values(), chapter)
    text = ", ".join(words[:_WORDS])
    return f"{system}: {text}" if system and text else text


def phrase(row: CodeRow) -> str:
    """A code's description in a few words; of a path its end; the code where there is none.

    The fourth level of a path says which kind of the third it is: ``sepsis – severe``.
    """
    path = row.description.split("|")
    text = " – ".join(path[-2:] if len(path) > 3 else path[-1:]) or row.code
    text = " ".join(_FILLERS.sub("", text).split()).strip(" ,;-/") or row.code
    if len(text) > _LONGEST:
        text = text[:_LONGEST].rsplit(" ", 1)[0].rstrip(" ,;-/(") + "…"
    return text[0].lower() + text[1:] if text[:2].istitle() and text[1:2].islower() else text


def _rank(row: CodeRow) -> tuple[bool, float]:
    """Codes of some weight first, the most relevant first."""
    return abs(row.share) < _LEAST_SHARE, -relevance(row)


def _majority(modes: Iterable[list[CodeRow]], chapter: Mapping[tuple[str, str], str]) -> str:
    """The system that most of the weight is in, of the modes whose codes have systems."""
    weights: dict[str, float] = defaultdict(float)
    for rows in modes:
        known = [(chapter.get((row.mode, row.code), ""), abs(row.share)) for row in rows]
        if any(system for system, _ in known):
            for system, share in known:
                weights[system] += share
    whole = sum(weights.values())
    found = [s for s, weight in weights.items() if s and weight > _MAJORITY * whole]
    return found[0] if found else ""
