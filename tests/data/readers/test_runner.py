"""Readers as SQL files: valid scripts, and errors for invalid ones."""

import sqlite3
from contextlib import closing
from copy import deepcopy
from importlib.metadata import EntryPoints
from types import SimpleNamespace

import duckdb
import pytest

from dpfact_flower.data.readers import runner
from dpfact_flower.data.readers.runner import read
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.machine import registry
from tests.commands import dpfact
from tests.data.readers.cells import cells_of

HEAD = """/*
help = "Stays."
modes = { dx = 0, rx = 0 }
window = "encounter"

[options.level]
default = 2
help = "Characters of a code."
*/
"""
BODY = """
-- @load stays
CREATE TABLE stays (who VARCHAR NOT NULL, day DATE, dx VARCHAR, rx VARCHAR, ward VARCHAR DEFAULT NULL);

-- A remark; with a semicolon.
-- @count stays without a ward
SELECT 'stays', count(*) FROM stays WHERE ward IS NULL;

-- @load wards
-- @optional wards have no names
CREATE TABLE wards (ward VARCHAR);

-- @patients
SELECT who AS patient, $file AS site FROM stays GROUP BY who;

-- @events
SELECT 'dx' AS mode, who AS patient, day AS encounter, left(dx, $level) AS code FROM stays
UNION ALL SELECT 'rx', who, day, left(rx, $level) FROM stays;
"""  # noqa: E501
STAYS = "who,day,dx,rx\nann,2024-01-01,I10,secret\n"


@pytest.fixture
def source(tmp_path):
    (tmp_path / "ward").mkdir()
    (tmp_path / "ward" / "stays.csv").write_text(STAYS)
    return tmp_path / "ward"


def written(tmp_path, text):
    path = tmp_path / "own.sql"
    path.write_text(text)
    return path


def test_a_script_of_ones_own(source, tmp_path):
    script = written(tmp_path, HEAD + BODY)
    for level in (0, True, "1"):
        with pytest.raises(SettingsError, match="level: must be an integer of at least 1; got"):
            read(script, source, level=level)
    with pytest.raises(SettingsError, match="top: cannot be combined with vocabularies"):
        read(script, source, top=[1, 1], vocabularies=[])
    cohort = read(script, source, level=1)
    assert cells_of(cohort) == {("ward", "ann", "I", "s"): 1}
    assert cohort.name == "own"
    assert cohort.read_report[:3] == (
        ("stays", "rows", 1),
        ("stays", "stays without a ward", 1),
        ("wards", "tables missing: wards have no names", 1),
    )


def test_code_lists_replace_the_scripts_numbers_of_codes(source, tmp_path):
    lists = []
    for mode, code in (("dx", "I1"), ("rx", "se")):
        (tmp_path / f"{mode}.csv").write_text(f"code\n{code}\n")
        lists.append(f"--codes={mode}={tmp_path / mode}.csv")
    dpfact("data", written(tmp_path, HEAD + BODY), source, "--out", tmp_path / "out", *lists)
    assert Cohort.load(tmp_path / "out").vocabularies[0].codes == ("I1",)


@pytest.mark.parametrize(("known", "is_read"), [("17.0", False), ("17.05", True), ("b17.0", True)])
def test_whole_identifiers_that_were_written_as_fractions_are_refused(
    known, is_read, source, tmp_path
):
    script = written(tmp_path, HEAD + BODY.replace("who", "who_id"))
    text = STAYS.replace("who", "who_id").replace("ann", known)
    (source / "stays.csv").write_text(text)
    if is_read:
        assert read(script, source).sites[0].patients == (known,)
    else:
        with pytest.raises(DataError, match="column who_id must be an identifier without a final"):
            read(script, source)


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        ("DATE", "2024-05-31 02:05 PM", "2024-05-31"),
        ("DATE", "20240531", "2024-05-31"),
        ("DATE", "31-05-24", None),
        ("TIMESTAMP", "2024-05-31T14:05:00,5", "2024-05-31 14:05:00.5"),
        ("TIMESTAMP", "2024-05-31 14:05:00+02:00", "2024-05-31 12:05:00"),
        ("TIMESTAMP", "2024-05-31 14:05:00.25 UTC", "2024-05-31 14:05:00.25"),
        ("DATE", "2024/05/31", "2024-05-31"),
        ("DATE", "2024/05-31", None),
        ("TIMESTAMP", "31-05-24", None),
    ],
)
def test_times_are_read_whole_or_refused(kind, text, found, source, tmp_path):
    body = BODY.replace("day DATE", f"day {kind}").replace("left(rx, $level)", "day::VARCHAR")
    script = written(tmp_path, HEAD + body)
    (source / "stays.csv").write_text(STAYS.replace("2024-01-01", f'"{text}"'))
    if found is None:
        with pytest.raises(DataError, match=r"column day must be a (date|time) like.*; 1 row"):
            read(script, source)
    else:
        assert read(script, source).vocabularies[1].codes == (found,)
    if "+" in text:
        (source / "stays.csv").write_text(f"{STAYS}ann,{text},I10,x\n")
        with pytest.raises(DataError, match="column day must be with an offset from UTC in every"):
            read(script, source)


