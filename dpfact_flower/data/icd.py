"""Chapters and categories of ICD-9-CM and ICD-10-CM, and the one word for a body system.

A code may say what it is of by a prefix, such as ``icd9:`` or ``icd10:``; dots do not matter. Both
versions order their codes by chapter, so the first code of a chapter says where it begins.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

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


def _chapter(first: str, last: str, system: str, name: str, **others: str) -> Chapter:
    return Chapter(first, last, name, ((first, system), *((at[1:], s) for at, s in others.items())))


CHAPTERS = {
    "9": (
        _chapter("001", "139", "infection", "Infectious and parasitic diseases"),
        _chapter("140", "239", "neoplasm", "Neoplasms"),
        _chapter("240", "279", "metabolic",
                 "Endocrine, nutritional and metabolic diseases, and immunity disorders"),
        _chapter("280", "289", "blood", "Diseases of the blood and blood-forming organs"),
        _chapter("290", "319", "mental", "Mental disorders"),
        _chapter("320", "389", "neurological",
                 "Diseases of the nervous system and sense organs", _360="eye and ear"),
        _chapter("390", "459", "cardiovascular", "Diseases of the circulatory system"),
        _chapter("460", "519", "respiratory", "Diseases of the respiratory system"),
        _chapter("520", "579", "digestive", "Diseases of the digestive system"),
        _chapter("580", "629", "renal",
                 "Diseases of the genitourinary system", _594="genitourinary"),
        _chapter("630", "679", "pregnancy",
                 "Complications of pregnancy, childbirth, and the puerperium"),
        _chapter("680", "709", "skin", "Diseases of the skin and subcutaneous tissue"),
        _chapter("710", "739", "musculoskeletal",
                 "Diseases of the musculoskeletal system and connective tissue"),
        _chapter("740", "759", "congenital", "Congenital anomalies"),
        _chapter("760", "779", "perinatal",
                 "Certain conditions originating in the perinatal period"),
        _chapter("780", "799", "symptoms", "Symptoms, signs, and ill-defined conditions"),
        _chapter("800", "999", "injury", "Injury and poisoning"),
        _chapter("E000", "E999", "injury", "External causes of injury and poisoning"),
        _chapter("V01", "V91", "status",
                 "Factors influencing health status and contact with health services"),
    ),
    "10": (
        _chapter("A00", "B99", "infection", "Certain infectious and parasitic diseases"),
        _chapter("C00", "D49", "neoplasm", "Neoplasms"),
        _chapter("D50", "D89", "blood",
                 "Diseases of the blood and certain disorders involving the immune mechanism"),
        _chapter("E00", "E89", "metabolic", "Endocrine, nutritional and metabolic diseases"),
        _chapter("F01", "F99", "mental", "Mental, behavioural and neurodevelopmental disorders"),
        _chapter("G00", "G99", "neurological", "Diseases of the nervous system"),
        _chapter("H00", "H59", "eye and ear", "Diseases of the eye and adnexa"),
        _chapter("H60", "H95", "eye and ear", "Diseases of the ear and mastoid process"),
        _chapter("I00", "I99", "cardiovascular", "Diseases of the circulatory system"),
        _chapter("J00", "J99", "respiratory", "Diseases of the respiratory system"),
        _chapter("K00", "K95", "digestive", "Diseases of the digestive system"),
        _chapter("L00", "L99", "skin", "Diseases of the skin and subcutaneous tissue"),
        _chapter("M00", "M99", "musculoskeletal",
                 "Diseases of the musculoskeletal system and connective tissue"),
        _chapter("N00", "N99", "renal",
                 "Diseases of the genitourinary system", _N30="genitourinary"),
        _chapter("O00", "O9A", "pregnancy", "Pregnancy, childbirth and the puerperium"),
        _chapter("P00", "P96", "perinatal",
                 "Certain conditions originating in the perinatal period"),
        _chapter("Q00", "QA0", "congenital",
                 "Congenital malformations, deformations and chromosomal abnormalities"),
        _chapter("R00", "R99", "symptoms",
                 "Symptoms, signs and abnormal findings, not elsewhere classified"),
        _chapter("S00", "T88", "injury",
                 "Injury, poisoning and certain other consequences of external causes"),
        _chapter("U00", "U85", "status", "Codes for special purposes"),
        _chapter("V00", "Y99", "injury", "External causes of morbidity"),
        _chapter("Z00", "Z99", "status",
                 "Factors influencing health status and contact with health services"),
    ),
}  # fmt: skip
"""Of each version, in the order of their codes."""

SYSTEMS = tuple(dict.fromkeys(word for chapter in CHAPTERS["9"] for _, word in chapter.systems))
"""All words that `system` gives."""

_STARTS = {
    version: [start for chapter in chapters for start in chapter.systems]
    for version, chapters in CHAPTERS.items()
}


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
    starts = _STARTS[version]
    place = bisect_right([first for first, _ in starts], code) - 1
    return starts[place][1] if place >= 0 and category(version, code) else ""
