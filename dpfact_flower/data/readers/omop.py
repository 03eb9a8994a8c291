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

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack, get_args

from dpfact_flower.data.cooccurrence import MINUTES_A_DAY, Window
from dpfact_flower.data.databases import DATE, Source, Table, open_source
from dpfact_flower.data.events import add_events, note
from dpfact_flower.data.readers.steps import (
    Options,
    check_choice,
    label_readmissions,
    make_cohort,
    reading,
)
from dpfact_flower.data.site_data import DIED, Cohort
from dpfact_flower.data.tables import count_rows
from dpfact_flower.settings import check_name

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

SiteOf = Literal["none", "person", "visit"]
MODES = ("procedures", "conditions")
DRUGS = "drugs"


def _occurrences(table: str, concept: str, day: str) -> Table:
    return Table(
        table,
        ("person_id", concept, day),
        optional=("visit_occurrence_id",),
        forms={day: DATE},
        counted={
            "rows without a person, left out": "person_id IS NULL",
            "rows of concept 0 or none, left out": f"coalesce({concept} = '0', true)",
        },
    )


_OCCURRENCES = {
    "procedures": _occurrences("procedure_occurrence", "procedure_concept_id", "procedure_date"),
    "conditions": _occurrences(
        "condition_occurrence", "condition_concept_id", "condition_start_date"
    ),
    "drugs": _occurrences("drug_exposure", "drug_concept_id", "drug_exposure_start_date"),
}
_PERSONS = Table("person", ("person_id",), optional=("care_site_id",))
_VISITS = Table(
    "visit_occurrence",
    ("visit_occurrence_id", "person_id", "visit_start_date", "visit_end_date"),
    optional=("care_site_id", "visit_concept_id"),
    forms={"visit_start_date": DATE, "visit_end_date": DATE},
)
_CARE_SITES = Table("care_site", ("care_site_id", "care_site_name"))
_DEATHS = Table("death", ("person_id", "death_date"), forms={"death_date": DATE})
_USED = "concept_id IN (SELECT concept FROM used)"
_INGREDIENT = "lower(concept_class_id) = 'ingredient'"
_ANCESTORS = Table(
    "concept_ancestor",
    ("ancestor_concept_id", "descendant_concept_id"),
    where="descendant_concept_id IN (SELECT concept FROM used) AND ancestor_concept_id IN "
    f"(SELECT concept_id FROM concepts WHERE {_INGREDIENT})",
    there=f"ancestor_concept_id IN (SELECT concept_id FROM concept WHERE {_INGREDIENT})",
)
_INPATIENT = ("9201", "262")
"""Visits to a hospital, and those that began in its emergency room."""


def read(
    source: str | Path,
    name: str,
    *,
    schema: str = "",
    site_of: SiteOf = "none",
    drugs: bool = False,
    window_days: int | None = 30,
    **options: Unpack[Options],
) -> Cohort:
    """Read an OMOP CDM into one tensor per site: patients x procedures x conditions (x drugs).

    Parameters
    ----------
    source : path or str
        A folder of ``.csv``, ``.csv.gz`` or ``.parquet``, a DuckDB or SQLite file, or a PostgreSQL
        URL: `dpfact_flower.data.databases.open_source`. Tables: person, visit_occurrence,
        condition_occurrence, procedure_occurrence; for names concept, for labels death, for sites
        care_site, and for drugs concept, drug_exposure and concept_ancestor.
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
    **options
        `Options` of all readers; codes are concept identifiers.

    Returns
    -------
    Cohort
        Labels: ``died`` where there is a table of deaths, and ``readmitted``, where visits to a
        hospital have dates.

    Raises
    ------
    DataError, SettingsError, MissingDependencyError
        As all readers: `dpfact_flower.data.readers.steps`.
    """
    check_name("name of site or cohort", name)
    check_choice("site-of", site_of, get_args(SiteOf))
    modes = (*MODES, DRUGS) if drugs else MODES
    window = Window(days=window_days, same_encounter=window_days is None)
    with reading(options) as connection, open_source(connection, source, schema) as tables:
        for mode in modes:
            _load_occurrences(connection, tables, mode)
        _load_concepts(connection, tables, ingredients=drugs)
        if drugs:
            _find_ingredients(connection, tables)
        _make_events(connection, modes)
        _load_patients(connection, tables, name, site_of)
        labels = (*_load_deaths(connection, tables), *_find_readmissions(connection))
        return make_cohort(connection, name, modes, window, options, labels)


