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
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpfact_flower.data.events import note
from dpfact_flower.data.tables import (
    count_rows,
    find_table,
    literal,
    load_table,
    quoted,
    refuse_rows,
    table_files,
)
from dpfact_flower.errors import DataError, MissingDependencyError, shown

if TYPE_CHECKING:
    import psycopg
    from duckdb import DuckDBPyConnection as Connection

_URL = re.compile(r"postgres(ql)?://", re.IGNORECASE)
_CHUNK = 50_000


class Form(NamedTuple):
    """What a column must hold: SQL of a wrong value, of which NULL is none, and words for a right.

    In the SQL, ``{0}`` stands for the column.
    """

    wrong: str
    right: str

    def needed(self) -> Form:
        """The same form where a blank is wrong too."""
        return Form(f"{{0}} IS NULL OR {self.wrong}", self.right)


TIME = Form("try_cast({0} AS TIMESTAMP) IS NULL AND {0} IS NOT NULL", "a time, or blank")
DATE = Form(
    "try_cast(left({0}, 10) AS DATE) IS NULL AND {0} IS NOT NULL",
    "a date as 2024-05-31, or blank",
)
FLAG = Form("{0} NOT IN ('0', '1')", "0, 1 or blank")
WHOLE = Form("NOT regexp_full_match({0}, '-?\\d{{1,15}}')", "a whole number")
"""A cast would round 1.5."""


@dataclass(frozen=True)
class Table:
    """What a reader needs of a table, whoever holds it.

    Attributes
    ----------
    name : str
    columns, optional : sequence of str
        In lower case; an optional one that is not there is NULL.
    forms : mapping of str to Form
        What columns must hold.
    counted : mapping of str to str
        Words for rows that the account tells of, and SQL of which these are.
    where : str
        SQL of DuckDB over the columns as text: which rows are kept.
    there : str
        SQL over the table where it is, in any database: which rows are sent. A hint.
    """

    name: str
    columns: Sequence[str]
    optional: Sequence[str] = ()
    forms: Mapping[str, Form] = field(default_factory=dict)
    counted: Mapping[str, str] = field(default_factory=dict)
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
            raise DataError(f"{place}: lacks the table {self.name}{of} (--schema names another)")
        if missing := [name for name in self.columns if name not in found]:
            there = sorted(name for name in found if name)
            raise DataError(
                f"{place}: table {self.name}{of} lacks the column(s) {', '.join(missing)}; "
                f"it has {there}"
            )


class Source(ABC):
    """Where the tables of an EHR are."""

    def load(self, connection: Connection, into: str, table: Table) -> int:
        """Read a table's columns into the temporary table `into`, checked; returns the rows kept.

        Raises
        ------
        DataError
            Naming the source, the table, and the columns that are missing or malformed.
        """
        place = self._fetch(connection, into, table)
        for column, form in table.forms.items():
            refuse_rows(connection, into, form.wrong.format(column), place, column, form.right)
        rows = count_rows(connection, into)
        note(connection, table.name, "rows" if table.where == "true" else "rows of use", rows)
        for what, where in table.counted.items():
            if count := count_rows(connection, into, where):
                note(connection, table.name, what, count)
        return rows

    @abstractmethod
    def has(self, table: str) -> bool:
        """Whether there is such a table."""

    @abstractmethod
    def _fetch(self, connection: Connection, into: str, table: Table) -> str:
        """Read a table as it is; returns what an error names."""


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
        yield Folder(path)
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


class Folder(Source):
    """A folder of CSV or Parquet files, one a table."""

    def __init__(self, folder: str | Path, *parts: str) -> None:
        """Tables of a folder and of its subfolders of these names, whatever the case."""
        folder = Path(folder)
        inside = sorted(folder.iterdir()) if folder.is_dir() else []
        named = [path for path in inside if path.is_dir() and path.name.lower() in parts]
        self._places = (*named, folder)

    def has(self, table: str) -> bool:
        """Whether there is such a table."""
        return any(table_files(place, table) for place in self._places)

    def _fetch(self, connection: Connection, into: str, table: Table) -> str:
        path = find_table(self._places, table.name)
        _from_file(connection, into, path, table)
        return str(path)


