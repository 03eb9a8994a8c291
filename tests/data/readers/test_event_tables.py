import bz2
import gzip
import logging
import os
import shlex
from dataclasses import replace

import pytest

from dpfact_flower.data.readers import event_tables as events
from dpfact_flower.data.tables import Dialect
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError
from tests.data.readers.cells import cells_of

pytestmark = pytest.mark.slow

# Patient 1: 3605 with 41401 exactly 30 days later, and with 4019 a minute later still. Patient 2:
# 40 twice on one day, once a row that is repeated. Patient 3: no diagnosis.
PROCEDURES = (
    "patient,time,encounter,code,description\n"
    "1,2024-01-01 08:00,a,3605,PTCA\n"
    "2,2024-05-05,b,40,\n"
    "2,2024-05-05,b,40,\n"
    "2,2024-05-05 07:00:59,b,40,other\n"
    "3,2024-05-05,c,3605,PTCA\n"
)
DIAGNOSES = (
    "patient,time,encounter,code\n"
    "1,2024-01-31T08:00:00,a,41401\n"
    "1,2024-01-31 08:01,z,4019\n"
    "2,2024-04-20 12:30:00,b,4019\n"
    "2,,b,0040\n"
)
SITES = "patient,site\n1,north\n2,south east\n2,south east\n3,north\n"
LABELS = "patient,died\n1,0\n2,1\n3,1\n4,0\n"


@pytest.fixture
def tables(write):
    return {
        "procedures": write("procedures.csv", PROCEDURES),
        "diagnoses": write("diagnoses.csv", DIAGNOSES),
    }


def assert_same_sites(found, expected):
    assert [v.codes for v in found.vocabularies] == [v.codes for v in expected.vocabularies]
    for one, other in zip(found.sites, expected.sites, strict=True):
        assert (one.name, one.patients) == (other.name, other.patients)
        assert one.fingerprint == other.fingerprint
        for name in one.labels.keys() & other.labels.keys():
            assert one.labels[name].tolist() == other.labels[name].tolist()


def test_a_window_of_days(tables):
    cohort = events.read(tables, "north")
    assert cells_of(cohort) == {("north", "1", "3605", "41401"): 1, ("north", "2", "40", "4019"): 2}
    assert cohort.name == "north"
    procedures, diagnoses = cohort.vocabularies
    assert (procedures.name, procedures.codes) == ("procedures", ("3605", "40"))
    assert procedures.descriptions == ("PTCA", "other")
    assert diagnoses.codes == ("4019", "0040", "41401")


def test_the_same_encounter(tables):
    assert cells_of(events.read(tables, "north", window_days=None)) == {
        ("north", "1", "3605", "41401"): 1,
        ("north", "2", "40", "4019"): 2,
        ("north", "2", "40", "0040"): 2,
    }


def test_other_columns_of_the_encounter_and_of_no_time(tables):
    whole_patients = events.Columns(encounter="Patient")
    found = cells_of(events.read(tables, "north", columns=whole_patients, window_days=None))
    assert found["north", "1", "3605", "4019"] == 1  # of other encounters
    untimed = events.read(tables, "north", columns=events.Columns(time=""), window_days=None)
    assert cells_of(untimed)["north", "2", "40", "4019"] == 1  # times tell no events apart


def test_a_code_is_described_by_the_text_that_most_often_goes_with_it(tables):
    tables["diagnoses"].write_text(
        "patient,time,code,description\n"
        + "".join(f"1,2024-01-0{n},x,{text}\n" for n, text in enumerate("abbcc", start=1))
    )
    (description,) = events.read(tables, "north").vocabularies[1].descriptions
    assert description == "b"


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("2024-05-06 07:00:59.9", "2024-05-05 07:00", True),
        ("2024-05-05 07:00:59", "2024-05-06 07:01", False),
        ("1969-12-30 23:59:30", "1970-01-01", False),
    ],
)
def test_times_are_cut_to_the_minute(one, other, together, tables):
    header, always = "patient,time,code\n", "2,2024-01-01,x\n"
    tables["procedures"].write_text(f"{header}1,{one},x\n{always}")
    tables["diagnoses"].write_text(f"{header}1,{other},x\n{always}")
    (site,) = events.read(tables, "north", window_days=1).sites
    assert ("1" in site.patients) is together


