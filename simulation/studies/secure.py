"""Measure what secure sums gain if patients are assigned to sites at random.

    python -m simulation.studies.secure data/nhds --sites 6 20 50 --ranks 10 20 --epsilons 1 0.5
    python -m simulation.studies.secure synthetic:paper-icu --sites 20 --slots 1 2 4

For each number of sites, three systems are compared. *Own noise*: patient mode with its defaults.
*G slots*: secure sums with the planned or the given number of slots, G. *One noise*: all patients
at one site, which is the best possible case. Share of the best fit, factor match and the rule for
judging a cell come from `simulation.studies.real_data`. The study leaves out masks: they cancel, so
the server gets the same integers (tests/test_secure_rounds.py). On synthetic data, where some
phenotypes exist at only one site, the study shows the match with planted phenotypes instead.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.tensor import Factors
from simulation.arguments import at_least, one_line_errors, read_epsilon
from simulation.baselines import pooled
from simulation.paper.report import Table
from simulation.studies.halves import HALVES, half
from simulation.studies.real_data import Study
from simulation.systems import run, unit_columns

_OWN, _ONE = -1, -2
"""Values that replace a number of slots: noise at each site, and one site with all patients."""


def assigned(cohort: Cohort, sites: int, patients: int, seed: int) -> Cohort:
    """Draw at most `patients` patients at random, and assign them to sites."""
    tensor = pooled(cohort)
    order = np.random.default_rng(seed).permutation(tensor.n_patients)[:patients]
    parts = [np.sort(part) for part in np.array_split(order, sites)]
    homes = tuple(
        SiteData(f"site-{n:02d}", tensor.select_patients(part), cohort.vocabularies)
        for n, part in enumerate(parts, start=1)
    )
    return replace(cohort, sites=homes, truth=None)


class SecureStudy(Study):
    """A study whose private models come from the system that `slots` selects."""

    slots = _OWN

    def _private(self, epsilon: float, seed: int) -> Factors:
        cohort = self.cohort
        if self.slots == _ONE:
            cohort = assigned(cohort, 1, len(cohort), 0)
        privacy = PrivacySettings(
            epsilon=epsilon, patients=len(cohort), secure_sums=self.slots >= 0,
            secure_slots=max(self.slots, 0),
        )  # fmt: skip
        solver = SolverSettings(rank=self.rank, relative_l21=0.0)
        return run(cohort, solver, privacy, RunSettings(seed=seed))


def planted(name: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the match with all planted phenotypes of a preset, and with those at only one site."""
    for sites in given.sites:
        shares = ",".join([str(1 / sites)] * sites)
        cohort = synthetic(preset(name, shares=shares, distinct=sites))
        assert cohort.truth is not None
        truth, usage = cohort.truth.factors, cohort.truth.usage
        only = np.logical_not(usage[:-1].any(axis=0))
        solver = SolverSettings(rank=usage.shape[1], relative_l21=0.0)
        for epsilon, slots in product(given.epsilons, (_OWN, *given.slots)):
            privacy = PrivacySettings(
                epsilon=epsilon, patients=len(cohort), secure_sums=slots >= 0,
                secure_slots=max(slots, 0),
            )  # fmt: skip
            model = run(cohort, solver, privacy, RunSettings(seed=given.draw))
            likeness = np.prod(
                [a.T @ b for a, b in zip(truth, unit_columns(model), strict=True)], 0
            )
            mine, theirs = linear_sum_assignment(-likeness)
            match = likeness[mine, theirs]
            yield {
                "data": name, "sites": sites, "slots": slots, "epsilon": epsilon,
                "match": match.mean(), "match_at_one_site": match[only].mean(),
            }  # fmt: skip


def rows(given: argparse.Namespace, cohort: Cohort) -> Iterator[dict[str, Any]]:
    """Yield a row for each system as soon as it is measured. Only noiseless fits stay on disk."""
    for rank in given.ranks:
        for place, sites in enumerate(given.sites):
            parts = assigned(cohort, sites, given.patients, given.draw)
            folder = given.out / "models" / f"{cohort.name}-{rank}"
            study = SecureStudy(parts, rank, given.references, folder)
            systems = {"own noise": _OWN} | {f"{g or 'planned'} slots": g for g in given.slots}
            for name, slots in (systems | ({"one noise": _ONE} if not place else {})).items():
                study.slots = slots
                folder.mkdir(parents=True, exist_ok=True)
                for row in study.rows(given.epsilons, given.seeds):
                    if row["epsilon"] is not None or (not place and slots == _OWN):
                        yield {**row, "system": name}
                for path in folder.glob("epsilon-*"):  # this system's models
                    path.unlink()


def main(arguments: Sequence[str] | None = None) -> None:
    """Study every cohort."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "data", nargs="+", help="folders that dpfact data wrote, or synthetic:PRESET"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/secure"))
    parser.add_argument("--sites", type=at_least(3), nargs="+", default=[6, 20, 50])
    parser.add_argument(
        "--slots", type=int, nargs="+", default=[0], help="slots of secure sums; 0: as planned"
    )
    parser.add_argument("--ranks", type=at_least(1), nargs="+", default=[10, 20])
    parser.add_argument("--epsilons", type=read_epsilon, nargs="+", default=[4, 2, 1, 0.5])
    parser.add_argument(
        "--patients", type=at_least(10), default=10_000, help="number of patients at all sites"
    )
    parser.add_argument("--seeds", type=at_least(1), default=4)
    parser.add_argument("--references", type=at_least(2), default=4)
    parser.add_argument("--half", choices=HALVES, default="report")
    parser.add_argument("--draw", type=int, default=0, help="seed for drawing patients")
    given = parser.parse_args(arguments)
    found: list[dict[str, Any]] = []
    given.out.mkdir(parents=True, exist_ok=True)
    with one_line_errors(parser):
        for data in given.data:
            kind, _, name = data.rpartition(":")
            if kind == "synthetic":
                lines = planted(name, given)
            else:
                lines = rows(given, half(Cohort.load(Path(data)), given.half))
            for row in lines:
                found.append(row)
                Table("table", found).write(given.out)
                shown = (f"{key}={value}" for key, value in row.items() if value is not None)
                print(*shown, flush=True)  # noqa: T201 - the table is what this script is for


if __name__ == "__main__":
    main()
