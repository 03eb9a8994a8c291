"""OMOP: one CDM in five forms (folder of CSV or Parquet, DuckDB, SQLite, PostgreSQL)."""

import os
import pwd
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from dpfact_flower.data.readers.runner import read
from dpfact_flower.data.sources import open_source
from dpfact_flower.data.tables import Table, connect, count_rows
from dpfact_flower.errors import DataError, MissingDependencyError, SettingsError
from tests.data.readers.cells import cells_of, described
from tests.data.readers.test_event_tables import assert_same_sites
from tests.patience import await_that

pytestmark = pytest.mark.slow

# Person 1: fracture and cast in one visit, amoxicillin (a drug of the ingredient 9). Person 2 dies
# in a visit, and takes a drug without an ingredient. Person 3: only concept 0. Person 9: unknown.
# Person 1 dies the day after an outpatient visit, which is no death in hospital.
TABLES = {
    "person": ("person_id,care_site_id", ["1,7", "2,8", "3,"]),
    "visit_occurrence": (
        "visit_occurrence_id,person_id,visit_start_date,visit_end_date,care_site_id,"
        "visit_concept_id",
        ["11,1,2020-01-01,2020-01-02,8,9201", "22,2,2020-05-01,2020-05-09,8,262",
         "33,3,2020-05-01,,,9201", "44,1,2024-12-31,2024-12-31,8,9202"],
    ),
    "condition_occurrence": (
        "person_id,condition_concept_id,condition_start_date,visit_occurrence_id",
        ["1,100,2020-01-01,11", "1,100,2020-01-01,11", "2,101,2020-05-02,22", "3,0,2020-05-01,33",
         "2,,2020-05-01,22", "9,100,2020-01-01,99"],
    ),
    "procedure_occurrence": (
        "person_id,procedure_concept_id,procedure_date,visit_occurrence_id",
        ["1,200,2020-01-31,11", "1,201,2020-03-01,12", "2,200,2020-05-02,22",
         "3,200,2020-05-01,33"],
    ),
    "drug_exposure": (
        "person_id,drug_concept_id,drug_exposure_start_date,visit_occurrence_id",
        ["1,300,2020-01-01,11", "2,301,2020-05-02,22"],
    ),
    "death": ("person_id,death_date", ["2,2020-05-09", "1,2025-01-01"]),
    "concept": (
        "concept_id,concept_name,concept_class_id",
        ["100,Fracture,Clinical Finding", "101,Sepsis,Clinical Finding", "200,Cast,Procedure",
         "300,amoxicillin 500 MG,Clinical Drug", "301,ointment,Clinical Drug",
         "9,amoxicillin,Ingredient", "10,unused,Ingredient"],
    ),
    "concept_ancestor": (
        "ancestor_concept_id,descendant_concept_id",
        ["9,300", "9,9", "300,300", "301,301", "10,10"],
    ),
    "care_site": ("care_site_id,care_site_name", ["7,North", "8,South"]),
}  # fmt: skip
CELLS = {("1", "200", "100"): 1, ("2", "200", "101"): 1}


def fill(execute, tables=TABLES):
    """Create the tables in any database, with the types of the CDM's own scripts."""
    for table, (header, rows) in tables.items():
        names = header.split(",")
        kinds = ["date" if "date" in n else "varchar(255)" if n.endswith(("name", "class_id"))
                 else "integer" for n in names]  # fmt: skip
        columns = ", ".join(f"{n} {k}" for n, k in zip(names, kinds, strict=True))
        execute(f"CREATE TABLE {table} ({columns})")
        for row in rows:
            values = ", ".join(f"'{v}'" if v else "NULL" for v in row.split(","))
            execute(f"INSERT INTO {table} VALUES ({values})")


@pytest.fixture
def cdm(tmp_path):
    """A folder of CSV files, with names in upper case and NULL, as in many exports."""
    for table, (header, rows) in TABLES.items():
        rows = (re.sub(r"(?<=,)(?=,|$)", "NULL", row) for row in rows)  # noqa: PLW2901
        (tmp_path / f"{table.upper()}.csv").write_text("\n".join([header, *rows, ""]))
    return tmp_path