def test_sites_and_labels(tables, write):
    sites, labels = (
        events.LabelTable(write(f"{name}.csv", text))
        for name, text in (("sites", SITES), ("labels", LABELS))
    )
    cohort = events.read(tables, "region", sites=sites, labels={"died": labels})
    found = [(site.name, site.patients, site.labels["died"].tolist()) for site in cohort.sites]
    assert found == [("north", ("1",), [0]), ("south-east", ("2",), [1])]
    (whole,) = events.read(tables, "north", labels={"died": labels}, keep_empty=True).sites
    assert (whole.patients, whole.labels["died"].tolist()) == (("1", "2", "3"), [0, 1, 1])


def test_patients_outside_the_table_of_sites_are_counted_and_left_out(tables, write, caplog):
    sites = events.LabelTable(write("sites.csv", "patient,site\n2,\n2,nan\n"))
    cohort = events.read(tables, "region", sites=sites)
    assert [(site.name, site.patients) for site in cohort.sites] == [("unknown", ("2",))]
    assert "sites.csv: patients with events who are not in it, left out: 2" in caplog.text
    assert "sites: patients without a site, now at unknown: 1" in caplog.text


LISTS = (Vocabulary("procedures", ("40", "9999")), Vocabulary("diagnoses", ("4019", "41401")))


def test_codes_outside_the_lists_are_counted_and_left_out(tables, caplog):
    cohort = events.read(tables, "north", vocabularies=LISTS)
    assert [v.codes for v in cohort.vocabularies] == [v.codes for v in LISTS]
    assert cohort.vocabularies[1].descriptions[0] == "Unspecified essential hypertension"
    assert cells_of(cohort) == {("north", "2", "40", "4019"): 2}
    assert "procedures: events of codes outside the list, left out: 2" in caplog.text
    assert "diagnoses: events of codes outside the list, left out: 1" in caplog.text
    assert not [odd for odd in ("3605", "0040", "no privacy guarantee") if odd in caplog.text]


# --- refusals


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2024-01-31 08:01", "infinity", "column time must be a date or time like .*; 1 row"),
        ("01-31 08:01", "01-31 08:01 PM", "column time must be a date or time like .*; 1 row"),
        ("01-31 08:01", "01-31 08:01+02", "column time must have an offset from UTC in ev.*; 1 of"),
        ("01-31 08:01", "01-31 08:01Z", "column time must have an offset from UTC in ev.*; 1 of"),
        ("z,4019", 'z,"40\t19"', "column code must be printable text .*; 1 row.*; replace tabs"),
        ("2,,b,0040", ",,b,0040", "column patient must be printable text.*; 1 row"),
        ("z,4019", "NA,4019", "column encounter must be text other than NaN.*; 1 row"),
        ("2,,b", r"\N,,b", "column patient must be printable text.*; 1 row"),
        ("2,,b", "NA,,b", "column patient must be printable text.*; 1 row"),
    ],
)
def test_a_malformed_table_is_named_and_not_quoted(old, new, message, tables):
    path = tables["diagnoses"]
    assert old in DIAGNOSES
    path.write_text(DIAGNOSES.replace(old, new, 1) + "secret,2024-01-01,secret,secret\n")
    with pytest.raises(DataError, match=rf"diagnoses\.csv: {message}") as caught:
        events.read(tables, "north")
    for value in ("secret", "4019", "08:01", "31.01.2024"):
        assert value not in str(caught.value)


def test_a_column_of_any_name_is_looked_for_and_no_sql(tables):
    odd = events.Columns(code='x" FROM events; --', description="it's")
    with pytest.raises(DataError, match=r"lacks the column\(s\) x\" FROM events; --;"):
        events.read(tables, "north", columns=odd)


