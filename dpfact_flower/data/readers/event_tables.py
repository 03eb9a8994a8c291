"""Read any EHR from plain tables with one row per event.

Each feature mode has one or more tables. A table has columns for the patient, the code, and the
time or encounter. A column with descriptions of the codes is optional. Rows with the same patient,
encounter, minute and code count as one event.

Times are in ISO 8601 or in a given format. Times with a UTC offset are converted to UTC. A column
in which only some times have an offset is rejected.

The reader rejects invalid data, such as an empty patient identifier or code, an invalid date, or a
patient at two sites. The reader reports how many rows are left out.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfact_flower.data.clinical_events import Options, add_events, count, reading, table_of
from dpfact_flower.data.cooccurrence import Window, build_cohort
from dpfact_flower.data.site_data import DIED, Cohort
from dpfact_flower.data.tables import (
    NO_VALUE,
    TIME,
    ZONED_TIME,
    Dialect,
    Rows,
    Table,
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

SITE = "site"
TableSource = Path | Rows
_UNPRINTABLE = r"regexp_matches(replace({0}, ' ', ''), '[\pC\pZ]')"
# R writes NA for a missing value, but NA may also be the code of sodium.
_NO_ID = f"({NO_VALUE} OR lower({{0}}) = 'na')"
_NO_TEXT = f"({{0}} IS NULL OR {_NO_ID} OR {_UNPRINTABLE})"
_ODD_YEAR = f"time NOT BETWEEN {-25_567 * 1440} AND {120_530 * 1440}"
_LIKELY = {
    "patient": ("patient", "subject", "person", "member", "bene", "mrn", "pid"),
    "code": ("code", "icd|ops|diag|pro[cz]|drug|ndc|atc|cpt|concept|medi[ck]ation|schl(ü|ue)ssel"),
    "time": ("time", "date|datum", "day"),
    "encounter": ("encounter", "visit", "hadm", "stay", "admission", "episode", "fall"),
}
"""Patterns of English and German names for each kind of column, most reliable patterns first."""
_LIKE_A_NAME = re.compile(
    "(?!.*(version|type|system|seq|birth|death|dob|dod|desc|title|text|unit))"
    r"([^\W\d]|[ .()-]|icd-?(9|10))+"
)
"""Pattern of a column name. Text that does not match may be a patient's data."""
_NUMBER = re.compile(r"\d\D?\d\D?\d")
"""Three digits, as in a year. A first line with three digits may be a patient's data."""
_ODD_CODES = {
    "codes of more than 60 characters": "(FROM codes WHERE length(code) > 60)",
    "codes NA, which may be a missing value": "(FROM codes WHERE lower(code) = 'na')",
    "codes without a letter or digit": r"(FROM codes WHERE NOT regexp_matches(code, '[\pL\pN]'))",
    "codes that look like lists or formulas (I10;E11, ['I10'], =I10)": r"""
        (FROM codes WHERE regexp_matches(code, '^(b?''|\[|=|\w\d[\w.]*([,;] *\w\d[\w.]*)+$)'))""",
    "codes that differ from another only in leading zeros, dots or case": """
        (FROM codes WHERE code <> '' QUALIFY count(*) OVER (
            PARTITION BY mode, ltrim(replace(lower(code), '.', ''), '0')) > 1)""",
}
"""SQL for codes that may be mistakes. Such codes are read unchanged and counted in a warning."""
_ODD_PEOPLE = r"""(FROM people QUALIFY patient SIMILAR TO '(.*/)?[\d.,]+[eE][+]\d+' OR count(*)
    OVER (PARTITION BY regexp_replace(lower(patient), '[.,]0+$|(^|/)0+', '\1', 'g')) > 1)"""
_YES = ("1", "1.0", "1,0", "yes", "true")
_NO = ("0", "0.0", "0,0", "no", "false")


