"""Read an EHR's tables as text with DuckDB. Error messages never quote patients' data.

DuckDB is an optional dependency and is imported on first use. DuckDB's own error messages may quote
a faulty line, so these messages are never shown.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, cast
from unicodedata import normalize

from dpfact_flower.errors import DataError, MissingDependencyError, SettingsError
from dpfact_flower.machine.files import private_scratch

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

_COLUMN = re.compile(r"[^\W\d].*|_.*|", re.DOTALL)
_DELIMITERS = ",;\t|"
_SEPARATOR = re.compile(r"\ufeff?sep=([,;\t|])\r?\n?", re.IGNORECASE)
_TEXT_OR_WHOLE = re.compile(  # names of DuckDB types; a code is never a fraction
    r"VARCHAR|ENUM.*|UUID|BOOLEAN|U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DECIMAL\(\d+,0\)|"
    r'DATE|TIMESTAMP.*|"NULL"'
)
ENCODINGS = ("utf-8", "latin-1", "utf-16", "windows-1252")
MEMORY = "2GB"
"""Memory that DuckDB may use before it spills to disk. The tensors need additional memory."""
_MEMORY = re.compile(r"\d+(\.\d+)? ?([KMGT]i?)?B", re.IGNORECASE)
NO_VALUE = r"""lower({0}) IN ('nan', 'nat', 'null', 'none', '<na>', 'n/a', '(null)', '\n', '#n/a',
    '#ref!', '#value!', '#num!', '#name?', '#div/0!')"""
"""SQL condition for texts that programs write for missing values."""
_DAY, _CLOCK = r"\d\d\d\d(-\d\d-|/\d\d/)\d\d", r"[ T]\d\d:\d\d(:\d\d([.,]\d+)?)?"
LOCAL_TIME = f"regexp_full_match({{0}}, '{_DAY}({_CLOCK})?')"
ZONED_TIME = f"regexp_full_match({{0}}, '{_DAY}{_CLOCK}(Z| UTC|[+-]\\d\\d(:?\\d\\d)?)')"
"""SQL conditions for times without and with an offset from UTC, in ISO 8601 or with slashes."""
_CAST = "make_timestamp(epoch_us(try_cast(replace({0}, ',', '.') AS"
TIME = (
    f"CASE WHEN {LOCAL_TIME} THEN {_CAST} TIMESTAMP))) "
    f"WHEN {ZONED_TIME} THEN {_CAST} TIMESTAMPTZ))) END"
)
"""SQL that parses a time. A time with an offset from UTC is converted to UTC."""


@dataclass(frozen=True)
class Dialect:
    """The delimiter and the encoding of a CSV file.

    An empty `delimiter` means the most frequent of comma, semicolon, tab and | in the first line.
    """

    delimiter: str = ""
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        object.__setattr__(self, "delimiter", self.delimiter.replace("\\t", "\t"))
        if len(self.delimiter) > 1 or self.delimiter in set("\"'\n\r"):
            raise SettingsError(f"delimiter: need one character, got {self.delimiter!r}")
        if self.encoding not in ENCODINGS:
            raise SettingsError(f"encoding: must be {', '.join(ENCODINGS)}; got {self.encoding!r}")


_PLAIN = Dialect()


class Rows(NamedTuple):
    """Rows from data frames or from a database. Error messages refer to the rows as `name`.

    The rows come either from `frames` (pandas, polars, Arrow or DuckDB), or from the database table
    with the SQL name `table`. Only rows that meet the SQL condition `where` are used. If `sites`
    names each frame's site, rows get a column ``site``. With `sites`, patients' identifiers become
    ``SITE/PATIENT``, so that sites may use the same identifiers.
    """

    name: str
    frames: Sequence[Any] = ()
    table: str = ""
    where: str = "true"
    sites: Sequence[str] = ()

    def __str__(self) -> str:
        return self.name

    def sql(self, connection: Connection) -> str:
        """Register the frames on a connection, and return a subquery that selects the rows."""
        for number, frame in enumerate(self.frames):
            if not (names := columns_of(frame)):
                raise DataError(f"{self}: need a frame with columns, got {type(frame).__name__}")
            _refuse_twins(self, [name.lower() for name in names])
            if hasattr(type(frame), "write_parquet"):  # polars or a DuckDB relation
                path = Path(_spill_of(connection)) / f"frame_{id(frame)}.parquet"
                if not path.exists():
                    frame.write_parquet(str(path))
                frame = connection.read_parquet(str(path))  # noqa: PLW2901
            connection.register(f"frame_{number}", frame)
        lists = [f"*, {literal(site)} AS site" for site in self.sites] or ["*"] * len(self.frames)
        below = " UNION ALL BY NAME ".join(
            f"SELECT {columns} FROM frame_{n}" for n, columns in enumerate(lists)
        )
        return f"(FROM {self.table or f'({below})'} WHERE {self.where})"


def columns_of(frame: Any) -> list[str]:
    """Return a frame's column names, or [] for other objects. Refuse paths and lazy frames."""
    if isinstance(frame, (str, Path)):
        raise DataError("pass a DataFrame, not a path; for files, use dpfact data events")
    if hasattr(type(frame), "collect"):  # polars
        raise DataError("pass a DataFrame, not a lazy frame: call its method collect()")
    names = getattr(frame, "column_names", None)  # Arrow's attribute; other frames have `columns`
    return [*map(str, getattr(frame, "columns", ()) if names is None else names)]