@pytest.mark.parametrize(
    ("table", "text", "message"),
    [
        ("sites", SITES + ",north\n", "column patient must be printable text.*; 1 row"),
        ("sites", "patient,site\n8,north\n", "no patient is in all of these"),
        ("labels", LABELS.replace("1,0", "1,0.5"), "column died must be 0 or 1 .*; 1 row"),
        ("labels", LABELS + "1,1\n", "column died must be the same in all rows .*; 2 row"),
    ],
)
def test_sites_and_labels_are_checked(table, text, message, tables, write):
    given = events.LabelTable(write(f"{table}.csv", text))
    with pytest.raises(DataError, match=rf"{table}\.csv.*: {message}"):
        events.read(tables, "north", **{table: {"died": given} if table == "labels" else given})


def test_options_are_checked(tables):
    with pytest.raises(SettingsError, match="need procedures, diagnoses in this order"):
        events.read(tables, "north", vocabularies=LISTS[::-1])
    with pytest.raises(SettingsError, match="got 1; give one file for each kind of code"):
        events.read({"procedures": tables["procedures"]}, "north")
    with pytest.raises(SettingsError, match="column time: need a name"):
        events.read(tables, "north", columns=events.Columns(time=""))
    for names in ({"code": "Patient"}, {"patient": "site"}, {"code": " "}):
        with pytest.raises(SettingsError, match=r"names must differ|column code: need"):
            events.Columns(**names)


def test_what_is_not_used_is_logged_in_numbers(tables, caplog):
    with caplog.at_level(logging.DEBUG):
        events.read(tables, "north")
    assert "procedures.csv: repeated rows, each counted once: 1" in caplog.text
    assert "diagnoses.csv: rows without time, left out: 1" in caplog.text
    assert "41401" not in caplog.text


# --- formats found in practice


def cells_with(tables, diagnoses):
    """Cells of patients with other diagnoses."""
    return cells_of(events.read({**tables, "diagnoses": diagnoses}, "north"))


def test_what_may_be_a_mistake_is_counted(tables, write):
    tables["diagnoses"] = write(
        "odd.csv",
        "patient,time,code\n1,0024-01-01,0389\n1,2024-01-01,389\n1,2024-01-01,38.9\n"
        '2,2024-05-05,"' + "NaCl 0,45 " * 9 + '"\n2,2024-05-05,4019\n02.0,2024-05-05,NA\n'
        '1.23457E+17,2024-05-05,?\n2,2024-05-05,"E11.9, I10"\n2,2024-05-05,"=""0040"""\n',
    )
    found, differ = events.read(tables, "north").read_report, "differ from another only in leading"
    rounded = "identifiers like 1E+17, or that differ only in leading zeros, a final .0 or case"
    assert {
        ("odd.csv", "rows of a year before 1900 or after 2300", 1),
        ("diagnoses", "codes of more than 60 characters", 1),
        ("diagnoses", "codes NA, which may be a missing value", 1),
        ("diagnoses", "codes without a letter or digit", 1),
        ("diagnoses", "codes that look like lists or formulas (I10;E11, ['I10'], =I10)", 2),
        ("patients", rounded, 3),
        ("diagnoses", f"codes that {differ} zeros, dots or case", 3),
    } <= set(found)
    what = "events, all of which are also in procedures"
    assert what not in {said for _, said, _ in found}
    tables["diagnoses"] = tables["procedures"]
    assert ("diagnoses", what, 4) in events.read(tables, "north").read_report
    mixed = "\n1,2024-01-01,".join(["patient,time,code", "I10", "E11.9", "N17", "J18", "486"])
    tables["diagnoses"] = write("mixed.csv", mixed)
    what = "codes of the other ICD version (to mix both, begin codes with icd9: or icd10:)"
    for how in {}, {"diagnoses": "icd3"}:
        assert ("diagnoses", what, 1) in events.read(tables, "n", rolled_up=how).read_report


def test_semicolons_tabulators_and_headers_in_any_script(tables, write):
    text = "Größe;Médicament;Дата\n1;41401;2024-01-31\n"
    columns = events.Columns(patient="größe", code="MÉDICAMENT", time="дата")
    for delimiter in ";\t|~":
        dialect = Dialect(delimiter="~") if delimiter == "~" else Dialect()  # others are found
        table = events.EventTable([write("d.csv", text.replace(";", delimiter))], columns, dialect)
        assert ("north", "1", "3605", "41401") in cells_with(tables, table)