def test_names_in_upper_case_are_read_from_a_database(tmp_path):
    path = tmp_path / "a#b?c%20d.sqlite"  # in a URL, these characters would cut or change the name
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE Stays AS SELECT 'a' who, '20240101' Day, 'I' DX, 'x' rx")
    upper = HEAD + BODY.replace("who VARCHAR", "Who VARCHAR").replace("rx VARCHAR", "RX VARCHAR")
    assert read(written(tmp_path, upper), path).patients == ("a",)


def test_a_folder_of_parquet_is_a_table(source, tmp_path):
    (source / "stays.csv").unlink()
    for part in ("a", "b"):
        (source / "stays" / part).mkdir(parents=True)
        row = f"SELECT '{part}' AS who, DATE '2024-01-01' AS day, 'I10' AS dx, 'x' AS rx"
        duckdb.sql(row).write_parquet(str(source / "stays" / part / "0.parquet"))
    assert read(written(tmp_path, HEAD + BODY), source).patients == ("a", "b")


def test_an_installed_package_brings_scripts(source, tmp_path, monkeypatch):
    script = written(tmp_path, HEAD + BODY)
    clinic = SimpleNamespace(name="clinic", value="own:it", dist=None, load=lambda: script)

    def found(*, group, name="clinic"):
        assert group == "dpfact_flower.data.readers"
        return EntryPoints([clinic] if name == "clinic" else [])

    monkeypatch.setattr(registry, "entry_points", found)
    monkeypatch.setattr(runner, "scripts", deepcopy(runner.scripts))  # which remembers the clinic
    with pytest.raises(SettingsError, match=r"reader: there is no 'ward'; there are .*eicu, "):
        read("ward", source)
    assert read("clinic", source).patients == ("ann",)


@pytest.mark.parametrize("name", ["top", "window_days", "roll_up", "tables", "class", "Level"])
def test_an_option_cannot_have_a_name_that_is_taken(name, source, tmp_path):
    script = written(tmp_path, (HEAD + BODY).replace("level", name))
    with pytest.raises(DataError, match=rf"own\.sql: .*: option '{name}': needs another name"):
        dpfact("data", script, source, "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BODY, "need a head in TOML"),
        (HEAD.replace("help =", "hlep ="), "cannot be read as a reader: .*hlep"),
        (HEAD + BODY.replace("@events", "@evnts"), "@evnts is unknown"),
        (HEAD + BODY.replace("-- @load wards\n", ""), "@optional is unknown or not .* alone"),
        (HEAD + BODY.replace("@events", "@events\n-- @when false"), "@when .*not .* with @events"),
        (HEAD.replace('"encounter"', '"encountr"') + BODY, "window must be 'days', "),
        (HEAD.replace("modes", "folders"), "folders must be a valid"),
        (HEAD.replace("modes", "# modes") + BODY, r"own\.sql: need one or more feature modes"),
        (HEAD + BODY.replace("day DATE", "day DOUBLE"), r"own\.sql: day must .* not DOUBLE"),
        (HEAD + BODY.replace("-- @load wards\n", "-- @load wards\n" * 2), "need each .* only once"),
        (HEAD + BODY.replace("-- @count stays", "-- @names"), "@names of one of icd9cm, "),
        (HEAD + BODY.replace("GROUP BY", "GROUP"), r"own\.sql: Parser Error"),
        (HEAD + BODY.replace("left(rx", "left(ry"), r"own\.sql: Binder Error"),
        (HEAD + BODY.replace("day DATE", "rx DATE"), r"own\.sql: Catalog Error"),
        (HEAD + BODY.replace("rx VARCHAR", "rx DATE"), "column rx must be a date .*; 1 row"),
        (HEAD + BODY.replace("$level", "$depth"), r"own\.sql: there is no option depth"),
    ],
)
def test_what_is_wrong_with_a_script_is_said_without_a_value(text, says, source, tmp_path):
    with pytest.raises(DataError, match=says) as caught:
        read(written(tmp_path, text), source)
    assert "secret" not in str(caught.value)
