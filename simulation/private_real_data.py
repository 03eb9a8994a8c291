"""What private models keep on real data, beside what chance gives and what repetition gives.

    python -m simulation.private_real_data data/synpuf data/eicu --out runs/private-real

On real data nobody knows the phenotypes, so a private model is compared with a model fitted without
noise to the pooled data, and both numbers have a floor and a ceiling. *Ceiling*: two such fits from
different random starts. *Null*: a model fitted without noise to shuffled patients, each with the
procedures of one real patient and the diagnoses of another; what it reaches needs no tie between
modes. A private model that does not beat the null has learned nothing about ties, whatever its
numbers look like. Fit is 1 - ||X - M||^2 / ||X||^2, patients scaled to norm 1 and refitted.

Noise is fresh in every run, so no two runs of this script agree in all digits. Writes table.json,
table.csv and table.md.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from dpfact_flower.cp import factor_match_score
from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.elastic import initial_factors
from dpfact_flower.run_folder import write_json
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver import solve
from dpfact_flower.tensor import Factors, SparseTensor
from simulation.baselines import pooled
from simulation.paper.measures import shared_error
from simulation.systems import NO_NOISE, patient_mode, shuffled, unit_columns

_ITERATIONS = 150
_FIELDS = (
    "data", "sites", "patients", "smallest_site", "rank", "model", "epsilon", "fit",
    "share_of_fit", "fms", "beats_null",
)  # fmt: skip


def reference(tensor: SparseTensor, rank: int, seed: int) -> Factors:
    """Feature factors of a fit without noise, from a random start, all patients in one place."""
    tensor = tensor.scaled_to_unit_patients()
    settings = SolverSettings(rank=rank, tau=_ITERATIONS, gamma=0.0)
    anchors = initial_factors(tensor.feature_shape, rank, seed)
    rng = np.random.default_rng(seed)
    patients = rng.random((tensor.n_patients, rank), dtype=np.float32)
    local = solve(tensor, (patients, *anchors), anchors, settings, rng)
    return unit_columns(local.factors[1:])


def study(cohort: Cohort, rank: int, epsilons: Sequence[float], seeds: int) -> list[dict[str, Any]]:
    """Rows of one data set at one rank."""
    tensor = pooled(cohort)
    whole = replace(cohort, sites=(_as_site(cohort, tensor),), truth=None)
    references = [reference(tensor, rank, seed) for seed in (1, 2)]
    best = max(shared_error(whole, factors).fit for factors in references)
    null = reference(shuffled(tensor, seed=0), rank, seed=1)
    null_row = _row(cohort, rank, "null: shuffled patients", None, [null], whole, references, best)
    rows = [
        _row(
            cohort, rank, "ceiling: another fit", None, [references[1]], whole, references[:1], best
        ),
        null_row,
    ]
    for epsilon in epsilons:
        models = [patient_mode(cohort, rank, epsilon, seed=seed) for seed in range(seeds)]
        row = _row(cohort, rank, "patient mode", epsilon, models, whole, references, best)
        row["beats_null"] = row["fit"] > null_row["fit"] and row["fms"] > null_row["fms"]
        rows.append(row)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: a row a model, fit and factor match beside each other."""
    lines = [
        "| data | R | model | epsilon | fit | share of best fit | FMS | above the null |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        beats = {None: "", True: "yes", False: "**no**"}[row["beats_null"]]
        lines.append(
            f"| {row['data']} | {row['rank']} | {row['model']} | {row['epsilon'] or ''} | "
            f"{row['fit']:.3f} | {row['share_of_fit']:.2f} | {row['fms']:.2f} | {beats} |"
        )
    return "\n".join(lines)


def _row(
    cohort: Cohort, rank: int, model: str, epsilon: float | None, models: Sequence[Factors],
    whole: Cohort, references: Sequence[Factors], best: float,
) -> dict[str, Any]:  # fmt: skip
    """Means over models of their fit, and of their match with the references."""
    sizes = [site.tensor.n_patients for site in cohort.sites]
    found = float(np.mean([shared_error(whole, factors).fit for factors in models]))
    matches = [factor_match_score(m, reference) for m in models for reference in references]
    return {
        "data": cohort.name, "sites": len(sizes), "patients": sum(sizes),
        "smallest_site": min(sizes), "rank": rank, "model": model,
        "epsilon": "inf" if epsilon and epsilon >= NO_NOISE else epsilon,
        "fit": found, "share_of_fit": found / best, "fms": float(np.mean(matches)),
        "beats_null": None,
    }  # fmt: skip


def _as_site(cohort: Cohort, tensor: SparseTensor) -> SiteData:
    return SiteData("all", tensor, cohort.vocabularies)


def main() -> None:
    """Study every data set at every rank and epsilon."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="+", help="folders that dpfact data wrote")
    parser.add_argument("--out", type=Path, default=Path("runs/private-real"))
    parser.add_argument("--ranks", type=int, nargs="+", default=[10, 20, 50])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[math.inf, 8, 4, 2, 1])
    parser.add_argument("--seeds", type=int, default=2, help="private models to average over")
    given = parser.parse_args()
    epsilons = [min(epsilon, NO_NOISE) for epsilon in given.epsilons]
    jobs = [(Cohort.load(folder), rank) for folder in given.data for rank in given.ranks]
    rows: list[dict[str, Any]] = []
    for cohort, rank in track(jobs, description="studies"):
        rows += study(cohort, rank, epsilons, given.seeds)
    given.out.mkdir(parents=True, exist_ok=True)
    write_json(given.out / "table.json", rows)
    with open(given.out / "table.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    (given.out / "table.md").write_text(table(rows) + "\n", encoding="utf-8")
    print(table(rows))  # noqa: T201 - the table is what this script is for


if __name__ == "__main__":
    main()
