"""The data sets of the evaluation and their sources.

Synthetic data have the paper's sizes. Settings were tuned on data with another seed. Open data are
read from the folder in $DPFACT_DATA, or from a cohort that ``dpfact data`` wrote. If open data are
missing, the page says so.
"""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.synthetic import SyntheticSettings, preset, synthetic, true_memberships
from dpfact_flower.data.vocabulary import load_codes

DELTA = 1e-4
"""The paper's delta, for every data set."""
SEARCHED_SEED, REPORTED_SEED = 0, 1
"""Seeds of the synthetic data for tuning and for the reported results."""


@dataclass(frozen=True)
class Dataset:
    """A data set that replaces the paper's data set `stands_for`, and the paper's epsilon for it.

    `name` is the name in jobs: a preset, an open data set, or the path of a cohort's folder. The
    patients of the site `distinct` are unlike those of all other sites. `rank` is the number of
    phenotypes in experiments that do not vary the rank. The paper uses 50.
    """

    name: str
    title: str
    epsilon: float
    distinct: str | None = None
    rank: int = 50
    stands_for: str = ""


_KNOWN = (
    Dataset("demo-icu", "synthetic EHR, 6,000 patients, 6 sites", 1.2, "site-6", 12, "MIMIC-III"),
    Dataset("paper-icu", "synthetic EHR of MIMIC-III's size, 6 units", 1.2, "site-6", 50,
            "MIMIC-III"),
    Dataset("paper-cms", "synthetic EHR of CMS's size, 5 samples", 1.9, None, 50, "CMS"),
    Dataset("paper-synthetic", "synthetic tensor of the paper's size, 5 sites", 1.7, None, 20,
            "synthetic"),
    Dataset("eicu", "eICU demo, by region", 1.2, None, 20, "MIMIC-III"),
    Dataset("synpuf", "CMS DE-SynPUF inpatient, 5 samples", 1.9, None, 20, "CMS"),
    Dataset("mimic3", "MIMIC-III demo, by first unit", 1.2, None, 10, "MIMIC-III"),
    Dataset("nhds", "NHDS 2010 discharges, by region and beds", 1.2, None, 50, "MIMIC-III"),
)  # fmt: skip
OPEN = ("eicu", "synpuf", "mimic3", "nhds")
_PLACES = {
    "eicu": "eicu_demo", "synpuf": "synpuf/inpatient", "mimic3": "mimic3_demo",
    "nhds": "nhds2010/NHDS10.PU.txt.bz2",
}  # fmt: skip


def dataset(name: str) -> Dataset:
    """Return the description of a data set or of a cohort's folder."""
    found = next((known for known in _KNOWN if known.name == name), None)
    return found or Dataset(name, f"cohort {Path(name).name}", 1.2, None, 50)


def open_data() -> Path:
    """Return the open-data folder: $DPFACT_DATA, or ``shared/data`` next to the repository."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return Path(os.environ.get("DPFACT_DATA", beside))


def available(name: str) -> bool:
    """Return whether the data are available here."""
    return name not in OPEN or (open_data() / _PLACES[name]).exists()


@lru_cache(maxsize=4)
def load(name: str) -> Cohort:
    """Return the cohort of a data set."""
    if name in OPEN:
        from dpfact_flower.data.readers.runner import read  # noqa: PLC0415 - slow to import

        if name == "synpuf":
            valid = load_codes(open_data() / "mimic3_demo" / "D_ICD_PROCEDURES.csv", "procedures")
            return read(name, open_data() / _PLACES[name], valid_procedures=[*valid.codes])
        return read(name, open_data() / _PLACES[name])
    if Path(name).is_dir():
        return Cohort.load(name)
    return synthetic(reported(name))


def reported(name: str) -> SyntheticSettings:
    """Return a synthetic data set's settings: a preset with the reported seed."""
    return preset(name, seed=REPORTED_SEED)


def is_synthetic(name: str) -> bool:
    """Return whether the data are made up."""
    return name not in OPEN and not Path(name).is_dir()


def planted_memberships(name: str) -> list[NDArray[np.float64]] | None:
    """Return the planted memberships, which allow the best possible prediction."""
    if not is_synthetic(name):
        return None
    return [own.astype(np.float64) for own in true_memberships(reported(name))]
