"""Run readers that are written as SQL scripts.

A script begins with a header comment that sets the fields of `Script` in TOML. DuckDB runs the
statements after the header in order. Each statement ends with a semicolon at the end of a line. A
directive (a comment above a statement) determines how the statement is used.

``-- @load FILE`` needs a ``CREATE TABLE`` statement. The new table is filled from the source's
table ``FILE``. Values that do not have the column's type are rejected. If a ``VARCHAR`` column's
name ends in ``id``, numbers like ``17.0`` are rejected too, because pandas writes identifiers in
this form if some identifiers are missing. Words such as ``NULL`` mean missing values. A ``NOT
NULL`` column rejects missing values, and ``UNIQUE`` rejects duplicates. The source may lack a
column that is declared with ``DEFAULT NULL``. A column ``code`` of type ``VARCHAR[]`` lists the
distinct values of the source's columns ``code_1``, ``code_2`` and so on. A star in ``FILE`` matches
any text. All tables that match are combined, and the column ``part`` contains the matched text.

Below ``@load``, ``-- @where SQL`` keeps rows that meet an SQL condition, in which all columns are
text. With ``-- @there SQL``, an SQLAlchemy database sends only rows that meet an SQL condition, in
which ``$schema`` is the only placeholder. With ``-- @optional CONSEQUENCE``, the table stays empty
if the source lacks ``FILE``, and the read report states the consequence.

``-- @names SYSTEM`` needs a ``CREATE TABLE`` statement. The table is filled with the codes and
names of a coding system (one of `dpfact_flower.data.code_names.SYSTEMS`). ``-- @count WHAT`` needs
a query that returns table names and counts, which are reported as WHAT. ``-- @warn WHAT`` also logs
a warning. ``-- @refuse REQUIREMENT`` needs a query that returns table names and the number of each
table's wrong rows. If a row is wrong, reading fails, and the error states the requirement.

``-- @events`` needs a query that returns mode, patient, code and, if the window needs these
columns, encounter and time. A time is a date, a timestamp, or minutes since any origin. After
``@events``, the table ``people`` contains all patients who have events. ``-- @describe`` needs a
query that returns mode, code and description.

``-- @patients`` needs a query that returns patient and site, with one row per patient.
``-- @label NAME`` needs a query that returns the patients whose label is 1. ``-- @stays`` needs a
query that returns one row per hospital stay, with the columns patient, begun and ended. The label
``readmitted`` is computed from these stays.

``-- @when SQL`` may follow ``@load``, ``@label`` or ``@stays``. If the condition of ``@when`` is
false, the table stays empty or the label is left out. A placeholder such as ``$by`` is replaced
with an option's value. Other placeholders are ``$name`` (the site's or cohort's name), ``$source``,
``$file`` (the source's file name) and ``$tables`` (the source's table names in lower case). If
``FILE`` has a star, a condition may contain ``$part`` (the matched text).
"""

from __future__ import annotations

import keyword
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from dpfact_flower.data.clinical_events import Options, add_events, count, reading
from dpfact_flower.data.code_names import SYSTEMS, names_of
from dpfact_flower.data.cooccurrence import MINUTES_A_DAY, Window, build_cohort
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.sources import Source, open_source
from dpfact_flower.data.tables import (
    LOCAL_TIME,
    TIME,
    ZONED_TIME,
    Table,
    count_rows,
    literal,
    refuse_rows,
)
from dpfact_flower.errors import DataError, SettingsError, naming, shown
from dpfact_flower.machine.parsed import parse_as
from dpfact_flower.machine.registry import Registry
from dpfact_flower.settings import check_name

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