@dataclass(frozen=True)
class Columns:
    """The column names of event tables. Names are not case-sensitive.

    `description` may be empty if the tables have no descriptions. `time` or `encounter` may be
    empty if the window does not need the column. If `encounter` names the patient column, all codes
    of a patient belong to one encounter.
    """

    patient: str = "patient"
    code: str = "code"
    time: str = "time"
    encounter: str = "encounter"
    description: str = "description"

    def __post_init__(self) -> None:
        for what, name in self.names.items():
            object.__setattr__(self, what, name.strip())
        for needed in ("patient", "code"):
            if not self.names[needed]:
                raise SettingsError(f"column {needed}: need a name")
        names = [name.lower() for name in self.names.values() if name]
        if self.encounter.lower() == self.patient.lower():
            names.remove(self.patient.lower())
        if len(set(names)) != len(names) or self.patient.lower() in (SITE, DIED):
            raise SettingsError(
                f"columns: names must differ from each other, and the patient's from {SITE} and "
                f"{DIED}; got {', '.join(names)}"
            )

    @property
    def names(self) -> dict[str, str]:
        """The column names, keyed by the names of this class's fields."""
        return asdict(self)


@dataclass(frozen=True)
class EventTable:
    """The files that contain one feature mode's events, and the format of the files.

    `time_format` is a C ``strptime`` format, such as ``%d.%m.%Y %H:%M``, or "" for ISO 8601.
    """

    files: Sequence[TableSource]
    columns: Columns = field(default_factory=Columns)
    dialect: Dialect = field(default_factory=Dialect)
    time_format: str = ""

    def __post_init__(self) -> None:
        letters = set(re.findall("%-?(.)", self.time_format))
        if self.time_format and not all(letters & set(part) for part in ("Yy", "mbB", "d")):
            raise SettingsError(
                "time format: need a year, a month and a day, as in %d.%m.%Y %H:%M; "
                f"got {self.time_format!r}"
            )
        if "I" in letters and "p" not in letters:
            raise SettingsError(f"time format: %I needs %p (AM or PM), got {self.time_format!r}")


@dataclass(frozen=True)
class LabelTable:
    """A table with one label (0 or 1, no or yes, false or true) or one site for each patient.

    `column` names the column of labels (default: the label's name) or of sites (default: ``site``).
    `patient` defaults to the patient column of the event tables. Patients absent from a table of
    labels get the label in `missing` (0 or 1). If `missing` is empty, such patients cause an error.
    """

    file: TableSource
    column: str = ""
    patient: str = ""
    missing: str = ""

    def __post_init__(self) -> None:
        if self.missing not in ("", "0", "1"):
            raise SettingsError(f"label: missing must be 0 or 1, got {self.missing!r}")

    def complete(self, patient: str, column: str) -> LabelTable:
        """Return a copy in which the arguments replace empty column names."""
        named = replace(self, patient=self.patient.strip() or patient)
        return replace(named, column=self.column.strip() or column)


def read(
    tables: Mapping[str, TableSource | EventTable],
    name: str,
    *,
    columns: Columns | None = None,
    window_days: int | None = 30,
    sites: LabelTable | None = None,
    labels: Mapping[str, LabelTable] | None = None,
    dialect: Dialect | None = None,
    **options: Any,
) -> Cohort:
    """Read event tables into one tensor per site: patients x codes of mode 1 x codes of mode 2 ...

    `tables` maps two or more feature modes to tables, in the order of the tensor's modes. `columns`
    and `dialect` apply to each table that is not an `EventTable`. `name` is the name of the only
    site or, if there is a table of `sites`, the name of the cohort. Patients missing from the table
    of sites are left out. Events are paired if they are at most `window_days` days apart. If
    `window_days` is 0 or None, only events of one encounter are paired. `options`: see `Options`.
    """
    modes = list(tables)
    if len(modes) < 2:
        raise SettingsError(
            f"modes: need two or more feature modes, got {len(modes)}; give one file for each kind "
            "of code (in Python, read_events splits one table by its column mode)"
        )
    for what in (name, *modes):
        check_name("name of site or mode", what)
    labels = labels or {}
    for label in labels:
        check_name("name of label", label)
    columns, dialect, shared = columns or Columns(), dialect or Dialect(), Options(**options)
    sources = {
        mode: table if isinstance(table, EventTable) else EventTable([table], columns, dialect)
        for mode, table in tables.items()
    }
    window = Window(window_days)
    with reading(shared, modes) as connection:
        for mode, source in sources.items():
            _check_format(connection, source.time_format)
            _load_events(connection, mode, source, window)
        _count_twins(connection, sources)
        what = "identifiers like 1E+17, or that differ only in leading zeros, a final .0 or case"
        count(connection, "patients", what, count_rows(connection, _ODD_PEOPLE), warn=True)
        _load_patients(connection, sources, name, columns.patient, sites, dialect)
        for label, label_table in labels.items():
            _load_label(connection, label, label_table, columns.patient, dialect)
        return build_cohort(connection, name, modes, window, shared, tuple(labels))


