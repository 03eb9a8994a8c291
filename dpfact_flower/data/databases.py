"""Tables of a source, whatever holds them: a folder of files, or a database.

A folder holds CSV or Parquet; a file is a DuckDB or an SQLite database; a URL names PostgreSQL. All
give the same: named columns as trimmed text in a temporary table of the DuckDB that the reader
works in. What a database holds is only read. Rows of SQLite and PostgreSQL pass through a CSV file
in DuckDB's own private folder for spilled data, so that memory stays bounded; DuckDB's extensions
for them would have to be downloaded.
"""

from __future__ import annotations

import csv
import itertools
import re
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dpfact_flower.data.tables import count_rows, find_table, literal, load_table, quoted
from dpfact_flower.errors import DataError, MissingDependencyError, shown

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

_URL = re.compile(r"postgres(ql)?://", re.IGNORECASE)
_CHUNK = 50_000


class Wanted(NamedTuple):
    """What is read of a table.

    Attributes
    ----------
    table : str
    columns, optional : sequence of str
        In lower case; an optional one that is not there is NULL.
    where : str
        SQL of DuckDB over the columns as text: which rows are kept.
    there : str
        SQL over the table where it is, in any database: which rows are sent. A hint.
    """

    table: str
    columns: Sequence[str]
    optional: Sequence[str] = ()
    where: str = "true"
    there: str = "true"

    def names(self, found: Collection[str]) -> list[str]:
        """Columns that are there."""
        return [name for name in (*self.columns, *self.optional) if name in found]

    def check(self, place: str, schema: str, found: Collection[str]) -> None:
        """Refuse a table that is missing or lacks a column.

        Raises
        ------
        DataError
            Naming the place, the table and the columns that are missing.
        """
        of = f" in the schema {shown(schema)}" if schema else ""
        if not found:
            raise DataError(f"{place}: lacks the table {self.table}{of} (--schema names another)")
        if missing := [name for name in self.columns if name not in found]:
            there = sorted(name for name in found if name)
            raise DataError(
                f"{place}: table {self.table}{of} lacks the column(s) {', '.join(missing)}; "
                f"it has {there}"
            )


class Source(Protocol):
    """Where the tables of an EHR are."""

    def load(self, connection: Connection, into: str, wanted: Wanted) -> int:
        """Read a table's columns into the temporary table `into`; returns the rows kept.

        Raises
        ------
        DataError
            Naming the source, the table and the columns that are missing.
        """


@contextmanager
def open_source(connection: Connection, place: str | Path, schema: str = "") -> Iterator[Source]:
    """The source at a place.

    Parameters
    ----------
    connection : DuckDBPyConnection
    place : path or str
        A folder, a DuckDB or SQLite file, or ``postgresql://user@host/database``. A password is
        better kept in ``~/.pgpass`` or ``PGPASSWORD``.
    schema : str
        Of the tables in a DuckDB or PostgreSQL database, where it is not the usual one.

    Raises
    ------
    DataError
        If there is no such place, or it cannot be opened.
    MissingDependencyError
        If PostgreSQL is asked for and psycopg is not installed.
    """
    if _URL.match(str(place)):
        with _postgres(str(place), schema) as source:
            yield source
        return
    path = Path(place)
    if path.is_dir():
        yield _Folder(path)
        return
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError:
        raise DataError(
            f"{path}: no such folder or database; need a folder of .csv, .csv.gz or .parquet, a "
            "DuckDB or SQLite file, or postgresql://..."
        ) from None
    if head.startswith(b"SQLite format 3\x00"):
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            yield _SQLite(path, database)
    elif head[8:12] == b"DUCK":
        yield _DuckDB(connection, path, schema)
    else:
        raise DataError(f"{path}: is neither a DuckDB nor an SQLite database, nor a folder")


class _Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, connection: Connection, into: str, wanted: Wanted) -> int:
        return _from_file(connection, into, find_table(self._folder, wanted.table), wanted)


