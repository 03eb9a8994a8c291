"""Where tables are: a folder of files, a DuckDB file, a database that SQLAlchemy knows, or lines.

All give the same: named columns as trimmed text, in a temporary table of the DuckDB that a reader
works in. A database is only read. Its rows pass through a CSV file in DuckDB's own private folder
for spilled data, so that memory stays bounded; DuckDB's own extensions would have to be downloaded.
"""

from __future__ import annotations

import bz2
import csv
import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO

from dpfact_flower.data.tables import (
    Rows,
    check_columns,
    find_table,
    list_of,
    list_tables,
    literal,
    load_table,
    quoted,
    scratch_of,
)
from dpfact_flower.errors import DataError, MissingDependencyError, shown

if TYPE_CHECKING:
    import sqlalchemy
    from duckdb import DuckDBPyConnection as Connection

_CHUNK = 10_000
_DRIVERS = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg"}
"""Names of dialects in a URL, and what SQLAlchemy is to take for them."""


class Table(NamedTuple):
    """What is read of a table.

    Attributes
    ----------
    columns, optional, where, may_be_cut
        As in `dpfact_flower.data.tables.load_table`.
    there : str
        SQL over the table in its database: which rows are sent. ``$schema`` is its schema.
    """

    name: str
    columns: Sequence[str]
    optional: Sequence[str] = ()
    where: str = "true"
    there: str = "true"
    may_be_cut: bool = False


class Source(Protocol):
    """Where tables are."""

    def tables(self) -> Iterable[str]:
        """Names of the tables, in lower case."""

    def fetch(self, into: str, table: Table) -> tuple[str, bool]:
        """Read a table into the temporary table `into`.

        Returns what an error calls it, and whether an incomplete last line was left out.
        """


@contextmanager
def open_source(
    connection: Connection,
    place: str | Path,
    schema: str = "",
    folders: Sequence[str] = (),
    *,
    lines: bool = False,
) -> Iterator[Source]:
    """The source at a place.

    Parameters
    ----------
    place : path or str
        A folder, a DuckDB or SQLite file, or a URL as SQLAlchemy has it, such as
        ``postgresql://user@host/database``. A password is better kept in ``~/.pgpass``.
    schema : str
        Of the tables in a database, where it is not the usual one.
    folders : sequence of str
        Names of subfolders in which tables may be too.
    lines : bool
        Whether the place is one file of lines: the table ``lines`` of ``number`` and ``line``.
    """
    if lines:
        yield _Lines(connection, Path(place))
        return
    if "://" in str(place):
        with _database(connection, str(place), schema) as source:
            yield source
        return
    path = Path(place)
    if path.is_dir():
        yield _Folder(connection, path, folders)
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
        url = f"sqlite:///file:{path.absolute().as_posix()}?mode=ro&uri=true"
        with _database(connection, url, "", str(path)) as source:
            yield source
    elif head[8:12] == b"DUCK":
        yield _DuckDB(connection, path, schema)
    else:
        raise DataError(f"{path}: is neither a DuckDB nor an SQLite database, nor a folder")


class _Folder:
    def __init__(self, connection: Connection, folder: Path, parts: Sequence[str]) -> None:
        inside = sorted(folder.iterdir())
        named = [path for path in inside if path.is_dir() and path.name.lower() in parts]
        self._connection, self._places = connection, (*named, folder)

    def tables(self) -> Iterable[str]:
        return [name for place in self._places for name in list_tables(place)]

    def fetch(self, into: str, table: Table) -> tuple[str, bool]:
        path = find_table(self._places, table.name)
        return str(path), _load(self._connection, into, path, table)


class _Lines:
    def __init__(self, connection: Connection, path: Path) -> None:
        self._connection, self._path = connection, path

    def tables(self) -> Iterable[str]:
        return ["lines"]

    def fetch(self, into: str, table: Table) -> tuple[str, bool]:
        packed: dict[str, Callable[..., Any]] = {".bz2": bz2.open, ".gz": gzip.open}
        path = self._path
        opened = packed.get(path.suffix.lower(), open)
        try:
            with opened(path, "rt", encoding="latin-1") as file:
                rows = ((f"{n:06d}", line.rstrip()) for n, line in enumerate(file, start=1))
                with _spilled(self._connection, into, table, ("number", "line")) as (_, writer):
                    writer.writerows(rows)
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None
        except (OSError, EOFError) as error:
            raise DataError(
                f"{path}: cannot be read ({type(error).__name__}); is it cut off, or not packed as "
                "its name says?"
            ) from None
        return str(path), False