def _check_format(connection: Connection, time_format: str) -> None:
    import duckdb  # noqa: PLC0415 - the connection came from it

    try:
        form = {"form": time_format or "%Y"}
        connection.execute("SELECT try_strptime('', $form)", form).fetchall()
    except duckdb.InvalidInputException:
        raise SettingsError(f"time format: {time_format!r} has an unknown % code") from None


def _load_events(connection: Connection, mode: str, source: EventTable, window: Window) -> None:
    names = source.columns.names
    for place in source.files:
        _load_rows(connection, mode, place, source, window)
        rows, unplaced = _check_rows(connection, place, source, window)
        added = add_events(connection, mode, "loaded")
        codes = f"(FROM codes WHERE mode = {literal(mode)})"
        for what, texts, no_value in (("patient", "people", _NO_ID), ("code", codes, NO_VALUE)):
            odd = f"{no_value} OR {_UNPRINTABLE}".format(what)
            bad = f"{what} IS NULL OR {what} IN (SELECT {what} FROM {texts} WHERE {odd})"
            _refuse_no_text(connection, "loaded", bad, place, names[what])
        count(connection, place.name, "rows", rows)
        count(connection, place.name, "repeated rows, each counted once", rows - added, warn=True)
        what = f"rows without {names[window.column]}, left out"
        count(connection, place.name, what, unplaced, warn=True)
        what = "rows of a year before 1900 or after 2300"
        count(connection, place.name, what, count_rows(connection, "loaded", _ODD_YEAR), warn=True)
        connection.execute(
            """INSERT INTO descriptions SELECT $mode, code, mode(description ORDER BY description)
               FROM loaded WHERE description IS NOT NULL AND code NOT IN
                   (SELECT code FROM descriptions WHERE mode = $mode) GROUP BY code""",
            {"mode": mode},
        )
    connection.execute("DROP TABLE loaded")
    for what, odd in _ODD_CODES.items():
        number = count_rows(connection, odd, f"mode = {literal(mode)}")
        count(connection, mode, what, number, warn=True)


def _refuse_no_text(
    connection: Connection, table: str, bad: str, place: TableSource, column: str
) -> None:
    how = f", in pandas with replace('', None).dropna(subset={column!r})" * isinstance(place, Rows)
    rule = "printable text other than NaN or NULL in every row"
    advice = f"; replace tabs and no-break spaces, or delete these rows first{how}"
    refuse_rows(connection, table, bad, place, column, rule, advice)


def _load_rows(
    connection: Connection, mode: str, place: TableSource, source: EventTable, window: Window
) -> None:
    """Read a file into the table ``loaded``, with a text column for each field of `Columns`."""
    names = source.columns.names
    if not names[window.column]:
        raise SettingsError(f"column {window.column}: need a name, because the window needs it")
    needed = ("patient", "code", window.column)
    sql = {what: quoted(name) if name else "NULL::VARCHAR" for what, name in names.items()}
    load_table(
        connection, "loaded", place,
        Table(
            mode, [names[what] for what in needed],
            optional=[name for what, name in names.items() if name and what not in needed],
        ),
        select=", ".join(f"{column} AS {what}" for what, column in sql.items()),
        dialect=source.dialect, hint=lambda columns: _hint(mode, place, names, window, columns),
    )  # fmt: skip
    _refuse_header(connection, "loaded", place, {w: names[w] for w in ("patient", "code")})