@contextmanager
def connect(memory: str = MEMORY) -> Iterator[Connection]:
    """Open an in-memory DuckDB database, with a temporary folder that only the user can read.

    DuckDB never downloads extensions. A DuckDB error in the ``with`` block becomes a `DataError`.
    """
    if not _MEMORY.fullmatch(memory):
        raise SettingsError(f"memory: need a size such as 2GB or 500MB, got {memory!r}")
    try:
        import duckdb  # noqa: PLC0415 - optional, and not needed to use a tensor
    except ImportError:
        raise MissingDependencyError(
            'reading EHR tables needs DuckDB: pip install "dpfact-flower[data]"'
        ) from None
    with private_scratch() as spill:
        config: dict[str, str | bool | int | float | list[str]] = {
            "temp_directory": str(spill),
            "memory_limit": memory,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "pandas_analyze_sample": 0,  # a guessed type would round 401.9 to 402
        }
        connection = duckdb.connect(config=config)
        try:
            connection.execute("SET TimeZone = 'UTC'")  # not this machine's
            yield connection
        except duckdb.OutOfMemoryException:
            raise DataError(
                f"{memory} of memory, or the free space in {spill.parent}, is too little to build "
                "the tensors; allow more memory, or keep fewer codes"
            ) from None
        except duckdb.Error as error:  # its message may quote a patient's line
            how = "; turn columns of unusual types into text, in pandas with astype(str)"
            raise DataError(
                f"DuckDB could not build the tensors ({type(error).__name__})"
                + how * isinstance(error, duckdb.NotImplementedException)
            ) from None
        finally:
            connection.close()


@contextmanager
def scratch_of(connection: Connection) -> Iterator[Path]:
    """Make a temporary folder inside DuckDB's own temporary folder."""
    with tempfile.TemporaryDirectory(dir=_spill_of(connection)) as folder:
        yield Path(folder)


def _spill_of(connection: Connection) -> str:
    ((spill,),) = connection.execute("SELECT current_setting('temp_directory')").fetchall()
    return str(spill)


def list_tables(folder: Path) -> dict[str, Path]:
    """Map each table's name, in lower case, to its file or to its folder of Parquet files.

    If names clash, files take precedence over folders, and shorter file names over longer ones.
    """
    parts: dict[str, Path] = {}
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name)):
        name = re.sub(r"\.(csv|csv\.gz|parquet)$", "", path.name, flags=re.IGNORECASE)
        if path.is_file() and name != path.name:
            files.setdefault(name.lower(), path)
        elif next(path.rglob("*.parquet"), None):
            parts[name.lower()] = path
    return parts | files


class Table(NamedTuple):
    """The columns and rows to read from a table.

    The table must have all `columns`. A missing `optional` column is read as NULL. `columns` and
    `optional` contain lower-case names, but the table's names may have any case. ``code[]``
    lists the distinct, non-blank values of the columns ``code_1``, ``code_2``, ... Only rows that
    meet the SQL condition `where` are read. In SQLAlchemy databases, rows must also meet the SQL
    condition `there`, in which ``$schema`` is the table's schema. If `null_words` is true, texts
    such as ``nan`` become NULL. In Parquet and `Rows`, only columns in `floats` may have fractions.
    """

    name: str
    columns: Sequence[str]
    optional: Sequence[str] = ()
    where: str = "true"
    there: str = "true"
    null_words: bool = False
    floats: Sequence[str] = ()