class _DuckDB:
    def __init__(self, connection: Connection, path: Path, schema: str) -> None:
        self._path, self._schema = path, schema or "main"
        connection.execute(f"ATTACH {literal(str(path))} AS source (READ_ONLY)")

    def load(self, connection: Connection, into: str, wanted: Wanted) -> int:
        found = dict(
            connection.execute(
                """SELECT lower(column_name), column_name FROM duckdb_columns()
                   WHERE database_name = 'source' AND lower(schema_name) = lower($schema)
                   AND lower(table_name) = lower($table)""",
                {"schema": self._schema, "table": wanted.table},
            ).fetchall()
        )
        wanted.check(f"{self._path}", self._schema, found)
        fields = ", ".join(
            f"nullif(trim({quoted(found[name])}::VARCHAR), '') AS {quoted(name)}"
            if name in found
            else f"NULL::VARCHAR AS {quoted(name)}"
            for name in (*wanted.columns, *wanted.optional)
        )
        place = f"source.{quoted(self._schema)}.{quoted(wanted.table)}"
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {into} AS "
            f"SELECT * FROM (SELECT {fields} FROM {place}) WHERE {wanted.where}"
        )
        return count_rows(connection, into)


class _SQLite:
    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._path, self._database = path, database

    def load(self, connection: Connection, into: str, wanted: Wanted) -> int:
        try:
            info = self._database.execute(f"PRAGMA table_info({quoted(wanted.table)})").fetchall()
            found = {name.lower(): name for _, name, *_ in info}
            wanted.check(f"{self._path}", "", found)
            names = wanted.names(found)
            select = ", ".join(quoted(found[name]) for name in names)
            rows = self._database.execute(
                f"SELECT {select} FROM {quoted(wanted.table)} WHERE {wanted.there}"
            )
            with _spilled(connection, wanted.table) as path:
                with path.open("w", encoding="utf-8", newline="") as file:
                    writer = csv.writer(file)
                    writer.writerow(names)
                    while chunk := list(itertools.islice(rows, _CHUNK)):
                        writer.writerows(chunk)
                return _from_file(connection, into, path, wanted)
        except sqlite3.Error as error:
            raise DataError(
                f"{self._path}: table {wanted.table} cannot be read ({type(error).__name__})"
            ) from None


class _Postgres:
    def __init__(self, database: object, schema: str) -> None:
        self._database, self._schema = database, schema

    def load(self, connection: Connection, into: str, wanted: Wanted) -> int:
        found = self._columns(wanted.table)
        wanted.check("PostgreSQL", self._schema, found)
        names = wanted.names(found)
        select = ", ".join(f"{quoted(found[name])} AS {quoted(name)}" for name in names)
        place = f"{quoted(self._schema)}.{quoted(found[''])}"
        query = f"SELECT {select} FROM {place} WHERE {wanted.there}"
        with _spilled(connection, wanted.table) as path:
            with self._database.cursor() as cursor, path.open("wb") as file:  # type: ignore[attr-defined]
                cursor.execute("SELECT set_config('search_path', %s, true)", [self._schema])
                with cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv, HEADER)") as rows:
                    for block in rows:
                        file.write(block)
            return _from_file(connection, into, path, wanted)

    def _columns(self, table: str) -> dict[str, str]:
        """Name of each column by its name in lower case; and under "" that of the table."""
        with self._database.cursor() as cursor:  # type: ignore[attr-defined]
            cursor.execute(
                """SELECT column_name, table_name FROM information_schema.columns
                   WHERE table_schema = %s AND lower(table_name) = lower(%s)""",
                [self._schema, table],
            )
            rows = cursor.fetchall()
        found = {name.lower(): name for name, _ in rows}
        return found | {"": rows[0][1]} if rows else {}


@contextmanager
def _postgres(url: str, schema: str) -> Iterator[Source]:
    try:
        import psycopg  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingDependencyError(
            'reading PostgreSQL needs psycopg: pip install "dpfact-flower[postgres]"'
        ) from None
    try:
        with psycopg.connect(url) as database:
            database.read_only = True
            yield _Postgres(database, schema or "public")
    except psycopg.Error as error:  # its text may quote the address with its password, or a row
        state = f", {error.sqlstate}" if error.sqlstate else ""
        raise DataError(
            f"PostgreSQL: the database cannot be read ({type(error).__name__}{state}); are host, "
            "database, user, password and --schema right?"
        ) from None


@contextmanager
def _spilled(connection: Connection, table: str) -> Iterator[Path]:
    """Path for the rows of a table, in DuckDB's private folder; the file is removed at the end."""
    ((folder,),) = connection.execute("SELECT current_setting('temp_directory')").fetchall()
    path = Path(folder) / f"{table}.csv"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _from_file(connection: Connection, into: str, path: Path, wanted: Wanted) -> int:
    load_table(connection, into, path, wanted.columns, optional=wanted.optional, where=wanted.where)
    return count_rows(connection, into)
