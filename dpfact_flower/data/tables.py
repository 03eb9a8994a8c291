"""Tables of an EHR through DuckDB: every field as text, every error without a patient's value.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dpfact_flower.errors import DataError, MissingDependencyError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

__all__ = [
    "connect", "count_rows", "find_files", "find_table", "load_table", "read_header", "refuse_rows"
]  # fmt: skip

logger = logging.getLogger(__name__)

_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_ ]*|")


@contextmanager
def connect() -> Iterator[Connection]:
    """DuckDB database in memory; joins larger than memory spill to a private folder.

    The folder is the user's alone and removed at the end. Extensions are never fetched: a
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
        By the text of the group, lower-case, in its order. Of a plain and a gzipped file of one
        name, the plain one.

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
    select: str = "*",
    may_be_cut: bool = False,
) -> bool:
    """Read columns of a CSV file into the temporary table `table`, as trimmed text.

    Parameters
    ----------
    connection : DuckDBPyConnection
    table : str
        Name of the table to create.
    path : Path
        UTF-8 with a header line, plain or gzipped, fields perhaps in double quotes, lines ended
        by LF or CRLF.
    columns : sequence of str
        Needed columns in lower case; the file's may be in any case, and there may be more. A blank
        field is NULL.
    select : str
        SQL over `columns` that makes one row of each row.
    may_be_cut : bool
        Leave out a last line that ends too early instead of refusing the file.

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

    header = read_header(path)
    missing = [column for column in columns if column not in header]
    if missing:
        raise DataError(f"{path}: lacks the column(s) {', '.join(missing)}; it has {header}")
    fields = ", ".join(f"nullif(trim(c{header.index(name)}), '') AS {name}" for name in columns)
    types = ", ".join(f"'c{position}': 'VARCHAR'" for position in range(len(header)))
    try:
        connection.execute(
            f"""CREATE OR REPLACE TEMP TABLE {table} AS SELECT {select} FROM (
                SELECT {fields} FROM read_csv($path, columns={{{types}}}, auto_detect=false,
                    header=true, delim=',', quote='"', escape='"', store_rejects=true,
                    compression='{_compression(path)}'))""",
            {"path": re.sub(r"([*?\[])", r"[\1]", str(path))},
        )
    except (duckdb.IOException, duckdb.InvalidInputException) as error:
        raise DataError(
            f"{path}: not readable as CSV ({type(error).__name__}); is it cut off, not gzipped "
            "though named .gz, or are its lines ended now by LF, now by CRLF?"
        ) from None
    rows = count_rows(connection, table)
    cut = _check_rejected(connection, path, rows, may_be_cut)
    logger.info("%s: %d rows", path.name, rows)
    return cut


def read_header(path: Path) -> list[str]:
    """Names of a CSV file's columns, in lower case.

    Raises
    ------
    DataError
        If the file cannot be read, or its first line is no header: that line is not quoted, for
        it may be a patient's.
    """
    try:
        opened = gzip.open if _compression(path) == "gzip" else open
        with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as file:
            names = next(csv.reader(file), [])
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise DataError(f"{path}: cannot be read ({type(error).__name__})") from None
    header = [name.strip().lower() for name in names]
    if not any(header) or not all(_COLUMN.fullmatch(name) for name in header):
        raise DataError(f"{path}: its first line does not name columns")
    if len({name for name in header if name}) != len([name for name in header if name]):
        raise DataError(f"{path}: two columns have one name")
    return header


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
