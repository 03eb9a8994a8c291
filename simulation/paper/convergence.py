"""Compare RMSE against rounds over several initialisations, as in the paper's accuracy figure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from simulation.paper.datasets import DELTA, Dataset
from simulation.paper.jobs import Job, Result, Results
from simulation.paper.plan import Plan
from simulation.paper.report import Section, Table, legend, panels, style
from simulation.paper.systems import SYSTEMS
from simulation.paper.verdicts import Case, Verdict, answer, difference, tally

COMPARED = (
    "cp-als",
    "sgd",
    "trip",
    "psgd",
    "paper",
    "exact",
    "exact-no-l21",
    "patient",
    "published",
)
Systems = dict[str, dict[int, Result]]
"""Fits by system and by seed of the initial factors."""
_SUMMED_UP = ("cp-als", "trip", "psgd", "paper", "exact-no-l21", "patient")
_DRAWN = ("cp-als", "sgd", "trip", "psgd", "paper", "exact", "patient")
_RIVALS = ("cp-als", "trip")
_JUDGED = ("paper", "psgd", "exact-no-l21")
"""Versions of DPFact: the paper's noise, and both solvers without noise."""
_NEAR = 0.01
"""A fit has converged once only this share of the total decrease in RMSE remains."""


def fit_job(plan: Plan, data: Dataset, system: str, *, rank: int, seed: int, tables: bool) -> Job:
    """Return the job of a fit that `convergence`, `prediction` and `phenotypes` share."""
    noisy = bool(SYSTEMS[system].noise)
    return Job(
        data.name, system, rank,
        rounds=plan.iterations if system == "cp-als" else plan.rounds,
        seed=seed, splits=plan.splits,
        epsilon=data.epsilon if noisy else 0.0, delta=DELTA if noisy else 0.0,
        tables=tables,
    )  # fmt: skip


def runs(plan: Plan, data: Dataset, system: str) -> list[Job]:
    """Return one fit per initialisation."""
    return [
        fit_job(plan, data, system, rank=data.rank, seed=seed, tables=seed == 0)
        for seed in range(plan.seeds_of(data.name))
    ]


def jobs(plan: Plan) -> list[Job]:
    """Return all fits."""
    return [
        job
        for data in plan.sets(plan.convergence)
        for system in COMPARED
        for job in runs(plan, data, system)
    ]


def rounds_needed(result: Result) -> int:
    """Return the number of rounds until the RMSE is near its lowest value."""
    rmse = [point["all_cells"] for point in result.values["trace"]]
    low = min(rmse)
    target = low + _NEAR * (rmse[0] - low)
    return int(next(p["round"] for p in result.values["trace"] if p["all_cells"] <= target))


def needed(found: Sequence[Result]) -> tuple[int, bool]:
    """Return the median of `rounds_needed`, and whether every fit ran longer or has one round."""
    median = int(np.median([rounds_needed(result) for result in found]))
    played = min(len(result.values["trace"]) for result in found)
    return median, median < played or played == 1


def rounds_text(rounds: int, converged: bool) -> str:
    """Format the result of `needed` for tables."""
    return str(rounds) if converged else f"not in {rounds}"


def section(plan: Plan, results: Results) -> Section:
    """Return the figure, the tables and the verdict on the paper's claim about accuracy."""
    found = {
        data: {
            system: {job.seed: results[job] for job in runs(plan, data, system) if job in results}
            for system in COMPARED
        }
        for data in plan.sets(plan.convergence)
    }
    found = {data: systems for data, systems in found.items() if any(systems.values())}
    rows = [
        _row(data, system, [*got.values()])
        for data, systems in found.items() for system, got in systems.items() if got
    ]  # fmt: skip
    pairs = [pair for data, systems in found.items() for pair in _pairs(data, systems)]
    return Section(
        "Accuracy: RMSE against rounds",
        "As in the paper, RMSE covers all cells. The sites' own models together have more "
        "parameters than a centralised model. *RMSE shared* is the RMSE of the shared model. In "
        "the figure, stars show local refits in patient mode. A fit has "
        f"converged after {100 * (1 - _NEAR):g} % of its total decrease in RMSE.",
        _figure(found),
        [
            Table(
                "convergence", rows, _DIGITS,
                "error, fit, rounds and seconds of every system",
            ),
            Table(
                "convergence_paired", pairs,
                about="DPFact's RMSE minus a rival's RMSE, divided by the rival's RMSE",
            ),
        ],
        [_verdict(rows, pairs)],
        summary=at_a_glance(rows),
    )  # fmt: skip


