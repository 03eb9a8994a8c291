"""MIMIC-IV 1.0 to 3.1, full and demo: one site per first care unit, or per first service.

- A patient belongs to the unit of the first ICU stay, or to the service of the first admission,
  with all admissions. By unit, patients who were never in an ICU are left out.
- Codes are of ICD-9-CM and ICD-10-CM, by admission, without the dot. They are kept apart, for one
  text may be a code of both: ``icd9:4019``, ``icd10:I10``.
- As MIMIC-III, it dates no diagnosis: the window is the admission, in which a code counts once.
- Drugs, on request, are the names in ``prescriptions`` in lower case, without what they are
  dissolved in (``drug_type`` BASE and ADDITIVE).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack, get_args

from dpfact_flower.data.cooccurrence import Window
from dpfact_flower.data.databases import Folder, Source, Table
from dpfact_flower.data.events import note
from dpfact_flower.data.readers.mimic import Stays, load_codes, load_patients
from dpfact_flower.data.readers.steps import (
    Options,
    check_choice,
    describe,
    make_cohort,
    reading,
)
from dpfact_flower.data.site_data import Cohort

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

SiteOf = Literal["careunit", "service"]
MODES = ("procedures", "diagnoses")
DRUGS = "drugs"
TOP = {"procedures": 202, "diagnoses": 316, "drugs": 200}
"""How many codes are kept where nothing else is asked for."""
_PARTS = ("hosp", "icu", "core")
"""Folders of the tables; until version 1.0, admissions are in the last."""
_STAYS = {
    "careunit": Stays("icustays", "intime", "first_careunit", "first_careunit"),
    "service": Stays("services", "transfertime", "curr_service", "curr_service"),
}
_CODE = "'icd' || icd_version || ':' || upper(replace(icd_code, '.', ''))"
_NO_CODE = "subject_id IS NULL OR icd_code IS NULL"
_OTHER = "coalesce(icd_version NOT IN ('9', '10'), true)"
_LEFT_OUT = {
    "rows without a code or a patient, left out": _NO_CODE,
    "rows whose icd_version is neither 9 nor 10, left out": f"NOT ({_NO_CODE}) AND {_OTHER}",
}
_DISSOLVED = "upper(drug_type) IN ('BASE', 'ADDITIVE')"
_DRUGS = Table(
    "prescriptions",
    ("subject_id", "hadm_id", "drug"),
    optional=("drug_type",),
    counted={
        "rows without a drug or a patient, left out": "subject_id IS NULL OR drug IS NULL",
        "rows of drug_type BASE or ADDITIVE, left out": _DISSOLVED,
    },
)


def read(
    folder: str | Path,
    *,
    site_of: SiteOf | None = None,
    drugs: bool = False,
    **options: Unpack[Options],
) -> Cohort:
    """Read MIMIC-IV's tables into one tensor per site: patients x procedures x diagnoses (x drugs).

    Parameters
    ----------
    folder : path
        Holds ``hosp`` and ``icu`` as PhysioNet has them (and ``core``, once), or their tables side
        by side:
        admissions, diagnoses_icd, procedures_icd, icustays or services, for descriptions
        d_icd_diagnoses and d_icd_procedures, and prescriptions for drugs. ``.csv``, ``.csv.gz`` or
        ``.parquet``, in upper or lower case.
    site_of : {"careunit", "service"}, optional
        What a site is; where it is blank the site is ``unknown``. Default: the care unit, or, where
        there is no table icustays, the service, which is noted.
    drugs : bool
        Whether drugs are a third mode.
    **options
        `Options` of all readers; `top` is as in `TOP` where it is not given. Codes are such as
        ``icd10:I10``.

    Returns
    -------
    Cohort
        Labels: ``died``, 1 where any admission of the patient has ``hospital_expire_flag`` 1; and
        ``readmitted`` within 30 days, where admissions have times.

    Raises
    ------
    DataError, SettingsError, MissingDependencyError
        As all readers: `dpfact_flower.data.readers.steps`.
    """
    if site_of is not None:
        check_choice("site-of", site_of, get_args(SiteOf))
    modes = (*MODES, DRUGS) if drugs else MODES
    options.setdefault("top", [TOP[mode] for mode in modes])
    source = Folder(folder, *_PARTS)
    with reading(options) as connection:
        stays = _STAYS[site_of or _first_there(connection, source)]
        labels = load_patients(connection, source, stays, "admissions")
        columns = ("subject_id", "hadm_id", "icd_code", "icd_version")
        for mode in MODES:
            table = Table(f"{mode}_icd", columns, counted=_LEFT_OUT)
            load_codes(connection, source, mode, table, _CODE, f"NOT {_OTHER}")
            titles = Table(f"d_icd_{mode}", ("icd_code", "icd_version", "long_title"))
            describe(connection, source, titles, mode, _CODE, "long_title")
        if drugs:
            name = r"trim(regexp_replace(lower(drug), '[\pC\pZ]+', ' ', 'g'))"
            load_codes(connection, source, DRUGS, _DRUGS, name, f"coalesce(NOT {_DISSOLVED}, true)")
        return make_cohort(connection, "mimic4", modes, Window(), options, labels)


def _first_there(connection: Connection, source: Source) -> SiteOf:
    """What sites are of where nobody says: care units, or else services."""
    if source.has(_STAYS["careunit"].table) or not source.has(_STAYS["service"].table):
        return "careunit"
    note(connection, _STAYS["careunit"].table, "tables missing: sites are of services", 1)
    return "service"
