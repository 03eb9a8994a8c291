"""MIMIC-III (full 1.4 and demo): one site per intensive care unit, as in the paper.

A patient belongs to the unit of the first ICU stay, with all admissions, so that nobody is at two
sites. MIMIC-III dates no ICD-9 codes: they are billed for an admission, so the window is the
admission, and a code counts once in it however often it is listed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from dpfact_flower.data.cooccurrence import Window
from dpfact_flower.data.databases import Folder, Table
from dpfact_flower.data.readers.mimic import Stays, load_codes, load_patients
from dpfact_flower.data.readers.steps import Options, describe, make_cohort, reading
from dpfact_flower.data.site_data import Cohort

MODES = ("procedures", "diagnoses")
TOP = (202, 316)
"""How many codes are kept where nothing else is asked for, as in the paper."""
_STAYS = Stays("ICUSTAYS", "intime", "first_careunit", "icustay_id")
_CODE = "replace(icd9_code, '.', '')"
_CODES = ("subject_id", "hadm_id", "icd9_code")
_NO_CODE = {"rows without a code or a patient, left out": "icd9_code IS NULL OR subject_id IS NULL"}


def read(folder: str | Path, **options: Unpack[Options]) -> Cohort:
    """Read MIMIC-III's tables into one tensor per ICU: patients x procedures x diagnoses.

    Parameters
    ----------
    folder : path
        Holds ICUSTAYS, ADMISSIONS, PROCEDURES_ICD, DIAGNOSES_ICD and, for descriptions,
        D_ICD_PROCEDURES and D_ICD_DIAGNOSES: ``.csv`` or ``.csv.gz``, names and headers in upper
        or lower case.
    **options
        `Options` of all readers; `top` is `TOP` where it is not given. Codes are of ICD-9-CM,
        without the dot.

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
    source = Folder(folder)
    with reading(options) as connection:
        labels = load_patients(connection, source, _STAYS, "ADMISSIONS")
        for mode in MODES:
            name = f"{mode.upper()}_ICD"
            table = Table(name, _CODES, counted=_NO_CODE)
            load_codes(connection, source, mode, table, _CODE)
            titles = Table(f"D_ICD_{mode.upper()}", ("icd9_code", "long_title"))
            describe(connection, source, titles, mode, _CODE, "long_title")
        asked: Options = {"top": TOP, **options}
        return make_cohort(connection, "mimic3", MODES, Window(), asked, labels)
