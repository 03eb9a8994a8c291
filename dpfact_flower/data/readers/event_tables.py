"""Any EHR as plain event tables: one file per feature mode, one row per event.

- A table has a patient, a code, and a time or an encounter, and perhaps a description of the code.
  Times are cut to the minute. Where a table has both time and encounter, both tell events apart:
  an event is a distinct (encounter, time, code) of a patient (`dpfact_flower.data.cooccurrence`).
- A time is written as in ISO 8601, or as a format says. With an offset it becomes that of UTC; a
  column in which some times have one and others have none is refused.
- A hospital has one site and public code lists. A table of patient and site splits open data into
  several, for simulation.
- What cannot be right is refused: a blank or NaN where a patient or code should be, a date that is
  not one, a patient at two sites. What is merely not used is counted and noted: repeated events,
  events without the time or encounter that the window needs, codes outside the lists.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Unpack

from dpfact_flower.data.cooccurrence import COLUMNS, Window
from dpfact_flower.data.events import add_events, note, table_of
from dpfact_flower.data.progress import telling
from dpfact_flower.data.readers.steps import Options, make_cohort, reading
from dpfact_flower.data.site_data import DIED, Cohort
from dpfact_flower.data.tables import (
    Dialect,
    count_rows,
    literal,
    load_table,
    quoted,
    refuse_rows,
)
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.settings import check_name

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

logger = logging.getLogger(__name__)

SITE = "site"
"""Column of the table of sites, beside the patient's."""

# How programs write a missing value; and what could appear neither in a list nor in a message.
_NO_VALUE = "lower({0}) IN ('nan', 'nat', 'null', 'none', '<na>', '#n/a', '#ref!', '#value!')"
_UNPRINTABLE = r"regexp_matches(replace({0}, ' ', ''), '[\pC\pZ]')"
_CLOCK = r"[ T]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?"
_TIME = rf"\d{{4}}-\d{{2}}-\d{{2}}({_CLOCK}(Z|\+00(:?00)?)?)?"
_OFFSET = rf"\d{{4}}-\d{{2}}-\d{{2}}{_CLOCK}[+-]\d{{2}}(:?\d{{2}})?"
# Most times are so long, and need no regular expression: what DuckDB makes a time of them is one.
_USUAL = "length({0}) IN (10, 16, 19) AND NOT contains({0}, '/')"
_YEAR_1 = 1_035_593_280
"""Minutes from the year 1 to 1970: a quotient of whole numbers is cut towards zero, not down."""
_ZONED, _MISTIMED = 10**12, -(10**12)
"""What is added to minutes in UTC, and what stands for no time: another column costs more."""


@dataclass(frozen=True)
class Columns:
    """Names of the columns of the event tables, the same in all of them and in any case.

    Attributes
    ----------
    patient, code : str
    time, encounter : str
        Whichever of them the window needs must be there; ``""`` leaves the other unread.
    description : str
        Of the code, where there is such a column; ``""`` leaves it unread.

    Raises
    ------
    SettingsError
        If two names are the same, or one that is needed is empty.
    """

    patient: str = "patient"
    code: str = "code"
    time: str = "time"
    encounter: str = "encounter"
    description: str = "description"

    def __post_init__(self) -> None:
        for own in fields(self):
            object.__setattr__(self, own.name, getattr(self, own.name).strip().lower())
        for needed in ("patient", "code"):
            if not getattr(self, needed):
                raise SettingsError(f"column {needed}: need a name")
        names = [name for name in self.names.values() if name]
        if len(set(names)) != len(names) or {SITE, DIED} & {self.patient}:
            raise SettingsError(
                f"columns: names must differ from each other, and the patient's from {SITE} and "
                f"{DIED}; got {', '.join(names)}"
            )

    @property
    def names(self) -> dict[str, str]:
        """Name of the column in the file, by what it holds."""
        return {own.name: getattr(self, own.name) for own in fields(self)}


