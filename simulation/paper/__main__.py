"""Repeat the paper's evaluation with one command.

    python -m simulation.paper [--quick] [--only EXPERIMENT ...] [--cohort COHORT] [--out FOLDER]

Computes the missing fits, and writes the tables (JSON, CSV), the figures (PNG, SVG) and one page.
To continue an interrupted evaluation, run the command again. Open EHR data is read from the folder
$DPFACT_DATA.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from dpfact_flower.data.site_data import site_files
from dpfact_flower.errors import DataError
from simulation.arguments import at_least, one_line_errors
from simulation.paper import (
    convergence,
    data,
    epsilon,
    norms,
    page,
    phenotypes,
    prediction,
    traffic,
)
from simulation.paper.compute import computed, quiet
from simulation.paper.datasets import OPEN, available, open_data
from simulation.paper.jobs import Job, Result, Results, Store, merged
from simulation.paper.plan import FULL, LARGE, QUICK, THOROUGH, Plan
from simulation.paper.report import Section

EXPERIMENTS: dict[str, ModuleType] = {
    "data": data, "convergence": convergence, "traffic": traffic, "prediction": prediction,
    "norms": norms, "epsilon": epsilon, "phenotypes": phenotypes,
}  # fmt: skip


def run(
    plan: Plan,
    experiments: Sequence[str],
    out: Path,
    where: Path | None,
    *,
    limit: int | None = None,
    processes: int = 1,
    code: str = "",
) -> Path:
    """Compute the missing fits of `experiments` (keys of `EXPERIMENTS`), and write the page.

    `where` is the path of a second copy of the page. `limit` is the maximum number of fits to
    compute in this run. Fits from earlier runs are always shown. `processes` is the number of fits
    to compute at the same time, which does not affect the results. If `code` is given, show the
    existing fits of the code with this digest, and compute no fit.
    """
    began = time.perf_counter()
    jobs = wanted(plan, experiments)
    store = Store(out / "results", code)
    found = {job: known for job in jobs if (known := store.load(job)) is not None}
    missing = [job for job in jobs if job not in found][: 0 if code else limit]
    print(f"{len(jobs)} fits, {len(found)} of them done before", flush=True)
    failed = []
    for number, (job, result) in enumerate(computed(missing, processes), start=1):
        if isinstance(result, Result):
            store.save(job, result)
            found[job] = result
            took = f"{result.wall:.1f} s"
        else:
            failed.append(job)
            took = f"failed: {type(result).__name__}: {result}"
        since = (time.perf_counter() - began) / 60
        print(f"[{number}/{len(missing)}] {job}: {took} ({since:.1f} min)", flush=True)
    seconds = sum(result.wall for result in found.values())
    state = page.State(len(found), len(jobs), seconds, store.code)
    written = page.write(out, plan, shown(plan, experiments, Results(found)), state, where)
    print(f"{time.perf_counter() - began:.0f} s; page: {written}", flush=True)
    if failed:
        raise SystemExit(f"{len(failed)} fits failed; the page leaves them out")
    return written


def shown(plan: Plan, experiments: Sequence[str], results: Results) -> list[Section]:
    """Return the experiments' sections, in the order of the page."""
    sections = []
    for name, module in EXPERIMENTS.items():
        if name in experiments:
            missing = {job.fit for job in module.jobs(plan) if job not in results}
            sections.append(replace(module.section(plan, results), missing=len(missing)))
    return sections


def wanted(plan: Plan, experiments: Sequence[str]) -> list[Job]:
    """Return the fits of the given experiments, without repeats, in the order of computation.

    Large data sets come last. Otherwise, low seeds come first, so even an interrupted run has fits
    for every experiment. Each fit carries the measures of all experiments, even those not given.
    """
    by_fit = merged(job for module in EXPERIMENTS.values() for job in module.jobs(plan))
    asked = dict.fromkeys(job.fit for name in experiments for job in EXPERIMENTS[name].jobs(plan))
    jobs = [by_fit[fit] for fit in asked]
    return sorted(jobs, key=lambda job: (job.data in LARGE and not job.sites, job.seed))


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m simulation.paper", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="minutes instead of an hour")
    parser.add_argument(
        "--thorough", action="store_true", help="all of the paper's sizes and repeats, many hours"
    )
    parser.add_argument("--only", nargs="+", choices=[*EXPERIMENTS], default=[*EXPERIMENTS])
    parser.add_argument(
        "--cohort", help=f"run on this alone: {', '.join(OPEN)}, or a folder that dpfact data wrote"
    )
    parser.add_argument("--ranks", type=at_least(1), nargs="+", help="ranks of the table of AUC")
    parser.add_argument(
        "--starts", type=at_least(1), default=1, help="starts behind every AUC and factor match"
    )
    parser.add_argument(
        "--out", type=Path, help="default: runs/paper, runs/paper-quick or runs/paper-thorough"
    )
    parser.add_argument(
        "--page", type=Path, help="write the page here too, e.g. docs/evaluation.md"
    )
    parser.add_argument(
        "--limit", type=at_least(0), help="most fits to compute now; 0 only writes the page"
    )
    parser.add_argument(
        "--processes", type=at_least(1), default=1, help="fits to compute at a time"
    )
    parser.add_argument(
        "--code", default="", help="show the fits of code with this digest, compute none"
    )
    given = parser.parse_args()
    if given.quick and given.thorough:
        parser.error("--quick and --thorough exclude each other")
    plan = QUICK if given.quick else THOROUGH if given.thorough else FULL
    plan = replace(plan, starts=given.starts)
    if given.cohort is not None:
        with one_line_errors(parser):
            if given.cohort not in OPEN:
                site_files(Path(given.cohort))
            elif not available(given.cohort):
                raise DataError(f"--cohort: {given.cohort} is not in {open_data()}")
        plan = plan.on(given.cohort)
    if given.ranks:
        plan = replace(plan, ranks=tuple(given.ranks))
    out = given.out or Path("runs/paper" if plan.name == "full" else f"runs/paper-{plan.name}")
    quiet()
    run(
        plan, given.only, out, given.page,
        limit=given.limit, processes=given.processes, code=given.code,
    )  # fmt: skip


if __name__ == "__main__":
    main()
