"""Column norms of each site's patient factor against the l2,1 weight (the paper's appendix)."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dpfact_flower.tensor.cp import match_columns
from simulation.paper.datasets import load
from simulation.paper.jobs import Job, Result, Results
from simulation.paper.plan import Plan
from simulation.paper.report import Section, Table, legend, panels
from simulation.paper.verdicts import Verdict, answer, held

_ROUNDS = 40
"""Number of rounds, enough for phenotypes to form before any is switched off."""
_SHOWN = 4
"""Number of phenotypes of one site that the table shows for each weight."""


def jobs(plan: Plan) -> list[Job]:
    """Return one fit per weight, on the first data set of the experiment `prediction`."""
    return [
        Job(data.name, "exact", data.rank, _ROUNDS, relative_l21=weight, tables=True)
        for data in plan.sets(plan.prediction[:1])
        for weight in plan.weights
    ]


def section(plan: Plan, results: Results) -> Section:
    """Return the figure, the tables and the verdict on what the l2,1 term does to column norms."""
    done = [job for job in jobs(plan) if job in results]
    found = [(job.relative_l21, results[job].values) for job in done]
    sites = found[0][1]["sites"] if found else []
    planted = [row for job in done for row in _planted(job, results[job])]
    return Section(
        "Column norms against mu",
        "`relative-l21` is the l2,1 weight `mu`, divided by the root mean square of the patient "
        "factor's column norms. The l2,1 penalty applies in the last "
        f"{_ROUNDS // 2} of {_ROUNDS} rounds. A phenotype is off at a site if its column in the "
        "site's patient factor is zero.",
        [("norms", "Column norms of patient factors at several l2,1 weights", _figure(found))]
        if found else [],
        [
            Table(
                "norms", [_row(*one) for one in found], {"relative-l21": 1, "FMS planted": 2},
                "number of zero columns in each site's patient factor, for each l2,1 weight",
            ),
            Table(
                "norms_planted", planted,
                {"relative-l21": 1, "cosine": 2, **dict.fromkeys(sites, 1)},
                "phenotypes planted at only one site, and the norms of the matching columns at all "
                "sites",
            ),
        ],
        _verdicts(found),
    )  # fmt: skip


def _figure(found: list[tuple[float, dict[str, Any]]]) -> Figure:
    """Draw one panel per site with its column norms in decreasing order, one line per weight."""
    sites = found[0][1]["sites"]
    figure, axes = panels(len(sites), height=2.6)
    for number, (site, ax) in enumerate(zip(sites, axes, strict=True)):
        for weight, values in found:
            norms = np.sort(values["norms"][number])[::-1]
            ax.plot(np.arange(1, len(norms) + 1), norms, lw=1.2, label=f"relative-l21 = {weight:g}")
        ax.set(title=site, xlabel="phenotype, by norm", ylabel="norm of its column")
    legend(figure, axes)
    return figure


def _row(weight: float, values: dict[str, Any]) -> dict[str, Any]:
    return {
        "relative-l21": weight,
        **{
            f"off at {site}": int(sum(norm == 0 for norm in norms))
            for site, norms in zip(values["sites"], values["norms"], strict=True)
        },
        "fit": values["trace"][-1]["fit"],
        "FMS planted": values["fms_planted"],
    }


def _verdicts(found: list[tuple[float, dict[str, Any]]]) -> list[Verdict]:
    """Judge whether sites switch off different phenotypes if and only if the l2,1 term is used."""

    def unshared(values: dict[str, Any]) -> int:
        off = np.asarray(values["norms"]) == 0
        return int((off.any(axis=0) & ~off.all(axis=0)).sum())

    counts = {weight: unshared(values) for weight, values in found}
    text = ", ".join(f"{count} at {weight:g}" for weight, count in counts.items())
    return [
        Verdict(
            "With the l2,1 term, sites switch off phenotypes that other sites keep",
            answer([held((count > 0) == (weight > 0)) for weight, count in counts.items()]),
            "Each weight is a case: the number of phenotypes that are off at some sites but not at "
            "all sites must be zero at weight zero and above zero at other weights. "
            f"Counts by weight: {text}.",
        )
    ]


def _planted(job: Job, result: Result) -> list[dict[str, Any]]:
    """Return every site's norms of the phenotypes that were planted at only one site."""
    truth = load(job.data).truth
    if truth is None:
        return []
    match = match_columns(result.shared, truth.factors)
    norms, rows = np.asarray(result.values["norms"]), []
    alone = np.flatnonzero(truth.usage.sum(axis=0) == 1)
    for phenotype in np.intersect1d(alone, match.truth):  # a low rank leaves some unmatched
        position = int(np.flatnonzero(match.truth == phenotype)[0])
        own = int(np.flatnonzero(truth.usage[:, phenotype])[0])
        by_site = norms[:, match.estimate[position]].tolist()
        rows.append(
            {
                "relative-l21": job.relative_l21,
                "phenotype": int(phenotype) + 1,
                "at": result.values["sites"][own],
                "cosine": float(match.cosines[position]),
                **dict(zip(result.values["sites"], by_site, strict=True)),
            }
        )
    return rows[:_SHOWN]
