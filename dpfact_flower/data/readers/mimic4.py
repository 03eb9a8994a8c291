"""MIMIC-IV 1.0 to 3.1, full and demo: one site per first care unit, or per first service.

- A patient belongs to the unit of the first ICU stay, or to the service of the first admission,
  with all admissions. By unit, patients who were never in an ICU are left out.
- Codes are of ICD-9-CM and ICD-10-CM, by admission. They are kept apart, for one text may be a code
  of both: ``icd9:4019``, ``icd10:I10``.
- As MIMIC-III, it dates no diagnosis: the window is the admission, in which a code counts once.
- Drugs, on request, are the names in ``prescriptions`` in lower case, without what they are
  dissolved in (``drug_type`` BASE and ADDITIVE).
"""

from __future__ import annotations

import logging
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
from dpfact_flower.errors import DataError, SettingsError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

logger = logging.getLogger(__name__)

SiteOf = Literal["careunit", "service"]
MODES = ("procedures", "diagnoses")
DRUGS = "drugs"
TOP = {"procedures": 202, "diagnoses": 316, "drugs": 200}
"""How many codes are kept where nothing else is asked for."""
_SITES = {
    "careunit": ("icu", "icustays", "intime", "first_careunit"),
    "service": ("hosp", "services", "transfertime", "curr_service"),
}