@pytest.mark.parametrize(
    ("form", "time"),
    [
        ("%d.%m.%Y", "31.01.2024"),
        ("%m/%d/%y %I:%M %p", "01/31/24 07:59 AM"),
        ("%d-%b-%Y", "31-Jan-2024"),
    ],
)
def test_times_as_a_format_says(form, time, tables, write):
    file = write("d.csv", f"patient,time,code\n1,{time},x\n")
    table = events.EventTable([file], time_format=form)
    assert ("north", "1", "3605", "x") in cells_with(tables, table)
    write("d.csv", "patient,time,code\n1,2024-13-99x,x\n")
    with pytest.raises(DataError, match=rf"must be a time in the format {form.split()[0]}.*; 1 "):
        cells_with(tables, table)
    for wrong, says in ("%Y-%m-%d %I:%M", "%I needs %p"), ("Y-%m-%d", "need a year, a month and a"):
        with pytest.raises(SettingsError, match=f"time format: {says}"):
            events.EventTable([file], time_format=wrong)
    with pytest.raises(SettingsError, match="time format: '%Y-%m-%d %q' has an unknown % code"):
        cells_with(tables, events.EventTable([file], time_format="%Y-%m-%d %q"))


def test_a_pipe_is_refused_because_its_first_rows_would_be_lost(tables, tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match=r"pipe\.csv: is not a file; write its content to a file"):
        cells_with(tables, tmp_path / "pipe.csv")


def test_codes_in_both_forms_of_unicode_are_one(tables, write):
    """An accent may be a separate character, as in text from a Mac."""
    rows = "patient,time,cod\u00e9\n1,2024-01-31,\u00e91\n1,2024-01-31,e\u03011\n"
    columns = events.Columns(code="cod\u00e9", encounter="")
    file = write("d.csv", rows.replace("cod\u00e9", "code\u0301"))
    tables["diagnoses"] = events.EventTable([file], columns)
    assert events.read(tables, "own").vocabularies[1].codes == ("\u00e91",)
    known = (Vocabulary("procedures", ("3605",)), Vocabulary("diagnoses", ("e\u03011",)))
    (site,) = events.read(tables, "own", vocabularies=known).sites
    assert site.tensor.nnz == 1
    with pytest.raises(DataError, match="position 1 is the same as at position 0"):
        Vocabulary("diagnoses", ("\u00e91", "e\u03011"))


def test_offsets_become_utc(tables, write):
    """The first event is at 08:00, so the window ends 30 days later at 08:00 UTC."""
    rows = "1,2024-01-31T10:00:00+02:00,in\n1,2024-01-31 06:01-02,out\n1,2024-01-31 08:00Z,in2\n"
    rows += "1,2024/01/31 08:00:00.5 UTC,in3\n1,2024/01/31 08:01 UTC,out2\n"  # as BigQuery exports
    file = write("p.csv", "patient,time,code\n1,2024-01-01 09:00 +01,3605\n1,,40\n")
    tables["procedures"] = events.EventTable([file], time_format="%Y-%m-%d %H:%M %z")
    cohort = events.read(tables | {"diagnoses": write("d.csv", "patient,time,code\n" + rows)}, "n")
    assert {code for *_, code in cells_of(cohort)} == {"in", "in2", "in3"}
    assert [n for _, what, n in cohort.read_report if "converted to UTC" in what] == [1, 5]


def test_several_files_of_one_mode_count_a_repeated_event_once(tables, write):
    one = write("d1.csv", "patient,time,code\n1,2024-01-31,x\n")
    two = write("d2.csv", "patient,time,code\n1,2024-01-31,x\n1,2024-01-30,x\n")
    cohort = events.read({**tables, "diagnoses": events.EventTable([one, two])}, "north")
    assert cells_of(cohort)["north", "1", "3605", "x"] == 2
    assert ("d2.csv", "repeated rows, each counted once", 1) in cohort.read_report