def _check_rows(
    connection: Connection, place: TableSource, source: EventTable, window: Window
) -> tuple[int, int]:
    """Check rows and convert times. Return how many rows there are, and how many `window` omits."""
    names = source.columns.names
    option = "time_format=" if isinstance(place, Rows) else "--time-format"
    form = f"a date or time like 2024-05-31 or 2024-05-31 14:05 (or set {option})"
    parsed, zoned = TIME.format("time"), ZONED_TIME.format("time")
    if source.time_format:
        parsed = f"try_strptime(time, {literal(source.time_format)})"
        zoned = f"time IS NOT NULL AND {'%z' in source.time_format.lower()}"
        form = f"a time in the format {source.time_format}"
        form += " (or omit time_format= if it holds dates, not text)" * isinstance(place, Rows)
    no_id = f"length(encounter) < 8 AND {_NO_ID.format('encounter')}"
    right = "text other than NaN or NULL, or blank"
    refuse_rows(connection, "loaded", no_id, place, names["encounter"], right)
    no_time = f"time IS NOT NULL AND {parsed} IS NULL"
    refuse_rows(connection, "loaded", no_time, place, names["time"], f"{form}, or blank")
    conditions = ("true", window.unplaced, "time IS NOT NULL", zoned)
    rows, unplaced, timed, with_offset = (
        count_rows(connection, "loaded", condition) for condition in conditions
    )
    if not rows:
        raise DataError(f"{place}: has no row below its first line")
    if 0 < with_offset < timed:
        raise DataError(
            f"{place}: column {names['time']} must have an offset from UTC in every row or in "
            f"none; {with_offset} of {rows} row(s) have one"
        )
    count(connection, place.name, "times with an offset from UTC, converted to UTC", with_offset)
    if unplaced == rows:
        raise DataError(
            f"{place}: column {names[window.column]} must place events in a window; all {rows} "
            "row(s) are blank"
        )
    connection.execute(
        f"ALTER TABLE loaded ALTER time TYPE BIGINT USING floor(epoch_us({parsed}) / 60000000)"
    )
    return rows, unplaced


def _guessed(mode: str, known: Mapping[str, str], columns: Collection[str]) -> dict[str, str]:
    """Return the likely name of each kind of column. `known` contains the certain names."""
    guessed = dict(known)
    similar_first = sorted(columns, key=lambda name: mode[:3].lower() not in name)
    for kind, patterns in _LIKELY.items():
        free = [n for n in similar_first if n not in guessed.values() and _LIKE_A_NAME.fullmatch(n)]
        fits = [name for pattern in patterns for name in free if re.search(pattern, name)]
        if fits:
            guessed.setdefault(kind, fits[0])
    return guessed


def _hint(
    mode: str, place: TableSource, names: Mapping[str, str], window: Window, found: Collection[str]
) -> str:
    """Suggest arguments that name the columns, and write ``COLUMN`` if a name cannot be guessed."""
    written = {name.lower(): name for name in found}
    known = {kind: name.lower() for kind, name in names.items() if name.lower() in written}
    guessed = _guessed(mode, known, written)
    placed = guessed.keys() & {"time", "encounter"}
    complete = placed and guessed.keys() >= {"patient", "code"}
    plausible = complete and not any(map(_NUMBER.search, found))
    if not (known or plausible or isinstance(place, Rows)):
        guessed, placed = {}, set()  # the first line may hold a patient's data
    needed = {"patient", "code", *[window.column] * (not placed), *guessed}
    shown = {kind: written.get(guessed.get(kind, ""), "COLUMN") for kind in names if kind in needed}
    other = {  # includes columns named by an option, because the hint replaces that option
        kind: name for kind, name in shown.items()
        if {name.lower(), names[kind].lower()} != {kind}
    }  # fmt: skip
    unbounded, naming = "window_days=0", f"columns={other}"
    if not isinstance(place, Rows):
        pairs = ",".join(f"{kind}={name}" for kind, name in other.items())
        unbounded, naming = "--window 0", f"--mode {shlex.quote(f'{mode}={place},{pairs}')}"
    options = [naming] if other else []
    if window.column not in shown:
        options.append(unbounded if window.column == "time" else "a window in days")
    text = " and ".join(options)
    no_dates = f" (no dates? let encounter be the patient column, with {unbounded})"
    return text + no_dates if guessed and not placed else text


def _refuse_header(
    connection: Connection, table: str, place: TableSource, columns: Mapping[str, str]
) -> None:
    """Refuse rows that repeat the file's header. `columns` maps table columns to header names."""
    header = " AND ".join(
        f"lower({column}) = {literal(name.lower())}" for column, name in columns.items()
    )
    if repeated := count_rows(connection, table, header):
        raise DataError(
            f"{place}: {repeated} row(s) repeat the names of the columns; delete these rows if "
            "several files were joined into one"
        )


def _count_twins(connection: Connection, sources: Mapping[str, EventTable]) -> None:
    """Log a warning for each pair of modes that have exactly the same events."""
    for one, other in itertools.combinations(sources, 2):
        events = count_rows(connection, table_of(one))
        both = f"(FROM {table_of(one)} INTERSECT ALL FROM {table_of(other)})"
        if events == count_rows(connection, table_of(other)) == count_rows(connection, both):
            count(connection, other, f"events, all of which are also in {one}", events, warn=True)


