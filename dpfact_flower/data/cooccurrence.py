"""Count how often a patient's codes occur together within a time window or an encounter.

A cell of the tensor belongs to a patient and to one code of each mode. The cell counts combinations
of the patient's events, as in the DPFact paper (section Dataset). A combination has one event of
each of the cell's codes, and must satisfy the `Window` rule. By default, patients without any
combination of events are left out.

A reader stores each mode's events (see `clinical_events`), and fills three tables. ``patients`` has
one row per patient, with the columns ``patient`` and ``site`` (text). ``labelled`` has the columns
``name`` and ``patient``, with a row or more for each label that is 1. ``descriptions``, which may
be empty, has the columns ``mode``, ``code`` and ``description``.

Times are in whole minutes since an origin that is the same for all events of a patient. If combined
events must share an encounter, each encounter may have its own time origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpfact_flower.data.clinical_events import (
    Options,
    count,
    logger,
    read_report,
    refuse_equal_hashes,
    table_of,
)
from dpfact_flower.data.code_names import named, systems, version_of
from dpfact_flower.data.roll_up import OF_DIAGNOSES, roll_up
from dpfact_flower.data.site_data import PATIENT, Cohort, SiteData
from dpfact_flower.data.tables import count_rows, literal
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError, plural, shown
from dpfact_flower.tensor import SparseTensor

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

MINUTES_A_DAY = 1440
SMALL_SITES = "other"
UNKNOWN_SITE = "unknown"
_OTHER_VERSION = "codes of the other ICD version (to mix both, begin codes with icd9: or icd10:)"


@dataclass(frozen=True)
class Window:
    """The rule that determines which events of one patient occur together.

    Events occur together if no two of them are more than `days` days apart. If `same_encounter` is
    true, the events must also belong to one encounter. If `days` is 0 or None, events of one
    encounter occur together. Events without a required time or encounter are ignored.
    """

    days: int | None = None
    same_encounter: bool = False

    def __post_init__(self) -> None:
        if self.days is not None and (type(self.days) not in (int, np.int64) or self.days < 0):
            raise SettingsError(f"window days: need an integer of at least 0, got {self.days!r}")
        object.__setattr__(self, "days", self.days or None)
        object.__setattr__(self, "same_encounter", self.same_encounter or self.days is None)

    def __str__(self) -> str:
        if self.days is None:
            return "one encounter"
        return plural(self.days, "day") + (" in one encounter" if self.same_encounter else "")

    def condition(self, left: str, right: str) -> str:
        """Return SQL that is true if the events `left` and `right` occur together."""
        terms = []
        if self.same_encounter:
            terms.append(f"{left}.encounter = {right}.encounter")
        if self.days is not None:
            terms.append(f"abs({left}.time - {right}.time) <= {self.days * MINUTES_A_DAY}")
        return " AND ".join(terms)

    @property
    def column(self) -> str:
        """Name of a required column (``encounter`` if `same_encounter` is true, else ``time``)."""
        return "encounter" if self.same_encounter else "time"

    @property
    def unplaced(self) -> str:
        """SQL condition for events without the time or encounter that the rule needs."""
        needed = {"encounter": self.same_encounter, "time": self.days is not None}
        return " OR ".join(f"{column} IS NULL" for column, is_needed in needed.items() if is_needed)


def build_cohort(
    connection: Connection,
    name: str,
    modes: Sequence[str],
    window: Window,
    options: Options,
    labels: Sequence[str] = (),
    row_unit: str = PATIENT,
) -> Cohort:
    """Build all sites' tensors from the connection's tables. Every reader calls this function last.

    Events whose code is in no vocabulary are left out. Sites are sorted by name, and patients by
    identifier. A label that is not in the table ``labelled`` is 0. Small sites are merged into the
    site ``other``, which may still have fewer than `min_patients` patients.
    """
    refuse_equal_hashes(connection)
    for mode in modes:
        how = (options.rolled_up or {}).get(mode)
        found = connection.execute("SELECT code FROM codes WHERE mode = ?", [mode]).fetchall()
        codes = [code for (code,) in found]
        if how in OF_DIAGNOSES or not {"icd9cm", "icd10cm"}.isdisjoint(systems(mode, codes)):
            count(connection, mode, _OTHER_VERSION, version_of(codes)[1], warn=True)
        if how:
            roll_up(connection, mode, how)
    vocabularies = choose_vocabularies(connection, modes, options)
    _name_sites(connection, name)
    _count_cells(connection, vocabularies, window)
    if not count_rows(connection, "cells"):
        events = ", ".join(
            f"{mode} ({count_rows(connection, f'mode_{n}')} events)"
            for n, mode in enumerate(modes, 1)
        )
        raise DataError(
            f"{name}: no patient has an event of each of {events} within {window}; is the "
            "window too short, or does a code list belong to another hospital?"
        )
    _assign_sites(connection, options, labels, row_unit)
    for n, mode in enumerate(modes, 1):
        kept = count_rows(connection, f"(FROM mode_{n} SEMI JOIN members USING (patient))")
        count(connection, mode, f"events of these codes and {row_unit}s", kept)
    sites = [
        _site(connection, number, site, vocabularies, labels, row_unit)
        for number, site in connection.execute(
            "SELECT DISTINCT site_number, site FROM members ORDER BY site_number"
        ).fetchall()
    ]
    return Cohort(name, tuple(sites), read_report=read_report(connection))


def choose_vocabularies(
    connection: Connection, modes: Sequence[str], options: Options
) -> tuple[Vocabulary, ...]:
    """Return the given vocabularies or, if none are given, the most frequent codes in each mode."""
    if (given := options.vocabularies) is not None:
        if [v.name for v in given] != list(modes):
            raise SettingsError(
                f"vocabularies: need {', '.join(modes)} in this order, "
                f"got {', '.join(v.name for v in given) or 'none'}"
            )
        for vocabulary in given:
            _check_codes(connection, vocabulary)
        return tuple(map(named, given))
    top = options.top or [None] * len(modes)
    if len(top) != len(modes) or not all(
        size is None or (type(size) is int and size > 0) for size in top
    ):
        raise SettingsError(
            f"top: need positive numbers or None for {', '.join(modes)}, as in 5x5; got {top!r}"
        )
    logger.warning(
        "the code lists are made from these patients, and no privacy guarantee covers the lists: "
        "sites of a federation need the same public lists (--codes, vocabularies=)"
    )
    return tuple(
        named(_most_frequent(connection, mode, size)) for mode, size in zip(modes, top, strict=True)
    )


def _check_codes(connection: Connection, vocabulary: Vocabulary) -> None:
    """Count the events with unlisted codes. Raise an error if no event has a listed code."""
    mode = vocabulary.name
    ((events, outside, codes),) = connection.execute(
        f"""SELECT sum(uses), coalesce(sum(uses) FILTER (unlisted), 0), count(*) FILTER (unlisted)
            FROM (SELECT uses, code NOT IN (SELECT unnest($codes)) AS unlisted
                  FROM (SELECT code AS key, count(*) AS uses FROM {table_of(mode)} GROUP BY code)
                  JOIN codes USING (key) WHERE mode = $mode)""",
        {"codes": list(vocabulary.codes), "mode": mode},
    ).fetchall()
    if events and outside == events:
        raise DataError(
            f"{mode}: none of {events} events has a code of the given list; are capitals, dots and "
            "leading zeros written in the same way?"
        )
    what = "events of codes outside the list, left out"
    count(connection, mode, what, outside, warn=True)
    count(connection, mode, "codes outside the list", codes)


def _most_frequent(connection: Connection, mode: str, top: int | None) -> Vocabulary:
    """Return a mode's most frequent codes, with ties in alphabetical order."""
    rows = connection.execute(
        f"""SELECT c.code, d.description
            FROM (SELECT code AS key, count(*) AS uses
                  FROM {_events(mode)} GROUP BY code)
            JOIN codes c USING (key)
            LEFT JOIN (SELECT code, max(description) AS description FROM descriptions
                       WHERE mode = $mode GROUP BY code) d ON d.code = c.code
            WHERE c.mode = $mode ORDER BY uses DESC, c.code""",
        {"mode": mode},
    ).fetchall()
    if not rows:
        raise DataError(f"the tables hold no {mode} of these patients")
    kept = rows[:top]
    count(connection, mode, "codes", len(rows))
    count(connection, mode, "codes left out as less frequent", len(rows) - len(kept))
    return Vocabulary(mode, tuple(code for code, _ in kept), tuple(text or "" for _, text in kept))


