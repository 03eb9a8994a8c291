"""Words for codes."""

import pytest

from dpfact_flower.data.code_names import body_systems
from dpfact_flower.data.icd import SYSTEMS

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
    assert body_systems("diagnoses", list(codes)) == list(codes.values())
    prefixed = [f"icd{9 if codes is ICD9 else 10}:{code}" for code in codes]
    assert body_systems("diagnoses", prefixed) == list(codes.values())
    assert set(codes.values()) <= set(SYSTEMS)


def test_a_path_names_its_system_itself():
    codes = ["renal|dialysis|hemodialysis", "pulmonary|medications|steroids", "surgery|drains"]
    assert body_systems("treatments", codes) == ["renal", "respiratory", ""]


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
    assert body_systems(mode, codes) == [""] * len(codes)