def load_table(
    connection: Connection,
    into: str,
    place: Path | Rows,
    table: Table,
    *,
    select: str = "*",
    dialect: Dialect = _PLAIN,
    hint: Callable[[Collection[str]], str] = lambda _: "",
) -> None:
    """Read a table's columns as trimmed text (Unicode NFC) into a temporary table named `into`.

    `place` is a CSV file with a header line (plain or gzipped), a Parquet file, a folder of Parquet
    files, or `Rows`. In Parquet files and `Rows`, columns must hold text, whole numbers, dates or
    times. Times with a time zone are converted to UTC. Blank fields become NULL. `select` is the
    SQL select list. If a column is missing, the error ends with `hint(existing columns)`.
    """
    import duckdb  # noqa: PLC0415 - the connection came from it

    kind, known = _kind(place), {name.lower() for name in (*table.columns, *table.optional)}
    try:
        if isinstance(place, Path) and kind == "CSV":
            source, columns = _csv(place, dialect)
        else:
            source, columns = _typed(connection, place, known - {*map(str.lower, table.floats)})
        check_columns(place, table.columns, columns, kind, hint(columns))
        if isinstance(place, Path) and place.is_dir():  # DuckDB would read a missing column as NULL
            files = f"""SELECT file_name, list(name) || regexp_extract_all(file_name, '([^/]+)=', 1)
                        FROM parquet_schema({_literal_path(place, "/**/*.parquet")})
                        WHERE type IS NOT NULL GROUP BY file_name ORDER BY file_name"""
            for file, names in connection.execute(files).fetchall():
                check_columns(Path(file), table.columns, names)
        query = (
            f"CREATE OR REPLACE TEMP TABLE {into} AS SELECT {select} "
            f"FROM (SELECT {_fields(columns, table)} FROM {source}) WHERE {table.where}"
        )
        if isinstance(place, Path) and kind == "CSV":
            _run_csv(connection, query, place, dialect)
        else:
            connection.execute(query)
    except (
        duckdb.IOException, duckdb.InvalidInputException, OSError, EOFError, UnicodeError,
        zlib.error,
    ) as error:  # fmt: skip
        causes = "is it cut off" + ", or not gzipped though named .gz" * (kind == "CSV")
        causes += ", or in windows-1252" * (dialect.encoding == "latin-1")
        causes += ", or not in --encoding, which is for all tables" * (dialect.encoding != "utf-8")
        raise DataError(
            f"{place}: not readable as {kind} ({type(error).__name__}); {causes}?"
        ) from None


def _run_csv(connection: Connection, query: str, path: Path, dialect: Dialect) -> None:
    """Run a query on a CSV file. Refuse the file if it has a malformed line.

    If a file mixes LF and CRLF line endings, DuckDB may fail or reject correct lines. After a
    failure or a rejected line, DuckDB reads a copy in which all lines end in LF. Files in UTF-16 or
    Windows-1252 are always read from a copy in UTF-8.
    """
    import duckdb  # noqa: PLC0415 - the connection came from it

    old_encoding, new_encoding = dialect.encoding, "utf-8"
    if dialect.encoding in ("utf-8", "latin-1"):
        old_encoding = new_encoding = "latin-1"  # latin-1 decodes any byte
        try:
            connection.execute(query)
            if not _take_rejected(connection):
                return
        except duckdb.InvalidInputException:
            pass
    with scratch_of(connection) as folder:
        copy = folder / path.name
        with (
            _open(path, "rt", old_encoding) as old,
            _open(copy, "wt", new_encoding, newline="\n") as new,
        ):
            shutil.copyfileobj(old, new)
        connection.execute(query.replace(_literal_path(path), _literal_path(copy)))
        rejected = _take_rejected(connection)
    if rejected:
        wrong = {
            "INVALID ENCODING": f"text that is not {dialect.encoding.upper()} (save it as UTF-8; "
            "dpfact data events also has --encoding)",
            "UNQUOTED VALUE": "an open quote",
            "LINE SIZE OVER MAXIMUM": "more than 2 MB",
        }
        fields = "too few or too many fields (does a field with the delimiter lack quotes?)"
        kinds = sorted({wrong.get(kind, fields) for _, kind in rejected})
        raise DataError(
            f"{path}: {len(rejected)} row(s) have {', or '.join(kinds)}; the first is row "
            f"{rejected[0][0]} (the header is row 1)"
        )


def _take_rejected(connection: Connection) -> list[tuple[int, str]]:
    """Return the rejected lines with the reasons, and clear DuckDB's record of rejected lines."""
    rejected = connection.execute(
        "SELECT line, min(error_type::VARCHAR) FROM reject_errors GROUP BY line ORDER BY line"
    ).fetchall()
    connection.execute("DROP TABLE reject_errors; DROP TABLE reject_scans")
    return rejected


