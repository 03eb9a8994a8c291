"""What private models keep on real data, beside what chance gives and what repetition gives.

    python -m simulation.studies.real_data data/synpuf data/eicu --out runs/private-real

On real data nobody knows the phenotypes, so a private model is compared with models fitted without
noise to the pooled data, and both numbers have a floor and a ceiling. *Ceiling*: such fits, from
different random starts, against each other. *Null*: models fitted without noise to shuffled
patients, each with the procedures of one real patient and the diagnoses of another; what they reach
needs no tie between modes. Private models of which one does not beat every null in both numbers are
no evidence that ties were learned, whatever the numbers look like. Fit is 1 - ||X - M||^2 /
||X||^2, patients scaled to norm 1 and refitted.

Noise is fresh in every run, so no two runs of this script agree in all digits. Writes table.json,
table.csv and table.md after each data set and rank, and continues from there when started again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.errors import SettingsError
from dpfact_flower.evaluation.run_folder import read_json
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver import solve
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.match import factor_match_score
from simulation.arguments import at_least, one_line_errors, read_epsilon
from simulation.baselines import pooled
from simulation.paper.measures import shared_error
from simulation.paper.report import Table
from simulation.systems import NO_NOISE, patient_mode, shuffled, unit_columns

_ITERATIONS = 150


def reference(tensor: SparseTensor, rank: int, seed: int) -> Factors:
    """Feature factors of a fit without noise, from a random start, all patients in one place."""
    tensor = tensor.scaled_to_unit_patients()
    settings = SolverSettings(rank=rank, tau=_ITERATIONS, gamma=0.0)
    anchors = initial_factors(tensor.feature_shape, rank, seed)
    rng = np.random.default_rng(seed)
    patients = rng.random((tensor.n_patients, rank), dtype=np.float32)
    local = solve(tensor, (patients, *anchors), anchors, settings, rng)
    return unit_columns(local.factors[1:])


class Study:
    """One data set at one rank: its fits without noise, and what others are beside them.

    Parameters
    ----------
    cohort : Cohort
    rank : int
    references : int
        Number of fits without noise, at least 2.
    """

    def __init__(self, cohort: Cohort, rank: int, references: int) -> None:
        if references < 2:
            raise SettingsError(f"references: a ceiling needs at least 2 fits; got {references}")
        self.cohort, self.rank = cohort, rank
        self.tensor = pooled(cohort)
        everybody = SiteData("all", self.tensor, cohort.vocabularies)
        self._whole = replace(cohort, sites=(everybody,), truth=None)
        self._references = [reference(self.tensor, rank, seed) for seed in range(references)]
        self._fits = [self._fit(factors) for factors in self._references]

    def rows(self, epsilons: Sequence[float], seeds: int) -> list[dict[str, Any]]:
        """Ceiling, null, and patient mode at each epsilon."""
        nulls = [reference(shuffled(self.tensor, seed), self.rank, seed) for seed in range(seeds)]
        floor = self._measured(nulls)
        rows = [self._row("ceiling: fits to each other", None, self._ceiling())]
        rows.append(self._row("null: shuffled patients", None, floor))
        for epsilon in epsilons:
            models = [patient_mode(self.cohort, self.rank, epsilon, seed=s) for s in range(seeds)]
            found = self._measured(models)
            beats = bool((found.min(axis=0) > floor.max(axis=0)).all())
            rows.append({**self._row("patient mode", epsilon, found), "beats_null": beats})
        return rows

    def _fit(self, factors: Factors) -> float:
        return shared_error(self._whole, factors).fit

    def _ceiling(self) -> np.ndarray[Any, Any]:
        """As `_measured`, of each reference beside all others."""
        matches = [
            np.mean([factor_match_score(m, o) for o in self._references if o is not m])
            for m in self._references
        ]
        return np.column_stack([self._fits, matches])

    def _measured(self, models: Sequence[Factors]) -> np.ndarray[Any, Any]:
        """Fit, and mean match with the references, of each model: (models, 2)."""
        matches = [
            np.mean([factor_match_score(model, other) for other in self._references])
            for model in models
        ]
        return np.column_stack([[self._fit(model) for model in models], matches])

    def _row(
        self, model: str, epsilon: float | None, found: np.ndarray[Any, Any]
    ) -> dict[str, Any]:
        sizes = [site.tensor.n_patients for site in self.cohort.sites]
        share = found[:, 0] / max(self._fits)
        return {
            "data": self.cohort.name, "sites": len(sizes), "patients": sum(sizes),
            "smallest_site": min(sizes), "rank": self.rank, "model": model,
            "epsilon": "inf" if epsilon and epsilon >= NO_NOISE else epsilon,
            "models": len(found), "fit": found[:, 0].mean(), "share_of_fit": share.mean(),
            "share_spread": share.std(), "fms": found[:, 1].mean(),
            "fms_spread": found[:, 1].std(), "beats_null": None,
        }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: a row per data set, rank; share of the best fit, factor match; spread over models.

    In italics: private models of which one does not beat every null in both numbers.
    """
    columns = list(dict.fromkeys(_column(row) for row in rows))
    cells: dict[tuple[str, int], dict[str, str]] = {}
    for row in rows:
        cell = "{share_of_fit:.2f} ± {share_spread:.2f}, {fms:.2f} ± {fms_spread:.2f}".format(**row)
        shown = f"*{cell}*" if row["beats_null"] is False else cell
        cells.setdefault((row["data"], row["rank"]), {})[_column(row)] = shown
    lines = ["| data | R | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    for (data, rank), found in cells.items():
        shown = " | ".join(found.get(column, "-") for column in columns)
        lines.append(f"| {data} | {rank} | {shown} |")
    return "\n".join(lines)


def _column(row: dict[str, Any]) -> str:
    return str(row["epsilon"] or row["model"].split(":")[0])


def write(rows: Sequence[dict[str, Any]], out: Path) -> None:
    """Table as JSON, CSV and Markdown."""
    out.mkdir(parents=True, exist_ok=True)
    Table("table", list(rows)).write(out)
    (out / "table.md").write_text(table(rows) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Study every data set at every rank and epsilon."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="+", help="folders that dpfact data wrote")
    parser.add_argument("--out", type=Path, default=Path("runs/private-real"))
    parser.add_argument("--ranks", type=at_least(1), nargs="+", default=[10, 20, 50])
    parser.add_argument("--epsilons", type=read_epsilon, nargs="+", default=[NO_NOISE, 8, 4, 2, 1])
    parser.add_argument(
        "--seeds", type=at_least(1), default=3, help="private models, and nulls, each"
    )
    parser.add_argument("--references", type=at_least(2), default=4, help="fits without noise")
    given = parser.parse_args(arguments)
    with one_line_errors(parser):
        run(given)


def run(given: argparse.Namespace) -> None:
    """Study what is missing in the folder, and write it."""
    store = given.out / "table.json"
    rows: list[dict[str, Any]] = read_json(store) if store.exists() else []
    done = {(row["data"], row["rank"]) for row in rows}
    cohorts = [Cohort.load(folder) for folder in given.data]
    jobs = [(c, rank) for c in cohorts for rank in given.ranks if (c.name, rank) not in done]
    for cohort, rank in track(jobs, description="studies"):
        rows += Study(cohort, rank, given.references).rows(given.epsilons, given.seeds)
        write(rows, given.out)
    print(table(rows))  # noqa: T201 - the table is what this script is for


if __name__ == "__main__":
    main()
