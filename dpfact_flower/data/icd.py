"""Chapters and categories of ICD-9-CM and ICD-10-CM, and a one-word name for each body system.

A prefix such as ``icd9:`` or ``icd10:`` names the version of a code. Dots do not matter. Both
versions order their codes by chapter, so the first code of a chapter marks the chapter's beginning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from dpfact_flower.data.vocabulary import csv_rows

FOLDER = Path(str(files("dpfact_flower.data"))) / "names"
"""Folder of the tables of names. A README there names the sources."""
_PARTS = re.compile(r"(?:(icd9|icd10|ccsr|ccs):)?(.*)", re.DOTALL | re.IGNORECASE)
VERSIONS = {"icd9": "9", "icd10": "10"}
"""Version of ICD by prefix."""
FORMS = {
    "9": re.compile(r"(\d{3}|V\d{2}|E\d{3})\d{0,2}"),
    "10": re.compile(r"([A-Z]\d[0-9A-Z])[0-9A-Z]{0,4}"),
}
"""Form of a diagnosis code in each version, without its dot. The group is the category."""


class Chapter(NamedTuple):
    """A chapter: first and last category, name, and the first code of each body system."""

    first: str
    last: str
    name: str
    systems: tuple[tuple[str, str], ...]


def _chapters() -> Iterator[tuple[str, Chapter]]:
    text = (FOLDER / "chapters.csv").read_text(encoding="utf-8")
    for row in csv_rows(text)[1]:
        later = [tuple(part.split(maxsplit=1)) for part in row["later"].split(";") if part]
        systems = ((row["first"], row["system"]), *((first, word) for first, word in later))
        yield row["version"], Chapter(row["first"], row["last"], row["name"], systems)


CHAPTERS = {
    version: tuple(chapter for own, chapter in _chapters() if own == version) for version in FORMS
}
"""Chapters of each version, in the order of their codes."""

SYSTEMS = tuple(dict.fromkeys(word for chapter in CHAPTERS["9"] for _, word in chapter.systems))
"""All words that `system` can return."""


def parts(code: str) -> tuple[str, str]:
    """Return the prefix in lower case (may be empty), and the code in capitals without its dot."""
    match = _PARTS.fullmatch(code)
    assert match is not None  # the last group matches any text
    return (match[1] or "").lower(), match[2].replace(".", "").upper()


def version_of(codes: Iterable[str]) -> str:
    """Return the version, 9 or 10, that is the only fit for more of the codes without a prefix."""
    bare = {code for prefix, code in map(parts, codes) if not prefix}
    nine, ten = ({code for code in bare if category(version, code)} for version in ("9", "10"))
    return "10" if len(ten - nine) > len(nine - ten) else "9"


def category(version: str, code: str) -> str:
    """Return the category of a diagnosis code without its dot, or an empty text."""
    match = FORMS[version].fullmatch(code)
    return match[1] if match else ""


def chapter(version: str, code: str) -> Chapter | None:
    """Return the chapter of a diagnosis code without its dot."""
    own = category(version, code)
    fits = (c for c in CHAPTERS[version] if len(c.first) == len(own) and c.first <= own <= c.last)
    return next(fits, None)


def system(version: str, code: str) -> str:
    """Return the word for a diagnosis code's body system, or an empty text. The code has no dot."""
    found = chapter(version, code)
    words = [word for first, word in found.systems if first <= code] if found else []
    return words[-1] if words else ""
