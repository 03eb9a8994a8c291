"""Test whether phenotypes that one private run calls real also exist in other patients.

    python -m simulation.studies.certainty data/nhds data/diabetes data/synpuf18 --half report
    python -m simulation.studies.certainty data/nhds data/diabetes --shuffled

For each cohort, a private model is fitted to one half of the patients. The private model is
compared with noiseless fits to the other half, from random starts. Whether a phenotype is called
real depends only on the private releases (`dpfact_flower.estimation.certainty`). A phenotype is
missing in a fit if it has no similar partner there. Similar means the same as in ``dpfact report
--beside``: the modes' cosines have a geometric mean above .85. *Strict* also counts a phenotype as
missing if its partner is no more similar than a chance match.

For comparison, *three runs* counts phenotypes that also exist in a second private run and in a
noiseless fit to the same patients. This costs twice the budget.

The rule was chosen on the tuning halves alone (``--half tune``), by comparing one quarter of the
patients with another. Noise is fresh in every run. The output folder keeps all models, so an
interrupted script can continue.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.evaluation.comparison import FAIR
from dpfact_flower.machine.files import replacing
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.tensor import Factors
from dpfact_flower.tensor.cp import chance_cosines, match_columns
from simulation.arguments import at_least, one_line_errors, read_epsilon
from simulation.baselines import pooled
from simulation.paper.report import Table
from simulation.studies.clinical import shuffled_codes
from simulation.studies.halves import half, merged
from simulation.studies.real_data import reference
from simulation.systems import coordinate, play

LEVEL = 0.1
"""Largest chance of being missing at which a phenotype is called real."""
_HALVES = ("tune", "report")
_RUNS = 2
"""Number of private runs per cell. The two runs are compared with each other."""
_COLUMNS = ("called", "missing", "strict", "stable", "stable_missing", "stable_strict")


def cell(
    own: Cohort,
    fits: Callable[[int], tuple[list[Factors], Factors]],
    rank: int,
    epsilon: float,
    keep: Path,
    run: RunSettings,
) -> dict[str, Any]:
    """Count how many phenotypes two private runs call real, and how many of these are missing.

    `fits` returns noiseless fits of a given rank, to other patients and to the same patients.
    """
    runs = [
        _kept(keep / f"{own.name}-{epsilon:g}-{n}.npz", own, rank, epsilon, run)
        for n in range(_RUNS)
    ]
    rows = []
    for (factors, chance), (repeat, _) in zip(runs, runs[::-1], strict=True):
        others, open_fit = fits(factors[0].shape[1])
        found = [found_in(factors, other) for other in others]
        missing = 1 - np.mean([alike for alike, _ in found], axis=0)
        strict = 1 - np.mean([sure for _, sure in found], axis=0)
        called = chance <= LEVEL
        stable = found_in(factors, repeat)[1] & found_in(factors, open_fit)[1]
        rows.append(
            (called.sum(), missing[called].sum(), strict[called].sum(),
             stable.sum(), missing[stable].sum(), strict[stable].sum(), missing.sum())
        )  # fmt: skip
    sums = dict(zip((*_COLUMNS, "all_missing"), np.sum(rows, axis=0).tolist(), strict=True))
    return {"data": own.name, "patients": len(own), "rank": rank, "epsilon": epsilon,
            "phenotypes": sum(len(chance) for _, chance in runs), **sums}  # fmt: skip


def found_in(factors: Factors, other: Factors) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which phenotypes have a similar partner, and which of these partners beat chance."""
    match, likeness = match_columns(factors, other), np.zeros(factors[0].shape[1])
    likeness[match.estimate] = match.cosines
    alike = likeness > FAIR ** len(factors)
    return alike, alike & (likeness > chance_cosines(factors, other))