def _events(mode: str) -> str:
    """Return SQL for a mode's events, limited to patients in the table ``patients``."""
    known = "(SELECT hash(patient) AS patient FROM patients)"
    return f"(FROM {table_of(mode)} SEMI JOIN {known} USING (patient))"


def _name_sites(connection: Connection, cohort: str) -> None:
    """Create the table ``named``, in which each patient has a hash and a valid site name."""
    connection.execute(
        """CREATE OR REPLACE TEMP TABLE named AS
           SELECT patient AS id, hash(patient) AS patient,
               trim(coalesce(patients.site, '')) AS given,
               coalesce(nullif(left(ltrim(regexp_replace(
                   strip_accents(given), '[^A-Za-z0-9._-]+', '-', 'g'), '._-'), 64), ''),
                   if(given = '', $unknown, 'site-' || left(md5(given), 8))) AS site
           FROM patients""",
        {"unknown": UNKNOWN_SITE},
    )
    changed = connection.execute(
        """SELECT list(DISTINCT given ORDER BY given), lower(site) FROM named
           GROUP BY lower(site) HAVING count(DISTINCT given) > 1 ORDER BY lower(site)"""
    ).fetchall()
    if changed:
        names, one = changed[0]
        raise DataError(
            f"{cohort}: the sites {', '.join(map(shown, names[:3]))} would all be named {one}; "
            "make them differ in letters, digits, dots, hyphens or underscores"
        )
    blank = count_rows(connection, "named", "given = ''")
    count(connection, "sites", f"patients without a site, now at {UNKNOWN_SITE}", blank, warn=True)
    renamed = connection.execute(
        """SELECT given, site, count(*) FROM named WHERE given NOT IN ('', site)
           GROUP BY ALL ORDER BY given"""
    ).fetchall()
    for given, site, patients in renamed:
        count(connection, "sites", f"patients of {shown(given)}, renamed {site}", patients)


