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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from dpfact_flower.data.cooccurrence import Window, build_cohort, choose_vocabularies
from dpfact_flower.data.events import add_events, note
from dpfact_flower.data.roll_up import RollUp, roll_up
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.tables import (
    MEMORY,
    connect,
    count_rows,
    find_table,
    load_table,
    refuse_rows,
)
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import SettingsError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

MODES = ("treatments", "diagnoses")
SiteOf = Literal["region", "unittype", "hospital"]

_ICD9 = r"\d{3}(\.\d{1,2})?|V\d{2}(\.\d{1,2})?|E\d{3}(\.\d)?"
_NOT_WHOLE = r"NOT regexp_full_match({}, '-?\d{{1,15}}')"  # a cast would round 1.5
_SITE_SQL = {"region": "region", "unittype": "unittype", "hospital": "'hospital-' || hospitalid"}


def read(
    folder: str | Path,
    *,
    site_of: SiteOf = "region",
    treatment_level: int = 3,
    window_days: int | None = 30,
    top: Sequence[int | None] | None = None,
    vocabularies: Sequence[Vocabulary] | None = None,
    rolled_up: Mapping[str, RollUp] | None = None,
    min_patients: int = 20,
    keep_empty: bool = False,
    memory: str = MEMORY,
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
    top : sequence of (int or None), or None
        How many of the most frequent treatments and diagnoses to keep, None for all. This looks
        at patients: see `dpfact_flower.data.vocabulary.by_frequency`.
    vocabularies : sequence of Vocabulary, optional
        ``treatments`` and ``diagnoses`` as given instead.
    rolled_up : mapping of str to RollUp, optional
        By mode: what codes are replaced by (`dpfact_flower.data.roll_up`).
    min_patients : int
        Sites with fewer patients are merged into one, ``other``: most hospitals of the demo hold
        about ten, too few to factorise, yet no patient should be lost.
    keep_empty : bool
        Keep patients without a cell as empty rows.
    memory : str
        What DuckDB may use before it spills to disk.

    Returns
    -------
    Cohort
        Labels: 1 where any hospital stay of the patient ended with ``hospitaldischargestatus``
        Expired. A blank status is not a death. A diagnosis is described by the path that most often
        goes with its code, a treatment by itself.

    Raises
    ------
    DataError
        Naming the table that is missing, the column it lacks, or the column that is malformed.
    SettingsError
        If an option cannot be used.
    MissingDependencyError
        If DuckDB is not installed.
    """
    if site_of not in get_args(SiteOf):
        raise SettingsError(
            f"site-of: must be one of {', '.join(get_args(SiteOf))}; got {site_of!r}"
        )
    if type(treatment_level) is not int or treatment_level < 1:
        raise SettingsError(
            f"treatment-level: need an integer of at least 1, got {treatment_level!r}"
        )
    window = Window(days=window_days, same_encounter=True)
    with connect(memory) as connection:
        _load_stays(connection, Path(folder), site_of)
        _load_events(connection, Path(folder), treatment_level)
        for mode, how in (rolled_up or {}).items():
            roll_up(connection, mode, how)
        return build_cohort(
            connection,
            "eicu",
            choose_vocabularies(connection, MODES, top, vocabularies),
            window,
            labels=True,
            min_patients=min_patients,
            keep_empty=keep_empty,
        )


def _load_stays(connection: Connection, folder: Path, site_of: SiteOf) -> None:
    path = find_table(folder, "patient")
    columns = (
        "patientunitstayid", "patienthealthsystemstayid", "uniquepid", "hospitalid", "unittype",
        "hospitaladmitoffset", "hospitaldischargestatus", "hospitaldischargeyear",
    )  # fmt: skip
    load_table(connection, "stays", path, columns)
    whole = ("patientunitstayid", "patienthealthsystemstayid", "hospitaladmitoffset")
    for column in (*whole, "hospitaldischargeyear"):
        bad = f"{column} IS NULL OR {_NOT_WHOLE.format(column)}"
        refuse_rows(connection, "stays", bad, path, column, "a whole number")
    if site_of == "region":
        hospitals = find_table(folder, "hospital")
        load_table(connection, "hospitals", hospitals, ("hospitalid", "region"))
        bad = "hospitalid IN (SELECT hospitalid FROM hospitals GROUP BY ALL HAVING count(*) > 1)"
        refuse_rows(connection, "hospitals", bad, hospitals, "hospitalid", "unique")
    else:
        connection.execute("CREATE TEMP TABLE hospitals (hospitalid VARCHAR, region VARCHAR)")
    connection.execute(
        f"""CREATE TEMP TABLE patients AS
            SELECT uniquepid AS patient,
                first({_SITE_SQL[site_of]} ORDER BY hospitaldischargeyear::BIGINT,
                      patienthealthsystemstayid::BIGINT, -hospitaladmitoffset::BIGINT,
                      patientunitstayid::BIGINT) AS site,
                coalesce(bool_or(lower(hospitaldischargestatus) = 'expired'), false) AS died
            FROM stays LEFT JOIN hospitals USING (hospitalid)
            WHERE uniquepid IS NOT NULL GROUP BY uniquepid"""
    )
    blank = count_rows(connection, "stays", "hospitaldischargestatus IS NULL")
    note(connection, "patient", "unit stays", count_rows(connection, "stays"))
    if blank:
        note(
            connection, "patient", "unit stays without discharge status, taken for no death", blank
        )
    if nobody := count_rows(connection, "stays", "uniquepid IS NULL"):
        note(connection, "patient", "unit stays without a patient, left out", nobody)


def _load_events(connection: Connection, folder: Path, treatment_level: int) -> None:
    _load_timed(connection, folder, "treatment", ("treatmentstring",))
    _load_timed(connection, folder, "diagnosis", ("diagnosisstring", "icd9code"))
    connection.execute(
        r"""CREATE TEMP TABLE coded AS SELECT * FROM (
                SELECT patientunitstayid, minute, diagnosisstring,
                    trim(unnest(string_split(icd9code, ','))) AS code
                FROM diagnosis WHERE icd9code IS NOT NULL)
            WHERE regexp_full_match(code, $icd9)""",
        {"icd9": _ICD9},
    )
    blank = count_rows(connection, "diagnosis", "icd9code IS NULL")
    if blank:
        note(connection, "diagnosis", "rows without a code, left out", blank)
    values = "(SELECT unnest(string_split(icd9code, ',')) FROM diagnosis)"
    other = count_rows(connection, values) - count_rows(connection, "coded")
    if other:
        note(connection, "diagnosis", "codes that are not of ICD-9, left out", other)
    for table in ("treatment", "diagnosis"):
        alone = f"(FROM {table} ANTI JOIN stays USING (patientunitstayid))"
        if lost := count_rows(connection, alone):
            note(connection, table, "rows of a unit stay that patient lacks, left out", lost)
    source = """uniquepid AS patient, patienthealthsystemstayid AS encounter,
                minute::BIGINT - hospitaladmitoffset::BIGINT AS time"""
    path = f"array_to_string(string_split(treatmentstring, '|')[1:{treatment_level}], '|')"
    for mode, table, code in (("treatments", "treatment", path), ("diagnoses", "coded", "code")):
        add_events(
            connection,
            mode,
            f"(SELECT {source}, {code} AS code FROM {table} JOIN stays USING (patientunitstayid))",
        )
    _describe(connection)


def _load_timed(connection: Connection, folder: Path, table: str, columns: tuple[str, ...]) -> None:
    path, offset = find_table(folder, table), f"{table}offset"
    load_table(
        connection, table, path, ("patientunitstayid", offset, *columns),
        select=f"*, {offset} AS minute",
    )  # fmt: skip
    bad = _NOT_WHOLE.format("minute")  # NULL, that is no, of a blank field
    refuse_rows(connection, table, bad, path, offset, "a whole number of minutes or blank")
    note(connection, table, "rows", count_rows(connection, table))


def _describe(connection: Connection) -> None:
    connection.execute(
        """CREATE TEMP TABLE descriptions AS
           SELECT mode, code, code AS description FROM codes WHERE mode = 'treatments'
           UNION ALL
           SELECT 'diagnoses', code, first(diagnosisstring ORDER BY uses DESC, diagnosisstring)
           FROM (SELECT code, diagnosisstring, count(*) AS uses FROM coded
                 WHERE diagnosisstring IS NOT NULL GROUP BY ALL)
           GROUP BY code"""
    )
