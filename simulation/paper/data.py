"""The data sets of a plan: their sizes, what they stand for, and what was chosen on them."""

from __future__ import annotations

from typing import Any

from simulation.paper.datasets import REPORTED_SEED, SEARCHED_SEED, Dataset, is_synthetic
from simulation.paper.jobs import Job, Results
from simulation.paper.plan import Plan
from simulation.paper.report import Section, Table
from simulation.paper.systems import DESCRIPTION

_CHOSEN = (
    "Settings of P-SGD, of the paper's noise, of TRIP and of the l2,1 weight were searched on the "
    f"synthetic EHR with data seed {SEARCHED_SEED}, which is in no table here: all synthetic data "
    f"below are of data seed {REPORTED_SEED}. The open data can't be drawn again; they get the "
    "settings of that search, and none was searched on them. Two defaults of the package were "
    "chosen with a look at open data, however: that a patient's cells are scaled to norm 1, for "
    "all systems alike (eICU, [algorithm](explanation/algorithm.md)), and patient mode's plan "
    "(one half of SynPUF's patients among others, [start](explanation/start.md))."
)


def jobs(plan: Plan) -> list[Job]:
    """A description of every data set."""
    return [_job(data) for data in plan.sets(plan.names)]


def section(plan: Plan, results: Results) -> Section:
    """One table."""
    rows = [
        _row(data, results[_job(data)].values)
        for data in plan.sets(plan.names) if _job(data) in results
    ]  # fmt: skip
    return Section("The data", [Table("data", rows), _CHOSEN], [])


def _job(data: Dataset) -> Job:
    return Job(data.name, DESCRIPTION, 0, 0)


def _row(data: Dataset, sizes: dict[str, Any]) -> dict[str, Any]:
    return {
        "data": data.title,
        "stands for": data.stands_for or None,
        "data seed": str(REPORTED_SEED) if is_synthetic(data.name) else None,
        "patients": f"{sizes['patients']:,}",
        "sites": sizes["sites"],
        "codes": ", ".join(f"{count:,} {mode}" for mode, count in sizes["codes"].items()),
        "non-zeros": f"{sizes['cells']:,}",
        "deaths": None if sizes["deaths"] is None else f"{sizes['deaths']:,}",
        "R": data.rank,
    }