_DIGITS = {"RMSE": 6, "± seeds": 6, "RMSE non-zeros": 4, "RMSE shared": 6, "fit": 3,
           "FMS planted": 2, "seconds": 1}  # fmt: skip


def at_a_glance(rows: Sequence[dict[str, Any]]) -> tuple[str, Table]:
    """Tabulate fits and factor matches, with a row per data set and a column per system."""
    titles = [SYSTEMS[system].title for system in _SUMMED_UP]
    cells = {(row["data"], row["system"]): _fit_and_match(row) for row in rows}
    return (
        "Table cells show *own/shared, match*: the fit of the sites' own models, the fit of the "
        "shared model (with patients' loadings refitted), and the factor match score (FMS) with "
        "the planted phenotypes. A fit of 1 is exact, and 0 is as good as predicting zero "
        "everywhere. In patient mode (except on the data of CMS's size), sites fit their own "
        "models after the run, locally and without noise, so neither the fit of these models nor "
        "the AUC measures the private model. Runs with noise use the paper's epsilons (1.2 to "
        "1.9).",
        Table(
            "at_a_glance",
            [
                {"data": data, **{title: cells.get((data, title)) for title in titles}}
                for data in dict.fromkeys(row["data"] for row in rows)
            ],
        ),
    )


def _fit_and_match(row: dict[str, Any]) -> str:
    match = "" if row["FMS planted"] is None else f", {row['FMS planted']:.2f}"
    shared = 1 - (1 - row["fit"]) * (row["RMSE shared"] / row["RMSE"]) ** 2
    return f"{row['fit']:.3f}/{shared:.2f}{match}"


def _figure(found: dict[Dataset, Systems]) -> list[tuple[str, str, Figure]]:
    if not found:
        return []
    figure, axes = panels(len(found))
    for (data, systems), ax in zip(found.items(), axes, strict=True):
        _draw(ax, data, systems)
    legend(figure, axes)
    return [("convergence", "RMSE over all cells after each round", figure)]


def _finals(found: Sequence[Result]) -> list[float]:
    return [float(result.values["trace"][-1]["all_cells"]) for result in found]


def _pairs(data: Dataset, found: Systems) -> list[dict[str, Any]]:
    """Compare each version of DPFact with each rival, over the seeds for which both have a fit."""
    rows = []
    for system in _JUDGED:
        for rival in _RIVALS:
            both = sorted(found[system].keys() & found[rival].keys())
            if not both:
                continue
            theirs = np.array(_finals([found[rival][seed] for seed in both]))
            ours = np.array(_finals([found[system][seed] for seed in both]))
            share = difference(ours / theirs.mean(), theirs / theirs.mean())
            rows.append(
                {
                    "data": data.title,
                    "system": SYSTEMS[system].title,
                    "against": SYSTEMS[rival].title,
                    "starts": len(both),
                    "difference": share.mean,
                    **share.interval(),
                    "below?": share.case("below"),
                }
            )
    return rows