def _kept(
    path: Path, cohort: Cohort, rank: int, epsilon: float, run: RunSettings
) -> tuple[Factors, NDArray[np.float64]]:
    """Return a private run's factors, and the chance that each phenotype is missing elsewhere."""
    if not path.exists():
        solver = SolverSettings(rank=rank, relative_l21=0.0)
        privacy = PrivacySettings(epsilon=epsilon, patients=len(cohort))
        server = coordinate(cohort, solver, privacy, run)
        for _ in play(server, cohort, own_refit=False):
            pass
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            number = server.factors[0].shape[1]
            chance = np.array(server.rule.false_discovery or [1.0] * number)
            np.savez(file, *server.factors, chance=chance)
    with np.load(path) as arrays:
        factors = tuple(arrays[name] for name in arrays.files if name != "chance")
        return factors, arrays["chance"]


def study(cohort: Cohort, which: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of one cohort, one per epsilon."""
    if which == "tune":
        own, fresh = (half(half(cohort, "tune"), name) for name in _HALVES)
    else:
        own, fresh = half(cohort, "report"), half(cohort, "tune")

    @cache
    def fits(rank: int) -> tuple[list[Factors], Factors]:
        others = [reference(pooled(fresh), rank, seed) for seed in range(given.references)]
        return others, reference(pooled(own), rank, 0)

    return [
        cell(own, fits, given.rank, epsilon, given.out / "models",
             RunSettings(auto_rank=given.auto_rank))
        for epsilon in given.epsilons
    ]  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table with a row per cohort and epsilon, and a row of totals."""
    total: dict[str, Any] = {"data": "all", "epsilon": ""}
    for name in ("phenotypes", *_COLUMNS, "all_missing"):
        total[name] = sum(row[name] for row in rows)
    lines = [
        "| data | epsilon | phenotypes | missing of all | called real | missing, strict | "
        "stable in three runs | missing, strict |",
        "|---" * 8 + "|",
    ]
    for row in (*rows, total):
        every = _share(row["all_missing"], row["phenotypes"])
        one = [_share(row[name], row["called"]) for name in ("missing", "strict")]
        three = [_share(row[name], row["stable"]) for name in ("stable_missing", "stable_strict")]
        lines.append(
            f"| {row['data']} | {row['epsilon']} | {row['phenotypes']:.0f} | {every} | "
            f"{row['called']:.0f} | {', '.join(one)} | {row['stable']:.0f} | {', '.join(three)} |"
        )
    return "\n".join(lines)


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of all cohorts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="+", help="folders that dpfact data wrote")
    parser.add_argument("--out", type=Path, default=Path("runs/certainty"))
    parser.add_argument("--rank", type=at_least(1), default=20)
    parser.add_argument("--epsilons", type=read_epsilon, nargs="+", default=[4.0, 2.0, 1.0])
    parser.add_argument("--references", type=at_least(1), default=4, help="fits without noise")
    parser.add_argument("--half", choices=_HALVES, default="report", help="of each site's patients")
    parser.add_argument(
        "--merge", type=at_least(1), default=1, help="sites that become one, in order"
    )
    parser.add_argument(
        "--shuffled", action="store_true", help="shuffle all codes, so that no pattern is real"
    )
    parser.add_argument("--auto-rank", action="store_true", help="let the start lower the rank")
    given = parser.parse_args(arguments)
    with one_line_errors(parser):
        rows: list[dict[str, Any]] = []
        for folder in given.data:
            cohort = merged(Cohort.load(folder), given.merge)
            if given.shuffled:
                shuffled = [
                    replace(site, tensor=shuffled_codes(site.tensor, seed), labels={})
                    for seed, site in enumerate(cohort.sites)
                ]
                cohort = replace(cohort, name=f"{cohort.name}-shuffled", sites=tuple(shuffled))
            rows += study(cohort, given.half, given)
            given.out.mkdir(parents=True, exist_ok=True)
            Table("table", rows).write(given.out)
    print(table(rows))  # noqa: T201 - the table is what this script is for


if __name__ == "__main__":
    main()