@pytest.fixture(scope="module")
def postgres():
    """The URL of a test server on a socket in a private folder; skips if there is no PostgreSQL."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    places = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    initdb = next((str(p / "initdb") for p in places), None) or shutil.which("initdb")
    if initdb is None:
        pytest.skip("no PostgreSQL server (initdb) on this machine")
    bin_folder = Path(initdb).resolve().parent
    words, user = ["setpriv", "--pdeathsig", "INT"], None  # the server ends if the test is killed
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    if os.geteuid() == 0:  # the server refuses to run as root
        try:
            user = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
        words += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    # pytest's own folder is accessible only to its user, and its name may be too long for a socket.
    with tempfile.TemporaryDirectory(prefix="dpfact-") as name:
        home = Path(name)
        if user is not None:
            os.chown(home, user.pw_uid, user.pw_gid)
        made = [*words, bin_folder / "initdb", "-D", home / "data", "-A", "trust", "-U", "reader"]
        subprocess.run([*made, "-N", "-E", "UTF8"], cwd=home, check=True, capture_output=True)
        options = ("listen_addresses=", f"unix_socket_directories={home}", "fsync=off")
        serve = [*words, bin_folder / "postgres", "-D", home / "data"]
        for option in options:
            serve += ["-c", option]
        with (home / "log").open("wb") as log:
            server = subprocess.Popen(serve, cwd=home, stdout=log, stderr=log)
        try:
            ready = [bin_folder / "pg_isready", "-q", "-h", home]
            await_that(lambda: subprocess.run(ready, check=False).returncode == 0, "PostgreSQL")
            yield f"postgresql://reader@/postgres?host={home}"
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()


def test_a_folder_of_csv(cdm):
    cohort = read("omop", cdm, name="north")
    assert {cell[1:]: count for cell, count in cells_of(cohort).items()} == CELLS
    (site,) = cohort.sites
    assert (site.name, site.labels["died"].tolist()) == ("north", [0, 1])
    assert described(cohort, 1) == {"100": "Fracture", "101": "Sepsis"}
    counts = {(where, what): count for where, what, count in cohort.read_report}
    assert counts["condition_occurrence", "rows of concept 0 or none, left out"] == 2
    assert counts["person", "persons with events who are not in it, left out"] == 1
    assert counts["concept", "codes that are not in it, which stay without description"] == 1
    assert counts["death", "deaths outside any hospital visit, not labelled"] == 1


def test_ingredients_and_drugs_without_one(cdm):
    drugs = read("omop", cdm, name="north", drugs=True)
    assert described(drugs, 2) == {"9": "amoxicillin", "301": "ointment"}
    what = "rows whose drug has no ingredient, kept as drugs"
    assert ("drug_exposure", what, 1) in drugs.read_report


def test_the_same_visit_and_the_care_sites(cdm):
    by_visit = read("omop", cdm, name="all", by="visit", window_days=None)
    assert {site.name: site.patients for site in by_visit.sites} == {"South": ("1", "2")}
    by_person = read("omop", cdm, name="all", by="person")
    found = {site.name: site.patients for site in by_person.sites}
    assert found == {"North": ("1",), "South": ("2",)}
    (cdm / "CARE_SITE.csv").write_text("care_site_id,care_site_name\n7,A\n8,A\n9,B\n9,B\n")
    by_person = read("omop", cdm, name="all", by="person")
    assert [site.name for site in by_person.sites] == ["A-7", "A-8"]


def test_every_form_gives_the_same(cdm, tmp_path):
    expected = read("omop", cdm, name="north", drugs=True)
    with duckdb.connect(str(tmp_path / "cdm.duckdb")) as database:
        fill(database.execute)
        database.execute(f"EXPORT DATABASE '{tmp_path / 'parquet'}' (FORMAT parquet)")
    # A line break within a name must not begin a row.
    renamed = "UPDATE concept SET concept_name = 'a' || char(13) || 'b' WHERE concept_id = 200"
    with closing(sqlite3.connect(tmp_path / "cdm.sqlite")) as database, database:
        fill(database.execute)
        database.execute(renamed)
    for form in ("parquet", "cdm.duckdb", "cdm.sqlite"):
        assert_same_sites(read("omop", tmp_path / form, name="north", drugs=True), expected)


@pytest.mark.process
def test_a_database_that_another_program_writes_is_said_to_be_so(tmp_path):
    path = tmp_path / "cdm.duckdb"
    code = "import duckdb, sys; held = duckdb.connect(sys.argv[1]); print(flush=True); input()"
    with subprocess.Popen(  # only one process may have a DuckDB file open for writing
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        with pytest.raises(DataError, match=r"cdm\.duckdb: .*has another program opened it"):
            read("omop", path, name="north")
        other.communicate(b"\n")


@pytest.mark.process
def test_a_real_postgresql_server(cdm, postgres):
    import psycopg  # noqa: PLC0415

    with psycopg.connect(postgres, autocommit=True) as database:
        database.execute('DROP SCHEMA IF EXISTS "CDM 5" CASCADE')
        database.execute('CREATE SCHEMA "CDM 5"')
        database.execute('SET search_path TO "CDM 5"')
        fill(database.execute)
    has_driver = postgres.replace("postgresql:", "postgresql+psycopg:")
    with connect() as connection, open_source(connection, has_driver, "CDM 5") as source:
        is_read_only = "current_setting('transaction_read_only') = 'on'"
        source.fetch("found", Table("person", ["person_id"], there=is_read_only))
        assert count_rows(connection, "found") == 3
    expected = read("omop", cdm, name="north", drugs=True)
    assert_same_sites(read("omop", postgres, name="north", drugs=True, schema="CDM 5"), expected)
    with psycopg.connect(postgres, autocommit=True) as database:
        for table in "concept", "concept_ancestor":
            database.execute(f'ALTER TABLE "CDM 5".{table} RENAME TO "{table.upper()}"')
    assert_same_sites(read("omop", postgres, name="north", drugs=True, schema="CDM 5"), expected)
    with pytest.raises(DataError, match="lacks the table procedure_occurrence in the schema"):
        read("omop", postgres, name="north")
    with pytest.raises(DataError, match=r"postgresql: the database cannot be read") as caught:
        read("omop", postgres.replace("reader@", "nobody:hunter2@"), name="north")
    assert "hunter2" not in str(caught.value)


def test_without_psycopg_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependencyError, match=r"dpfact-flower\[postgres\]"):
        read("omop", "postgresql://localhost/cdm", name="north")


@pytest.mark.parametrize(
    ("table", "old", "new", "says"),
    [
        ("CONDITION_OCCURRENCE", "2020-05-02", "secret", "condition_start_date must be a date"),
        ("CONDITION_OCCURRENCE", "2,101", "2.0,101", "column person_id must be an .* without a fi"),
        ("PERSON", "person_id", "id", r"lacks the column\(s\) person_id"),
        ("VISIT_OCCURRENCE", None, None, "lacks the table visit_occurrence"),
    ],
)
def test_what_is_malformed_is_named_and_not_quoted(table, old, new, says, cdm):
    path = cdm / f"{table}.csv"
    if old is None:
        path.unlink()
    else:
        path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=says) as caught:
        read("omop", cdm, name="north")
    assert "secret" not in str(caught.value)


def test_names_are_missed_alone_and_ingredients_need_them(cdm):
    named = read("omop", cdm, name="north")
    (cdm / "CONCEPT.csv").unlink()
    bare = read("omop", cdm, name="north")
    assert cells_of(bare) == cells_of(named)
    assert [set(v.descriptions) for v in bare.vocabularies] == [{""}, {""}]
    assert ("concept", "tables missing: codes stay without description", 1) in bare.read_report
    with pytest.raises(DataError, match="lacks the table concept"):
        read("omop", cdm, name="north", drugs=True)


def test_a_place_that_is_no_source_is_named(tmp_path, cdm):
    (tmp_path / "x.txt").write_text("hello")
    gone = tmp_path / "gone"
    for place in (f"sqlite:///{gone}", gone):  # the first must not make a file
        with pytest.raises(DataError, match=f"{gone}: no such folder or database"):
            read("omop", place, name="north")
    with pytest.raises(DataError, match=r"x\.txt: is neither a DuckDB nor an SQLite"):
        read("omop", tmp_path / "x.txt", name="north")
    with pytest.raises(SettingsError, match="by: must be"):
        read("omop", cdm, name="north", by="ward")
    assert set(read("omop", cdm, name="north").labels) == {"died", "readmitted"}
    visits = cdm / "VISIT_OCCURRENCE.csv"
    visits.write_text(re.sub("9201|262", "9202", visits.read_text()))
    outside = read("omop", cdm, name="north")
    assert outside.labels == ()
    what = "tables without a hospital stay that has both dates: no label readmitted"
    assert ("stays", what, 1) in outside.read_report