def test_a_label_of_any_column_and_patients_who_are_not_in_its_table(tables, write, caplog):
    file = write("readmitted.csv", "ID;Readmitted\n1;Yes\n4;no\n")
    table = events.LabelTable(file, "readmitted", "id", missing="0")
    (site,) = events.read(tables, "north", labels={"back": table}).sites
    assert (site.patients, site.labels["back"].tolist()) == (("1", "2"), [1, 0])
    died = events.LabelTable(write("labels.csv", LABELS))
    (site,) = events.read(tables, "north", labels={"died": died, "back": table}).sites
    found = {name: values.tolist() for name, values in site.labels.items()}
    assert found == {"died": [0, 1], "back": [1, 0]}
    both = dict.fromkeys(["position", "Position"], table)
    assert events.read(tables, "north", labels=both).labels == (*both,)
    with pytest.raises(DataError, match="column id must hold every patient; 2 patient"):
        events.read(tables, "north", labels={"back": replace(table, missing="")})
    with pytest.raises(SettingsError, match="label: missing must be"):
        replace(table, missing="2")
    write("readmitted.csv", "ID,Readmitted\n01,1\n")
    what = "patients not in it, labelled 0, which are all patients"
    assert (file.name, what, 3) in events.read(tables, "n", labels={"back": table}).read_report
    assert ("WARNING", f"{file.name}: {what}: 3") in [
        (r.levelname, r.message) for r in caplog.records
    ]


# --- files from other programs: each is read, or refused in one line


P = b"patient,time,code\n1,2024-01-01,3605\n2,2024-01-02,40\n"
D = "patient,time,code\n1,2024-01-05,41401\n2,2024-01-06,4019\n"
CELLS = {("north", "1", "3605", "41401"): 1, ("north", "2", "40", "4019"): 1}

READ = {
    "a trailing delimiter": D.replace("\n", ",\n").encode(),
    "Excel's line of the separator":
        ("sep=;\n" + D.replace(",", ";")).replace("\n", "\r\n").encode(),
    "everything quoted, with blanks":
        b'"patient" ,"time","code"\n" 1","2024-01-05 ","41401"\n"2","2024-01-06","4019"\n',
    "a quoted newline in a column that is not read":
        b'patient,note,time,code\n1,"two\nlines, and ""quotes""",2024-01-05,41401\n'
        b"2,,2024-01-06,4019\n",
    "a newline in the header":
        b'patient,"free\ntext",time,code\n1,,2024-01-05,41401\n2,,2024-01-06,4019\n',
    "gzip in two parts": gzip.compress(D[:30].encode()) + gzip.compress(D[30:].encode()),
    "a decimal comma in the seconds":
        D.replace("2024-01-05", '"2024-01-05 10:00:00,25"').encode(),
    "thousands separators in a column that is not read":
        D.replace("code", 'code,"cost"').replace("41401", '41401,"1,234.50"')
        .replace("4019", "4019,0").encode(),
}  # fmt: skip
REFUSED = {
    "a very long line": ("d.csv", (D + "2" * 2_100_000).encode(), "more than 2 MB; .*is row 4"),
    "zstd": ("d.csv.zst", b"\x28\xb5\x2f\xfd" + bytes(20), "save a workbook or archive"),
    "bzip2": ("d.csv.bz2", bz2.compress(D.encode()), "save a workbook or archive"),
    "an Excel workbook": ("d.csv", b"PK\x03\x04" + bytes(30), "save a workbook or archive"),
    "big-endian UTF-16": ("d.csv", ("\ufeff" + D).encode("utf-16-be"), "--encoding latin-1, or u"),
    "UTF-16": ("d.csv", D.encode("utf-16"), r"not utf-8; .*as UTF-8 \(dpfact data events also rea"),
    "files put one behind the other, header and all": (
        "d.csv", (D + D).encode(), r"d\.csv: 1 row\(s\) repeat the names of .*; delete these"
    ),
    "a title above the header": (
        "d.csv", b"Report of May 2024\n" + D.encode(), "lacks the column.*does its first line"
    ),
    "an error of Excel in place of a code": (
        "d.csv", D.replace("4019", "#N/A").encode(), "column code must be printable text.*1 row"
    ),
    "Windows' quotes": (
        "d.csv", D.replace("4019", "x").encode().replace(b"x", b"\x93x\x94"),
        r"text that is not UTF-8 \(save it as UTF-8; .* has --encoding\); the first is row 3",
    ),
}  # fmt: skip


