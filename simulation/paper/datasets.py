"""The data of the evaluation: what stands for what, and where it comes from.

Synthetic data are made up on the spot, at the paper's sizes. Open data are read from the folder of
``--open-data`` (or of a cohort that ``dpfact data`` wrote), and left out, saying so, where absent.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.synthetic import preset, synthetic, true_memberships
from dpfact_flower.data.vocabulary import load_codes

DELTA = 1e-4
"""The paper's delta, for every data set."""


@dataclass(frozen=True)
class Dataset:
    """One data set.

    Attributes
    ----------
    name : str
        Key of jobs: the name of a preset, of an open data set, or the path of a cohort's folder.
    title : str
    epsilon : float
        What the paper's accounting claims for the data set that this one stands for.
    distinct : str or None
        Site whose population is unlike all others'.
    rank : int
        Phenotypes where rank is not what is varied; the paper has 50.
    """

    name: str
    title: str
    epsilon: float
    distinct: str | None = None
    rank: int = 50


_KNOWN = (
    Dataset("demo-icu", "synthetic EHR, 6,000 patients, 6 sites", 1.2, "site-6", 12),
    Dataset("paper-icu", "synthetic EHR of MIMIC-III's size, 6 units", 1.2, "site-6"),
    Dataset("paper-cms", "synthetic EHR of CMS's size, 5 samples", 1.9),
    Dataset("paper-synthetic", "synthetic tensor of the paper's size, 5 sites", 1.7, None, 20),
    Dataset("eicu", "eICU demo, by region", 1.2, None, 20),
    Dataset("synpuf", "CMS DE-SynPUF inpatient, 5 samples", 1.9, None, 20),
    Dataset("mimic3", "MIMIC-III demo, by first unit", 1.2, None, 10),
)
OPEN = ("eicu", "synpuf", "mimic3")
_FOLDERS = {"eicu": "eicu_demo", "synpuf": "synpuf/inpatient", "mimic3": "mimic3_demo"}


def dataset(name: str) -> Dataset:
    """What is known of a data set; a folder is described by its cohort."""
    found = next((known for known in _KNOWN if known.name == name), None)
    return found or Dataset(name, f"cohort {Path(name).name}", 1.2, None, 50)


def open_data() -> Path:
    """Folder of the open data: $DPFACT_DATA, or ``shared/data`` beside the repository."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return Path(os.environ.get("DPFACT_DATA", beside))


def available(name: str) -> bool:
    """Whether the data can be had here."""
    return name not in OPEN or (open_data() / _FOLDERS[name]).is_dir()


@lru_cache(maxsize=2)
def load(name: str) -> Cohort:
    """The cohort of a data set."""
    if name == "eicu":
        from dpfact_flower.data import eicu  # noqa: PLC0415 - DuckDB is slow to import

        return eicu.read(open_data() / _FOLDERS[name])
    if name == "mimic3":
        from dpfact_flower.data import mimic3  # noqa: PLC0415

        return mimic3.read(open_data() / _FOLDERS[name])
    if name == "synpuf":
        from dpfact_flower.data import synpuf  # noqa: PLC0415

        codes = load_codes(open_data() / "mimic3_demo" / "D_ICD_PROCEDURES.csv", "procedures")
        return synpuf.read(open_data() / _FOLDERS[name], valid_procedures=codes)
    if Path(name).is_dir():
        return Cohort.load(name)
    return synthetic(preset(name))


def planted_memberships(name: str) -> list[NDArray[np.float64]] | None:
    """Which patient was given which phenotype: the ceiling of prediction, on synthetic data."""
    if name in OPEN or Path(name).is_dir():
        return None
    return [own.astype(np.float64) for own in true_memberships(preset(name))]
