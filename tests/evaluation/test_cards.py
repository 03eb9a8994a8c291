"""Titles of phenotypes, and the scale that odds are drawn on."""

import math

import pytest

from dpfact_flower.evaluation.model import CodeRow
from dpfact_flower.evaluation.prose import made_titles, phrase
from dpfact_flower.evaluation.report import odds_reach
from dpfact_flower.evaluation.tables import Association

SMALL = (0.95, 0.9, 1.2)


@pytest.mark.parametrize(
    ("found", "reached"),
    [
        ([SMALL], 1.5),
        ([SMALL] * 9 + [(2.1, 1.9, 2.3)], 3),  # every estimate has its place on the scale
        ([SMALL] * 9 + [(0.1, 0.01, 1.4)], 1.5),  # but one that would squeeze all others
        ([(0.5, 0.3, 1.4)] * 2, 5),
        ([(0.001, 1e-9, 50.0)], 10),
        ([], 1.5),
    ],
)
def test_the_scale_has_room_for_estimates_and_for_most_intervals(found, reached):
    logs = [[math.log(value) for value in odds] for odds in found]  # odds ratio, its interval
    assert odds_reach(Association(c, 0.01, None, (low, high)) for c, low, high in logs) == reached


def made(*phenotypes):
    """Titles of phenotypes: of each mode its codes' names, with their weights where not 1."""
    rows = {}
    for number, modes in enumerate(phenotypes, start=1):
        rows[number] = {}
        for mode, names in modes.items():
            own = dict.fromkeys(names, 1.0) if isinstance(names, tuple) else names
            rows[number][mode] = [
                CodeRow(number, "", mode, place, f"C-{name}", name, w, w / sum(own.values()), 2.0)
                for place, (name, w) in enumerate(own.items(), start=1)
            ]
    return list(made_titles(rows).values())


def test_titles_put_diagnoses_before_treatments():
    own = {"procedures": ("Insertion of stent",), "diagnoses": ("Heart attack", "Heart failure")}
    assert made(own) == ["Heart attack or heart failure with insertion of stent"]
    own = {"drugs": ("Insulin",), "principal": {"A": 9, "B": 8, "C": 4, "D": 1}}
    assert made(own) == ["A, B or others with insulin"]
    assert made({"dx": {"A": 9, "B": 2}}) == ["A"]  # less than a third of the largest


def test_titles_leave_out_what_leads_many_phenotypes_unless_nothing_else_does():
    several = [{"dx": {name: 1.0, "Hypertension": 1.0}} for name in "ABCD"]
    assert made(*several, {"dx": ("Hypertension",)}) == ["A", "B", "C", "D", "Hypertension"]
    weak = [{"dx": {"Hypertension": 1.0, name: 0.4}, "px": (f"P{name}",)} for name in "ABCD"]
    assert made(*weak) == [f"P{name}" for name in "ABCD"]  # 0.4 is too little to be a title


def test_no_two_phenotypes_have_one_title():
    pairs = (("Stroke", "A"), ("Stroke", "B"), ("C", "A"), ("D", "A"), ("E", "B"), ("F", "B"))
    found = made(*({"dx": pair} for pair in pairs))
    assert found == ["Stroke or A", "Stroke or B", "C", "D", "E", "F"]  # A and B are common
    assert made(*[{"dx": ("Stroke",)}] * 2) == ["Stroke (1)", "Stroke (2)"]
    both = {"principal": ("Stroke",), "secondary": ("Stroke", "Coma")}
    assert made(both) == ["Stroke with coma"]


@pytest.mark.parametrize(
    ("description", "said"),
    [
        ("Pneumonia, organism NOS", "pneumonia, organism"),
        ("Other and unspecified hyperlipidemia", "hyperlipidemia"),
        ("Atrial fibrillation, unspecified site", "atrial fibrillation"),
        ("infectious|sepsis|sepsis|severe", "sepsis – severe"),
        ("AMI of wall", "AMI of wall"),  # a capital that is no beginning of a sentence stays
        ("NOS", "C1"),
        ("", "C1"),
    ],
)
def test_a_codes_name_is_said_without_fillers(description, said):
    assert phrase(description, "C1") == said
