"""Any EHR as plain event tables: one file per feature mode, one row per event.

- A table has a patient, a code, and a time or an encounter, and perhaps a description of the code.
  Times are cut to the minute. Where a table has both time and encounter, both tell events apart:
  an event is a distinct (encounter, time, code) of a patient (`dpfact_flower.data.cooccurrence`).
- A hospital has one site and public code lists. A table of patient and site splits open data into
  several, for simulation.
- What cannot be right is refused: a blank or NaN where a patient or code should be, a date that is
  not one, a patient at two sites. What is merely not used is counted and logged: repeated events,
  events without the time or encounter that the window needs, codes outside the lists.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from dpfact_flower.data.cooccurrence import Window, build_cohort, choose_vocabularies
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.tables import connect, count_rows, load_table, quoted, refuse_rows
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.settings import check_name

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

logger = logging.getLogger(__name__)

SITE, DIED = "site", "died"
"""Columns of the tables of sites and of labels, beside the patient's."""

# How programs write a missing value; and what could appear neither in a list nor in a message.
_NO_VALUE = "lower({0}) IN ('nan', 'nat', 'null', 'none', '<na>')"
_UNPRINTABLE = r"regexp_matches(replace({0}, ' ', ''), '[\pC\pZ]')"
# Not all versions of DuckDB read an offset from UTC alike, so there must be none.
_TIME = r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|\+00(:?00)?)?)?"


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
        for field in fields(self):
            object.__setattr__(self, field.name, getattr(self, field.name).strip().lower())
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
        return {field.name: getattr(self, field.name) for field in fields(self)}