class _DuckDB(Source):
    def __init__(self, connection: Connection, path: Path, schema: str) -> None:
        self._connection, self._path, self._schema = connection, path, schema or "main"
        import duckdb  # noqa: PLC0415 - the connection came from it

        try:
            connection.execute(f"ATTACH {literal(str(path))} AS source (READ_ONLY)")
        except duckdb.Error as error:
            raise DataError(
                f"{path}: the DuckDB database cannot be opened ({type(error).__name__}); has "
                f"another program opened it, or a newer DuckDB than {duckdb.__version__} made it?"
            ) from None

    def has(self, table: str) -> bool:
        return bool(self._columns(table))

    def _columns(self, table: str) -> dict[str, str]:
        found = self._connection.execute(
            """SELECT lower(column_name), column_name FROM duckdb_columns()
               WHERE database_name = 'source' AND lower(schema_name) = lower($schema)
               AND lower(table_name) = lower($table)""",
            {"schema": self._schema, "table": table},
        )
        return dict(found.fetchall())

    def _fetch(self, connection: Connection, into: str, table: Table) -> str:
        found = self._columns(table.name)
        table.check(f"{self._path}", self._schema, found)
        fields = ", ".join(
            f"nullif(trim({quoted(found[name])}::VARCHAR), '') AS {quoted(name)}"
            if name in found
            else f"NULL::VARCHAR AS {quoted(name)}"
            for name in (*table.columns, *table.optional)
        )
        place = f"source.{quoted(self._schema)}.{quoted(table.name)}"
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {into} AS "
            f"SELECT * FROM (SELECT {fields} FROM {place}) WHERE {table.where}"
        )
        return table.name


class _SQLite(Source):
    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._path, self._database = path, database

    def has(self, table: str) -> bool:
        return bool(self._columns(table))

    def _columns(self, table: str) -> dict[str, str]:
        info = self._database.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
        return {name.lower(): name for _, name, *_ in info}

    def _fetch(self, connection: Connection, into: str, table: Table) -> str:
        try:
            found = self._columns(table.name)
            table.check(f"{self._path}", "", found)
            names = table.names(found)
            select = ", ".join(quoted(found[name]) for name in names)
            rows = self._database.execute(
                f"SELECT {select} FROM {quoted(table.name)} WHERE {table.there}"
            )
            with _spilled(connection, table.name) as path:
                with path.open("w", encoding="utf-8", newline="") as file:
                    writer = csv.writer(file)
                    writer.writerow(names)
                    while chunk := list(itertools.islice(rows, _CHUNK)):
                        writer.writerows(chunk)
                _from_file(connection, into, path, table)
        except sqlite3.Error as error:
            raise DataError(
                f"{self._path}: table {table.name} cannot be read ({type(error).__name__})"
            ) from None
        return table.name


class _Postgres(Source):
    def __init__(self, database: psycopg.Connection[Any], schema: str) -> None:
        self._database, self._schema = database, schema

    def has(self, table: str) -> bool:
        return bool(self._columns(table))

    def _fetch(self, connection: Connection, into: str, table: Table) -> str:
        found = self._columns(table.name)
        table.check("PostgreSQL", self._schema, found)
        names = table.names(found)
        select = ", ".join(f"{quoted(found[name])} AS {quoted(name)}" for name in names)
        place = f"{quoted(self._schema)}.{quoted(found[''])}"
        query = f"SELECT {select} FROM {place} WHERE {table.there}"
        with _spilled(connection, table.name) as path:
            with self._database.cursor() as cursor, path.open("wb") as file:
                cursor.execute("SELECT set_config('search_path', %s, true)", [self._schema])
                with cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv, HEADER)") as rows:
                    for block in rows:
                        file.write(block)
            _from_file(connection, into, path, table)
        return table.name

    def _columns(self, table: str) -> dict[str, str]:
        """Name of each column by its name in lower case; and under "" that of the table."""
        with self._database.cursor() as cursor:
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


def _from_file(connection: Connection, into: str, path: Path, table: Table) -> None:
    load_table(connection, into, path, table.columns, optional=table.optional, where=table.where)