def _load_patients(
    connection: Connection, sources: Mapping[str, EventTable], name: str, patient: str,
    sites: LabelTable | None, dialect: Dialect,
) -> None:  # fmt: skip
    """Create the table ``patients`` from the table of sites, or from all patients with an event."""
    if sites is None:
        connection.execute(
            f"CREATE TEMP TABLE patients AS SELECT patient, {literal(name)} AS site FROM people"
        )
    else:
        sites = sites.complete(patient, SITE)
        place = _load_facts(connection, sites, dialect, "--sites {},patient=COLUMN,site=COLUMN")
        connection.execute(
            """CREATE TEMP TABLE patients AS
               SELECT patient, any_value(value) AS site FROM facts GROUP BY patient"""
        )
        strangers = count_rows(connection, "(FROM people ANTI JOIN patients USING (patient))")
        what = "patients with events who are not in it, left out"
        count(connection, place.name, what, strangers, warn=True)
    complete = " ".join(
        f"SEMI JOIN {table_of(mode)} e{n} ON e{n}.patient = p.key" for n, mode in enumerate(sources)
    )
    known = "(FROM people SEMI JOIN patients USING (patient)) p"
    if not count_rows(connection, f"(FROM {known} {complete})"):
        files = [file for source in sources.values() for file in source.files]
        named = ", ".join(map(str, [*files, *([sites.file] if sites else [])]))
        raise DataError(
            f"{named}: no patient is in all of these; column {patient} must have the same "
            "identifiers in each"
        )


def _load_label(
    connection: Connection, name: str, table: LabelTable, patient: str, dialect: Dialect
) -> None:
    table = table.complete(patient, name)
    example = f"--label {name}={{}},patient=COLUMN,column=COLUMN"
    if isinstance(table.file, Rows):
        example = f"labels={{{{'LABEL': frame}}}}, for a frame with the columns {patient} and LABEL"
    place = _load_facts(connection, table, dialect, example, label=True)
    bad = f"coalesce(value NOT IN {_YES + _NO}, true)"
    refuse_rows(connection, "facts", bad, place, table.column, "0 or 1 (or no, yes, false, true)")
    missing = count_rows(connection, "(FROM patients ANTI JOIN facts USING (patient))")
    if missing and not table.missing:
        option = " (if absence means 0, add missing=0 to --label)"
        if isinstance(place, Rows):
            option = "; add them to the frame, or delete their events"
        lacking = f"must hold every patient; {missing} patient(s) are missing{option}"
        raise DataError(f"{place}: column {table.patient} {lacking}")
    everybody = missing == count_rows(connection, "patients")
    what = f"patients not in it, labelled {table.missing}" + ", which are all patients" * everybody
    count(connection, place.name, what, missing, warn=everybody)
    connection.execute(
        f"""INSERT INTO labelled SELECT {literal(name)}, patient FROM patients LEFT JOIN facts
            USING (patient) WHERE coalesce(value IN {_YES}, {table.missing == "1"})"""
    )


def _load_facts(
    connection: Connection, table: LabelTable, dialect: Dialect, hint: str, *, label: bool = False
) -> TableSource:
    """Fill ``facts`` with each patient's label or site. If a column is missing, suggest `hint`."""
    place, patient, column = table.file, table.patient, table.column
    value = f"lower({quoted(column)})" if label else quoted(column)
    load_table(
        connection, "facts", place,
        Table("facts", (patient, column), null_words=True, floats=[column] * label),
        select=f"{quoted(patient)} AS patient, {value} AS value", dialect=dialect,
        hint=lambda _: hint.format(place),
    )  # fmt: skip
    _refuse_header(connection, "facts", place, {"patient": patient, "value": column})
    _refuse_no_text(connection, "facts", _NO_TEXT.format("patient"), place, patient)
    bad = """patient IN (SELECT patient FROM facts GROUP BY patient
                         HAVING count(DISTINCT coalesce(value, '')) > 1)"""
    same = "the same in all rows of a patient, or blank in all"
    refuse_rows(connection, "facts", bad, place, column, same)
    count(connection, place.name, "rows", count_rows(connection, "facts"))
    return place