@dataclass(frozen=True)
class EventTable:
    """Where the events of a feature mode are, and how they are written.

    Attributes
    ----------
    files : sequence of path
        One or more, all written alike: ``.csv``, ``.csv.gz`` or ``.parquet``.
    columns : Columns
    dialect : Dialect
        Of CSV.
    time_format : str
        As in C's ``strptime``, such as ``%d.%m.%Y %H:%M``; ``""``: ISO 8601.

    Raises
    ------
    SettingsError
        If there is no file, or the format names no year, month and day.
    """

    files: Sequence[str | Path]
    columns: Columns = field(default_factory=Columns)
    dialect: Dialect = field(default_factory=Dialect)
    time_format: str = ""

    def __post_init__(self) -> None:
        if not self.files:
            raise SettingsError("event table: need at least one file")
        object.__setattr__(self, "files", tuple(map(Path, self.files)))
        dates = ({"Y", "y"}, {"m", "b", "B"}, {"d", "-d"})
        named = set(self.time_format.replace("%-", "%").split("%")) - {""}
        letters = {part[0] for part in named}
        if self.time_format and not all(date & letters for date in dates):
            raise SettingsError(
                "time format: need a year, a month and a day, as in %d.%m.%Y %H:%M; "
                f"got {self.time_format!r}"
            )


@dataclass(frozen=True)
class LabelTable:
    """A table of one row a patient, and in which column the label is.

    Attributes
    ----------
    file : path
    column : str
        Holds 0 or 1, no or yes, false or true, whatever the case.
    patient : str
        Column of the patient; ``""``: that of the event tables.
    missing : str
        ``""``: every patient must be in it; ``0`` or ``1``: what those who are not in it have.

    Raises
    ------
    SettingsError
        If `missing` is something else.
    """

    file: str | Path
    column: str = "died"
    patient: str = ""
    missing: str = ""

    def __post_init__(self) -> None:
        if self.missing not in ("", "0", "1"):
            raise SettingsError(f"label's missing: need 0 or 1, got {self.missing!r}")


def read(
    tables: Mapping[str, str | Path | EventTable],
    name: str,
    *,
    columns: Columns | None = None,
    window_days: int | None = 30,
    sites: str | Path | None = None,
    labels: str | Path | LabelTable | Mapping[str, LabelTable] | None = None,
    dialect: Dialect | None = None,
    **options: Unpack[Options],
) -> Cohort:
    """Read event tables into one tensor per site: patients x codes of mode 1 x codes of mode 2 ...

    Parameters
    ----------
    tables : mapping of str to (path or EventTable)
        Of each feature mode, two or more, in the tensor's order. A path is a file written with
        `columns` and `dialect`: ``.csv``, ``.csv.gz`` or ``.parquet``.
    name : str
        Name of the one site, or, with `sites`, of the cohort.
    columns : Columns, optional
        Names of the tables' columns, where they are not its defaults.
    window_days : int or None
        Largest distance in time between the events of a cell; None: they have the same encounter.
    sites : path, optional
        Table of patient and ``site``. Patients who are not in it are left out; what is blank
        becomes the site ``unknown``.
    labels : path, LabelTable, or mapping of str to LabelTable, optional
        Table of patient and ``died``, 1 for a death in hospital and 0 for none; or of another
        label, called as its column is; or of each label by its name. It must hold every patient,
        unless it says what the others are.
    dialect : Dialect, optional
        Of tables given as paths, and of those of sites and labels.
    **options
        `Options` of all readers.

    Returns
    -------
    Cohort
        With the labels that are given. A code is described by the text that most often goes with
        it, or by its vocabulary.

    Raises
    ------
    DataError
        Naming the file, the column, what it must hold and how many rows do not; or that no two
        events lie in one window.
    SettingsError
        If an option cannot be used.
    MissingDependencyError
        If DuckDB is not installed.
    """
    modes = list(tables)
    if len(modes) < 2:
        raise SettingsError(f"modes: need two or more feature modes, got {len(modes)}")
    for what in (name, *modes):
        check_name("name of site or mode", what)
    vocabularies = options.get("vocabularies")
    if vocabularies is not None and options.get("top") is not None:
        raise SettingsError("top: has no meaning where the vocabularies are given")
    columns, dialect = columns or Columns(), dialect or Dialect()
    sources = {
        mode: table if isinstance(table, EventTable) else EventTable([table], columns, dialect)
        for mode, table in tables.items()
    }
    window = Window(days=window_days, same_encounter=window_days is None)
    if unknown := (options.get("rolled_up") or {}).keys() - sources.keys():
        raise SettingsError(f"roll-up: no mode is named {', '.join(sorted(unknown))}")
    by_name = _label_tables(labels, columns)
    with reading(options) as connection:
        for mode, source in sources.items():
            _load_events(connection, mode, source, window)
        sites = None if sites is None else Path(sites)
        _load_patients(connection, sources, name, columns.patient, sites, dialect)
        for label, label_table in by_name.items():
            _load_labels(connection, label, label_table, dialect)
        if vocabularies is None:
            logger.warning(
                "the code lists are made from these patients, which no guarantee covers: sites of "
                "a federation need the same lists, from a public source (--codes)"
            )
        return make_cohort(connection, name, modes, window, options, tuple(by_name))


