"""`dpfact data events`, as a hospital's data engineer uses it."""

import json
import shlex
from functools import partial

import pytest

from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, DPFactError, SettingsError
from tests.commands import dpfact

pytestmark = pytest.mark.slow


data_events = partial(dpfact, "data", "events")


@pytest.fixture
def tables(tmp_path):
    """The tables from the command's help, and tables for a simulation."""
    (tmp_path / "p.csv").write_text("patient,time,code\n17,2024-03-01,3605\n18,2024-03-01,40\n")
    (tmp_path / "d.csv").write_text(
        "patient,time,code\n17,2024-03-05 09:30,41401\n18,2024-05-01,4019\n"
    )
    (tmp_path / "sites.csv").write_text("patient,site\n17,a\n18,b\n")
    return ["--mode", f"procedures={tmp_path}/p.csv", "--mode", f"diagnoses={tmp_path}/d.csv",
            "--out", tmp_path / "out"]  # fmt: skip


def test_the_example_of_the_help(tables, tmp_path):
    text = data_events("--help")
    for line in (tmp_path / "p.csv").read_text().splitlines()[:2]:
        assert line in text
    data_events("--name", "north", *tables)
    site = SiteData.load(tmp_path / "out" / "north.npz")
    assert (site.name, site.patients, site.tensor.values.tolist()) == ("north", ("17",), [1])
    assert [v.codes[0] for v in site.vocabularies] == ["3605", "4019"]


def test_sites_make_a_cohort_for_simulation(tables, tmp_path):
    sites = tmp_path / "sites.csv"
    data_events("--name", "two", "--sites", sites, "--window", 90, "--top", "2x1", *tables)
    cohort = Cohort.load(tmp_path / "out")
    assert cohort.name == "two"
    assert [len(v) for v in cohort.vocabularies] == [2, 1]
    assert [site.name for site in cohort.sites] == ["b"]  # the only code kept is 4019


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--mode", "procedures"], "--mode: need NAME=FILE, got 'procedures'"),
        (["--mode", "procedures=x.csv"], "--mode: procedures is given twice"),
        (["--top", "2y2"], "--top: need numbers of codes, such as 202x316"),
        (["--top", "5"], r"for procedures, diagnoses, as in 5x5; got \(5,\)"),
        (["--window", "0"], r"p\.csv: lacks the column\(s\) encounter"),
    ],
)
def test_errors_are_one_clear_line(arguments, says, tables, tmp_path):
    with pytest.raises(DPFactError, match=says):
        data_events("--name", "north", *tables, *arguments)
    assert not (tmp_path / "out").exists()


def test_tables_with_columns_of_their_own_and_files_by_a_pattern(tables, tmp_path):
    header = "pid;started;drug\n"
    (tmp_path / "rx_1.csv").write_text(header + "17;01.03.2024;a\n")
    (tmp_path / "rx_2.csv").write_text(header + "17;02.03.2024;b\n")
    (tmp_path / "d.csv").write_text("patient;time;code\n17;2024-03-05;41401\n")
    (tmp_path / "r.csv").write_text("patient;again\n17;yes\n")
    data_events(
        "--name", "north", "--out", tmp_path / "out", "--mode",
        f"drugs={tmp_path}/rx_*.csv,patient=pid,time=started,time-format=%d.%m.%Y,code=drug",
        "--mode", f"diagnoses={tmp_path / 'd.csv'}",
        "--label", f"readmitted={tmp_path / 'r.csv'},column=again",
    )  # fmt: skip
    site = SiteData.load(tmp_path / "out" / "north.npz")
    assert site.vocabularies[0].codes == ("a", "b")
    assert site.labels["readmitted"].tolist() == [1]


def test_the_table_of_sites_may_have_columns_of_its_own(tables, tmp_path):
    sites = tmp_path / "homes.csv"
    sites.write_text((tmp_path / "sites.csv").read_text().replace("patient,site", "Fall,Haus"))
    with pytest.raises(DPFactError, match=r"; try --sites .*,patient=COLUMN,site=COLUMN"):
        data_events("--name", "two", "--sites", sites, "--window", 90, *tables)
    named = f"{sites},patient=Fall,site=Haus"
    data_events("--name", "two", "--sites", named, "--window", "90", *tables)
    assert {path.stem for path in (tmp_path / "out").glob("*.npz")} == {"a", "b"}