_OWN = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.sql"))}
scripts: Registry[str | Path] = Registry("reader", "dpfact_flower.data.readers", **_OWN)
"""The paths of the scripts in this package and, by entry points, in other installed packages."""
_HEAD = re.compile(r"\s*/\*(.*?)\*/(.*)", re.DOTALL)
_REMARK = re.compile(r"^--(?! @).*$", re.MULTILINE)
_DIRECTIVE = re.compile(r"^-- @(\w+) *(.*)$", re.MULTILINE)
_END = re.compile(r";[ \t]*$", re.MULTILINE)
_MORE = {"load": {"when", "where", "there", "optional"}, "label": {"when"}, "stays": {"when"}}
"""The further directives that each main directive may have."""
_KINDS = {*_MORE, "names", "count", "warn", "refuse", "events", "describe", "patients"}
_CREATED = re.compile(r"CREATE TABLE (\w+)\s*\(", re.IGNORECASE)
_VALUE = re.compile(r"\$([a-z]\w*)")
_TAKEN = {
    *keyword.kwlist, *(option.name for option in fields(Options)), "codes", "file", "force", "help",
    "name", "out", "part", "reader", "roll_up", "schema", "source", "tables", "window",
    "window_days",
}  # fmt: skip
"""Names that a script's options cannot have, because commands, `read` or placeholders use them."""
_MINUTES = {
    "DATE": f"(time - DATE '1970-01-01') * {MINUTES_A_DAY}",
    "TIMESTAMP": "epoch_us(date_trunc('minute', time)) // 60000000",
}
_DATE = """CASE
    WHEN regexp_full_match({0}, '\\d{{4}}(-\\d\\d-|/\\d\\d/)\\d\\d([ T].*)?')
    THEN try_cast(left({0}, 10) AS DATE)
    WHEN regexp_full_match({0}, '\\d{{8}}') THEN try_strptime({0}, '%Y%m%d')::DATE END"""
"""SQL that parses a date (2024-05-31, 2024/05/31 or 20240531)."""
_FORMS = {
    # A cast alone would round 1.5.
    "BIGINT": ("NOT regexp_full_match({0}, '-?\\d{{1,15}}')", "a whole number", "{0}::BIGINT"),
    "BOOLEAN": ("{0} NOT IN ('0', '1')", "0 or 1", "{0} = '1'"),
    # Casts alone would take 31-05-24 for the year 31, and drop offsets from UTC, AM and PM.
    "DATE": (f"{{0}} IS NOT NULL AND {_DATE} IS NULL", "a date like 2024-05-31", _DATE),
    "TIMESTAMP": (f"{{0}} IS NOT NULL AND {TIME} IS NULL", "a time like 2024-05-31 14:05", TIME),
    "VARCHAR": ("false", "a text", "{0}"),
    "VARCHAR[]": ("false", "a text", "{0}"),
}  # fmt: skip
"""For each column type: SQL that finds invalid texts, a description of valid texts, and a cast."""


@dataclass(frozen=True)
class Option:
    """An option of a script. The default determines the type. Integers must be at least 1.

    If the default is a TOML table, users give ``NAME=VALUE`` pairs, which become an SQL map. In an
    option named ``mode``, each NAME is a feature mode. If the default is an array, the option's
    value is a list of codes, which the command line reads from a file.
    """

    help: str
    default: bool | int | str | dict[str, str] | list[str]
    choices: Sequence[str] = ()
    __pydantic_config__: ClassVar = {"extra": "forbid"}


class Statement(NamedTuple):
    """An SQL statement, its main directive (`kind`, `what`) and its further directives (`more`)."""

    sql: str
    kind: str
    what: str
    more: Mapping[str, str]