class _DuckDB:
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
        found = connection.execute(
            """SELECT lower(table_name), table_name FROM duckdb_columns()
               WHERE database_name = 'source' AND lower(schema_name) = lower($schema)""",
            {"schema": self._schema},
        )
        self._names = dict(found.fetchall())

    def tables(self) -> Iterable[str]:
        return self._names

    def fetch(self, into: str, table: Table) -> tuple[str, bool]:
        place, name = _known(table, str(self._path), self._schema, self._names)
        rows = f"source.{quoted(self._schema)}.{quoted(name)}"
        return place, _load(self._connection, into, Rows(place, table=rows), table)


class _Database:
    def __init__(
        self, connection: Connection, database: sqlalchemy.Connection, place: str, schema: str
    ) -> None:
        import sqlalchemy  # noqa: PLC0415 - slow to import

        self._connection, self._database, self._place = connection, database, place
        self._inspector = sqlalchemy.inspect(database)
        self._schema = schema or self._inspector.default_schema_name or ""
        names = (self._inspector.get_table_names, self._inspector.get_view_names)
        self._names = {name.lower(): name for found in names for name in found(self._schema)}

    def tables(self) -> Iterable[str]:
        return self._names

    def fetch(self, into: str, table: Table) -> tuple[str, bool]:
        import sqlalchemy as sql  # noqa: PLC0415 - slow to import

        place, name = _known(table, self._place, self._schema, self._names)
        columns = self._inspector.get_columns(name, self._schema)
        found = {column["name"].lower(): column["name"] for column in columns}
        check_columns(Rows(place), table.columns, found)
        wanted = {*table.columns, *table.optional}
        names = [column for column in found if not wanted.isdisjoint((column, list_of(column)))]
        there = sql.text(table.there.replace("$schema", self._schema))
        query: Any = (
            sql.select(*(sql.column(found[column]) for column in names))
            .select_from(sql.table(name, schema=self._schema))
            .where(there)
        )
        with _spilled(self._connection, into, table, names) as (copy, writer):
            if self._database.dialect.name == "postgresql":  # in two thirds of the time
                text = query.compile(self._database, compile_kwargs={"literal_binds": True})
                cursor: Any = self._database.connection.cursor()
                copy.flush()
                with cursor.copy(f"COPY ({text}) TO STDOUT (FORMAT csv)") as blocks:
                    copy.buffer.writelines(blocks)
            else:
                streamed = self._database.execution_options(stream_results=True, yield_per=_CHUNK)
                writer.writerows(streamed.execute(query))
        return place, False


@contextmanager
def _database(
    connection: Connection, url: str, schema: str, place: str = ""
) -> Iterator[_Database]:
    import sqlalchemy  # noqa: PLC0415 - slow to import

    kind = url.partition(":")[0]
    place = place or kind
    failures: tuple[type[Exception], ...] = (sqlalchemy.exc.SQLAlchemyError,)
    try:
        engine = sqlalchemy.create_engine(_DRIVERS.get(kind, kind) + url[len(kind) :])
        failures += (engine.dialect.loaded_dbapi.Error,)
        with engine.connect() as database:
            options = {"postgresql_readonly": True} if kind in _DRIVERS else {}
            yield _Database(connection, database.execution_options(**options), place, schema)
    except (ImportError, sqlalchemy.exc.NoSuchModuleError) as error:
        extra = ': pip install "dpfact-flower[postgres]"' if kind in _DRIVERS else ""
        missing = getattr(error, "name", None) or kind
        raise MissingDependencyError(f"reading {kind} needs {missing}{extra}") from None
    except failures as error:  # it may quote a password, or a row
        raise DataError(
            f"{place}: the database cannot be read ({type(error).__name__}); are host, database, "
            "user, password and --schema right?"
        ) from None


def _known(table: Table, place: str, schema: str, names: Mapping[str, str]) -> tuple[str, str]:
    """What errors call a table of a database, and its name there."""
    of = f" in the schema {shown(schema)}" if schema else ""
    if (name := names.get(table.name.lower())) is None:
        raise DataError(f"{place}: lacks the table {table.name}{of} (--schema names another)")
    return f"{place}: table {name}{of}", name


@contextmanager
def _spilled(
    connection: Connection, into: str, table: Table, columns: Sequence[str]
) -> Iterator[tuple[TextIO, Any]]:
    """CSV file in DuckDB's private folder, and its writer; it becomes a temporary table."""
    with scratch_of(connection) as folder:
        path = folder / f"{table.name}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            yield file, writer
        _load(connection, into, path, table)


def _load(connection: Connection, into: str, place: Path | Rows, table: Table) -> bool:
    return load_table(
        connection, into, place, table.columns,
        optional=table.optional, where=table.where, may_be_cut=table.may_be_cut,
    )  # fmt: skip
