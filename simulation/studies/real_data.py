"""Compare private models of real data with chance and with repeated fits without noise.

    python -m simulation.studies.real_data data/synpuf data/eicu --out runs/private-real

The phenotypes of real patients are unknown, so a private model is compared with noiseless fits to
the pooled data. A private model has two measures: its share of the best fit, and its factor match.
The *ceiling* compares the noiseless fits, which have different random starts, with each other. The
*null* consists of noiseless fits to shuffled patients, each with the procedures of one real patient
and the diagnoses of another. The null shows how good a model can be if modes are unrelated. A cell
of the table shows learned relations only if all its private models beat every null in both
measures. If the mean of the ceiling does not beat every null, there is no relation to learn, and no
model is judged. Fit is 1 - ||X - M||^2 / ||X||^2, with patients scaled to norm 1 and refitted.

If there are labels, the AUC for in-hospital death is shown next to the AUC from raw codes. Both
AUCs come from logistic regression on 60 % of the patients (mean over splits and models). As in a
report, predictors are fourth roots of memberships, because memberships are skewed.

Settings were tuned on the first half of each cohort's patients, so use the second: `--half report`.
Noise is fresh in every run, so no two runs agree in all digits. The output folder keeps every
finished model and cell, so an interrupted script can continue. The script writes table.json,
table.csv, table.md and two figures: the results against epsilon, and the number of patients that
`dpfact plan` requires. For each data set and rank, phenotypes.md describes one model. `--quick`
runs two models per cell, at rank 10.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.errors import SettingsError
from dpfact_flower.evaluation.prediction import code_presence, evened
from dpfact_flower.machine.files import replacing
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.settings import SolverSettings
from dpfact_flower.site.local_fit import scaled
from dpfact_flower.solver import solve
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.cp import factor_match_score
from simulation.arguments import at_least, one_line_errors, read_epsilon
from simulation.baselines import pooled
from simulation.paper.measures import codes_of, death_scores, projected, shared_error
from simulation.paper.report import Table, written_rows
from simulation.studies import against_epsilon, needed
from simulation.studies.halves import HALF, half, merged
from simulation.systems import NO_NOISE, patient_mode, shuffled, unit_columns

_ITERATIONS = 150
_SPLITS = 5
_NAMED = 4.0
"""Epsilon of the model whose phenotypes are listed."""
_NO_TIE = "no tie to learn"


def reference(tensor: SparseTensor, rank: int, seed: int) -> Factors:
    """Return the feature factors of a noiseless fit to pooled patients from a random start."""
    tensor = tensor.scaled_to_unit_patients()
    settings = SolverSettings(rank=rank, tau=_ITERATIONS, gamma=0.0)
    anchors = initial_factors(tensor.feature_shape, rank, seed)
    rng = np.random.default_rng(seed)
    patients = rng.random((tensor.n_patients, rank), dtype=np.float32)
    local = solve(tensor, (patients, *anchors), anchors, settings, rng)
    return unit_columns(local.factors[1:])


class Study:
    """One data set at one rank: its fits without noise, and other models compared with them.

    `references` is the number of fits without noise, at least 2. Models are kept in `folder`, if it
    is given.
    """

    def __init__(
        self, cohort: Cohort, rank: int, references: int, folder: Path | None = None
    ) -> None:
        if references < 2:
            raise SettingsError(f"references: a ceiling needs at least 2 fits; got {references}")
        self.cohort, self.rank, self._folder = cohort, rank, folder
        self.tensor = pooled(cohort)
        everybody = SiteData("all", self.tensor, cohort.vocabularies)
        self._whole = replace(cohort, sites=(everybody,), truth=None)
        self._references = [
            self.kept(f"reference-{seed}", partial(reference, self.tensor, rank, seed))
            for seed in range(references)
        ]
        self._fits = [self._fit(factors) for factors in self._references]

    def rows(
        self, epsilons: Sequence[float], seeds: int, nulls: int = 0
    ) -> Iterator[dict[str, Any]]:
        """Yield rows for the ceiling, for the null, and for patient mode at each epsilon."""
        for row, _ in self.cells(epsilons, seeds, nulls):
            yield row

    def cells(
        self, epsilons: Sequence[float], seeds: int, nulls: int = 0
    ) -> Iterator[tuple[dict[str, Any], list[Factors]]]:
        """Yield the same rows as `rows`, each together with its models."""
        names = range(nulls or seeds)
        chance = [self.kept(f"null-{seed}", partial(self._null, seed)) for seed in names]
        floor, ceiling = self._measured(chance), self._ceiling()
        tie = bool((ceiling.mean(axis=0) > floor.max(axis=0)).all())
        best = self._row("ceiling: fits to each other", None, ceiling, self._references)
        yield {**best, "auc_raw_codes": self.auc_of_codes()}, self._references
        yield self._row("null: shuffled patients", None, floor, chance), chance
        for epsilon in epsilons:
            models = [
                self.kept(f"epsilon-{epsilon:g}-{s}", partial(self._private, epsilon, s))
                for s in range(seeds)
            ]
            found = self._measured(models)
            beat = (found > floor.max(axis=0)).all(axis=1)
            row = self._row("patient mode", epsilon, found, models)
            judged = {"beats_null": bool(beat.all()) if tie else _NO_TIE}
            yield {**row, **judged, "models_that_beat": int(beat.sum())}, models

    def phenotypes(self, epsilon: float) -> list[dict[str, list[str]]]:
        """Return the leading codes of the first private model at an epsilon, with descriptions."""
        model = self.kept(f"epsilon-{epsilon:g}-0", partial(self._private, epsilon, 0))
        return codes_of(model, self.cohort)

    def beside_references(self, model: Factors) -> tuple[float, float]:
        """Return a model's share of the best fit, and its mean match with the references."""
        ((fit, match),) = self._measured([model])
        return float(fit / max(self._fits)), float(match)

    def _private(self, epsilon: float, seed: int) -> Factors:
        return patient_mode(self.cohort, self.rank, epsilon, seed=seed)

    def _null(self, seed: int) -> Factors:
        return reference(shuffled(self.tensor, seed), self.rank, seed)

    def kept(self, name: str, make: Callable[[], Factors]) -> Factors:
        """Load the named model from the folder or, if it does not exist yet, make and save it."""
        if self._folder is None:
            return make()
        path = self._folder / f"{name}.npz"
        if path.exists():
            with np.load(path) as arrays:
                return tuple(arrays[name] for name in arrays.files)
        made = make()
        self._folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.savez(file, *made)
        return made

    def _fit(self, factors: Factors) -> float:
        return shared_error(self._whole, factors).fit

    def _ceiling(self) -> np.ndarray[Any, Any]:
        """Return each reference's fit, and its mean match with the other references."""
        matches = [
            np.mean([factor_match_score(m, o) for o in self._references if o is not m])
            for m in self._references
        ]
        return np.column_stack([self._fits, matches])

    def _measured(self, models: Sequence[Factors]) -> np.ndarray[Any, Any]:
        """Return each model's fit, and its mean match with the references, shape (models, 2)."""
        matches = [
            np.mean([factor_match_score(model, other) for other in self._references])
            for model in models
        ]
        return np.column_stack([[self._fit(model) for model in models], matches])

    def _row(
        self,
        model: str,
        epsilon: float | None,
        found: np.ndarray[Any, Any],
        models: Sequence[Factors],
    ) -> dict[str, Any]:
        sizes = [site.tensor.n_patients for site in self.cohort.sites]
        share = found[:, 0] / max(self._fits)
        areas = [area for area in map(self.auc, models) if area is not None]
        return {
            "data": self.cohort.name, "sites": len(sizes), "patients": sum(sizes),
            "smallest_site": min(sizes), "rank": self.rank, "model": model,
            "codes": "x".join(map(str, self.tensor.feature_shape)),
            "epsilon": "inf" if epsilon and epsilon >= NO_NOISE else epsilon,
            "models": len(found), "fit": found[:, 0].mean(), "share_of_fit": share.mean(),
            "share_spread": share.std(), "fms": found[:, 1].mean(),
            "fms_spread": found[:, 1].std(), "auc": np.mean(areas) if areas else None,
            "auc_spread": np.std(areas) if areas else None, "auc_raw_codes": None,
            "beats_null": None, "models_that_beat": None,
        }  # fmt: skip

    def auc(self, model: Factors) -> float | None:
        """Return the AUC of predicting death from patients' memberships in a model."""
        sites = [scaled(site.tensor, SolverSettings()) for site in self.cohort.sites]
        memberships = [evened(projected(tensor, model)) for tensor in sites]
        return self.area(memberships)

    def auc_of_codes(self) -> float | None:
        """Return the AUC of predicting death from all codes."""
        codes = [code_presence(site.tensor) for site in self.cohort.sites]
        return self.area(codes, codes=True)

    def area(self, predictors: Sequence[Any], *, codes: bool = False) -> float | None:
        """Return the AUC of predicting death from each site's predictors, as in `death_scores`."""
        found = death_scores(predictors, self.cohort, _SPLITS, codes=codes, each_site=False).get(
            "overall"
        )
        return float(np.mean(found)) if found else None


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of shares of the best fit and factor matches, by data and rank.

    Private cells are in italics unless all models beat every null in both measures. The AUC follows
    after a semicolon. The ceiling's column also has the AUC of the raw codes.
    """
    columns = list(dict.fromkeys(_column(row) for row in rows))
    cells: dict[tuple[str, int], dict[str, str]] = {}
    for row in rows:
        cell = "{share_of_fit:.2f} ± {share_spread:.2f}, {fms:.2f} ± {fms_spread:.2f}".format(**row)
        areas = [row[name] for name in ("auc", "auc_raw_codes") if row[name] is not None]
        cell += "; " * bool(areas) + ", codes ".join(f"{area:.2f}" for area in areas)
        shown = f"*{cell}*" if row["beats_null"] in (False, _NO_TIE) else cell
        shown += f" ({_NO_TIE})" * (row["beats_null"] == _NO_TIE)
        cells.setdefault((row["data"], row["rank"]), {})[_column(row)] = shown
    lines = ["| data | R | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    for (data, rank), found in cells.items():
        shown = " | ".join(found.get(column, "-") for column in columns)
        lines.append(f"| {data} | {rank} | {shown} |")
    return "\n".join(lines)


def _column(row: dict[str, Any]) -> str:
    return str(row["epsilon"] or row["model"].split(":")[0])


def write(rows: Sequence[dict[str, Any]], out: Path) -> None:
    """Write the table as JSON, CSV and Markdown, and both figures as PNG and SVG."""
    out.mkdir(parents=True, exist_ok=True)
    Table("table", list(rows)).write(out)
    (out / "table.md").write_text(table(rows) + "\n", encoding="utf-8")
    figures = {
        "patients_needed": needed.figure(rows),
        "against_epsilon": against_epsilon.figure(rows),
    }
    for name, drawn in figures.items():
        for kind in ("png", "svg"):
            drawn.savefig(out / f"{name}.{kind}", dpi=120)


def named(study: Study, epsilon: float) -> str:
    """Return Markdown that lists the leading codes of each phenotype of one private model."""
    lines = [f"## {study.cohort.name}, {study.rank} phenotypes, epsilon {epsilon:g}", ""]
    for number, modes in enumerate(study.phenotypes(epsilon), start=1):
        shown = " // ".join("; ".join(codes) for codes in modes.values())
        lines.append(f"{number}. {shown}")
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Study every data set at every rank and epsilon."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="+", help="folders that dpfact data wrote")
    parser.add_argument("--out", type=Path, default=Path("runs/private-real"))
    parser.add_argument("--ranks", type=at_least(1), nargs="+", default=[10, 20, 50])
    parser.add_argument("--epsilons", type=read_epsilon, nargs="+", default=[NO_NOISE, 8, 4, 2, 1])
    parser.add_argument(
        "--seeds", type=at_least(1), default=4, help="number of private models, and of nulls"
    )
    parser.add_argument("--nulls", type=at_least(0), default=0, help="of nulls; 0: --seeds")
    parser.add_argument(
        "--references", type=at_least(2), default=4, help="number of fits without noise"
    )
    parser.add_argument("--half", **HALF)
    parser.add_argument(
        "--merge", type=at_least(1), default=1, help="merge so many sites into one, in order"
    )
    parser.add_argument("--quick", action="store_true", help="rank 10, two models a cell")
    given = parser.parse_args(arguments)
    if given.quick:
        given.ranks, given.seeds, given.references = [10], 2, 2
    with one_line_errors(parser):
        run(given)


def run(given: argparse.Namespace) -> None:
    """Run the cells that the folder lacks, and write their results."""
    rows = written_rows(given.out)
    for folder in given.data:
        cohort = half(merged(Cohort.load(folder), given.merge), given.half)
        for rank in given.ranks:
            _study(cohort, rank, given, rows)
    print(table(rows))  # noqa: T201 - the table is what this script is for


def _study(
    cohort: Cohort, rank: int, given: argparse.Namespace, rows: list[dict[str, Any]]
) -> None:
    """Add a data set's rows at one rank, writing each as soon as it is measured."""
    known = {(row["data"], row["rank"], row["model"], row["epsilon"]) for row in rows}
    wanted = ["inf" if epsilon >= NO_NOISE else epsilon for epsilon in given.epsilons]
    if all((cohort.name, rank, "patient mode", epsilon) in known for epsilon in wanted):
        return
    models = given.out / "models" / f"{cohort.name}-{rank}"
    study = Study(cohort, rank, given.references, models)
    left = [
        epsilon
        for epsilon, shown in zip(given.epsilons, wanted, strict=True)
        if (cohort.name, rank, "patient mode", shown) not in known
    ]
    for row in study.rows(left, given.seeds, given.nulls):
        if (row["data"], row["rank"], row["model"], row["epsilon"]) not in known:
            rows.append(row)
            write(rows, given.out)
    if _NAMED in given.epsilons:
        with (given.out / "phenotypes.md").open("a", encoding="utf-8") as page:
            page.write(named(study, _NAMED) + "\n")


if __name__ == "__main__":
    main()
