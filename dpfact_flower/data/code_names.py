"""Names of codes as a clinician reads them: full, in English, of public-domain classifications.

The names ship with the package (``names``, with their sources) and need no network. A code says
which system it is of by a prefix (``icd9:``, ``icd10:``, ``ccs:``, ``ccsr:``). Where it has none,
the whole mode tells: the system that knows most of its codes.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from dpfact_flower.data import icd
from dpfact_flower.data.vocabulary import Vocabulary

SYSTEMS = ("icd9cm", "icd10cm", "icd9pcs", "icd10pcs", "ccs", "ccsr")
"""Diagnoses and procedures of ICD-9-CM and ICD-10, and AHRQ's groups of diagnoses of each."""

_PATHS = {
    "cardiovascular": "cardiovascular", "pulmonary": "respiratory", "renal": "renal",
    "gastrointestinal": "digestive", "neurologic": "neurological", "endocrine": "metabolic",
    "infectious diseases": "infection", "hematology": "blood", "oncology": "neoplasm",
    "burns/trauma": "injury", "toxicology": "injury", "musculoskeletal": "musculoskeletal",
    "obstetrics": "pregnancy", "genitourinary": "genitourinary", "psychiatry": "mental",
}  # fmt: skip
"""Body system by the first part of a path."""
_PROCEDURES = re.compile(r"proc|surg|operation", re.IGNORECASE)
_OTHER_MODES = re.compile(r"cpt|hcpcs|drug|med|lab|atc", re.IGNORECASE)
_ONLY_ICD9CM = re.compile(r"[VE].*|\d{5}|\d{3}\.\d+")
"""What no ICD-9 procedure and no number of a list looks like."""
_MOST = 0.8
_LETTERS = 3
"""First letters of codes of ICD-10 that are no numbering such as D01, D02."""
_SHORTEST = {"icd9cm": 3, "icd10cm": 3, "icd9pcs": 2, "icd10pcs": 1}
"""Characters of a group that names the codes below it, where they have no name of their own."""
_UNSPECIFIED = {"nos", "nec"}
_SHORT = {"w", "wo", "d", "t", "hx", "dis", "unsp"}
_WORDS = re.compile(r"[a-z0-9]+")


def name_of(system: str, code: str, *, exact: bool = False) -> str:
    """Name of a code, or of the closest group above it that has one; empty where none is known.

    Parameters
    ----------
    system : str
        One of `SYSTEMS`.
    code : str
        With or without dot and prefix; of ICD perhaps a category or a chapter (``390-459``).
    exact : bool
        Whether the name must be the code's own.
    """
    bare, table = icd.parts(code)[1], names_of(system)
    for first, last, name, _ in icd.CHAPTERS.get(system.removeprefix("icd").removesuffix("cm"), ()):
        if f"{first}-{last}" == bare:
            return name
    shortest = len(bare) if exact else _SHORTEST.get(system, len(bare))
    above = (bare[:length] for length in range(len(bare), shortest - 1, -1))
    return next((table[group] for group in above if group in table), "")


def holds_procedures(mode: str, codes: Sequence[str]) -> bool:
    """Whether a mode's name or its codes say that it holds procedures."""
    return bool(_PROCEDURES.search(mode)) or any(
        system.endswith("pcs") for system in systems(mode, codes)
    )


def systems(mode: str, codes: Sequence[str]) -> list[str]:
    """System of each code of a mode, one of `SYSTEMS`; empty where it is of none.

    Parameters
    ----------
    mode : str
        Its name: procedures are never taken for diagnoses, and drugs for neither.
    codes : sequence of str
        All of the mode, since one alone does not say what it is of.
    """
    prefixes = [icd.parts(code)[0] for code in codes]
    found = {
        prefix: _system(
            mode, prefix, [c for c, p in zip(codes, prefixes, strict=True) if p == prefix]
        )
        for prefix in set(prefixes)
    }
    return [found[prefix] for prefix in prefixes]


def body_systems(mode: str, codes: Sequence[str]) -> list[str]:
    """Word of `icd.SYSTEMS` for each code of a mode; empty where the code is no known diagnosis.

    Paths such as eICU's ``renal|dialysis|hemodialysis`` name their system themselves.
    """
    by_path = [_PATHS.get(code.split("|", 1)[0].lower(), "") for code in codes]
    if any(by_path) and all("|" in code for code in codes):
        return by_path
    return [
        icd.system(own[3:-2], icd.parts(code)[1]) if own in ("icd9cm", "icd10cm") else ""
        for own, code in zip(systems(mode, codes), codes, strict=True)
    ]


def named(vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary with names where it has none, or an abbreviation of the name.

    Its other descriptions stay: they are the hospital's own words.
    """
    own = systems(vocabulary.name, vocabulary.codes)
    texts = (
        clearer(text, name_of(system, code)) if system else text
        for system, code, text in zip(own, vocabulary.codes, vocabulary.descriptions, strict=True)
    )
    return replace(vocabulary, descriptions=tuple(texts))


def clearer(text: str, name: str) -> str:
    """The hospital's own words, unless there are none or they abbreviate the name."""
    return name if name and (not text or abbreviates(text, name)) else text


def abbreviates(text: str, name: str) -> bool:
    """Whether a text is a name cut short, as CMS's ``Crbl art ocl NOS w infrc`` is.

    It says NOS or NEC; or at least half of its words are in the name, whole or with two letters or
    more left out, or are initials of its words, and one at least is not whole.
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
    """The system of codes with one prefix, or with none."""
    if prefix.startswith("ccs"):
        return prefix
    bare, procedures = [icd.parts(code)[1] for code in codes], bool(_PROCEDURES.search(mode))
    possible: tuple[str, ...] = ()
    if prefix:
        both = (f"{prefix}pcs",) if procedures else (f"{prefix}cm", f"{prefix}pcs")
        return max(both, key=lambda system: _known(system, bare))
    if procedures:
        possible = ("icd9pcs", "icd10pcs")
    elif not _OTHER_MODES.search(mode):
        if icd.version_of(codes) == "10":
            possible = ("icd10cm",) * (len({code[:1] for code in bare}) >= _LETTERS)
        else:
            possible = ("icd9cm",) * any(map(_ONLY_ICD9CM.fullmatch, map(str.upper, codes)))
    best = max(possible, key=lambda system: _known(system, bare), default="")
    return best if best and _known(best, bare) >= _MOST * len(codes) else ""


def _known(system: str, codes: Sequence[str]) -> int:
    """How many codes have a name of their own, or all but the seventh character of ICD-10-CM.

    A number of two digits might be a procedure's group, and any other number.
    """
    table = names_of(system)
    if system == "icd10cm":
        return sum(code in table or code[:6].rstrip("X") in table for code in codes)
    return sum(code in table and (system != "icd9pcs" or len(code) > 2) for code in codes)


@cache
def names_of(system: str) -> dict[str, str]:
    """All names of a system by code without a dot, as ``simulation.code_names`` packs them.

    A line begins with how many characters it shares with the line before: a blank is none.
    """
    lines, last = [], ""
    for line in lzma.decompress((icd.FOLDER / f"{system}.xz").read_bytes()).decode().split("\n"):
        last = last[: ord(line[0]) - ord(" ")] + line[1:]
        lines.append(last)
    half = len(lines) // 2
    return dict(zip(lines[:half], lines[half:], strict=True))
