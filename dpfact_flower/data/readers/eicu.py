"""eICU Collaborative Research Database 2.0, full and demo: one site per region, unit or hospital.

- A patient (``uniquepid``) belongs to the site of the first unit stay. Stays are ordered by year of
  discharge, number of the hospital stay, and time of admission to the unit; eICU shifts no date in,
  so two hospital stays of one year are in the arbitrary but fixed order of their numbers.
- Diagnoses are the ICD-9-CM codes, with the dot, of ``icd9code``: a list that mixes in ICD-10
  (``401.9, I10``). What looks like ICD-9 is kept: 123, 123.45, V12.34, E123.4. ICD-10 has V codes
  of the same form (transport accidents); in an intensive care unit they are taken for ICD-9's.
- Treatments are paths (``pulmonary|medications|bronchodilator``) cut after some components.
- Times are minutes from admission to the unit; ``hospitaladmitoffset`` makes them comparable inside
  a hospital stay and nowhere else. The window is therefore always inside one hospital stay.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack, get_args

from dpfact_flower.data.cooccurrence import Window
from dpfact_flower.data.databases import WHOLE, Folder, Form, Source, Table
from dpfact_flower.data.events import add_events, note
from dpfact_flower.data.readers.steps import (
    Options,
    check_choice,
    make_cohort,
    reading,
)
from dpfact_flower.data.site_data import DIED, Cohort
from dpfact_flower.data.tables import count_rows
from dpfact_flower.errors import SettingsError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

MODES = ("treatments", "diagnoses")
SiteOf = Literal["region", "unittype", "hospital"]

_ICD9 = r"\d{3}(\.\d{1,2})?|V\d{2}(\.\d{1,2})?|E\d{3}(\.\d)?"
_SITE_SQL = {"region": "region", "unittype": "unittype", "hospital": "'hospital-' || hospitalid"}

_ORDERED = ("patientunitstayid", "patienthealthsystemstayid", "hospitaladmitoffset",
            "hospitaldischargeyear")  # fmt: skip
_PLACED = (*_ORDERED[:3], "uniquepid")
_STAYS = Table(
    "patient",
    (*_ORDERED, "uniquepid", "hospitalid", "unittype", "hospitaldischargestatus"),
    forms=dict.fromkeys(_ORDERED, WHOLE.needed()),
    counted={
        "unit stays without discharge status, taken for no death": (
            "hospitaldischargestatus IS NULL"
        ),
        "unit stays without a patient, left out": "uniquepid IS NULL",
    },
)
_TWICE = "{0} IN (SELECT {0} FROM hospitals GROUP BY ALL HAVING count(*) > 1)"
_HOSPITALS = Table(
    "hospital", ("hospitalid", "region"), forms={"hospitalid": Form(_TWICE, "unique")}
)
_MINUTES = Form(WHOLE.wrong, "a whole number of minutes or blank")
_TREATMENTS = Table(
    "treatment",
    ("patientunitstayid", "treatmentoffset", "treatmentstring"),
    forms={"treatmentoffset": _MINUTES},
    counted={"rows without a treatment, left out": "treatmentstring IS NULL"},
)
_DIAGNOSES = Table(
    "diagnosis",
    ("patientunitstayid", "diagnosisoffset", "diagnosisstring", "icd9code"),
    forms={"diagnosisoffset": _MINUTES},
    counted={"rows without a code, left out": "icd9code IS NULL"},
)


def read(
    folder: str | Path,
    *,
    site_of: SiteOf = "region",
    treatment_level: int = 3,
    window_days: int | None = 30,
    **options: Unpack[Options],
) -> Cohort:
    """Read eICU's tables into one tensor per site: patients x treatments x diagnoses.

    Parameters
    ----------
    folder : path
        Holds patient, treatment, diagnosis and, for regions, hospital: ``.csv`` or ``.csv.gz``,
        names and headers in upper or lower case.
    site_of : {"region", "unittype", "hospital"}
        What a site is; where it is blank the site is ``unknown``.
    treatment_level : int
        Components of a treatment's path to keep, at least 1. Paths have 3 to 6.
    window_days : int or None
        Largest distance in time inside a hospital stay; None: the whole stay.
    **options
        `Options` of all readers; `min_patients` is 20 where it is not given: most hospitals of the
        demo hold about ten patients, too few to factorise, yet no patient should be lost.

    Returns
    -------
    Cohort
        Label ``died``: 1 where any hospital stay of the patient ended with
        ``hospitaldischargestatus`` Expired. A blank status is not a death. A diagnosis is described
        by the path that most often goes with its code, a treatment by itself.

    Raises
    ------
    DataError, SettingsError, MissingDependencyError
        As all readers: `dpfact_flower.data.readers.steps`.
    """
    check_choice("site-of", site_of, get_args(SiteOf))
    if type(treatment_level) is not int or treatment_level < 1:
        raise SettingsError(
            f"treatment-level: need an integer of at least 1, got {treatment_level!r}"
        )
    window = Window(days=window_days, same_encounter=True)
    asked: Options = {"min_patients": 20, **options}
    with reading(options) as connection:
        _load_stays(connection, Folder(folder), site_of)
        _load_events(connection, Folder(folder), treatment_level)
        return make_cohort(connection, "eicu", MODES, window, asked, (DIED,))


def _load_stays(connection: Connection, source: Source, site_of: SiteOf) -> None:
    source.load(connection, "stays", _STAYS)
    connection.execute("CREATE TEMP TABLE hospitals (hospitalid VARCHAR, region VARCHAR)")
    if site_of == "region":
        source.load(connection, "hospitals", _HOSPITALS)
    connection.execute(
        f"""CREATE TEMP TABLE patients AS
            SELECT uniquepid AS patient,
                first({_SITE_SQL[site_of]} ORDER BY hospitaldischargeyear::BIGINT,
                      patienthealthsystemstayid::BIGINT, -hospitaladmitoffset::BIGINT,
                      patientunitstayid::BIGINT) AS site,
                coalesce(bool_or(lower(hospitaldischargestatus) = 'expired'), false) AS {DIED}
            FROM stays LEFT JOIN hospitals USING (hospitalid)
            WHERE uniquepid IS NOT NULL GROUP BY uniquepid"""
    )


def _load_events(connection: Connection, source: Source, treatment_level: int) -> None:
    _place(connection, source, _TREATMENTS)
    connection.execute(
        f"""CREATE TEMP TABLE coded AS SELECT * EXCLUDE treatmentstring,
                array_to_string(string_split(treatmentstring, '|')[1:{treatment_level}], '|')
                    AS code
            FROM placed"""
    )
    add_events(connection, "treatments", "coded")
    _place(connection, source, _DIAGNOSES)
    connection.execute(
        """CREATE OR REPLACE TEMP TABLE coded AS
           SELECT * EXCLUDE icd9code, trim(unnest(string_split(icd9code, ','))) AS code
           FROM placed WHERE icd9code IS NOT NULL"""
    )
    other = f"NOT regexp_full_match(code, '{_ICD9}')"
    if count := count_rows(connection, "coded", other):
        note(connection, "diagnosis", "codes that are not of ICD-9, left out", count)
        connection.execute(f"DELETE FROM coded WHERE {other}")
    add_events(connection, "diagnoses", "coded")
    _describe(connection)


def _place(connection: Connection, source: Source, table: Table) -> None:
    """Table ``placed``: a table's rows with patient, encounter, and time of the hospital stay."""
    key, offset, *others = table.columns
    source.load(connection, "raw", table)
    connection.execute(
        f"""CREATE OR REPLACE TEMP TABLE placed AS
            SELECT uniquepid AS patient, patienthealthsystemstayid AS encounter,
                {offset}::BIGINT - hospitaladmitoffset::BIGINT AS time, {", ".join(others)},
                s.{key} IS NULL AS lost
            FROM raw LEFT JOIN (SELECT DISTINCT {", ".join(_PLACED)} FROM stays) s USING ({key});
            DROP TABLE raw"""
    )
    if lost := count_rows(connection, "placed", "lost"):
        note(connection, table.name, "rows of a unit stay that patient lacks, left out", lost)


def _describe(connection: Connection) -> None:
    connection.execute(
        """INSERT INTO descriptions
           SELECT mode, code, code AS description FROM codes WHERE mode = 'treatments'
           UNION ALL
           SELECT 'diagnoses', code, first(diagnosisstring ORDER BY uses DESC, diagnosisstring)
           FROM (SELECT code, diagnosisstring, count(*) AS uses FROM coded
                 WHERE diagnosisstring IS NOT NULL GROUP BY ALL)
           GROUP BY code"""
    )
