"""Folders of finished runs made by hand, of any size: what a page is written from."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.evaluation.phenotypes import phenotype_table, site_usage
from dpfact_flower.evaluation.run_folder import (
    write_config,
    write_model,
    write_phenotypes,
    write_summary,
)
from dpfact_flower.evaluation.tables import SharedPhenotypes
from dpfact_flower.server.history import Failure, History, RoundRecord
from dpfact_flower.tensor.cp import CPModel
from tests.evaluation.summaries import SIMULATED

SITES = {"north": 120, "south": 140}


def icd9(count: int) -> tuple[str, ...]:
    return (*(f"{n:03d}.0" for n in range(1, count)), "V58.1")


def run_folder(
    folder: Path, *, rank: int = 5, codes: int = 20, seed: int = 0, noise: float = 0.0
) -> Path:
    """A simulated run with deaths; equal seeds have equal phenotypes, but for the noise."""
    rng, extra = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    names = ("procedures", "diagnoses")
    lists = ((*(f"{n:04d}" for n in range(codes)),), icd9(codes))
    vocabularies = tuple(
        Vocabulary(name, own, tuple(f"Meanings|What {c} stands for, in so many words" for c in own))
        for name, own in zip(names, lists, strict=True)
    )
    factors = []
    for _ in names:
        factor = rng.gamma(0.3, 1.0, (codes, rank)) + noise * extra.gamma(0.3, 1.0, (codes, rank))
        factors.append(factor.astype(np.float32))
    many = sum(SITES.values())
    patients = rng.gamma(2.0, 1.0, (many, rank)) * (rng.random((many, rank)) < 0.35)
    died = rng.random(many) < 1 / (1 + np.exp(2 - 0.4 * patients[:, 0]))
    table = phenotype_table(
        CPModel((patients, *factors)), vocabularies, labels={"died": died}, sites=SITES
    )
    ends = np.cumsum(list(SITES.values()))[:-1]
    folder.mkdir()
    write_model(folder, factors, vocabularies)
    usage = site_usage(np.split(patients, ends), list(SITES))
    write_phenotypes(folder, SharedPhenotypes(table, usage))
    write_summary(folder, replace(SIMULATED, rank=rank))
    write_config(folder, {"epsilon": 4.0, "rank": rank, "resume": False}, {"numpy": "2"})
    records = [RoundRecord(n, tuple(SITES), (Failure("west", "late"),), True, 9_000, 7_000, 1.5)
               for n in (1, 2)]  # fmt: skip
    history = History(folder, durable=False)
    for n in (1, 2):
        history.note(records[:n])
    return folder