def read(
    tables: Mapping[str, str | Path],
    name: str,
    *,
    columns: Columns | None = None,
    window_days: int | None = 30,
    sites: str | Path | None = None,
    labels: str | Path | None = None,
    top: Sequence[int | None] | None = None,
    vocabularies: Sequence[Vocabulary] | None = None,
    keep_empty: bool = False,
) -> Cohort:
    """Read event tables into one tensor per site: patients x codes of mode 1 x codes of mode 2 ...

    Parameters
    ----------
    tables : mapping of str to path
        File of each feature mode, two or more, in the tensor's order: ``.csv``, ``.csv.gz`` or
        ``.parquet``.
    name : str
        Name of the one site, or, with `sites`, of the cohort.
    columns : Columns, optional
        Names of the tables' columns, where they are not its defaults.
    window_days : int or None
        Largest distance in time between the events of a cell; None: they have the same encounter.
    sites : path, optional
        Table of patient and ``site``. Patients who are not in it are left out; what is blank
        becomes the site ``unknown``.
    labels : path, optional
        Table of patient and ``died``, 1 for a death in hospital and 0 for none. It must hold every
        patient.
    top : sequence of (int or None), or None
        How many of the most frequent codes of each mode to keep, None for all. This looks at
        patients: see `dpfact_flower.data.vocabulary.by_frequency`.
    vocabularies : sequence of Vocabulary, optional
        Public code lists, one per mode and in the same order; other codes are left out.
    keep_empty : bool
        Keep patients without a cell as empty rows.

    Returns
    -------
    Cohort
        Labels: None without `labels`. A code is described by the text that most often goes with
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
    if vocabularies is not None and top is not None:
        raise SettingsError("top: has no meaning where the vocabularies are given")
    files, columns = {mode: Path(path) for mode, path in tables.items()}, columns or Columns()
    window = Window(days=window_days, same_encounter=window_days is None)
    with connect() as connection:
        _load_events(connection, files, columns, window)
        sites = None if sites is None else Path(sites)
        _load_patients(connection, files, name, columns.patient, sites)
        if labels is not None:
            _load_labels(connection, Path(labels), columns.patient)
        if vocabularies is None:
            logger.warning(
                "the code lists are made from these patients, which no guarantee covers: sites of "
                "a federation need the same lists, from a public source (--codes)"
            )
        chosen = choose_vocabularies(connection, modes, top, vocabularies)
        for vocabulary in vocabularies or ():
            _check_codes(connection, files[vocabulary.name], columns.code, vocabulary)
        return build_cohort(
            connection, name, chosen, window, labels=labels is not None, keep_empty=keep_empty
        )


def _load_events(
    connection: Connection, files: Mapping[str, Path], columns: Columns, window: Window
) -> None:
    connection.execute(
        """CREATE TEMP TABLE events (mode VARCHAR, patient VARCHAR, encounter VARCHAR, time BIGINT,
                                     code VARCHAR);
           CREATE TEMP TABLE descriptions (mode VARCHAR, code VARCHAR, description VARCHAR)"""
    )
    for mode, path in files.items():
        rows = _load_rows(connection, path, columns, window)
        connection.execute(
            """INSERT INTO events
               SELECT DISTINCT $mode, patient, encounter,
                   epoch_us(date_trunc('minute', time::TIMESTAMP)) // 60000000, code
               FROM loaded""",
            {"mode": mode},
        )
        connection.execute(
            """INSERT INTO descriptions
               SELECT $mode, code, first(description ORDER BY uses DESC, description)
               FROM (SELECT code, description, count(*) AS uses FROM loaded
                     WHERE description IS NOT NULL GROUP BY ALL)
               GROUP BY code""",
            {"mode": mode},
        )
        repeated = rows - count_rows(connection, "events", f"mode = '{mode}'")
        if repeated:
            logger.warning(
                "%s: %d of %d rows repeat another one, and count once", path, repeated, rows
            )


def _load_rows(connection: Connection, path: Path, columns: Columns, window: Window) -> int:
    """Table ``loaded`` of one file, checked: a column for each of `Columns`; number of its rows."""
    placing = "encounter" if window.same_encounter else "time"
    names = columns.names
    if not names[placing]:
        raise SettingsError(f"column {placing}: need a name, since the window is made from it")
    needed = ("patient", "code", placing)
    load_table(
        connection, "loaded", path, [names[what] for what in needed],
        optional=[name for what, name in names.items() if name and what not in needed],
        select=", ".join(
            f"{quoted(name) if name else 'NULL::VARCHAR'} AS {what}"
            for what, name in names.items()
        ),
    )  # fmt: skip
    for what in ("patient", "code"):
        _refuse_no_value(connection, "loaded", path, what, names[what])
    bad, right = _NO_VALUE.format("encounter"), "text other than NaN or NULL, or blank"
    refuse_rows(connection, "loaded", bad, path, names["encounter"], right)
    bad = f"NOT regexp_full_match(time, '{_TIME}') OR try_cast(time AS TIMESTAMP) IS NULL"
    right = "a date or time as 2024-05-31 or 2024-05-31 14:05 (with a zone: UTC), or blank"
    refuse_rows(connection, "loaded", f"time IS NOT NULL AND ({bad})", path, names["time"], right)
    rows, blank = (count_rows(connection, "loaded", where) for where in ("true", window.unplaced))
    if not rows:
        raise DataError(f"{path}: holds no event")
    if blank == rows:
        raise DataError(
            f"{path}: column {names[placing]} must place events in a window; all {rows} row(s) are "
            "blank"
        )
    if blank:
        logger.warning(
            "%s: %d of %d rows have no %s, so are in no window", path, blank, rows, names[placing]
        )
    return rows


def _load_patients(
    connection: Connection, files: Mapping[str, Path], name: str, patient: str, sites: Path | None
) -> None:
    """Table ``patients``, of the table of sites or of everybody who has an event."""
    if sites is None:
        connection.execute("CREATE TEMP TABLE facts AS SELECT DISTINCT patient FROM events")
        site = f"'{name}'"
    else:
        _load_facts(connection, sites, patient, SITE)
        site = f"any_value({SITE})"
    connection.execute(
        f"""CREATE TEMP TABLE patients AS
            SELECT patient, {site} AS site, NULL::BOOLEAN AS died FROM facts GROUP BY patient"""
    )
    strangers = count_rows(
        connection, "(SELECT DISTINCT patient FROM events ANTI JOIN patients USING (patient))"
    )
    if strangers:
        logger.warning("%s: lacks %d patients of the events; they are left out", sites, strangers)
    complete = """(SELECT patient FROM events SEMI JOIN patients USING (patient)
                   GROUP BY patient HAVING count(DISTINCT mode) = {})"""
    if not count_rows(connection, complete.format(len(files))):
        raise DataError(
            f"{', '.join(map(str, [*files.values(), *([sites] if sites else [])]))}: no patient is "
            f"in all of them; column {patient} must identify patients alike in each"
        )


def _load_labels(connection: Connection, path: Path, patient: str) -> None:
    _load_facts(connection, path, patient, DIED)
    bad = f"coalesce({DIED} NOT IN ('0', '1'), true)"
    refuse_rows(connection, "facts", bad, path, DIED, "0 or 1")
    missing = count_rows(connection, "(FROM patients ANTI JOIN facts USING (patient))")
    if missing:
        raise DataError(
            f"{path}: column {patient} must hold every patient; {missing} patient(s) are missing"
        )
    connection.execute(
        f"""UPDATE patients SET died = facts.{DIED} = '1' FROM facts
            WHERE facts.patient = patients.patient"""
    )


def _load_facts(connection: Connection, path: Path, patient: str, column: str) -> None:
    """Table ``facts``: patient and `column`, on which no two rows of a patient disagree."""
    select = f"{quoted(patient)} AS patient, {column}"
    load_table(connection, "facts", path, (patient, column), select=select)
    _refuse_no_value(connection, "facts", path, "patient", patient)
    bad = f"""patient IN (SELECT patient FROM facts GROUP BY patient
                          HAVING count(DISTINCT coalesce({column}, '')) > 1)"""
    refuse_rows(connection, "facts", bad, path, column, "one and the same for a patient")


def _refuse_no_value(
    connection: Connection, table: str, path: Path, what: str, column: str
) -> None:
    bad = f"{what} IS NULL OR {_NO_VALUE.format(what)} OR {_UNPRINTABLE.format(what)}"
    right = "printable text other than NaN or NULL in every row"
    refuse_rows(connection, table, bad, path, column, right)


def _check_codes(connection: Connection, path: Path, column: str, vocabulary: Vocabulary) -> None:
    """Count and log the events outside a public list; refuse a table of only such events."""
    ((events, outside, codes),) = connection.execute(
        """SELECT count(*), count(*) FILTER (unlisted), count(DISTINCT code) FILTER (unlisted)
           FROM (SELECT code, code NOT IN (SELECT unnest($codes)) AS unlisted
                 FROM events WHERE mode = $mode)""",
        {"codes": list(vocabulary.codes), "mode": vocabulary.name},
    ).fetchall()
    if outside == events:
        raise DataError(
            f"{path}: column {column} must hold codes of the list of {vocabulary.name}; none of "
            f"{events} events does: are dots and leading zeros written alike?"
        )
    if outside:
        logger.warning(
            "%s: %d of %d events have one of %d codes outside the list of %s, and are left out",
            path, outside, events, codes, vocabulary.name,
        )  # fmt: skip