def read(
    folder: str | Path,
    *,
    site_of: SiteOf = "careunit",
    drugs: bool = False,
    top: Sequence[int | None] | None = None,
    vocabularies: Sequence[Vocabulary] | None = None,
    rolled_up: Mapping[str, RollUp] | None = None,
    min_patients: int = 1,
    keep_empty: bool = False,
    memory: str = MEMORY,
) -> Cohort:
    """Read MIMIC-IV's tables into one tensor per site: patients x procedures x diagnoses (x drugs).

    Parameters
    ----------
    folder : path
        Holds ``hosp`` and ``icu`` as PhysioNet has them, or their tables side by side:
        admissions, diagnoses_icd, procedures_icd, icustays or services, for descriptions
        d_icd_diagnoses and d_icd_procedures, and prescriptions for drugs. ``.csv``, ``.csv.gz`` or
        ``.parquet``, in upper or lower case.
    site_of : {"careunit", "service"}
        What a site is; where it is blank the site is ``unknown``.
    drugs : bool
        Whether drugs are a third mode.
    top : sequence of (int or None), or None
        How many of the most frequent codes of each mode to keep, None for all; not given, as in
        `TOP`. This looks at patients: see `dpfact_flower.data.vocabulary.by_frequency`.
    vocabularies : sequence of Vocabulary, optional
        One per mode as given instead, with codes such as ``icd10:I10``.
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
    if site_of not in get_args(SiteOf):
        raise SettingsError(
            f"site-of: must be one of {', '.join(get_args(SiteOf))}; got {site_of!r}"
        )
    modes = (*MODES, DRUGS) if drugs else MODES
    if top is None:
        top = [TOP[mode] for mode in modes]
    with connect(memory) as connection:
        connection.execute("SET preserve_insertion_order = false")
        _load_patients(connection, Path(folder), site_of)
        connection.execute(
            "CREATE TEMP TABLE descriptions (mode VARCHAR, code VARCHAR, description VARCHAR)"
        )
        for mode in MODES:
            _load_codes(connection, Path(folder), mode)
        if drugs:
            _load_drugs(connection, Path(folder))
        for mode, how in (rolled_up or {}).items():
            roll_up(connection, mode, how)
        return build_cohort(
            connection,
            "mimic4",
            choose_vocabularies(connection, modes, top, vocabularies),
            Window(same_encounter=True),
            labels=True,
            min_patients=min_patients,
            keep_empty=keep_empty,
        )


def _find(folder: Path, part: str, table: str) -> Path:
    """File of a table, in its part of the folder or in the folder itself."""
    inside = folder / part
    return find_table(inside if inside.is_dir() else folder, table)


def _load_patients(connection: Connection, folder: Path, site_of: SiteOf) -> None:
    part, table, time, site = _SITES[site_of]
    path = _find(folder, part, table)
    load_table(connection, "stays", path, ("subject_id", time, site))
    note(connection, table, "rows", count_rows(connection, "stays"))
    bad = f"subject_id IS NOT NULL AND try_cast({time} AS TIMESTAMP) IS NULL"
    refuse_rows(connection, "stays", bad, path, time, "a time")
    path = _find(folder, "hosp", "admissions")
    load_table(connection, "admissions", path, ("subject_id", "hadm_id", "hospital_expire_flag"))
    bad = "hospital_expire_flag NOT IN ('0', '1')"
    refuse_rows(connection, "admissions", bad, path, "hospital_expire_flag", "0, 1 or blank")
    note(connection, "admissions", "rows", count_rows(connection, "admissions"))
    if blank := count_rows(connection, "admissions", "hospital_expire_flag IS NULL"):
        note(
            connection, "admissions", "rows without hospital_expire_flag, taken for no death", blank
        )
    connection.execute(
        f"""CREATE TEMP TABLE patients AS
            SELECT subject_id AS patient, site, coalesce(died, false) AS died
            FROM (SELECT subject_id, first({site} ORDER BY {time}::TIMESTAMP, {site}) AS site
                  FROM stays WHERE subject_id IS NOT NULL GROUP BY subject_id)
            LEFT JOIN (SELECT subject_id, bool_or(hospital_expire_flag = '1') AS died
                       FROM admissions GROUP BY subject_id) USING (subject_id)"""
    )
    nowhere = """(SELECT DISTINCT subject_id FROM admissions
                  WHERE subject_id NOT IN (SELECT patient FROM patients))"""
    if lost := count_rows(connection, nowhere):
        note(connection, "admissions", f"patients without a row in {table}, left out", lost)


def _load_codes(connection: Connection, folder: Path, mode: str) -> None:
    table = f"{mode}_icd"
    path = _find(folder, "hosp", table)
    load_table(connection, "coded", path, ("subject_id", "hadm_id", "icd_code", "icd_version"))
    no_code = "subject_id IS NULL OR icd_code IS NULL"
    other = f"NOT ({no_code}) AND coalesce(icd_version NOT IN ('9', '10'), true)"
    note(connection, table, "rows", count_rows(connection, "coded"))
    for what, where in (
        ("rows without a code or a patient, left out", no_code),
        ("rows whose icd_version is neither 9 nor 10, left out", other),
    ):
        if lost := count_rows(connection, "coded", where):
            note(connection, table, what, lost)
    add_events(
        connection,
        mode,
        """(SELECT subject_id AS patient, hadm_id AS encounter, NULL::BIGINT AS time,
                   'icd' || icd_version || ':' || upper(icd_code) AS code
            FROM coded WHERE icd_version IN ('9', '10'))""",
    )
    connection.execute("DROP TABLE coded")
    try:
        path = _find(folder, "hosp", f"d_icd_{mode}")
    except DataError:
        logger.warning("d_icd_%s is missing: codes of %s stay without description", mode, mode)
        note(connection, f"d_icd_{mode}", "tables missing: codes stay without description", 1)
        return
    load_table(connection, "titles", path, ("icd_code", "icd_version", "long_title"))
    connection.execute(
        """INSERT INTO descriptions
           SELECT $mode, 'icd' || icd_version || ':' || upper(icd_code), min(long_title)
           FROM titles WHERE icd_code IS NOT NULL AND long_title IS NOT NULL GROUP BY ALL""",
        {"mode": mode},
    )


def _load_drugs(connection: Connection, folder: Path) -> None:
    path = _find(folder, "hosp", "prescriptions")
    load_table(
        connection, "drugs", path, ("subject_id", "hadm_id", "drug"), optional=("drug_type",)
    )
    note(connection, "prescriptions", "rows", count_rows(connection, "drugs"))
    for what, where in (
        ("rows without a drug or a patient, left out", "subject_id IS NULL OR drug IS NULL"),
        (
            "rows of drug_type BASE or ADDITIVE, left out",
            "upper(drug_type) IN ('BASE', 'ADDITIVE')",
        ),
    ):
        if lost := count_rows(connection, "drugs", where):
            note(connection, "prescriptions", what, lost)
    add_events(
        connection,
        DRUGS,
        r"""(SELECT subject_id AS patient, hadm_id AS encounter, NULL::BIGINT AS time,
                    trim(regexp_replace(lower(drug), '[\pC\pZ]+', ' ', 'g')) AS code
             FROM drugs WHERE coalesce(upper(drug_type) NOT IN ('BASE', 'ADDITIVE'), true))""",
    )
    connection.execute("DROP TABLE drugs")