def _label_tables(
    given: str | Path | LabelTable | Mapping[str, LabelTable] | None, columns: Columns
) -> dict[str, LabelTable]:
    """Table of each label, with the names of its columns as they are looked for."""
    if isinstance(given, LabelTable):
        given = {given.column.strip().lower(): given}
    elif not isinstance(given, Mapping):
        given = {DIED: LabelTable(given)} if given is not None else {}
    for name in given:
        check_name("name of label", name)
    lower = [name.lower() for name in given]
    if set(lower) & COLUMNS or len(set(lower)) < len(lower):
        raise SettingsError(
            f"labels: names must differ by more than their case, and from "
            f"{', '.join(sorted(COLUMNS))}; got {', '.join(given)}"
        )
    return {name: _for_patient(table, columns) for name, table in given.items()}


def _for_patient(table: LabelTable, columns: Columns) -> LabelTable:
    names = {"patient": table.patient or columns.patient, "column": table.column}
    return replace(table, **{key: name.strip().lower() for key, name in names.items()})


def _load_events(connection: Connection, mode: str, source: EventTable, window: Window) -> None:
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE described (code VARCHAR, description VARCHAR, uses BIGINT)"
    )
    for path in map(Path, source.files):
        found = _load_rows(connection, path, source, window)
        rows, unplaced = found.rows, found.unplaced
        with telling(connection, mode):
            added = add_events(connection, mode, "loaded", found.empty)
        names = source.columns.names
        for what, texts in (("patient", "people"), ("code", f"(FROM codes WHERE mode = '{mode}')")):
            if count_rows(connection, texts, _without_value(what)):  # far fewer than rows
                _refuse_no_value(connection, "loaded", path, what, names[what])
        note(connection, path.name, "rows", rows)
        if rows > added:
            what = "rows that repeat another one, and count once"
            note(connection, path.name, what, rows - added)
            logger.warning("%s: %d of %d rows repeat another one, and count once", path.name,
                           rows - added, rows)  # fmt: skip
        if unplaced:
            placing = "encounter" if window.same_encounter else "time"
            what = f"rows without {names[placing]}, in no window"
            note(connection, path.name, what, unplaced)
            logger.warning("%s: %d of %d rows have no %s, so are in no window", path.name, unplaced,
                           rows, names[placing])  # fmt: skip
        connection.execute(
            """INSERT INTO described SELECT code, description, count(*) FROM loaded
               WHERE description IS NOT NULL GROUP BY ALL"""
        )
    connection.execute(
        """INSERT INTO descriptions
           SELECT $mode, code, first(description ORDER BY uses DESC, description)
           FROM (SELECT code, description, sum(uses) AS uses FROM described GROUP BY ALL)
           GROUP BY code""",
        {"mode": mode},
    )
    connection.execute("DROP TABLE loaded")


class _Found(NamedTuple):
    """How many rows of a table are, or have, what."""

    rows: int
    no_patient: int
    no_code: int
    no_encounter: int
    mistimed: int
    zoned: int
    unzoned: int
    unplaced: int
    encounters: int

    @classmethod
    def of(cls, connection: Connection, window: Window) -> _Found:
        """Of the table ``loaded``, in one pass."""
        counted = cls._make(
            ("true", "patient IS NULL", "code IS NULL",
             f"length(encounter) < 5 AND {_NO_VALUE.format('encounter')}",
             f"time < {-_YEAR_1}", f"time > {_ZONED // 2}", f"time <= {_ZONED // 2}",
             window.unplaced, "encounter IS NOT NULL")
        )  # fmt: skip
        filters = ", ".join(f"count(*) FILTER ({where})" for where in counted)
        (row,) = connection.execute(f"SELECT {filters} FROM loaded").fetchall()
        return cls._make(row)

    @property
    def empty(self) -> list[str]:
        """Columns that are NULL in every row."""
        held = {"encounter": self.encounters, "time": self.zoned + self.unzoned}
        return [column for column, count in held.items() if not count]