def _count_cells(
    connection: Connection, vocabularies: Sequence[Vocabulary], window: Window
) -> None:
    """Create the table ``cells``, with each cell's patient hash, code indices and count."""
    for n, vocabulary in enumerate(vocabularies, 1):
        _place_events(connection, n, vocabulary, window)
    modes = range(1, len(vocabularies) + 1)
    joins = " ".join(
        f"JOIN mode_{n} m{n} ON m{n}.patient = m1.patient AND "
        + " AND ".join(window.condition(f"m{k}", f"m{n}") for k in range(1, n))
        for n in modes[1:]
    )
    codes = ", ".join(f"m{n}.code AS code_{n}" for n in modes)
    connection.execute(
        f"""CREATE OR REPLACE TEMP TABLE cells AS
            SELECT m1.patient, {codes}, count(*) AS count FROM mode_1 m1 {joins}
            GROUP BY ALL"""
    )


def _place_events(connection: Connection, n: int, vocabulary: Vocabulary, window: Window) -> None:
    """Create ``mode_<n>``: events with a listed code and the time or encounter `window` needs."""
    mode = vocabulary.name
    connection.execute(
        f"""CREATE OR REPLACE TEMP TABLE mode_{n} AS
            SELECT e.patient, e.encounter, e.time, c.position AS code
            FROM {_events(mode)} e
            JOIN (SELECT hash(unnest($codes)) AS code, unnest(range(len($codes))) AS position) c
                USING (code)""",
        {"codes": list(vocabulary.codes)},
    )
    unplaced = count_rows(connection, f"mode_{n}", window.unplaced)
    connection.execute(f"DELETE FROM mode_{n} WHERE {window.unplaced}")
    what = "events left out for lack of the time or encounter that the window needs"
    count(connection, mode, what, unplaced)


