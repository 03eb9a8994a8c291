"""Words for codes, and titles made of them."""

import pytest

from dpfact_flower.evaluation.chapters import SYSTEMS, chapters
from dpfact_flower.evaluation.export import CodeRow
from dpfact_flower.evaluation.titles import phrase, relevance, title

ICD9 = {
    "038.9": "infection", "174": "neoplasm", "250.4": "metabolic", "2859": "blood",
    "311": "mental", "34590": "neurological", "36201": "eye and ear", "41401": "cardiovascular",
    "486": "respiratory", "5789": "digestive", "585.6": "renal", "599.0": "genitourinary",
    "650": "pregnancy", "682": "skin", "715": "musculoskeletal", "745": "congenital",
    "765": "perinatal", "786.5": "symptoms", "996": "injury", "V45.11": "status", "E849": "injury",
}  # fmt: skip
ICD10 = {
    "A41.9": "infection", "C50": "neoplasm", "D47": "neoplasm", "D64.9": "blood",
    "E11.22": "metabolic", "I10": "cardiovascular", "N18.6": "renal", "N39.0": "genitourinary",
    "T88": "injury", "U07.1": "status", "V89": "injury", "Z99.2": "status",
    "M1A": "musculoskeletal",
}  # fmt: skip


@pytest.mark.parametrize("codes", [ICD9, ICD10], ids=["ICD-9", "ICD-10"])
def test_a_diagnosis_has_the_word_of_its_chapter(codes):
    assert chapters("diagnoses", list(codes)) == list(codes.values())
    prefixed = [f"icd{9 if codes is ICD9 else 10}:{code}" for code in codes]
    assert chapters("diagnoses", prefixed) == list(codes.values())
    assert set(codes.values()) <= set(SYSTEMS)


def test_a_path_names_its_system_itself():
    codes = ["renal|dialysis|hemodialysis", "pulmonary|medications|steroids", "surgery|drains"]
    assert chapters("treatments", codes) == ["renal", "respiratory", ""]


@pytest.mark.parametrize(
    ("mode", "codes"),
    [
        ("interventions", ["3605", "966", "3961", "9604"]),  # ICD-9 procedures
        ("procedures", list(ICD9)),
        ("interventions", ["0DTJ4ZZ", "02100Z9", "B211YZZ", "5A1D70Z"]),  # ICD-10-PCS
        ("treatments", ["A10BA02", "C09AA05", "B01AC06", "N02BE01"]),  # ATC
        ("diagnoses", ["D001", "D147", "D150"]),  # a list of somebody's own
        ("diagnoses", []),
    ],
)
def test_what_may_be_of_another_kind_has_no_word(mode, codes):
    assert chapters(mode, codes) == [""] * len(codes)


def row(mode, code, text, share, lift=2.0):
    return CodeRow(3, "", mode, 1, code, text, share, share, lift)


RENAL = [
    row("procedures", "3995", "Hemodialysis", 0.6),
    row("procedures", "9604", "Insertion of endotracheal tube", 0.3, lift=0.2),
    row("diagnoses", "5856", "End stage renal disease", 0.5),
    row("diagnoses", "40391", "Hy kid NOS w cr kid V", 0.2),
]


def test_a_title_has_the_system_and_the_most_relevant_code_of_each_mode():
    system = {("diagnoses", "5856"): "renal", ("diagnoses", "40391"): "cardiovascular"}
    assert title(RENAL, system) == "renal: hemodialysis, end stage renal disease"
    assert title(RENAL, {}) == "hemodialysis, end stage renal disease"
    assert title(reversed(RENAL), system).startswith("renal: ")
    assert title([], {}) == ""


def test_a_system_without_a_majority_is_not_in_the_title():
    halves = [row("diagnoses", "585", "CKD", 0.4), row("diagnoses", "428", "Heart failure", 0.6)]
    system = {("diagnoses", "585"): "renal", ("diagnoses", "428"): "cardiovascular"}
    assert title(halves, system).startswith("cardiovascular: ")
    even = [row("diagnoses", code, "x", 0.5) for code in ("585", "428")]
    assert ":" not in title(even, system)


def test_a_code_of_small_share_gives_no_title_whatever_its_lift():
    rare = row("diagnoses", "657", "Polyhydramnios", 0.01, lift=10.0)
    common = row("diagnoses", "414", "Chr ischemic hrt dis NOS", 0.5, lift=1.1)
    assert relevance(rare, 0.2) > relevance(common, 0.2)
    assert title([rare, common], {}).startswith("chr ischemic hrt dis")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Heart failure NOS", "heart failure"), ("AMI NOS, unspecified", "AMI"), ("", "4280"),
        ("infectious diseases|systemic|sepsis|severe", "sepsis – severe"),
        ("renal|dialysis|hemodialysis", "hemodialysis"),
        ("Hypertensive chronic kidney disease, benign", "hypertensive chronic kidney…"),
    ],
)  # fmt: skip
def test_a_description_is_put_in_a_few_words(text, shown):
    assert phrase(row("diagnoses", "4280", text, 0.5)) == shown