def _header(path: Path, dialect: Dialect) -> tuple[list[str], str, int]:
    """Return a CSV file's column names, its delimiter, and the number of lines before the header.

    Errors do not quote the first line, which may hold a patient's data. DuckDB's own header
    detection would rename duplicate columns and could mistake a patient's row for a header.
    """
    if path.exists() and not path.is_file():  # a pipe's header could not be read a second time
        raise DataError(f"{path}: is not a file; write its content to a file first")
    encoding = "utf-8-sig" if dialect.encoding == "utf-8" else dialect.encoding
    try:
        with _open(path, "rt", encoding, errors="replace", newline="") as file:
            line, skip, delimiter = file.readline(), 0, dialect.delimiter
            if match := _SEPARATOR.fullmatch(line):  # Excel's line that sets the delimiter
                line, skip, delimiter = file.readline(), 1, delimiter or match[1]
            delimiter = delimiter or max(_DELIMITERS, key=line.count)
            names = next(csv.reader(itertools.chain([line], file), delimiter=delimiter), [])
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error, csv.Error, UnicodeError) as error:
        hint = "; is it gzipped, as its name says?" * isinstance(error, gzip.BadGzipFile)
        hint += "; not UTF-16 with a byte order mark: use UTF-8" * isinstance(error, UnicodeError)
        raise DataError(f"{path}: cannot be read ({type(error).__name__}){hint}") from None
    # A name may contain a newline.
    header = [normalize("NFC", " ".join(name.split())) for name in names]
    if not any(header):
        raise DataError(f"{path}: its first line is empty, but needs to name the columns")
    if any("\ufffd" in name or "\0" in name for name in header):
        raise DataError(
            f"{path}: its first line is not {dialect.encoding}; save a workbook or archive as CSV "
            "(plain or gzipped), and other text as UTF-8 (dpfact data events also reads --encoding "
            f"{', or '.join(ENCODINGS[1:])})"
        )
    if not all(_COLUMN.fullmatch(name) and name.isprintable() for name in header):
        raise DataError(
            f"{path}: its first line needs names that begin with a letter; is the header missing, "
            "or is the delimiter a different one (--delimiter)?"
        )
    _refuse_twins(path, [name.lower() for name in header if name])
    return header, delimiter, skip


