"""The paper's evaluation from one command.

    python -m simulation.paper [--quick] [--only EXPERIMENT ...] [--cohort FOLDER] [--out FOLDER]

Runs what has not been run yet, one fit after the other, and writes the tables (JSON, CSV), the
figures (PNG, SVG) and one page. Interrupt it and start it again: it goes on. Open EHR data are
looked for in $DPFACT_DATA.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from threadpoolctl import threadpool_limits

from simulation.paper import (
    convergence,
    epsilon,
    norms,
    page,
    phenotypes,
    prediction,
    traffic,
)
from simulation.paper.jobs import Job, Results, Store
from simulation.paper.plan import FULL, LARGE, QUICK, Plan
from simulation.paper.report import Section
from simulation.paper.systems import compute

EXPERIMENTS: dict[str, ModuleType] = {
    "convergence": convergence, "traffic": traffic, "prediction": prediction, "norms": norms,
    "epsilon": epsilon, "phenotypes": phenotypes,
}  # fmt: skip


def run(
    plan: Plan, experiments: Sequence[str], out: Path, where: Path | None, limit: int | None = None
) -> Path:
    """Run what is missing, write what is found.

    Parameters
    ----------
    plan : Plan
    experiments : sequence of str
        Keys of `EXPERIMENTS`.
    out : Path
    where : Path or None
        The page, beside that in `out`.
    limit : int, optional
        Most fits to run now; what was run before is shown all the same.
    """
    modules = [EXPERIMENTS[name] for name in experiments]
    wanted = dict.fromkeys(job for module in modules for job in module.jobs(plan))
    # Seed after seed, so that a run that was stopped has something of everything.
    jobs: list[Job] = sorted(wanted, key=lambda j: (j.seed, j.data in LARGE and not j.sites))
    store = Store(out / "results")
    found = {job: result for job in jobs if (result := store.load(job)) is not None}
    missing = [job for job in jobs if job not in found]
    print(f"{len(jobs)} fits, {len(found)} of them done before", flush=True)
    began = time.perf_counter()
    for number, job in enumerate(missing[:limit], start=1):
        started = time.perf_counter()
        result = compute(job)
        took = time.perf_counter() - started
        found[job] = replace(result, wall=took)
        store.save(job, found[job])
        since = time.perf_counter() - began
        print(f"[{number}/{len(missing)}] {job}: {took:.1f} s ({since / 60:.1f} min)", flush=True)
    results = Results(found)
    sections: list[Section] = [module.section(plan, results) for module in modules]
    took = sum(result.wall for result in found.values())
    state = page.State(len(found), len(jobs), took)
    written = page.write(out, plan, sections, state, where)
    print(f"{time.perf_counter() - began:.0f} s; page: {written}", flush=True)
    return written


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m simulation.paper", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="minutes instead of hours")
    parser.add_argument("--only", nargs="+", choices=[*EXPERIMENTS], default=[*EXPERIMENTS])
    parser.add_argument("--cohort", type=Path, help="a folder that dpfact data wrote")
    parser.add_argument("--out", type=Path, help="default: runs/paper, or runs/paper-quick")
    parser.add_argument("--page", type=Path, help="the page's second place, as docs/evaluation.md")
    parser.add_argument("--limit", type=int, help="most fits to run now; 0 only writes the page")
    given = parser.parse_args()
    plan = QUICK if given.quick else FULL
    if given.cohort is not None:
        plan = plan.on(str(given.cohort))
    out = given.out or Path("runs/paper-quick" if given.quick else "runs/paper")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    with threadpool_limits(1):
        run(plan, given.only, out, given.page, given.limit)


if __name__ == "__main__":
    main()