def read(tmp_path, name, content, encoding="utf-8"):
    (tmp_path / "p.csv").write_bytes(P)
    (tmp_path / name).write_bytes(content)
    table = events.EventTable([tmp_path / name], dialect=Dialect(encoding=encoding))
    return events.read({"procedures": tmp_path / "p.csv", "diagnoses": table}, "north")


@pytest.mark.parametrize("what", READ)
def test_it_is_read(what, tmp_path):
    name = "d.csv.gz" if "gzip" in what else "d.csv"
    assert cells_of(read(tmp_path, name, READ[what])) == CELLS


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_in_one_line(what, tmp_path, caplog):
    name, content, says = REFUSED[what]
    with caplog.at_level(logging.DEBUG), pytest.raises(DataError, match=says) as caught:
        read(tmp_path, name, content)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "4019" not in str(caught.value) + caplog.text


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        ("Patienten-Nr,Schlüssel,Datum", "patient=Patienten-Nr,code=Schlüssel,time=Datum"),
        ("Nummer,Kürzel,wann", "patient=COLUMN,code=COLUMN,time=COLUMN"),
        ("patient,Kürzel,Datum", "code=COLUMN,time=Datum"),
        ("Personal,Diagnose Asthma,x", "patient=COLUMN,code=COLUMN,time=COLUMN"),  # a patient's
        ("Personal,Drug,Sunday,May 2024", "patient=COLUMN,code=COLUMN,time=COLUMN"),
        ("patient,icd10,kind", "code=icd10,time=COLUMN"),
    ],
)
def test_other_names_of_columns_have_a_way_out_that_quotes_no_patient(tmp_path, header, hint):
    with pytest.raises(DataError) as caught:
        read(tmp_path, "d.csv", header.encode())
    said, *no_dates = str(caught.value).partition("; try --mode ")[2].split(" (no dates? ")
    assert shlex.split(said) == [f"diagnoses={tmp_path}/d.csv,{hint}"]
    assert bool(no_dates) is ("kind" in header)


@pytest.mark.parametrize("mark", ["", "\ufeff", "sep=,\n"])
def test_no_header_becomes_an_event_or_a_site(mark, tables, write):
    rows = "Patient,Encounter,code\n1,e,x\n"
    tables["diagnoses"] = write("d.csv", mark + rows + rows.upper() + rows)
    with pytest.raises(DataError, match=r"d\.csv: 2 row\(s\) repeat the names of the columns"):
        events.read(tables, "north", window_days=None)
    tables["diagnoses"] = write("e.csv", D)
    sites = events.LabelTable(write("sites.csv", SITES + "patient,site\n4,east\n"))
    with pytest.raises(DataError, match=r"sites\.csv: 1 row.*columns; delete these"):
        events.read(tables, "north", sites=sites)


@pytest.mark.parametrize(
    ("text", "encoding", "name"),
    [("\ufeff" + D, "utf-16-le", "utf-16"), ("\ufeff" + D, "utf-16-be", "utf-16"),
     (D.replace("\n", ",n€\n"), "cp1252", "windows-1252")],
)  # fmt: skip
def test_another_encoding_is_read_where_it_is_named(text, encoding, name, tmp_path):
    content = text.encode(encoding)
    assert cells_of(read(tmp_path, "d.csv", content, name)) == CELLS
    with pytest.raises(DataError, match=r"d\.csv: not readable .*is it cut off.* not in .*for all"):
        read(tmp_path, "d.csv", content + b"\x81", name)
    with pytest.raises(DataError, match="not UTF-16 with a byte order mark: use UTF-8"):
        read(tmp_path, "d.csv", D.encode("utf-16-le"), "utf-16")
