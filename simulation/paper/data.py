"""The data sets of a plan: their sizes, what they replace, and how settings were chosen."""

from typing import Any

from simulation.paper.datasets import REPORTED_SEED, SEARCHED_SEED, Dataset, is_synthetic
from simulation.paper.jobs import Job, Results
from simulation.paper.plan import Plan
from simulation.paper.report import Section, Table
from simulation.paper.systems import DESCRIPTION

_CHOSEN = (
    "The l2,1 weight and the settings of P-SGD, TRIP and the paper's noise were tuned on the "
    f"synthetic EHR generated with seed {SEARCHED_SEED}. The tables use open data, and synthetic "
    f"data generated with seed {REPORTED_SEED}. Two defaults of the package were chosen partly on "
    "open data: [scaling each patient's cells to norm 1](explanation/algorithm.md), and [dividing "
    "patient mode's budget among its releases](explanation/start.md)."
)


def jobs(plan: Plan) -> list[Job]:
    """Return one job per data set. Each describes its data."""
    return [_job(data) for data in plan.sets(plan.names)]


def section(plan: Plan, results: Results) -> Section:
    """Return the section with the table of data sets and the choice of settings."""
    rows = [
        _row(data, results[_job(data)].values)
        for data in plan.sets(plan.names) if _job(data) in results
    ]  # fmt: skip
    table = Table(
        "data",
        rows,
        about="each data set's size, sites, codes, deaths and rank, and which data set of the "
        "paper it replaces",
    )
    return Section("The data", _CHOSEN, [], [table], [])


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