def test_columns_with_other_names_are_read_as_the_error_says(tables, tmp_path):
    other = tmp_path / "other names.csv"
    lines = (tmp_path / "d.csv").read_text().splitlines()[1:]
    other.write_text("\n".join(["Subject_ID,charttime,icd9_code,dob", *(f"{x},a" for x in lines)]))
    first, out = tables[:2], tables[4:]
    with pytest.raises(DPFactError, match="; try --mode ") as caught:
        data_events("--name", "north", *first, "--mode", f"diagnoses={other}", *out)
    worked = shlex.split(str(caught.value).partition("try --mode ")[2])
    assert "patient=Subject_ID,code=icd9_code" in worked[0]
    data_events("--name", "north", *first, "--mode", *worked, *out)
    data_events("--name", "south", *tables[:-1], tmp_path / "same")
    one, same = (SiteData.load(tmp_path / x) for x in ("out/north.npz", "same/south.npz"))
    assert one.fingerprint == same.fingerprint


def test_a_german_table_with_two_columns_of_codes_is_read_as_the_errors_say(tmp_path):
    table = tmp_path / "F\u00e4lle 2024.csv"
    table.write_text(
        "Patientennummer;Fall-Nr.;Aufnahmedatum;Hauptdiagnose (ICD-10);Prozedur (OPS);Größe\n"
        "1;a;2024-05-01;I21.0;5-123;170\n",
        encoding="utf-8",
    )
    modes = {"diagnoses": f"diagnoses={table}", "procedures": f"procedures={table}"}

    def read():
        given = (f"--mode={text}" for text in modes.values())
        data_events("--name", "nord", "--out", tmp_path / "out", *given)

    for mode in modes:
        with pytest.raises(DPFactError, match="; try --mode ") as caught:
            read()
        (modes[mode],) = shlex.split(str(caught.value).partition("try --mode ")[2])
    read()
    found = SiteData.load(tmp_path / "out" / "nord.npz").vocabularies
    assert [v.codes for v in found] == [("I21.0",), ("5-123",)]


def test_what_was_read_is_printed_and_kept_beside_the_cohort(tables, tmp_path):
    text = data_events("--name", "north", *tables)
    lines = json.loads((tmp_path / "out" / "cohort.json").read_text("utf-8"))["read_report"]
    assert ["p.csv", "rows", 2] in lines
    assert ["patients", "kept", 1] in lines
    assert all(what in text for _, what, _ in lines if len(what) < 20)
    assert "p.csv" in dpfact("data", "show", tmp_path / "out")


def test_a_used_folder_is_refused_and_replaced_by_force_alone(tables, tmp_path):
    out = tmp_path / "out"
    data_events("--name", "two", "--sites", tmp_path / "sites.csv", "--window", 90, *tables)
    (out / "notes.txt").write_text("mine")
    before = {path.name for path in out.iterdir()}
    with pytest.raises(SettingsError, match=r"holds a cohort already; .* --force"):
        data_events("--name", "north", *tables)
    assert {path.name for path in out.iterdir()} == before
    (tmp_path / "north.npz").write_text("mine")
    with pytest.raises(SettingsError, match=r"holds north\.npz already; .* --force"):
        data_events("--name", "north", *tables[:-1], tmp_path)
    data_events("--name", "north", "--force", *tables)
    left = {path.name for path in out.iterdir()}
    assert left & {"north.npz", "notes.txt", "b.npz"} == {"north.npz", "notes.txt"}
    (out / "cohort.json").write_text('{"name": "old", "sites": ["north"]}')  # of an old checkout
    with pytest.raises(DataError, match=r"lacks vocabularies, .*; move the folder away, and run"):
        data_events("--name", "north", "--force", "--code", "unread", *tables)


def test_samples_of_synpuf_in_groups(ehr_data, tmp_path):
    groups = ("--group", "north=1,3", "--group", "south=2")
    dpfact("data", "synpuf", ehr_data / "synpuf/inpatient", "--out", tmp_path / "out", *groups)
    assert [site.name for site in Cohort.load(tmp_path / "out").sites] == ["north", "south"]


def test_a_hospital_keeps_to_the_public_code_lists(tables, tmp_path):
    public = {"procedures": ("0", "3605"), "diagnoses": ("0", "41401")}
    for mode, codes in public.items():
        Vocabulary(mode, codes).save(tmp_path / f"{mode}.json")
    data_events("--name", "north", *tables, *(f"--codes={m}={tmp_path / m}.json" for m in public))
    site = SiteData.load(tmp_path / "out" / "north.npz")
    assert {mode.name: mode.codes for mode in site.vocabularies} == public
    assert site.tensor.values.tolist() == [1]
