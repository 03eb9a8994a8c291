"""Tables of an EHR through DuckDB: every field as text, every error without a patient's value.

A table is a CSV file, plain or gzipped, or a Parquet file: DuckDB reads both without an extension.
DuckDB is an optional dependency and imported on first use. Its own messages quote the line they
stumble over, so none of them is passed on: what is raised here names the file, the column and the
row's number.
"""

from __future__ import annotations

import csv
import gzip
import logging
import re
import tempfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dpfact_flower.errors import DataError, MissingDependencyError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

__all__ = [
    "connect", "count_rows", "find_files", "find_table", "load_table", "quoted", "read_header",
    "refuse_rows",
]  # fmt: skip

logger = logging.getLogger(__name__)

_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_ ]*|")
_TEXT_OR_WHOLE = re.compile(  # as Parquet's types are called in DuckDB; a code is never a fraction
    r"VARCHAR|ENUM.*|UUID|BOOLEAN|U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DECIMAL\(\d+,0\)|"
    r"DATE|TIMESTAMP.*"
)


@contextmanager
def connect() -> Iterator[Connection]:
    """DuckDB database in memory; joins larger than memory spill to a private folder.

    The folder is the user's alone and is removed at the end. Extensions are never fetched: a
    hospital's machine asks nothing of the internet.

    Raises
    ------
    MissingDependencyError
        If DuckDB is not installed.
    DataError
        In place of any error of DuckDB inside the block, since that may quote a patient's line.
    """
    try:
        import duckdb  # noqa: PLC0415 - optional, and not needed to use a tensor
    except ImportError:
        raise MissingDependencyError(
            'reading EHR tables needs DuckDB: pip install "dpfact-flower[data]"'
        ) from None
    with tempfile.TemporaryDirectory(prefix="dpfact-") as spill:
        config: dict[str, str | bool | int | float | list[str]] = {
            "temp_directory": spill,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        connection = duckdb.connect(config=config)
        try:
            yield connection
        except duckdb.Error as error:
            raise DataError(
                f"DuckDB could not build the tensors ({type(error).__name__}); its own message is "
                "withheld because it may quote a patient's line"
            ) from None
        finally:
            connection.close()


def find_files(folder: str | Path, pattern: str) -> dict[str, Path]:
    """CSV files, plain or gzipped, whose stem matches `pattern` whatever the case.

    Parameters
    ----------
    folder : path
    pattern : str
        Regular expression for the name before ``.csv`` or ``.csv.gz``, with one group.

    Returns
    -------
    dict of str to Path
        By the text of the group, in lower case, sorted by it. Of a plain and a gzipped file with
        one name, the plain one.

    Raises
    ------
    DataError
        If there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name)):
        match = re.fullmatch(rf"{pattern}\.csv(\.gz)?", path.name, re.IGNORECASE)
        if match and path.is_file():
            found.setdefault(match[1].lower(), path)
    return dict(sorted(found.items()))


def find_table(folder: str | Path, name: str) -> Path:
    """File of the table `name`: ``<name>.csv`` or ``<name>.csv.gz``, whatever the case.

    Raises
    ------
    DataError
        If it is missing, with the names tried.
    """
    found = find_files(folder, f"({re.escape(name)})")
    if not found:
        raise DataError(
            f"{folder}: lacks the table {name}; tried {name}.csv and {name}.csv.gz, "
            "in upper and lower case"
        )
    return found[name.lower()]


def load_table(
    connection: Connection,
    table: str,
    path: Path,
    columns: Sequence[str],
    *,
    optional: Sequence[str] = (),
    select: str = "*",
    may_be_cut: bool = False,
) -> bool:
    """Read columns of a CSV or Parquet file into the temporary table `table`, as trimmed text.

    Parameters
    ----------
    connection : DuckDBPyConnection
    table : str
        Name of the table to create.
    path : Path
        UTF-8 with a header line, plain or gzipped, fields perhaps in double quotes, lines ended
        by LF or CRLF; or, named ``.parquet``, columns of text, whole numbers, dates or times. A
        time with a zone becomes that of UTC.
    columns : sequence of str
        Needed columns in lower case; the file's may be in any case, and there may be more. A blank
        field is NULL.
    optional : sequence of str
        Likewise, but NULL in every row where the file lacks the column.
    select : str
        SQL over `columns` and `optional` that makes one row from each row.
    may_be_cut : bool
        Leave out a last line of CSV that ends too early instead of refusing the file.

    Returns
    -------
    bool
        Whether the last line was left out.

    Raises
    ------
    DataError
        Naming the file, and the columns that are missing or the rows that are malformed.
    """
    import duckdb  # noqa: PLC0415 - the connection came from it

    kind = "Parquet" if path.suffix.lower() == ".parquet" else "CSV"
    try:
        if kind == "Parquet":
            source, found = _parquet(connection, path, {*columns, *optional})
        else:
            source, found = _csv(path)
        missing = [column for column in columns if column not in found]
        if missing:
            raise DataError(f"{path}: lacks the column(s) {', '.join(missing)}; it has {[*found]}")
        fields = ", ".join(
            f"nullif(trim({found.get(name, 'NULL')}), '') AS {quoted(name)}"
            for name in (*columns, *optional)
        )
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {table} AS "
            f"SELECT {select} FROM (SELECT {fields} FROM {source})",
            {"path": _literal(path)},
        )
    except (duckdb.IOException, duckdb.InvalidInputException) as error:
        causes = "is it cut off"
        if kind == "CSV":
            causes += (
                ", not gzipped though named .gz, or are its lines ended now by LF, now by CRLF"
            )
        raise DataError(
            f"{path}: not readable as {kind} ({type(error).__name__}); {causes}?"
        ) from None
    rows = count_rows(connection, table)
    cut = kind == "CSV" and _check_rejected(connection, path, rows, may_be_cut)
    logger.info("%s: %d rows", path.name, rows)
    return cut


def read_header(path: Path) -> list[str]:
    """Names of a CSV file's columns, in lower case.

    Raises
    ------
    DataError
        If the file cannot be read, or its first line is not a header: that line is not quoted,
        since it may be a patient's.
    """
    try:
        opened = gzip.open if _compression(path) == "gzip" else open
        with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as file:
            names = next(csv.reader(file), [])
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise DataError(f"{path}: cannot be read ({type(error).__name__})") from None
    header = [name.strip().lower() for name in names]
    if not any(header) or not all(_COLUMN.fullmatch(name) for name in header):
        raise DataError(
            f"{path}: its first line does not name columns, in letters, digits, _ and blanks, "
            "separated by commas"
        )
    if len({name for name in header if name}) != len([name for name in header if name]):
        raise DataError(f"{path}: two columns have one name")
    return header


def quoted(name: str) -> str:
    """Name of a column as SQL, whatever it holds."""
    return '"{}"'.format(name.replace('"', '""'))


def count_rows(connection: Connection, table: str, where: str = "true") -> int:
    """Rows of a table for which a condition holds."""
    (row,) = connection.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchall()
    return int(row[0])


def refuse_rows(
    connection: Connection, table: str, where: str, path: Path, column: str, right: str
) -> None:
    """Raise if the condition `where` holds for any row.

    Raises
    ------
    DataError
        Naming file and column, what would be `right`, and how many rows are not.
    """
    wrong = count_rows(connection, table, where)
    if wrong:
        raise DataError(f"{path}: column {column} must be {right}; {wrong} row(s) are not")


def _csv(path: Path) -> tuple[str, dict[str, str]]:
    """SQL of a CSV file whose path is ``$path``, and of each of its columns."""
    header = read_header(path)
    types = ", ".join(f"'c{position}': 'VARCHAR'" for position in range(len(header)))
    source = f"""read_csv($path, columns={{{types}}}, auto_detect=false, header=true, delim=',',
        quote='"', escape='"', store_rejects=true, compression='{_compression(path)}')"""
    return source, {name: f"c{position}" for position, name in enumerate(header) if name}


def _parquet(
    connection: Connection, path: Path, wanted: Collection[str]
) -> tuple[str, dict[str, str]]:
    """SQL of a Parquet file whose path is ``$path``, and of each of its columns, as text."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    source = "read_parquet($path)"
    described = connection.execute(f"DESCRIBE SELECT * FROM {source}", {"path": _literal(path)})
    found: dict[str, str] = {}
    for name, kind, *_ in described.fetchall():
        lower = name.strip().lower()
        if lower in found:
            raise DataError(f"{path}: two columns have one name")
        if lower in wanted and not _TEXT_OR_WHOLE.fullmatch(kind):
            raise DataError(
                f"{path}: column {lower} must hold text, whole numbers, dates or times; "
                f"it holds {kind}"
            )
        column = quoted(name)
        if kind == "TIMESTAMP WITH TIME ZONE":  # else shown in the time zone of this machine
            column = f"make_timestamp(epoch_us({column}))"
        found[lower] = f"{column}::VARCHAR"
    return source, found


def _literal(path: Path) -> str:
    """The path as DuckDB takes it, to which * ? [ would mean other files."""
    return re.sub(r"([*?\[])", r"[\1]", str(path))


def _compression(path: Path) -> str:
    return "gzip" if path.suffix.lower() == ".gz" else "none"


def _check_rejected(connection: Connection, path: Path, rows: int, may_be_cut: bool) -> bool:
    found = connection.execute("SELECT DISTINCT line FROM reject_errors ORDER BY line").fetchall()
    connection.execute("DROP TABLE reject_errors; DROP TABLE reject_scans")
    lines = [line for (line,) in found]
    if not lines:
        return False
    last = rows + 2  # the header is row 1
    if may_be_cut and lines == [last]:
        logger.warning("%s: the last line is incomplete and left out", path.name)
        return True
    raise DataError(
        f"{path}: {len(lines)} row(s) have too few or too many fields, an open quote or text that "
        f"is not UTF-8; the first is row {lines[0]}, the header being row 1"
    )