def _load_rows(connection: Connection, path: Path, source: EventTable, window: Window) -> _Found:
    """Table ``loaded`` of one file, checked."""
    placing = "encounter" if window.same_encounter else "time"
    names = source.columns.names
    if not names[placing]:
        raise SettingsError(f"column {placing}: need a name, since the window is made from it")
    needed = ("patient", "code", placing)
    sql = {what: quoted(name) if name else "NULL::VARCHAR" for what, name in names.items()}
    load_table(
        connection, "loaded", path, [names[what] for what in needed],
        optional=[name for what, name in names.items() if name and what not in needed],
        select=", ".join(
            f"{sql[what]} AS {what}" for what in ("patient", "encounter", "code", "description")
        ) + f", {_minutes(sql['time'], source.time_format)} AS time",
        dialect=source.dialect,
    )  # fmt: skip
    _drop_headers(connection, path, names)
    found = _Found.of(connection, window)
    if not found.rows:
        raise DataError(f"{path}: holds no event, that is no row below its first line")
    for what, missing in (("patient", found.no_patient), ("code", found.no_code)):
        if missing:
            _refuse_no_value(connection, "loaded", path, what, names[what])
    if found.no_encounter:
        raise DataError(
            f"{path}: column {names['encounter']} must be text other than NaN or NULL, or blank; "
            f"{found.no_encounter} row(s) are not"
        )
    _check_times(path, source, found)
    if found.zoned:
        connection.execute(f"UPDATE loaded SET time = time - {_ZONED}")
    if found.unplaced == found.rows:
        raise DataError(
            f"{path}: column {names[placing]} must place events in a window; all {found.rows} "
            "row(s) are blank"
        )
    return found


def _drop_headers(connection: Connection, path: Path, names: Mapping[str, str]) -> None:
    """Leave out header lines among the rows, as files have that were put one behind the other."""
    forms = (
        (what, {name, name.upper(), name.title(), name.capitalize()})
        for what, name in (("patient", names["patient"]), ("code", names["code"]))
    )
    header = " AND ".join(f"{what} IN ({', '.join(map(literal, f))})" for what, f in forms)
    if count := count_rows(connection, "loaded", header):
        connection.execute(f"DELETE FROM loaded WHERE {header}")
        note(connection, path.name, "lines that repeat the header, left out", count)


def _check_times(path: Path, source: EventTable, found: _Found) -> None:
    column = source.columns.time
    if found.mistimed:
        right = (
            f"a time as {source.time_format}"
            if source.time_format
            else "a date or time as 2024-05-31 or 2024-05-31 14:05 (--time-format for another)"
        )
        raise DataError(
            f"{path}: column {column} must be {right}, or blank; {found.mistimed} row(s) are not"
        )
    if found.zoned and found.unzoned:
        raise DataError(
            f"{path}: column {column} must have an offset from UTC in every row or in none; "
            f"{found.zoned} of {found.rows} row(s) have one"
        )


def _minutes(time: str, time_format: str) -> str:
    """SQL of whole minutes since 1970; see `_ZONED` and `_MISTIMED`."""
    if time_format:
        minute = _whole_minutes(f"try_strptime({time}, {literal(time_format)})")
        return f"CASE WHEN {time} IS NOT NULL THEN coalesce({minute}, {_MISTIMED}) END"
    usual, point = _USUAL.format(time), f"replace({time}, ',', '.')"
    minute, other, zoned = (
        _whole_minutes(f"try_cast({text} AS {kind})")
        for text, kind in ((time, "TIMESTAMP"), (point, "TIMESTAMP"), (point, "TIMESTAMPTZ"))
    )
    return f"""CASE WHEN {time} IS NULL THEN NULL
                    WHEN {usual} THEN coalesce({minute}, {_MISTIMED})
                    WHEN regexp_full_match({time}, '{_TIME}')
                    THEN coalesce({other}, {_MISTIMED})
                    WHEN regexp_full_match({time}, '{_OFFSET}')
                    THEN coalesce({zoned} + {_ZONED}, {_MISTIMED})
                    ELSE {_MISTIMED} END"""