def _refuse_twins(place: Path | Rows, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise DataError(f"{place}: two columns have the same name; rename one of them")


def check_columns(
    place: Path | Rows,
    wanted: Sequence[str],
    columns: Collection[str],
    kind: str = "a table",
    hint: str = "",
) -> None:
    """Refuse a table that lacks a wanted column. `hint` is advice for the error message."""
    there = {name.strip().lower() for name in columns}
    there |= set(map(list_of, there))
    missing = [name for name in wanted if name.lower() not in there]
    if not missing:
        return
    if kind != "CSV" or len(missing) < len(wanted):
        what = f"; it has {list(columns)}"
    else:  # the first line may hold a patient's data, so do not quote it
        what = " (does its first line name the columns, with this delimiter?)"
    what += f"; try {hint}" * bool(hint)
    named = ", ".join(name.replace("[]", "_1") for name in missing)
    raise DataError(f"{place}: lacks the column(s) {named}{what}")


def list_of(column: str) -> str:
    """Replace a final underscore and number, as in the column name ``code_1``, with ``[]``."""
    return re.sub(r"_\d+$", "[]", column)


def _fields(columns: Mapping[str, str], table: Table) -> str:
    """Return the SQL select list of a table. `columns` maps column names to SQL expressions."""
    blank = "{0} = ''" + f" OR {NO_VALUE}" * table.null_words
    trimmed = {name.lower(): f"trim(nfc_normalize({sql}))" for name, sql in columns.items()}
    texts = {name: f"if({blank.format(sql)}, NULL, {sql})" for name, sql in trimmed.items()}
    lists: dict[str, list[str]] = {}
    for name, sql in texts.items():
        lists.setdefault(list_of(name), []).append(sql)
    texts |= {name: f"list_distinct([{', '.join(sqls)}])" for name, sqls in lists.items()
              if name.endswith("[]")}  # fmt: skip
    return ", ".join(
        f"{texts.get(name.lower(), 'NULL::VARCHAR')} AS {quoted(name.removesuffix('[]'))}"
        for name in (*table.columns, *table.optional)
    )


def quoted(name: str) -> str:
    """Return a column's name, quoted for SQL."""
    return '"{}"'.format(name.replace('"', '""'))


def literal(text: str) -> str:
    """Return the text as an SQL literal."""
    return "'{}'".format(text.replace("'", "''"))


def count_rows(connection: Connection, table: str, where: str = "true") -> int:
    """Count the rows of a table for which a condition is true."""
    (row,) = connection.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchall()
    return int(row[0])


def refuse_rows(
    connection: Connection, table: str, where: str, place: object, column: str, right: str,
    advice: str = "",
) -> None:  # fmt: skip
    """Raise an error if rows meet `where`. The text `right` says what `column` must be."""
    if wrong := count_rows(connection, table, where):
        raise DataError(f"{place}: column {column} must be {right}; {wrong} row(s) are not{advice}")


def _csv(path: Path, dialect: Dialect) -> tuple[str, dict[str, str]]:
    """Return SQL that reads a CSV file, and an SQL expression for each column of the file."""
    header, delimiter, skip = _header(path, dialect)
    types = ", ".join(f"'c{position}': 'VARCHAR'" for position in range(len(header)))
    encoding = "latin-1" if dialect.encoding == "latin-1" else "utf-8"  # see `_run_csv`
    compression = "gzip" if path.suffix.lower() == ".gz" else "none"
    source = f"""read_csv({_literal_path(path)}, columns={{{types}}}, auto_detect=false,
        header=true, skip={skip}, delim='{delimiter}', quote='"', escape='"', store_rejects=true,
        encoding='{encoding}', compression='{compression}')"""
    return source, {name: f"c{position}" for position, name in enumerate(header) if name}


def _kind(place: Path | Rows) -> str:
    if isinstance(place, Rows):
        return "a table" if place.table else "a frame"
    return "Parquet" if place.suffix.lower() == ".parquet" or place.is_dir() else "CSV"


def _typed(
    connection: Connection, place: Path | Rows, wanted: Collection[str]
) -> tuple[str, dict[str, str]]:
    """Return SQL that reads Parquet files or `Rows`, and an SQL expression for each column."""
    if isinstance(place, Rows):
        source = place.sql(connection)
        parts = [f"frame_{number}" for number in range(len(place.frames))]
    elif place.exists():
        paths = _literal_path(place, "/**/*.parquet" if place.is_dir() else "")
        source = f"read_parquet({paths}, union_by_name = true)"
        same = f"""SELECT list(file_name) FROM (SELECT file_name, list((name, duckdb_type)) AS kinds
                    FROM parquet_schema({paths}) GROUP BY file_name) GROUP BY kinds"""
        groups = connection.execute(same).fetchall()
        parts = [f"read_parquet([{', '.join(map(_literal_path, files))}])" for (files,) in groups]
    else:
        raise DataError(f"{place}: no such file")
    described = [  # a union of text and fractions is text, so each part is described too
        (part, name, kind)
        for part in (*parts, source)
        for name, kind, *_ in connection.execute(f"DESCRIBE FROM {part}").fetchall()
    ]
    _refuse_twins(place, [name.strip().lower() for part, name, _ in described if part == source])
    columns: dict[str, str] = {}
    for part, name, kind in described:
        lower, filled = name.strip().lower(), f"{quoted(name)} IS NOT NULL"
        wrong = not _TEXT_OR_WHOLE.fullmatch(kind) and (lower in wanted or list_of(lower) in wanted)
        if wrong and count_rows(connection, part, filled):
            raise DataError(
                f"{place}: column {name.strip()} must hold text, whole numbers, dates or times; "
                f"it holds {kind}; read it as text, in pandas with dtype=str, or as whole numbers, "
                "in pandas with Int64 (one missing value makes whole numbers floats)"
            )
        text = f"{quoted(name)}::VARCHAR"
        if lower == "patient" and isinstance(place, Rows) and place.sites:
            text = f"trim({text})"  # blanks and NaN stay as they are, to be refused
            missing = f"lower({text}) IN ('', 'na') OR {NO_VALUE.format(text)}"
            text = f"if({missing}, {text}, site || '/' || {text})"
        columns[name.strip()] = text
    return source, columns


def _literal_path(path: str | Path, below: str = "") -> str:
    """Escape wildcards (* ? [) in the path, append `below`, and return an SQL literal."""
    return literal(re.sub(r"([*?\[])", r"[\1]", str(path)) + below)


def _open(path: Path, how: str, encoding: str, **options: str) -> TextIO:
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else open
    return cast("TextIO", opened(path, how, encoding=encoding, **options))