def _assign_sites(
    connection: Connection, options: Options, labels: Sequence[str], row_unit: str
) -> None:
    """Create the table ``members``, with each patient's site, row and labels (``label_0``, ...)."""
    with_cells = "SEMI JOIN (SELECT DISTINCT patient FROM cells) USING (patient)"
    held = "".join(
        f""", id IN (SELECT patient FROM labelled
                     WHERE name = {literal(label)} AND patient IS NOT NULL)::TINYINT AS label_{n}"""
        for n, label in enumerate(labels)
    )
    connection.execute(
        f"""CREATE OR REPLACE TEMP TABLE members AS
            WITH kept AS (FROM named {"" if options.keep_empty else with_cells}),
            sized AS (
                SELECT * REPLACE (
                    if(count(*) OVER (PARTITION BY site) < $least, $other, site) AS site)
                FROM kept)
            SELECT *, dense_rank() OVER (ORDER BY site) AS site_number,
                row_number() OVER (PARTITION BY site ORDER BY id) - 1 AS position{held}
            FROM sized""",
        {"least": options.min_patients, "other": SMALL_SITES},
    )
    ((merged, people),) = connection.execute(
        """SELECT count(DISTINCT n.site), count(*) FROM named n JOIN members m USING (patient)
           WHERE n.site <> m.site"""
    ).fetchall()
    if merged and count_rows(connection, "members", f"site = '{SMALL_SITES}'") > people:
        raise DataError(
            f"min-patients: small sites are merged into {SMALL_SITES}, but a site has this name; "
            "rename this site, or merge no sites (min-patients 1)"
        )
    what = f"sites of fewer than {options.min_patients} patients, merged into {SMALL_SITES}"
    count(connection, "sites", what, merged)
    count(connection, "sites", f"patients of sites merged into {SMALL_SITES}", people)
    place = f"{row_unit}s"
    everybody, kept = count_rows(connection, "named"), count_rows(connection, "members")
    count(connection, place, "in the tables", everybody)
    what = "left out, since no window holds a code of each mode"
    count(connection, place, what, everybody - kept, warn=True)
    gone = "(SELECT site FROM named EXCEPT SELECT site FROM named SEMI JOIN members USING (id))"
    what = f"left out, since none of their {place} is kept"
    count(connection, "sites", what, count_rows(connection, gone), warn=True)
    count(connection, place, "kept", kept)


def _site(
    connection: Connection, number: int, site: str, vocabularies: Sequence[Vocabulary],
    labels: Sequence[str], row_unit: str,
) -> SiteData:  # fmt: skip
    people = connection.execute(
        f"""SELECT COLUMNS('^(id|label_\\d+)$') FROM members
            WHERE site_number = {number} ORDER BY position"""
    ).fetchnumpy()
    columns = ["position", *(f"code_{n}" for n in range(1, len(vocabularies) + 1))]
    whole = ", ".join(f"{column}::INTEGER AS {column}" for column in columns)
    cells = connection.execute(  # sorted by DuckDB, which can spill to disk
        f"""SELECT {whole}, count::FLOAT AS count FROM cells JOIN members USING (patient)
            WHERE site_number = {number} ORDER BY ALL"""
    ).fetchnumpy()
    indices = np.empty((len(cells["count"]), len(columns)), np.int32)
    for n, column in enumerate(columns):
        indices[:, n] = cells.pop(column)
    shape = (len(people["id"]), *map(len, vocabularies))
    tensor = SparseTensor.from_coo(indices, cells["count"], shape)
    labelled = {label: people[f"label_{n}"] for n, label in enumerate(labels)}
    ids = tuple(people["id"].tolist())
    return SiteData(site, tensor, tuple(vocabularies), labelled, ids, row_unit)
