"""Look up a code's coding system, chapter, body system and full English name.

The names are in the public domain and ship with the package in the folder ``names``, whose README
lists the sources. A prefix (``icd9:``, ``icd10:``, ``ccs:``, ``ccsr:``) identifies a code's system.
Within a mode, all codes without a prefix get the same system, if the system has names for at least
80 % of these codes. Dots in codes are ignored.

In both ICD versions, each chapter is a range of codes and is divided into one or more body systems.
"""

import lzma
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from dpfact_flower.data.vocabulary import Vocabulary, csv_rows

SYSTEMS = ("icd9cm", "icd10cm", "icd9pcs", "icd10pcs", "ccs", "ccsr")
"""The coding systems: ICD-9-CM and ICD-10 diagnoses and procedures, and AHRQ diagnosis groups."""
FOLDER = Path(str(files("dpfact_flower.data"))) / "names"
_PARTS = re.compile(r"(?:(icd9|icd10|ccsr|ccs):)?(.*)", re.DOTALL | re.IGNORECASE)
VERSIONS = {"icd9": "9", "icd10": "10"}
_DIAGNOSES = {"icd9cm": "9", "icd10cm": "10"}
_FORMS = {
    "9": re.compile(r"(\d{3}|V\d{2}|E\d{3})\d{0,2}"),
    "10": re.compile(r"([A-Z]\d[0-9A-Z])[0-9A-Z]{0,4}"),
}
"""Pattern of diagnosis codes without dots, by ICD version. Parentheses capture the category."""


class Chapter(NamedTuple):
    """An ICD chapter. For each body system, `systems` contains the first code and the name."""

    first: str
    last: str
    name: str
    systems: tuple[tuple[str, str], ...]


def _chapters() -> dict[str, list[Chapter]]:
    chapters: dict[str, list[Chapter]] = {version: [] for version in _FORMS}
    for row in csv_rows((FOLDER / "chapters.csv").read_text(encoding="utf-8"))[1]:
        later = [tuple(part.split(maxsplit=1)) for part in row["later"].split(";") if part]
        systems = ((row["first"], row["system"]), *((first, word) for first, word in later))
        chapters[row["version"]].append(Chapter(row["first"], row["last"], row["name"], systems))
    return chapters


CHAPTERS = _chapters()
"""Chapters of each ICD version, in code order."""

BODY_SYSTEMS = tuple(
    dict.fromkeys(word for chapter in CHAPTERS["9"] for _, word in chapter.systems)
)


def split_code(code: str) -> tuple[str, str]:
    """Return a code's prefix in lower case (or ""), and the bare code in capitals without dots."""
    match = _PARTS.fullmatch(code)
    assert match is not None  # the last group matches any text
    return (match[1] or "").lower(), match[2].replace(".", "").upper()


def version_of(codes: Iterable[str]) -> tuple[str, int]:
    """Return the ICD version of most unprefixed codes, and how many fit only the other version."""
    bare = {code for prefix, code in map(split_code, codes) if not prefix}
    nine, ten = ({code for code in bare if category(version, code)} for version in ("9", "10"))
    return ("10", len(nine - ten)) if len(ten) > len(nine) else ("9", len(ten - nine))


def category(version: str, code: str) -> str:
    """Return a diagnosis code's category, or "" if the code is invalid or written with a dot."""
    match = _FORMS[version].fullmatch(code)
    return match[1] if match else ""


def chapter(version: str, code: str) -> Chapter | None:
    """Return the chapter that contains a diagnosis code (written without dots), or None."""
    group = category(version, code)
    for candidate in CHAPTERS[version]:
        if len(candidate.first) == len(group) and candidate.first <= group <= candidate.last:
            return candidate
    return None


def _body_system(version: str, code: str) -> str:
    group = chapter(version, code)
    return [name for first, name in group.systems if first <= code][-1] if group else ""


_PATHS = {
    "cardiovascular": "cardiovascular", "pulmonary": "respiratory", "renal": "renal",
    "gastrointestinal": "digestive", "neurologic": "neurological", "endocrine": "metabolic",
    "infectious diseases": "infection", "hematology": "blood", "oncology": "neoplasm",
    "burns/trauma": "injury", "toxicology": "injury", "musculoskeletal": "musculoskeletal",
    "obstetrics": "pregnancy", "genitourinary": "genitourinary", "psychiatry": "mental",
}  # fmt: skip
"""Maps the first part of a code such as eICU's ``renal|dialysis`` to a body system."""
PROCEDURES = re.compile(r"proc|proz(?!ent)|surg|eingriff|interven|(?<![a-z])(opera|ops|acte)", re.I)
"""Pattern of the names of modes that contain procedures, in several languages."""
_OTHER_MODES = re.compile(r"cpt|hcpcs|drug|med|lab|atc", re.IGNORECASE)
_ONLY_ICD9CM = re.compile(r"[VE].*|\d{5}|\d{3}\.\d+")
"""Pattern of codes that can be neither ICD-9 procedures nor serial numbers."""
_NAMED_SHARE = 0.8
_LETTERS = 3
"""Codes with fewer distinct first letters may be serial numbers such as D01, not ICD-10 codes."""
_SHORTEST = {"icd9cm": 3, "icd10cm": 3, "icd9pcs": 2, "icd10pcs": 1}
"""Minimum length of a broader code whose name is used for a code without a name."""
_UNSPECIFIED = {"nos", "nec"}
_SHORT = {"w", "wo", "d", "t", "hx", "dis", "unsp"}
_WORDS = re.compile(r"[a-z0-9]+")


