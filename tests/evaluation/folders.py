"""Hand-made patients, and folders of finished runs of any size, from which pages are written."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DPFactError
from dpfact_flower.evaluation.membership import LEAST_SCORE, leading_codes
from dpfact_flower.evaluation.prevalence import phenotype_table, site_usage
from dpfact_flower.evaluation.run_folder import (
    PHENOTYPES,
    write_config,
    write_json,
    write_model,
    write_summary,
)
from dpfact_flower.evaluation.summary import Summary
from dpfact_flower.evaluation.tables import SharedPhenotypes
from dpfact_flower.server.history import Failure, RoundRecord, write_history
from dpfact_flower.tensor import SparseTensor
from tests.commands import dpfact
from tests.evaluation.summaries import SIMULATED


def refusal(*arguments: object) -> str:
    """Return the error with which a command refuses."""
    with pytest.raises(DPFactError) as raised:
        dpfact(*arguments)
    return str(raised.value)


def lines_of(path: Path) -> list[dict[str, str]]:
    """Return the lines of a CSV file by column."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


SITES = {"north": 120, "south": 140}


def site_of(
    present: Sequence[ArrayLike],
    vocabularies: Sequence[Vocabulary],
    labels: dict[str, ArrayLike] | None = None,
    name: str = "north",
) -> SiteData:
    """Make patients from (patients, codes) masks of each mode. Every patient has a code."""
    cells = []
    for row in range(len(present[0])):
        own = [np.flatnonzero(mode[row]) for mode in present]
        many = max(map(len, own))
        cells.append([np.full(many, row), *(np.resize(codes, many) for codes in own)])
    index = np.concatenate(cells, axis=1).T
    shape = (len(present[0]), *map(len, vocabularies))
    tensor = SparseTensor.from_coo(index, np.ones(len(index)), shape)
    return SiteData(name, tensor, tuple(vocabularies), labels or {})


def run_folder(
    folder: Path,
    summary: Summary = SIMULATED,
    *,
    rank: int = 5,
    codes: int = 20,
    seed: int = 0,
    noise: float = 0.0,
) -> Path:
    """Make a simulated or deployed run. Equal seeds give equal phenotypes, apart from the noise."""
    rng, extra = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    names = ("procedures", "diagnoses")
    procedures = tuple(f"{n:04d}" for n in range(codes))
    icd9 = (*(f"{n:03d}.0" for n in range(1, codes)), "V58.1")
    vocabularies = tuple(
        Vocabulary(name, own, tuple(f"Meanings|What {c} stands for, in so many words" for c in own))
        for name, own in zip(names, (procedures, icd9), strict=True)
    )
    factors = []
    for _ in names:
        factor = rng.gamma(0.3, 1.0, (codes, rank)) + noise * extra.gamma(0.3, 1.0, (codes, rank))
        factors.append(factor.astype(np.float32))
    sites, scores = [], []
    for site, many in SITES.items():
        found = rng.gamma(2.0, 0.2, (many, rank)) * (rng.random((many, rank)) < 0.35)
        died = rng.random(many) < 1 / (1 + np.exp(2 - 2 * found[:, 0]))
        present = []
        for factor in factors:
            carried = (found > LEAST_SCORE).astype(float) @ leading_codes(factor).T > 0
            carried &= rng.random(carried.shape) < 0.8
            carried[:, 0] = True
            present.append(carried)
        sites.append(site_of(present, vocabularies, {"died": died.astype(int)}, site))
        scores.append(found)
    table = phenotype_table(scores, factors, sites)
    folder.mkdir()
    write_model(folder, factors, vocabularies)
    measured = (table, site_usage(scores, list(SITES))) if summary.measured else (None, None)
    write_json(folder / PHENOTYPES, SharedPhenotypes(*measured))
    write_summary(folder, replace(summary, rank=rank))
    write_config(folder, {"epsilon": 4.0, "rank": rank, "resume": False}, {"numpy": "2"})
    exchanged = True, 9_000, 7_000, summary.exchange.seconds / 2
    records = [RoundRecord(n, tuple(SITES), (Failure("west", "late"),), *exchanged) for n in (1, 2)]
    write_history(folder, records, durable=False)
    return folder