def _load_occurrences(connection: Connection, tables: Source, mode: str) -> None:
    """Table ``raw_<mode>``: patient, encounter, day (DATE) and concept; no concept left out."""
    table = _OCCURRENCES[mode]
    _, concept, day = table.columns
    tables.load(connection, "occurrences", table)
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
    if not ingredients and not tables.has("concept"):
        connection.execute(f"CREATE TEMP TABLE concepts ({' VARCHAR, '.join(columns)} VARCHAR)")
        note(connection, "concept", "tables missing: codes stay without description", 1)
        return
    used = f"{_USED} OR {_INGREDIENT}" if ingredients else _USED
    tables.load(connection, "concepts", Table("concept", columns, where=used))
    unknown = (
        "(FROM (SELECT DISTINCT concept FROM used) ANTI JOIN concepts ON concept_id = concept)"
    )
    if missing := count_rows(connection, unknown):
        note(connection, "concept", "codes that it lacks, which stay without description", missing)


def _find_ingredients(connection: Connection, tables: Source) -> None:
    """Put ingredients in the place of drugs, in ``raw_drugs``."""
    tables.load(connection, "ancestors", _ANCESTORS)
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
    tables.load(connection, "persons", _PERSONS)
    tables.load(connection, "visits", _VISITS)
    connection.execute(
        "CREATE TEMP TABLE care_sites (care_site_id VARCHAR, care_site_name VARCHAR)"
    )
    if site_of != "none":
        tables.load(connection, "care_sites", _CARE_SITES)
    first = """SELECT person_id, first(care_site_id ORDER BY visit_start_date, visit_occurrence_id)
                   AS care_site_id
               FROM visits WHERE care_site_id IS NOT NULL GROUP BY person_id"""
    own = {"none": "persons", "person": "persons", "visit": f"({first})"}[site_of]
    called = "$name" if site_of == "none" else "coalesce(care_site_name, o.care_site_id)"
    connection.execute(
        f"""CREATE TEMP TABLE patients AS
            SELECT p.person_id AS patient, min({called}) AS site
            FROM persons p LEFT JOIN {own} o USING (person_id)
            LEFT JOIN care_sites c ON c.care_site_id = o.care_site_id
            WHERE p.person_id IS NOT NULL GROUP BY p.person_id""",
        {"name": name} if site_of == "none" else {},
    )
    if strangers := count_rows(connection, "(FROM people ANTI JOIN patients USING (patient))"):
        note(connection, "person", "persons of events whom it lacks, left out", strangers)


def _load_deaths(connection: Connection, tables: Source) -> tuple[str, ...]:
    """Column ``patients.died`` of deaths in hospital, where there is a table of deaths."""
    if not tables.has(_DEATHS.name):
        note(connection, "death", f"tables missing: patients have no label {DIED}", 1)
        return ()
    rows = tables.load(connection, "deaths", _DEATHS)
    connection.execute(
        f"""ALTER TABLE patients ADD COLUMN {DIED} BOOLEAN DEFAULT false;
            UPDATE patients SET {DIED} = true WHERE patient IN (
                SELECT person_id FROM deaths d JOIN visits v USING (person_id)
                WHERE try_cast(left(death_date, 10) AS DATE)
                    BETWEEN try_cast(left(visit_start_date, 10) AS DATE)
                    AND try_cast(left(visit_end_date, 10) AS DATE) + 1)"""
    )
    outside = rows - count_rows(connection, "patients", DIED)
    if outside:
        note(connection, "death", "deaths outside any visit, no label", outside)
    return (DIED,)


def _find_readmissions(connection: Connection) -> tuple[str, ...]:
    stays = f"""(SELECT person_id AS patient, left(visit_start_date, 10)::TIMESTAMP AS begun,
                    left(visit_end_date, 10)::TIMESTAMP AS ended
                 FROM visits WHERE visit_concept_id IN {_INPATIENT})"""
    return label_readmissions(connection, stays, "patients")
