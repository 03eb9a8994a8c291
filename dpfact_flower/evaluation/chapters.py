"""What body system a code belongs to, in one word: for colours, and for titles of phenotypes.

ICD-9-CM and ICD-10 order their codes by chapter, so the first code of a chapter says where it
begins. Paths such as eICU's ``renal|dialysis|hemodialysis`` name their system themselves. A mode
whose codes are of neither kind, or may be of another (procedures, drugs), has no chapters: a word
that misleads is worse than none.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

SYSTEMS = (
    "infection", "neoplasm", "metabolic", "blood", "mental", "neurological", "eye and ear",
    "cardiovascular", "respiratory", "digestive", "renal", "genitourinary", "pregnancy", "skin",
    "musculoskeletal", "congenital", "perinatal", "symptoms", "injury", "status",
)  # fmt: skip
"""All words that `chapters` gives; a page has a colour for each."""

_ICD9 = (
    ("001", "infection"), ("140", "neoplasm"), ("240", "metabolic"), ("280", "blood"),
    ("290", "mental"), ("320", "neurological"), ("360", "eye and ear"), ("390", "cardiovascular"),
    ("460", "respiratory"), ("520", "digestive"), ("580", "renal"), ("594", "genitourinary"),
    ("630", "pregnancy"), ("680", "skin"), ("710", "musculoskeletal"), ("740", "congenital"),
    ("760", "perinatal"), ("780", "symptoms"), ("800", "injury"), ("E", "injury"), ("V", "status"),
)  # fmt: skip
_ICD10 = (
    ("A", "infection"), ("C", "neoplasm"), ("D5", "blood"), ("E", "metabolic"), ("F", "mental"),
    ("G", "neurological"), ("H", "eye and ear"), ("I", "cardiovascular"), ("J", "respiratory"),
    ("K", "digestive"), ("L", "skin"), ("M", "musculoskeletal"), ("N", "renal"),
    ("N3", "genitourinary"), ("O", "pregnancy"), ("P", "perinatal"), ("Q", "congenital"),
    ("R", "symptoms"), ("S", "injury"), ("U", "status"), ("V", "injury"), ("Z", "status"),
)  # fmt: skip
_PATHS = {
    "cardiovascular": "cardiovascular", "pulmonary": "respiratory", "renal": "renal",
    "gastrointestinal": "digestive", "neurologic": "neurological", "endocrine": "metabolic",
    "infectious diseases": "infection", "hematology": "blood", "oncology": "neoplasm",
    "burns/trauma": "injury", "toxicology": "injury", "musculoskeletal": "musculoskeletal",
    "obstetrics": "pregnancy", "genitourinary": "genitourinary", "psychiatry": "mental",
}  # fmt: skip

_PREFIX = re.compile(r"icd(?:9|10):", re.IGNORECASE)
_LIKE_9 = re.compile(r"(\d{3}|V\d{2})(\.?\d{1,2})?|E\d{3}(\.?\d)?")
_ONLY_9 = re.compile(r"[VE].*|\d{5}|\d{3}\.\d+")
"""What no ICD-9 procedure (``3605``, ``36.05``) looks like."""
_LIKE_10 = re.compile(r"[A-Z]\d[0-9A-Z](\.?[0-9A-Z]{1,4})?")
_ATC = re.compile(r"[A-Z]\d\d[A-Z]{1,2}(\d\d)?")
_OTHER_MODES = re.compile(r"proc|cpt|hcpcs|drug|med|lab|atc", re.IGNORECASE)
_MOST = 0.8


def chapters(mode: str, codes: Sequence[str]) -> list[str]:
    """Word of `SYSTEMS` for each code of a mode; empty where the code is of no known kind.

    Parameters
    ----------
    mode : str
        Its name: procedures and drugs are never taken for diagnoses.
    codes : sequence of str
        All of the mode, since one alone does not say what it is of: ``4019`` is hypertension among
        diagnoses, and 40.19 among procedures.
    """
    by_path = [_PATHS.get(code.split("|", 1)[0].lower(), "") for code in codes]
    if any(by_path) and all("|" in code for code in codes):
        return by_path
    bare = [_PREFIX.sub("", code).upper() for code in codes]
    if not codes or _OTHER_MODES.search(mode) or _share(_ATC, bare) > 1 - _MOST:
        return [""] * len(codes)
    if _share(_LIKE_9, bare) >= _MOST and any(map(_ONLY_9.fullmatch, bare)):
        return [_begun(_ICD9, code) if _LIKE_9.fullmatch(code) else "" for code in bare]
    if _share(_LIKE_10, bare) >= _MOST and len({code[0] for code in bare}) > 2:
        return [_begun(_ICD10, code) if _LIKE_10.fullmatch(code) else "" for code in bare]
    return [""] * len(codes)


def _share(pattern: re.Pattern[str], codes: Sequence[str]) -> float:
    return sum(pattern.fullmatch(code) is not None for code in codes) / len(codes)


def _begun(starts: Sequence[tuple[str, str]], code: str) -> str:
    """Word of the last chapter that begins at or before the code."""
    place = bisect_right([first for first, _ in starts], code) - 1
    return starts[place][1] if place >= 0 else ""
