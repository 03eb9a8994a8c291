"""Chapters and categories of ICD-9-CM and ICD-10-CM, and the one word for a body system.

A code may say what it is of by a prefix, such as ``icd9:`` or ``icd10:``; dots do not matter. Both
versions order their codes by chapter, so the first code of a chapter says where it begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from dpfact_flower.data.vocabulary import csv_rows

FOLDER = Path(str(files("dpfact_flower.data"))) / "names"
"""Tables of names, with their sources."""
_PARTS = re.compile(r"(?:(icd9|icd10|ccsr|ccs):)?(.*)", re.DOTALL | re.IGNORECASE)
VERSIONS = {"icd9": "9", "icd10": "10"}
"""Version of ICD by the prefix that says so."""
FORMS = {
    "9": re.compile(r"(\d{3}|V\d{2}|E\d{3})\d{0,2}"),
    "10": re.compile(r"([A-Z]\d[0-9A-Z])[0-9A-Z]{0,4}"),
}
"""Form of a diagnosis of each version, without its dot; the group is its category."""


class Chapter(NamedTuple):
    """A chapter: its first and last category, its name, and where each body system begins."""

    first: str
    last: str
    name: str
    systems: tuple[tuple[str, str], ...]


def _chapters() -> Iterator[tuple[str, Chapter]]:
    """Version and chapter of each row of the table."""
    text = (FOLDER / "chapters.csv").read_text(encoding="utf-8")
    for row in csv_rows(text)[1]:
        later = [tuple(part.split(maxsplit=1)) for part in row["later"].split(";") if part]
        systems = ((row["first"], row["system"]), *((first, word) for first, word in later))
        yield row["version"], Chapter(row["first"], row["last"], row["name"], systems)


CHAPTERS = {
    version: tuple(chapter for own, chapter in _chapters() if own == version) for version in FORMS
}
"""Of each version, in the order of their codes."""

SYSTEMS = tuple(dict.fromkeys(word for chapter in CHAPTERS["9"] for _, word in chapter.systems))
"""All words that `system` gives."""


def parts(code: str) -> tuple[str, str]:
    """Prefix in lower case, if there is one, and the code in capitals without its dot."""
    match = _PARTS.fullmatch(code)
    assert match is not None  # the last group takes anything
    return (match[1] or "").lower(), match[2].replace(".", "").upper()


def version_of(codes: Iterable[str]) -> str:
    """Version, 9 or 10, whose form alone fits more codes without prefix; V and E codes fit both."""
    bare = {code for prefix, code in map(parts, codes) if not prefix}
    nine, ten = ({code for code in bare if category(version, code)} for version in ("9", "10"))
    return "10" if len(ten - nine) > len(nine - ten) else "9"


def category(version: str, code: str) -> str:
    """Category of a diagnosis without its dot; empty where its form is another one."""
    match = FORMS[version].fullmatch(code)
    return match[1] if match else ""


def chapter(version: str, code: str) -> Chapter | None:
    """Chapter that a diagnosis without its dot is in."""
    own = category(version, code)
    for found in CHAPTERS[version]:
        if len(found.first) == len(own) and found.first <= own <= found.last:
            return found
    return None


def system(version: str, code: str) -> str:
    """Word for the body system of a diagnosis without its dot; empty where there is none."""
    found = chapter(version, code)
    words = [word for first, word in found.systems if first <= code] if found else []
    return words[-1] if words else ""
