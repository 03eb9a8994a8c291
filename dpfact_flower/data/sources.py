"""Read tables from a folder of files, a DuckDB file, an SQLAlchemy database, or a text file.

Files and PostgreSQL databases are opened read-only. Databases that are neither files nor PostgreSQL
receive only SELECT statements. SQLAlchemy reads databases such as SQLite and PostgreSQL, for which
DuckDB would have to download extensions. To save memory, rows from SQLAlchemy are stored in a
temporary CSV file that only the user can read.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpfact_flower.data.tables import (
    Rows,
    Table,
    check_columns,
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


class Source(NamedTuple):
    """The lower-case names of a source's tables, and a function that reads these tables.

    `fetch` copies a table to a temporary table, and returns the source table's name for errors.
    """

    tables: Collection[str]
    fetch: Callable[[str, Table], str]


def open_source(
    connection: Connection,
    place: str | Path,
    schema: str = "",
    folders: Sequence[str] = (),
    *,
    lines: bool = False,
) -> AbstractContextManager[Source]:
    """Open a source of tables.

    `place` is a folder, a DuckDB or SQLite file, or an SQLAlchemy URL such as
    ``postgresql://user@host/database``. Put passwords in ``~/.pgpass``. If `place` is a folder,
    some tables may be in the subfolders that `folders` names. If `lines` is true, `place` is a text
    file and becomes the table ``lines`` with the columns ``number`` and ``line``.
    """
    if lines:
        return nullcontext(_lines(connection, Path(place)))
    address = str(place)
    if "?" not in address:
        address = address.removeprefix("sqlite:///")  # as a URL, a missing file would be created
    if "://" in address:
        return _database(connection, address, schema)
    path = Path(address)
    if path.is_dir():
        return nullcontext(_folder(connection, path, folders))
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError:
        raise DataError(
            f"{path}: no such folder or database; need a folder of .csv, .csv.gz or .parquet, a "
            "DuckDB or SQLite file, or postgresql://..."
        ) from None
    if head.startswith(b"SQLite format 3\x00"):
        uri = f"{path.absolute().as_uri()}?mode=ro"
        opened = partial(sqlite3.connect, uri, uri=True)  # SQLAlchemy would decode the path
        return _database(connection, "sqlite://", "", str(path), creator=opened)
    if head[8:12] == b"DUCK":
        return nullcontext(_duckdb_file(connection, path, schema or "main"))
    raise DataError(f"{path}: is neither a DuckDB nor an SQLite database, nor a folder")


def _folder(connection: Connection, folder: Path, parts: Sequence[str]) -> Source:
    inside = sorted(folder.iterdir())
    places = [*(path for path in inside if path.is_dir() and path.name.lower() in parts), folder]
    files: dict[str, Path] = {}
    for place in places:  # the first folder takes precedence
        files = list_tables(place) | files

    def fetch(into: str, table: Table) -> str:
        path = files.get(table.name.lower())
        if path is None:
            raise DataError(f"{folder}: {_missing(places, table.name)}")
        load_table(connection, into, path, table)
        return str(path)

    return Source(files, fetch)


def _missing(places: Sequence[Path], name: str) -> str:
    """Return an error message saying that no folder in `places` has the table `name`."""
    *parts, whole = places
    also = f", here and in {', '.join(part.name for part in parts)}" if parts else ""
    deeper = (folder for levels in ("*", "*/*") for folder in sorted(whole.glob(levels)))
    if folder := next((f for f in deeper if f.is_dir() and name.lower() in list_tables(f)), None):
        also += f"; there is one in {folder}"
    return (
        f"lacks the table {name}; tried {name}.csv and {name}.csv.gz (or .parquet), in upper and "
        f"lower case{also}"
    )


def _lines(connection: Connection, path: Path) -> Source:
    packed: dict[str, Callable[..., Any]] = {".bz2": bz2.open, ".gz": gzip.open}
    opened = packed.get(path.suffix.lower(), open)

    def fetch(into: str, table: Table) -> str:
        try:
            with opened(path, "rt", encoding="latin-1") as file:
                rows = ((f"{n:06d}", line.rstrip()) for n, line in enumerate(file, start=1))
                with _spilled(connection, into, table, ("number", "line")) as writer:
                    writer.writerows(rows)
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None
        except (OSError, EOFError) as error:
            raise DataError(
                f"{path}: cannot be read ({type(error).__name__}); is it cut off?"
            ) from None
        return str(path)

    return Source(["lines"], fetch)


def _duckdb_file(connection: Connection, path: Path, schema: str) -> Source:
    import duckdb  # noqa: PLC0415 - the connection came from it

    try:
        connection.execute(f"ATTACH {literal(str(path))} AS source (READ_ONLY)")
    except duckdb.Error as error:
        raise DataError(
            f"{path}: the DuckDB database cannot be opened ({type(error).__name__}); has another "
            f"program opened it, or was it made by a DuckDB newer than {duckdb.__version__}?"
        ) from None
    tables = connection.execute(
        """SELECT lower(table_name), table_name FROM duckdb_columns()
           WHERE database_name = 'source' AND lower(schema_name) = lower($schema)""",
        {"schema": schema},
    ).fetchall()
    names = dict(tables)

    def fetch(into: str, table: Table) -> str:
        place, name = _known(table, str(path), schema, names)
        rows = f"source.{quoted(schema)}.{quoted(name)}"
        load_table(connection, into, Rows(place, table=rows), table)
        return place

    return Source(names, fetch)


def _tables_of(
    connection: Connection, database: sqlalchemy.Connection, database_name: str, schema: str
) -> Source:
    import sqlalchemy as sql  # noqa: PLC0415 - slow to import

    inspector = sql.inspect(database)
    schema = schema or inspector.default_schema_name or ""
    names = [*inspector.get_table_names(schema), *inspector.get_view_names(schema)]
    known = {name.lower(): name for name in names}
    quote_schema = database.dialect.identifier_preparer.quote_schema

    def fetch(into: str, table: Table) -> str:
        place, name = _known(table, database_name, schema, known)
        columns = {c["name"].lower(): c["name"] for c in inspector.get_columns(name, schema)}
        check_columns(Rows(place), table.columns, columns)
        wanted = {*table.columns, *table.optional}
        chosen = [column for column in columns if not wanted.isdisjoint((column, list_of(column)))]
        # in PostgreSQL, names in capitals need quotes, which `there` lacks
        there = table.there if name.islower() or database.dialect.name != "postgresql" else "true"
        query: Any = (
            sql.select(*(sql.column(columns[column]) for column in chosen))
            .select_from(sql.table(name, schema=schema))
            .where(sql.text(there.replace("$schema", quote_schema(schema))))
        )
        streamed = database.execution_options(stream_results=True, yield_per=_CHUNK)
        with _spilled(connection, into, table, chosen) as writer:
            writer.writerows(streamed.execute(query))
        return place

    return Source(known, fetch)


@contextmanager
def _database(
    connection: Connection, url: str, schema: str, place: str = "", **how: Any
) -> Iterator[Source]:
    import sqlalchemy  # noqa: PLC0415 - slow to import

    kind = url.partition(":")[0]
    place = place or kind
    failures: tuple[type[Exception], ...] = (sqlalchemy.exc.SQLAlchemyError,)
    try:
        address = _DRIVERS.get(kind, kind) + url[len(kind) :]
        # The pool closes the connection on exit.
        engine = sqlalchemy.create_engine(address, poolclass=sqlalchemy.NullPool, **how)
        failures += (engine.dialect.loaded_dbapi.Error,)
        with engine.connect() as database:
            options = {"postgresql_readonly": True} if engine.dialect.name == "postgresql" else {}
            yield _tables_of(connection, database.execution_options(**options), place, schema)
    except (ImportError, sqlalchemy.exc.NoSuchModuleError) as error:
        extra = ': pip install "dpfact-flower[postgres]"' if kind in _DRIVERS else ""
        missing = getattr(error, "name", None) or kind
        raise MissingDependencyError(f"reading {kind} needs {missing}{extra}") from None
    except failures as error:  # the error may quote a password or a row
        raise DataError(
            f"{place}: the database cannot be read ({type(error).__name__}); are host, database, "
            "user, password and --schema right?"
        ) from None


def _known(table: Table, place: str, schema: str, names: Mapping[str, str]) -> tuple[str, str]:
    """Return a table's description for error messages, and the table's name in the database."""
    of = f" in the schema {shown(schema)}" if schema else ""
    if (name := names.get(table.name.lower())) is None:
        raise DataError(f"{place}: lacks the table {table.name}{of} (for another schema: --schema)")
    return f"{place}: table {name}{of}", name


@contextmanager
def _spilled(
    connection: Connection, into: str, table: Table, columns: Sequence[str]
) -> Iterator[Any]:
    """Yield a writer for a temporary CSV file. On exit, load the CSV file into the table `into`."""
    with scratch_of(connection) as folder:
        path = folder / f"{table.name}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)  # ends lines with CRLF, so that a CR in a field is quoted
            writer.writerow(columns)
            yield writer
        load_table(connection, into, path, table)
