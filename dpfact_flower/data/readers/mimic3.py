"""MIMIC-III (full 1.4 and demo): one site per intensive care unit, as in the paper.

A patient belongs to the unit of the first ICU stay, with all admissions, so that nobody is at two
sites. MIMIC-III dates no ICD-9 codes: they are billed for an admission, so the window is the
admission, and a code counts once in it however often it is listed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
from dpfact_flower.errors import DataError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

logger = logging.getLogger(__name__)

MODES = ("procedures", "diagnoses")
_TABLES = {
    "procedures": ("PROCEDURES_ICD", "D_ICD_PROCEDURES"),
    "diagnoses": ("DIAGNOSES_ICD", "D_ICD_DIAGNOSES"),
}


def read(
    folder: str | Path,
    *,
    top: Sequence[int | None] | None = (202, 316),
    vocabularies: Sequence[Vocabulary] | None = None,
    rolled_up: Mapping[str, RollUp] | None = None,
    keep_empty: bool = False,
    memory: str = MEMORY,
) -> Cohort:
    """Read MIMIC-III's tables into one tensor per ICU: patients x procedures x diagnoses.

    Parameters
    ----------
    folder : path
        Holds ICUSTAYS, ADMISSIONS, PROCEDURES_ICD, DIAGNOSES_ICD and, for descriptions,
        D_ICD_PROCEDURES and D_ICD_DIAGNOSES: ``.csv`` or ``.csv.gz``, names and headers in upper
        or lower case.
    top : sequence of (int or None), or None
        How many of the most frequent procedures and diagnoses to keep, None for all. This looks
        at patients: see `dpfact_flower.data.vocabulary.by_frequency`.
    vocabularies : sequence of Vocabulary, optional
        ``procedures`` and ``diagnoses`` as given instead, with ICD-9-CM codes without the dot.
    rolled_up : mapping of str to RollUp, optional
        By mode: what codes are replaced by (`dpfact_flower.data.roll_up`).
    keep_empty : bool
        Keep patients without a cell as empty rows.
    memory : str
        What DuckDB may use before it spills to disk.

    Returns
    -------
    Cohort
        Labels: 1 where any admission of the patient has ``hospital_expire_flag`` 1.

    Raises
    ------
    DataError
        Naming the table that is missing, the column it lacks, or the column that is malformed.
    SettingsError
        If an option cannot be used.
    MissingDependencyError
        If DuckDB is not installed.
    """
    with connect(memory) as connection:
        _load_patients(connection, Path(folder))
        _load_events(connection, Path(folder))
        _load_descriptions(connection, Path(folder))
        for mode, how in (rolled_up or {}).items():
            roll_up(connection, mode, how)
        return build_cohort(
            connection,
            "mimic3",
            choose_vocabularies(connection, MODES, top, vocabularies),
            Window(same_encounter=True),
            labels=True,
            keep_empty=keep_empty,
        )


def _load_patients(connection: Connection, folder: Path) -> None:
    stays = find_table(folder, "ICUSTAYS")
    columns = ("subject_id", "icustay_id", "intime", "first_careunit")
    load_table(connection, "icustays", stays, columns)
    bad = "try_cast(intime AS TIMESTAMP) IS NULL"
    refuse_rows(connection, "icustays", bad, stays, "intime", "a time")
    admissions = find_table(folder, "ADMISSIONS")
    load_table(connection, "admissions", admissions, ("subject_id", "hospital_expire_flag"))
    bad = "coalesce(hospital_expire_flag NOT IN ('0', '1'), true)"
    refuse_rows(connection, "admissions", bad, admissions, "hospital_expire_flag", "0 or 1")
    connection.execute(
        """CREATE TEMP TABLE patients AS
           SELECT subject_id AS patient, site, coalesce(died, false) AS died
           FROM (SELECT subject_id,
                        first(first_careunit ORDER BY intime::TIMESTAMP, icustay_id) AS site
                 FROM icustays WHERE subject_id IS NOT NULL GROUP BY subject_id)
           LEFT JOIN (SELECT subject_id, bool_or(hospital_expire_flag = '1') AS died
                      FROM admissions GROUP BY subject_id) USING (subject_id)"""
    )


def _load_events(connection: Connection, folder: Path) -> None:
    for mode, (table, _) in _TABLES.items():
        columns = ("subject_id", "hadm_id", "icd9_code")
        load_table(connection, mode, find_table(folder, table), columns)
        note(connection, table, "rows", count_rows(connection, mode))
        if blank := count_rows(connection, mode, "icd9_code IS NULL OR subject_id IS NULL"):
            note(connection, table, "rows without a code or a patient, left out", blank)
        add_events(
            connection,
            mode,
            f"""(SELECT subject_id AS patient, hadm_id AS encounter, NULL::BIGINT AS time,
                        icd9_code AS code FROM {mode})""",
        )
        connection.execute(f"DROP TABLE {mode}")


def _load_descriptions(connection: Connection, folder: Path) -> None:
    connection.execute(
        "CREATE TEMP TABLE descriptions (mode VARCHAR, code VARCHAR, description VARCHAR)"
    )
    for mode, (_, table) in _TABLES.items():
        try:
            path = find_table(folder, table)
        except DataError:
            logger.warning("%s is missing: codes of %s stay without description", table, mode)
            continue
        load_table(connection, "titles", path, ("icd9_code", "long_title"))
        connection.execute(
            f"""INSERT INTO descriptions
                SELECT '{mode}', icd9_code, min(long_title) FROM titles
                WHERE icd9_code IS NOT NULL AND long_title IS NOT NULL GROUP BY icd9_code"""
        )
