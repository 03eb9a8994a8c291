import gzip
import sys
from pathlib import Path

import duckdb
import pytest

from dpfact_flower.data.readers import runner
from dpfact_flower.data.sources import open_source
from dpfact_flower.data.tables import Rows, Table, connect, list_tables, load_table
from dpfact_flower.errors import DataError, MissingDependencyError


def load(connection, path, *columns, optional=()):
    load_table(connection, "x", path, Table("x", columns, optional))


def rows(connection):
    return connection.execute("FROM x").fetchall()


@pytest.mark.parametrize(
    "text",
    [
        'id,code\n1,"0040"\n2,\n',
        '"ID","CODE"\r\n1, 0040 \r\n2,""\r\n',
        '\ufeff"Id","Code"\n"1","0040"\n"2","  "',
        "other,CODE,ID\n9,0040,1\n9,,2\n",
        # lines that end with LF and with CRLF
        "id,code\r\n1,0040\n2,\n",
        "id,code\n1,0040\r\n2,\r\n",
        "id,code\n1,0040\n2,\r\n",
        'id,code\r\n1," 0040"\n2,""',
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".CSV.GZ"])
def test_load_reads_text_whatever_the_dialect(text, suffix, connection, tmp_path):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(text.encode() if suffix == ".csv" else gzip.compress(text.encode()))
    load(connection, path, "id", "code")
    assert rows(connection) == [("1", "0040"), ("2", None)]


def test_load_takes_a_path_with_glob_characters_literally(connection, write):
    write("x1.csv", "id\nwrong\n")
    path = write("x[1].csv", "id\nright\n")
    load(connection, path, "id")
    assert rows(connection) == [("right",)]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("a,b\n1,2\nsecret\n3,4\n", 3),
        ("a,b\r\n1,2\n3,secret,5\n4,6\n", 3),
        ("a,b\nsecret,2,3\n4,5\n", 2),
        ("a,b\nsecret\n1,2\n3\n", 2),
        ("a,b\r\n1,2\r\nsecret", 3),
        ('a,b\n1,2\nsecret,"9', 3),
    ],
)
def test_a_malformed_row_is_located_and_not_quoted(text, first, connection, write):
    with pytest.raises(DataError, match=rf"x\.csv: .*row {first}\b") as caught:
        load(connection, write("x.csv", text), "a")
    assert "secret" not in str(caught.value)


def parquet(tmp_path, select):
    path = tmp_path / "x[1].parquet"
    duckdb.sql(f"SELECT {select}").write_parquet(str(path))
    return path


def test_parquet_is_read_as_text_in_utc_whatever_this_machines_zone(monkeypatch, tmp_path):
    path = parquet(
        tmp_path,
        """' 0040 ' AS Code, 7::UTINYINT AS "the ""Id", '  ' AS blank, DATE '2024-05-31' AS day,
           TIMESTAMP '2024-05-31 14:05:00' AS local, 12::DECIMAL(9,0) AS oracle,
           TIMESTAMPTZ '2024-05-31 01:00:00+02' AS zoned, 1.5 AS unused""",
    )
    monkeypatch.setenv("TZ", "America/New_York")
    names = ("code", 'the "id', "blank", "day", "local", "oracle", "zoned")
    expected = ("0040", "7", None, "2024-05-31", "2024-05-31 14:05:00", "12")
    with connect() as connection:
        load(connection, path, *names[:6], optional=names[6:])
        assert rows(connection) == [(*expected, "2024-05-30 23:00:00+00")]


@pytest.mark.parametrize("value", ["1.5", "1.5::FLOAT", "'nan'::DOUBLE", "['secret']", "{'a': 1}"])
def test_a_column_of_parquet_that_is_no_text_is_refused_if_needed(value, connection, tmp_path):
    path = parquet(tmp_path, f"{value} AS code, 'x' AS id")
    with pytest.raises(DataError, match=r"parquet: column code must hold text, whole") as caught:
        load(connection, path, "id", optional=("code",))
    assert "secret" not in str(caught.value)
    load(connection, path, "id")
    assert rows(connection) == [("x",)]


def test_zeros_are_kept_where_another_file_of_the_folder_holds_numbers(connection, tmp_path):
    for name, code in (("0", "401"), ("1", "'0389'")):
        duckdb.sql(f"SELECT {code} AS code").write_parquet(str(tmp_path / f"{name}.parquet"))
    load(connection, tmp_path, "code")
    assert sorted(rows(connection)) == [("0389",), ("401",)]
    with pytest.raises(DataError, match=r"column code must hold text, whole .* DOUBLE; .* Int64"):
        load(connection, parquet(tmp_path, "401.0::DOUBLE AS code").parent, "code")
    load(connection, parquet(tmp_path, "401::BIGINT AS code").parent, "code")
    assert sorted(rows(connection)) == [("0389",), ("401",), ("401",)]


def test_a_parquet_file_that_cannot_be_used_is_named(connection, tmp_path, write):
    duckdb.sql("SELECT 1 AS code").write_parquet(str(tmp_path / "0.parquet"))
    with pytest.raises(DataError, match=r"x\[1\]\.parquet: lacks .* code; it has \['Id'\]"):
        load(connection, parquet(tmp_path, "1 AS Id").parent, "code")
    with pytest.raises(DataError, match=r"broken\.parquet: not readable as Parquet"):
        load(connection, write("broken.parquet", "id\n1\n"), "id")
    with pytest.raises(DataError, match=r"gone\.parquet: no such file"):
        load(connection, tmp_path / "gone.parquet", "id")


@pytest.mark.parametrize("name", ["PATIENTS.csv", "patients.csv", "Patients.CSV.GZ"])
def test_a_table_has_a_name_in_any_case_and_the_plain_file_first(name, write, tmp_path):
    write("patients.csv.gz.old", "")
    path = write(name, "")
    assert list_tables(tmp_path) == {"patients": path}
    write(f"{name}.gz", "")
    assert list_tables(tmp_path)["patients"] == path


def test_a_folder_further_up_says_where_the_table_is(tmp_path):
    below = tmp_path / "demo-2.2" / "hosp"
    below.mkdir(parents=True)
    (below / "Patients.csv.gz").touch()
    refused = pytest.raises(DataError, match=rf"there is one in {below}$")
    with refused, connect() as connection, open_source(connection, tmp_path) as source:
        source.fetch("x", Table("patients", ["patient"]))


def test_an_error_of_duckdb_does_not_pass_on_its_text():
    with pytest.raises(DataError, match="ConversionException") as caught, connect() as connection:
        connection.execute("SELECT CAST('secret' AS INTEGER)")
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_what_spills_is_in_the_users_own_folder_and_gone_in_the_end(tmp_path, monkeypatch):
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with connect() as connection:
        (folder,) = connection.execute("SELECT current_setting('temp_directory')").fetchone()
        assert Path(folder).is_dir()
    assert not Path(folder).exists()
    assert Path(folder).parent == tmp_path / "dpfact"
    with pytest.raises(duckdb.ConnectionException):
        connection.execute("SELECT 1")


def test_without_duckdb_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "dpfact-flower\[data\]"'):
        runner.read("mimic3", ".")


def test_a_frame_is_written_once_per_connection():
    class Frame:
        columns = ("code",)

        def write_parquet(self, path):
            assert not Path(path).exists()
            duckdb.sql("SELECT 'I10' AS code").write_parquet(path)

    place = Rows("a frame", [Frame()])
    with connect() as connection:
        for _ in range(2):
            load(connection, place, "code")
            assert rows(connection) == [("I10",)]
