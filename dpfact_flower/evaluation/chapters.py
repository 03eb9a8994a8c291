"""What body system a code belongs to, in one word: for colours, and for titles of phenotypes.

ICD-9-CM and ICD-10 order their codes by chapter (`dpfact_flower.data.icd`). Paths such as eICU's
``renal|dialysis|hemodialysis`` name their system themselves. A mode whose codes are of neither
kind, or may be of another (procedures, drugs), has no chapters: a word that misleads is worse than
none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dpfact_flower.data.icd import FORMS, parts, system

SYSTEMS = (
    "infection", "neoplasm", "metabolic", "blood", "mental", "neurological", "eye and ear",
    "cardiovascular", "respiratory", "digestive", "renal", "genitourinary", "pregnancy", "skin",
    "musculoskeletal", "congenital", "perinatal", "symptoms", "injury", "status",
)  # fmt: skip
"""All words that `chapters` gives; a page has a colour for each."""

_PATHS = {
    "cardiovascular": "cardiovascular", "pulmonary": "respiratory", "renal": "renal",
    "gastrointestinal": "digestive", "neurologic": "neurological", "endocrine": "metabolic",
    "infectious diseases": "infection", "hematology": "blood", "oncology": "neoplasm",
    "burns/trauma": "injury", "toxicology": "injury", "musculoskeletal": "musculoskeletal",
    "obstetrics": "pregnancy", "genitourinary": "genitourinary", "psychiatry": "mental",
}  # fmt: skip

_ONLY_9 = re.compile(r"[VE].*|\d{5}|\d{3}\.\d+")
"""What no ICD-9 procedure (``3605``, ``36.05``) looks like."""
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
    bare = [parts(code)[1] for code in codes]
    if not codes or _OTHER_MODES.search(mode) or _share(_ATC, bare) > 1 - _MOST:
        return [""] * len(codes)
    if _share(FORMS["9"], bare) >= _MOST and any(map(_ONLY_9.fullmatch, map(_unprefixed, codes))):
        return [system("9", code) for code in bare]
    if _share(FORMS["10"], bare) >= _MOST and len({code[0] for code in bare}) > 2:
        return [system("10", code) for code in bare]
    return [""] * len(codes)


def _unprefixed(code: str) -> str:
    return code.rpartition(":")[2].upper()


def _share(pattern: re.Pattern[str], codes: Sequence[str]) -> float:
    return sum(pattern.fullmatch(code) is not None for code in codes) / len(codes)