def name_of(system: str, code: str, *, exact: bool = False) -> str:
    """Return a code's name, or an empty string if the code has no name.

    The code may have a dot and a prefix. ICD categories, and ICD chapters such as ``390-459``, have
    names too. Unless `exact` is true, a code without a name gets the name of the next broader code.
    """
    bare, table = split_code(code)[1], names_of(system)
    for first, last, name, _ in CHAPTERS.get(_DIAGNOSES.get(system, ""), ()):
        if f"{first}-{last}" == bare:
            return name
    shortest = len(bare) if exact else _SHORTEST.get(system, len(bare))
    above = (bare[:length] for length in range(len(bare), shortest - 1, -1))
    return next((table[group] for group in above if group in table), "")


def systems(mode: str, codes: Sequence[str]) -> list[str]:
    """Return the coding system of each code: one of `SYSTEMS`, or an empty string.

    `codes` must contain all codes of the mode, because a single code does not identify a system. If
    the mode's name suggests procedures, no ICD code is treated as a diagnosis. If the mode's name
    suggests drugs or laboratory tests, only codes with a prefix are assigned a system.
    """
    prefixes = [split_code(code)[0] for code in codes]
    groups: dict[str, list[str]] = {}
    for code, prefix in zip(codes, prefixes, strict=True):
        groups.setdefault(prefix, []).append(code)
    system_of = {prefix: _system(mode, prefix, group) for prefix, group in groups.items()}
    return [system_of[prefix] for prefix in prefixes]


def body_systems(mode: str, codes: Sequence[str]) -> list[str]:
    """Return each code's body system: one of `BODY_SYSTEMS`, or "" if there is none.

    If all codes are paths such as eICU's ``renal|dialysis|hemodialysis``, a path's first component
    determines the body system. If any code is not a path, only ICD diagnoses get body systems.
    """
    by_path = [_PATHS.get(code.split("|", 1)[0].lower(), "") for code in codes]
    if any(by_path) and all("|" in code for code in codes):
        return by_path
    return [
        _body_system(_DIAGNOSES[system], split_code(code)[1]) if system in _DIAGNOSES else ""
        for system, code in zip(systems(mode, codes), codes, strict=True)
    ]


def named(vocabulary: Vocabulary) -> Vocabulary:
    """Return a copy of a code list, with full names for missing or abbreviated descriptions."""
    of_codes = systems(vocabulary.name, vocabulary.codes)
    described = zip(of_codes, vocabulary.codes, vocabulary.descriptions, strict=True)
    texts = (
        clearer(text, name_of(system, code)) if system else text for system, code, text in described
    )
    return replace(vocabulary, descriptions=tuple(texts))


def clearer(text: str, name: str) -> str:
    """Return `text`, or the full `name` if `text` is empty or an abbreviation of `name`."""
    return name if name and (not text or abbreviates(text, name)) else text


def abbreviates(text: str, name: str) -> bool:
    """Return whether a text abbreviates a name, as CMS's ``Crbl art ocl NOS w infrc`` does.

    A text with NOS (not otherwise specified) or NEC (not elsewhere classified) is an abbreviation.
    Any other abbreviation is shorter than the name and contains a shortened word. The name contains
    at least half of the abbreviation's words (in full, shortened or as initials).
    """
    words, whole = _WORDS.findall(text.lower()), _WORDS.findall(name.lower())
    initials = "".join(word[0] for word in whole)
    rest = [word for word in words if word not in whole]
    cut = sum(
        word in _SHORT
        or (len(word) > 1 and word in initials)
        or any(_is_cut(word, other) for other in whole)
        for word in rest
    )
    known = len(words) - len(rest) + cut
    return not _UNSPECIFIED.isdisjoint(rest) or (
        len(text) < len(name) and cut > 0 and 2 * known >= len(words)
    )


def _is_cut(word: str, whole: str) -> bool:
    letters = iter(whole)
    return len(word) + 2 <= len(whole) and word[0] == whole[0] and all(x in letters for x in word)


def _system(mode: str, prefix: str, codes: Sequence[str]) -> str:
    if prefix.startswith("ccs"):
        return prefix
    bare, procedures = [split_code(code)[1] for code in codes], bool(PROCEDURES.search(mode))
    possible: tuple[str, ...] = ()
    if prefix:
        both = (f"{prefix}pcs",) if procedures else (f"{prefix}cm", f"{prefix}pcs")
        return max(both, key=lambda system: _known(system, bare))
    if procedures:
        possible = ("icd9pcs", "icd10pcs")
    elif not _OTHER_MODES.search(mode):
        if version_of(codes)[0] == "10":
            possible = ("icd10cm",) * (len({code[:1] for code in bare}) >= _LETTERS)
        else:
            possible = ("icd9cm",) * any(map(_ONLY_ICD9CM.fullmatch, map(str.upper, codes)))
    best = max(possible, key=lambda system: _known(system, bare), default="")
    return best if best and _known(best, bare) >= _NAMED_SHARE * len(codes) else ""


def _known(system: str, codes: Sequence[str]) -> int:
    """Count codes with names, except short procedure codes, which may be a hospital's own codes."""
    table = names_of(system)
    if system == "icd10cm":  # names do not cover the seventh character
        return sum(code in table or code[:6].rstrip("X") in table for code in codes)
    short = _SHORTEST[system] if system.endswith("pcs") else 0
    return sum(code in table and len(code) > short for code in codes)


@cache
def names_of(system: str) -> dict[str, str]:
    """Return a dict from a coding system's codes (without dots) to their names.

    ``simulation.code_names`` creates the files that this function reads.
    """
    lines, last = [], ""
    for line in lzma.decompress((FOLDER / f"{system}.xz").read_bytes()).decode().split("\n"):
        last = last[: ord(line[0]) - ord(" ")] + line[1:]
        lines.append(last)
    half = len(lines) // 2
    return dict(zip(lines[:half], lines[half:], strict=True))
