"""OMOP Common Data Model 5.3 and 5.4: one site, or one per care site.

- The modes are procedures and conditions, and drugs on request.
- A code is the identifier of a standard concept, described by its name. Concept 0, no match, and a
  blank are left out and counted.
- Drugs, on request, are ingredients by ``concept_ancestor``; where it has none for a drug, the
  drug's own concept, counted.
- The time of an event is the day that it began, the encounter its visit.
- A label is a death in hospital: a date of death within a visit, or the day after its end.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from dpfact_flower.data.cooccurrence import (
    MINUTES_A_DAY,
    Window,
    build_cohort,
    choose_vocabularies,
)
from dpfact_flower.data.databases import Source, Wanted, open_source
from dpfact_flower.data.events import add_events, note
from dpfact_flower.data.roll_up import RollUp, roll_up
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.tables import MEMORY, connect, count_rows
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.settings import check_name

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

logger = logging.getLogger(__name__)

SiteOf = Literal["none", "person", "visit"]
MODES = ("procedures", "conditions")
DRUGS = "drugs"
_TABLES = {
    "procedures": ("procedure_occurrence", "procedure_concept_id", "procedure_date"),
    "conditions": ("condition_occurrence", "condition_concept_id", "condition_start_date"),
    "drugs": ("drug_exposure", "drug_concept_id", "drug_exposure_start_date"),
}


def read(
    source: str | Path,
    name: str,
    *,
    schema: str = "",
    site_of: SiteOf = "none",
    drugs: bool = False,
    window_days: int | None = 30,
    top: Sequence[int | None] | None = None,
    vocabularies: Sequence[Vocabulary] | None = None,
    rolled_up: Mapping[str, RollUp] | None = None,
    min_patients: int = 1,
    keep_empty: bool = False,
    memory: str = MEMORY,
) -> Cohort:
    """Read an OMOP CDM into one tensor per site: patients x procedures x conditions (x drugs).

    Parameters
    ----------
    source : path or str
        A folder of ``.csv``, ``.csv.gz`` or ``.parquet``, a DuckDB or SQLite file, or a PostgreSQL
        URL: `dpfact_flower.data.databases.open_source`. Tables: person, visit_occurrence,
        condition_occurrence, procedure_occurrence, concept; death, care_site, and for drugs
        drug_exposure and concept_ancestor.
    name : str
        Of the one site, or of the cohort.
    schema : str
        Of the tables in a database.
    site_of : {"none", "person", "visit"}
        One site; or a site for each care site, the person's own or that of the first visit.
    drugs : bool
        Whether drugs are a third mode.
    window_days : int or None
        Largest distance in days between the events of a cell; None: they have the same visit.
    top : sequence of (int or None), or None
        How many of the most frequent codes of each mode to keep, None for all. This looks at
        patients: see `dpfact_flower.data.vocabulary.by_frequency`.
    vocabularies : sequence of Vocabulary, optional
        One per mode as given instead, with concept identifiers.
    rolled_up : mapping of str to RollUp, optional
        By mode: what codes are replaced by (`dpfact_flower.data.roll_up`).
    min_patients : int
        Sites with fewer patients are merged into one, ``other``.
    keep_empty : bool
        Keep patients without a cell as empty rows.
    memory : str
        What DuckDB may use before it spills to disk.

    Returns
    -------
    Cohort
        Labels: None where there is no table of deaths.

    Raises
    ------
    DataError
        Naming the table that is missing, the column it lacks, or the column that is malformed.
    SettingsError
        If an option cannot be used.
    MissingDependencyError
        If DuckDB, or psycopg for PostgreSQL, is not installed.
    """
    check_name("name of site or cohort", name)
    if site_of not in get_args(SiteOf):
        raise SettingsError(
            f"site-of: must be one of {', '.join(get_args(SiteOf))}; got {site_of!r}"
        )
    modes = (*MODES, DRUGS) if drugs else MODES
    window = Window(days=window_days, same_encounter=window_days is None)
    with connect(memory) as connection, open_source(connection, source, schema) as tables:
        for mode in modes:
            _load_occurrences(connection, tables, mode)
        _load_concepts(connection, tables, ingredients=drugs)
        if drugs:
            _find_ingredients(connection, tables)
        _make_events(connection, modes)
        _load_patients(connection, tables, name, site_of)
        labels = _load_deaths(connection, tables)
        for mode, how in (rolled_up or {}).items():
            roll_up(connection, mode, how)
        return build_cohort(
            connection,
            name,
            choose_vocabularies(connection, modes, top, vocabularies),
            window,
            labels=labels,
            min_patients=min_patients,
            keep_empty=keep_empty,
        )


def _load_occurrences(connection: Connection, tables: Source, mode: str) -> None:
    """Table ``raw_<mode>``: patient, encounter, day (DATE) and concept; no concept left out."""
    table, concept, day = _TABLES[mode]
    wanted = Wanted(table, ("person_id", concept, day), optional=("visit_occurrence_id",))
    rows = tables.load(connection, "occurrences", wanted)
    note(connection, table, "rows", rows)
    no_time = f"{day} IS NOT NULL AND try_cast(left({day}, 10) AS DATE) IS NULL"
    if wrong := count_rows(connection, "occurrences", no_time):
        raise DataError(
            f"{table}: column {day} must be a date as 2024-05-31, or blank; {wrong} row(s) are not"
        )
    for what, where in (
        ("rows without a person, left out", "person_id IS NULL"),
        ("rows of concept 0 or none, left out", f"coalesce({concept} = '0', true)"),
    ):
        if lost := count_rows(connection, "occurrences", where):
            note(connection, table, what, lost)
    connection.execute(
        f"""CREATE OR REPLACE TEMP TABLE raw_{mode} AS
            SELECT person_id AS patient, visit_occurrence_id AS encounter,
                try_cast(left({day}, 10) AS DATE) AS day, {concept} AS concept
            FROM occurrences WHERE {concept} <> '0' AND person_id IS NOT NULL;
            CREATE TEMP TABLE IF NOT EXISTS used (concept VARCHAR);
            INSERT INTO used SELECT DISTINCT concept FROM raw_{mode};
            DROP TABLE occurrences"""
    )


def _load_concepts(connection: Connection, tables: Source, *, ingredients: bool) -> None:
    """Table ``concepts`` of those that are used, and perhaps of all ingredients."""
    columns = ("concept_id", "concept_name", "concept_class_id")
    used = "concept_id IN (SELECT concept FROM used)"
    if ingredients:
        used += " OR lower(concept_class_id) = 'ingredient'"
    tables.load(connection, "concepts", Wanted("concept", columns, where=used))
    unknown = (
        "(FROM (SELECT DISTINCT concept FROM used) ANTI JOIN concepts ON concept_id = concept)"
    )
    if missing := count_rows(connection, unknown):
        note(connection, "concept", "codes that it lacks, which stay without description", missing)


def _find_ingredients(connection: Connection, tables: Source) -> None:
    """Put ingredients in the place of drugs, in ``raw_drugs``."""
    wanted = Wanted(
        "concept_ancestor",
        ("ancestor_concept_id", "descendant_concept_id"),
        where="descendant_concept_id IN (SELECT concept FROM used) AND ancestor_concept_id IN "
        "(SELECT concept_id FROM concepts WHERE lower(concept_class_id) = 'ingredient')",
        there="ancestor_concept_id IN (SELECT concept_id FROM concept "
        "WHERE lower(concept_class_id) = 'ingredient')",
    )
    tables.load(connection, "ancestors", wanted)
    itself = "concept NOT IN (SELECT descendant_concept_id FROM ancestors)"
    found = count_rows(connection, "raw_drugs", itself)
    if found:
        note(
            connection, "drug_exposure", "rows whose drug has no ingredient, taken as it is", found
        )
    connection.execute(
        """CREATE OR REPLACE TEMP TABLE raw_drugs AS
           SELECT patient, encounter, day, coalesce(ancestor_concept_id, concept) AS concept
           FROM raw_drugs LEFT JOIN ancestors ON descendant_concept_id = concept"""
    )


def _make_events(connection: Connection, modes: Sequence[str]) -> None:
    connection.execute(
        "CREATE TEMP TABLE descriptions (mode VARCHAR, code VARCHAR, description VARCHAR)"
    )
    for mode in modes:
        add_events(
            connection,
            mode,
            f"""(SELECT patient, encounter, concept AS code,
                        (day - DATE '1970-01-01') * {MINUTES_A_DAY} AS time FROM raw_{mode})""",
        )
        connection.execute(
            """INSERT INTO descriptions SELECT $mode, concept_id, min(concept_name)
               FROM concepts SEMI JOIN (FROM codes WHERE mode = $mode) c ON c.code = concept_id
               WHERE concept_name IS NOT NULL GROUP BY concept_id""",
            {"mode": mode},
        )
        connection.execute(f"DROP TABLE raw_{mode}")


def _load_patients(connection: Connection, tables: Source, name: str, site_of: SiteOf) -> None:
    """Table ``patients``, of everybody in ``person``; and ``visits``."""
    site = ("care_site_id",)
    people = tables.load(connection, "persons", Wanted("person", ("person_id",), optional=site))
    note(connection, "person", "rows", people)
    columns: tuple[str, ...] = (
        "visit_occurrence_id",
        "person_id",
        "visit_start_date",
        "visit_end_date",
    )
    visits = tables.load(connection, "visits", Wanted("visit_occurrence", columns, optional=site))
    note(connection, "visit_occurrence", "rows", visits)
    connection.execute(
        "CREATE TEMP TABLE care_sites (care_site_id VARCHAR, care_site_name VARCHAR)"
    )
    if site_of != "none":
        names = ("care_site_id", "care_site_name")
        tables.load(connection, "care_sites", Wanted("care_site", names))
    first = """SELECT person_id, first(care_site_id ORDER BY visit_start_date, visit_occurrence_id)
                   AS care_site_id
               FROM visits WHERE care_site_id IS NOT NULL GROUP BY person_id"""
    own = {"none": "persons", "person": "persons", "visit": f"({first})"}[site_of]
    called = "$name" if site_of == "none" else "coalesce(care_site_name, o.care_site_id)"
    connection.execute(
        f"""CREATE TEMP TABLE patients AS
            SELECT p.person_id AS patient, any_value({called}) AS site, false AS died
            FROM persons p LEFT JOIN {own} o USING (person_id)
            LEFT JOIN care_sites c ON c.care_site_id = o.care_site_id
            WHERE p.person_id IS NOT NULL GROUP BY p.person_id""",
        {"name": name} if site_of == "none" else {},
    )
    if strangers := count_rows(connection, "(FROM people ANTI JOIN patients USING (patient))"):
        note(connection, "person", "persons of events whom it lacks, left out", strangers)


def _load_deaths(connection: Connection, tables: Source) -> bool:
    """Set ``patients.died`` of deaths in hospital; whether there is a table of deaths."""
    try:
        rows = tables.load(connection, "deaths", Wanted("death", ("person_id", "death_date")))
    except DataError as error:
        if "lacks the table" not in str(error):
            raise
        logger.warning("there is no table death: patients have no labels")
        note(connection, "death", "tables missing: patients have no labels", 1)
        return False
    note(connection, "death", "rows", rows)
    connection.execute(
        """UPDATE patients SET died = true WHERE patient IN (
               SELECT person_id FROM deaths d JOIN visits v USING (person_id)
               WHERE try_cast(left(death_date, 10) AS DATE)
                   BETWEEN try_cast(left(visit_start_date, 10) AS DATE)
                   AND try_cast(left(visit_end_date, 10) AS DATE) + 1)"""
    )
    outside = rows - count_rows(connection, "patients", "died")
    if outside:
        note(connection, "death", "deaths outside any visit, no label", outside)
    return True