def _row(data: Dataset, system: str, found: Sequence[Result]) -> dict[str, Any]:
    last = [result.values["trace"][-1] for result in found]
    planted = [result.values["fms_planted"] for result in found]
    noise = SYSTEMS[system].noise
    return {
        "data": data.title,
        "system": SYSTEMS[system].title,
        "epsilon": f"{data.epsilon:g} ({noise})" if noise else "",
        "seeds": len(found),
        "RMSE": float(np.mean(_finals(found))),
        "± seeds": float(np.std([p["all_cells"] for p in last])) if len(last) > 1 else None,
        "RMSE non-zeros": float(np.mean([point["nonzeros"] for point in last])),
        "fit": float(np.mean([point["fit"] for point in last])),
        "RMSE shared": float(np.mean([result.values["shared"]["rmse"] for result in found])),
        "FMS planted": None if None in planted else float(np.mean(planted)),
        "rounds to converge": rounds_text(*needed(found)),
        "seconds": float(np.median([result.seconds for result in found])),
    }


def _draw(ax: Any, data: Dataset, found: Systems) -> None:
    for system in _DRAWN:
        traces = [result.values["trace"] for result in found[system].values()]
        if not traces:
            continue
        x = [point["round"] for point in traces[0]]
        y = np.array([[point["all_cells"] for point in trace] for trace in traces])
        look = style(system)
        if len(x) == 1:  # in patient mode, sites have models only after the last round
            ax.errorbar(x, y.mean(axis=0), y.std(axis=0), marker="*", ls="", ms=9, **look)
            continue
        ax.plot(x, y.mean(axis=0), lw=1.4, **look)
        ax.fill_between(x, y.min(axis=0), y.max(axis=0), color=look["color"], alpha=0.15, lw=0)
    ax.set(title=data.title, xlabel="round (CP-ALS: iteration)", ylabel="RMSE, all cells")
    ax.title.set_fontsize("small")
    ax.ticklabel_format(axis="y", useOffset=False)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _verdict(rows: list[dict[str, Any]], pairs: list[dict[str, Any]]) -> Verdict:
    """Judge the claim about the system with the paper's noise. The other systems do not count."""

    def cases(system: str) -> list[Case]:
        return [row["below?"] for row in pairs if row["system"] == SYSTEMS[system].title]

    said = answer(cases("paper"))
    why = "<br>".join(
        f"{SYSTEMS[system].title}: {tally(cases(system))}{_extent(pairs, system)}"
        for system in _JUDGED
        if cases(system)
    )
    return Verdict(
        "DPFact (with its noise) converges to a smaller RMSE than CP-ALS and TRIP", said,
        "Each combination of a data set and a rival is a case."
        f"<br>{why}{shared_against_rivals(rows)}{_published(rows)}",
    )  # fmt: skip


def shared_against_rivals(rows: list[dict[str, Any]]) -> str:
    """Compare patient mode's shared models with the rivals', by mean RMSE."""

    def shared(system: str) -> dict[str, float]:
        title = SYSTEMS[system].title
        return {row["data"]: row["RMSE shared"] for row in rows if row["system"] == title}

    ours = shared("patient")
    shares = [
        ours[data] / theirs - 1
        for rival in _RIVALS for data, theirs in shared(rival).items() if data in ours
    ]  # fmt: skip
    if not shares:
        return ""
    return (
        f"<br>{SYSTEMS['patient'].title}: not judged; the mean *RMSE shared* is below the "
        f"rival's in {sum(share < 0 for share in shares)} of {len(shares)} comparisons "
        f"({100 * min(shares):+.0f} to {100 * max(shares):+.0f} % of the rival's; convergence.csv)"
    )


def _extent(pairs: list[dict[str, Any]], system: str) -> str:
    found = [row["difference"] for row in pairs if row["system"] == SYSTEMS[system].title]
    return f" ({100 * min(found):+.1f} to {100 * max(found):+.1f} % of the rival's RMSE)"


def _published(rows: list[dict[str, Any]]) -> str:
    """Describe how well the published P-SGD fits all cells. It sees only the non-zeros."""
    fits = [row["fit"] for row in rows if row["system"] == SYSTEMS["published"].title]
    if not fits:
        return ""
    worse = sum(fit < 0 for fit in fits)
    return (
        "<br>If P-SGD is fitted to non-zeros alone, as the paper writes, its fit over all cells is "
        f"worse than no model on {worse} of {len(fits)} data sets ({min(fits):.2f} to "
        f"{max(fits):.2f})."
    )