def _whole_minutes(time: str) -> str:
    return f"(epoch_us({time}) + {60_000_000 * _YEAR_1}) // 60000000 - {_YEAR_1}"


def _load_patients(
    connection: Connection,
    sources: Mapping[str, EventTable],
    name: str,
    patient: str,
    sites: Path | None,
    dialect: Dialect,
) -> None:
    """Table ``patients``, of the table of sites or of everybody who has an event."""
    if sites is None:
        connection.execute("CREATE TEMP TABLE facts AS SELECT patient FROM people")
        site = f"'{name}'"
    else:
        _load_facts(connection, sites, patient, SITE, dialect)
        site = f"any_value({SITE})"
    connection.execute(
        f"""CREATE TEMP TABLE patients AS
            SELECT patient, {site} AS site FROM facts GROUP BY patient"""
    )
    strangers = count_rows(connection, "(FROM people ANTI JOIN patients USING (patient))")
    if strangers and sites:
        note(
            connection, sites.name, "patients of the events who are not in it, left out", strangers
        )
        logger.warning(
            "%s: lacks %d patients of the events; they are left out", sites.name, strangers
        )
    complete = " ".join(
        f"SEMI JOIN {table_of(mode)} e{n} ON e{n}.patient = p.key" for n, mode in enumerate(sources)
    )
    known = "(FROM people SEMI JOIN patients USING (patient){})"
    some = (known.format(" LIMIT 1000"), known.format(""))  # few are looked up faster
    if not any(count_rows(connection, f"(SELECT 1 FROM {p} p {complete})") for p in some):
        files = [*(file for source in sources.values() for file in source.files)]
        raise DataError(
            f"{', '.join(map(str, [*files, *([sites] if sites else [])]))}: no patient is "
            f"in all of them; column {patient} must identify patients alike in each"
        )


def _load_labels(connection: Connection, name: str, table: LabelTable, dialect: Dialect) -> None:
    path, column = Path(table.file), quoted("label")
    _load_facts(connection, path, table.patient, table.column, dialect, f"lower({{}}) AS {column}")
    yes, no = ("1", "1.0", "1,0", "yes", "true"), ("0", "0.0", "0,0", "no", "false")
    bad = f"coalesce(label NOT IN {yes + no}, true)"
    refuse_rows(connection, "facts", bad, path, table.column, "0 or 1 (or no, yes, false, true)")
    missing = count_rows(connection, "(FROM patients ANTI JOIN facts USING (patient))")
    if missing and not table.missing:
        raise DataError(
            f"{path}: column {table.patient} must hold every patient; {missing} patient(s) are "
            "missing (--label with missing=0 takes them for 0)"
        )
    if missing:
        note(connection, path.name, f"patients not in it, labelled {table.missing}", missing)
    connection.execute(
        f"""ALTER TABLE patients ADD COLUMN {quoted(name)} BOOLEAN DEFAULT {table.missing == "1"};
            UPDATE patients SET {quoted(name)} = facts.label IN {yes} FROM facts
            WHERE facts.patient = patients.patient"""
    )


def _load_facts(
    connection: Connection,
    path: Path,
    patient: str,
    column: str,
    dialect: Dialect,
    form: str = "{}",
) -> None:
    """Table ``facts``: patient and `column`, on which no two rows of a patient disagree."""
    select = f"{quoted(patient)} AS patient, {form.format(quoted(column))}"
    load_table(connection, "facts", path, (patient, column), select=select, dialect=dialect)
    _refuse_no_value(connection, "facts", path, "patient", patient)
    held = quoted("label" if "label" in form else column)
    bad = f"""patient IN (SELECT patient FROM facts GROUP BY patient
                          HAVING count(DISTINCT coalesce({held}, '')) > 1)"""
    refuse_rows(connection, "facts", bad, path, column, "one and the same for a patient")
    note(connection, path.name, "rows", count_rows(connection, "facts"))


def _without_value(what: str) -> str:
    return f"{what} IS NULL OR {_NO_VALUE.format(what)} OR {_UNPRINTABLE.format(what)}"


def _refuse_no_value(
    connection: Connection, table: str, path: Path, what: str, column: str
) -> None:
    right = "printable text other than NaN or NULL in every row"
    refuse_rows(connection, table, _without_value(what), path, column, right)