@dataclass(frozen=True)
class Script:
    """A script that reads EHR tables. The header sets all fields except `name` and `statements`.

    `modes` maps the feature modes, in the tensor's order, to the number of codes to keep (0: all).
    If an option has the same name as a mode, the mode is used only if the option is true. `window`
    is the rule for combining events: a maximum distance in days (``days``), one encounter
    (``encounter``), or both (``days in encounter``). `source` is ``tables`` or, for one text file,
    ``lines``. The file's lines become the table ``lines`` with the columns ``number`` and ``line``.
    `folders` names subfolders that may contain tables. If `named` is true, the user must name the
    cohort. If `named` is false, the cohort's default name is the script's name.
    """

    name: str
    help: str
    statements: tuple[Statement, ...]
    modes: Mapping[str, int] = field(default_factory=dict)
    window: Literal["days", "days in encounter", "encounter"] = "days"
    min_patients: int = 1
    row_unit: str = "patient"
    source: Literal["tables", "lines"] = "tables"
    folders: Sequence[str] = ()
    named: bool = False
    options: Mapping[str, Option] = field(default_factory=dict)
    __pydantic_config__: ClassVar = {"extra": "forbid"}

    @classmethod
    def read(cls, path: Path) -> Script:
        """Read a script from a file."""
        # JSON has no dates, which TOML has.
        with naming(f"{path}: cannot be read as a reader", OSError, ValueError, TypeError):
            match = _HEAD.fullmatch(path.read_text(encoding="utf-8"))
            if match is None:
                raise DataError("need a head in TOML, as a comment, above the statements")
            head = tomllib.loads(match[1])
            script = parse_as(cls, head | {"name": path.stem, "statements": _statements(match[2])})
            for name in script.options:
                if name in _TAKEN or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
                    raise DataError(
                        f"option {shown(name)}: needs another name (a-z, 0-9 and _) that neither "
                        "dpfact data nor Python uses"
                    )
            return script

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return each option's value or default. Refuse a value that the option does not allow."""
        values = {name: option.default for name, option in self.options.items()} | dict(given)
        for name, option in self.options.items():
            value, kind = values[name], type(option.default)
            need, right = f"of type {kind.__name__}", type(value) is kind
            if option.choices:
                need = f"one of {', '.join(option.choices)}"
                right = value in (*option.choices, option.default)
            elif kind is int:
                need, right = "an integer of at least 1", right and value >= 1
            if not right:
                raise SettingsError(f"{name.replace('_', '-')}: must be {need}; got {shown(value)}")
        return values

    def chosen(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the feature modes that the options' values select."""
        named = values.get("mode") or self.modes
        if modes := tuple(mode for mode in named if values.get(mode, True)):
            return modes
        raise DataError(f"{self.name}.sql: need one or more feature modes")


def find_script(name: str | Path) -> Script:
    """Find a script by its name, or by a path that ends in ``.sql``."""
    is_path = Path(name).suffix.lower() == ".sql"
    return Script.read(Path(name if is_path else scripts.find(str(name))))


def _statements(body: str) -> tuple[Statement, ...]:
    statements = []
    for part in _END.split(_REMARK.sub("", body)):
        pairs = _DIRECTIVE.findall(part)
        directives = dict(pairs)
        kind = min(directives.keys() & _KINDS, default="")
        what, sql = directives.pop(kind, ""), _DIRECTIVE.sub("", part).strip()
        if wrong := directives.keys() - _MORE.get(kind, set()):
            where, known = f"with @{kind}" if kind else "alone", ", @".join(sorted(_KINDS))
            raise DataError(f"@{min(wrong)} is unknown or not allowed {where}; known are @{known}")
        if len(directives) + bool(kind) < len(pairs) or bool(kind) > bool(sql):
            raise DataError(f"@{kind}: need each directive only once, and a statement below it")
        if sql:
            statements.append(Statement(sql, kind, what, directives))
    return tuple(statements)


def read(
    reader: str | Path | Script,
    source: str | Path,
    *,
    name: str = "",
    schema: str = "",
    window_days: int | None = 30,
    **given: Any,
) -> Cohort:
    """Read an EHR's tables into one tensor per site, as a script specifies.

    `reader` is a script's path, or the name of a script in this package (such as ``mimic4``) or in
    another installed package. `source` is anything that `dpfact_flower.data.sources.open_source`
    can open. `name` is the cohort's name, which is optional unless the script's `named` is true. If
    the script's window is in days, events occur together if they are at most `window_days` days
    apart. If `window_days` is 0 or None, events of the same encounter occur together. `given`
    contains the script's options and the `Options` that all readers share.
    """
    script = reader if isinstance(reader, Script) else find_script(reader)
    values = script.checked({key: given.pop(key) for key in script.options if key in given})
    name = name or ("" if script.named else script.name)
    modes = script.chosen(values)
    for what in (name, *modes):
        check_name("name of site or mode", what)
    if given.get("vocabularies") is None:
        given = {"top": [script.modes.get(mode) or None for mode in modes]} | given
    options = Options(**{"min_patients": script.min_patients} | given)
    with reading(options, modes) as connection:
        values |= {"name": name, "source": str(source), "file": Path(source).name}
        work = _Work(script, connection, modes, values)
        lines = script.source == "lines"
        with open_source(connection, source, schema, script.folders, lines=lines) as opened:
            work.run(opened)
        days = None if script.window == "encounter" else window_days
        window = Window(days, script.window == "days in encounter")
        return build_cohort(connection, name, modes, window, options, work.labels, script.row_unit)


@dataclass
class _Work:
    """A running script's state: the placeholders' `values`, and the `labels` added so far."""

    script: Script
    connection: Connection
    modes: Sequence[str]
    values: dict[str, Any]
    labels: list[str] = field(default_factory=list)

    def run(self, source: Source) -> None:
        import duckdb  # noqa: PLC0415 - the connection came from it

        self.values["tables"] = sorted(set(source.tables))
        for statement in self.script.statements:
            try:
                self._run(statement, source)
            except (
                duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException
            ) as error:  # fmt: skip
                quote = str(error).splitlines()[0]  # quotes the script, never a patient
                raise DataError(f"{self.script.name}.sql: {quote}") from None

    def _run(self, statement: Statement, source: Source) -> None:
        connection, what = self.connection, statement.what
        sql = self._filled(statement.sql)
        if statement.kind == "load":
            self._load(statement, sql, source)
        elif statement.kind in ("count", "warn", "refuse"):
            for place, number in connection.execute(sql).fetchall():
                if number and statement.kind == "refuse":
                    raise DataError(f"{place}: {what}; {number} are not")
                count(connection, place, what, number, warn=statement.kind == "warn")
        elif statement.kind == "events":
            self._add_events(sql)
        elif statement.kind == "describe":
            connection.execute(
                f"""INSERT INTO descriptions SELECT mode, code, min(description) FROM ({sql})
                    WHERE code IS NOT NULL AND description IS NOT NULL GROUP BY mode, code"""
            )
        elif statement.kind == "patients":
            connection.execute(f"CREATE TEMP TABLE patients AS {sql}")
        elif statement.kind == "names":
            if what not in SYSTEMS:
                raise DataError(f"{self.script.name}.sql: @names of one of {', '.join(SYSTEMS)}")
            table, named = self._created(sql), names_of(what)
            connection.execute(sql)
            connection.execute(
                f"INSERT INTO {table} SELECT unnest($codes), unnest($names)",
                {"codes": [*named], "names": [*named.values()]},
            )
        elif statement.kind == "stays" and self._holds(statement):
            self._label_readmissions(sql)
        elif statement.kind == "label" and self._holds(statement):
            self._label(what, sql)
        elif not statement.kind:
            connection.execute(sql)

    def _filled(self, sql: str) -> str:
        """Replace placeholders such as ``$name`` in `sql` with their values."""
        for name in _VALUE.findall(sql):
            if name not in self.values:
                raise DataError(f"{self.script.name}.sql: there is no option {name}")
        return _VALUE.sub(lambda match: _as_sql(self.values[match[1]]), sql)

    def _holds(self, statement: Statement) -> bool:
        condition = self._filled(statement.more.get("when", "true"))
        ((holds,),) = self.connection.execute(f"SELECT {condition}").fetchall()
        return bool(holds)

    def _load(self, statement: Statement, sql: str, source: Source) -> None:
        """Create the table that `sql` defines, and fill the table from `source`."""
        connection, name = self.connection, statement.what
        into = self._created(sql)
        connection.execute(sql)
        columns = connection.execute(f"DESCRIBE {into}").fetchall()
        if "*" in name:
            connection.execute(f"ALTER TABLE {into} ADD COLUMN part VARCHAR")
            for part in _parts(name, source.tables) or [""]:
                self.values["part"] = part
                if self._holds(statement):
                    matched = name.replace("*", part or "*")
                    self._fetch(source, matched, "fetched", columns, statement.more)
                    connection.execute(
                        f"INSERT INTO {into} BY NAME SELECT *, $part AS part FROM fetched",
                        {"part": part},
                    )
        elif not self._holds(statement):
            return
        elif "optional" in statement.more and name.lower() not in source.tables:
            count(connection, name, f"tables missing: {statement.more['optional']}", 1, warn=True)
        else:
            connection.execute(f"DROP TABLE {into}")
            self._fetch(source, name, into, columns, statement.more)

    def _fetch(
        self, source: Source, name: str, into: str, columns: Sequence[Any], more: Mapping[str, str]
    ) -> None:
        connection = self.connection
        asked = {c: c.lower() + "[]" * (kind == "VARCHAR[]") for c, kind, *_ in columns}
        optional = [asked[column] for column, *_, default, _ in columns if default == "NULL"]
        needed = [column for column in asked.values() if column not in optional]
        where = self._filled(more.get("where", "true"))
        wanted = Table(name, needed, optional, where, more.get("there", "true"), null_words=True)
        place = source.fetch(into, wanted)
        for column, kind, null, key, *_ in columns:
            if kind not in _FORMS:
                known = f"{column} must have a type of {', '.join(_FORMS)}, not {kind}"
                raise DataError(f"{self.script.name}.sql: {known}")
            wrong, right, as_typed = _FORMS[kind]
            if kind == "VARCHAR" and column.endswith("id"):  # pandas writes 17.0 beside blanks
                wrong = "regexp_full_match({0}, '-?\\d+\\.0')"
                right = "an identifier without a final .0 (in pandas, use the type Int64)"
            wrong = f"({wrong.format(column)})" + f" OR {column} IS NULL" * (null == "NO")
            right += ", or blank" * (null != "NO")
            refuse_rows(connection, into, wrong, place, column, right)
            local, zoned = LOCAL_TIME.format(column), ZONED_TIME.format(column)
            if kind == "TIMESTAMP" and count_rows(connection, into, local):
                right = "with an offset from UTC in every row or in none"
                refuse_rows(connection, into, zoned, place, column, right)
            if key:
                twice = f"(SELECT {column} FROM {into} GROUP BY ALL HAVING count(*) > 1)"
                refuse_rows(connection, into, f"{column} IN {twice}", place, column, "unique")
            if not kind.startswith("VARCHAR"):
                as_typed = f"TYPE {kind} USING {as_typed.format(column)}"
                connection.execute(f"ALTER TABLE {into} ALTER {column} {as_typed}")
        what = "rows of use" if "where" in more else "rows"
        count(connection, name, what, count_rows(connection, into))

    def _add_events(self, sql: str) -> None:
        described = self.connection.execute(f"DESCRIBE {sql}").fetchall()
        kinds = {column: kind for column, kind, *_ in described}
        time = _MINUTES.get(kinds["time"], "time::BIGINT") if "time" in kinds else "NULL::BIGINT"
        encounter = "encounter::VARCHAR" if "encounter" in kinds else "NULL::VARCHAR"
        for mode in self.modes:
            query = f"""(SELECT patient::VARCHAR AS patient, {encounter} AS encounter,
                                {time} AS time, code FROM ({sql}) WHERE mode = {literal(mode)})"""
            events = count_rows(self.connection, query, "patient IS NOT NULL AND code IS NOT NULL")
            repeated = events - add_events(self.connection, mode, query)
            count(self.connection, mode, "repeated events, each counted once", repeated)

    def _label_readmissions(self, stays: str) -> None:
        """Label patients who have a stay that begins within 30 days after another stay ends.

        `stays` is a query for ``patient``, ``begun`` and ``ended``. Overlapping stays are merged.
        """
        dated = f"(FROM ({stays}) WHERE begun IS NOT NULL AND ended IS NOT NULL)"
        if not count_rows(self.connection, dated):
            what = "tables without a hospital stay that has both dates: no label readmitted"
            count(self.connection, "stays", what, 1)
            return
        undated = count_rows(self.connection, f"({stays})", "begun IS NULL OR ended IS NULL")
        count(self.connection, "readmitted", "stays that lack a date, left out", undated, warn=True)
        again = f"""SELECT patient FROM (
                        SELECT patient, begun, max(ended) OVER (PARTITION BY patient
                            ORDER BY begun, ended ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
                            AS gone
                        FROM {dated})
                    WHERE begun > gone AND begun <= gone + INTERVAL 30 DAYS"""
        self._label("readmitted", again)

    def _label(self, name: str, patients: str) -> None:
        self.connection.execute(f"INSERT INTO labelled SELECT {literal(name)}, * FROM ({patients})")
        self.labels.append(name)

    def _created(self, sql: str) -> str:
        if created := _CREATED.match(sql):
            return created[1]
        raise DataError(
            f"{self.script.name}.sql: need CREATE TABLE and columns below @load or @names"
        )


def _parts(name: str, tables: Collection[str]) -> list[str]:
    """Return the distinct texts that the star in `name` matches in the names of the tables."""
    before, _, behind = map(re.escape, name.lower().partition("*"))
    matches = (re.fullmatch(f"{before}(.*){behind}", table) for table in tables)
    return sorted({match[1] for match in matches if match})


def _as_sql(value: Any) -> str:
    if isinstance(value, dict):
        pairs = ", ".join(f"{literal(name)}: {literal(given)}" for name, given in value.items())
        return f"MAP {{{pairs}}}::MAP(VARCHAR, VARCHAR)"
    if isinstance(value, list):
        return f"[{', '.join(map(_as_sql, value))}]::VARCHAR[]"
    return literal(value) if isinstance(value, str) else str(value)
