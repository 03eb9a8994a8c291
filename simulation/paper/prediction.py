"""AUC for in-hospital death against rank, for all patients and for one unusual site."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from simulation.paper import published
from simulation.paper.convergence import fit_job
from simulation.paper.datasets import Dataset
from simulation.paper.jobs import Job, Results
from simulation.paper.measures import TRAIN
from simulation.paper.plan import Plan
from simulation.paper.report import Section, Table, legend, panels, style
from simulation.paper.systems import SYSTEMS
from simulation.paper.verdicts import Case, Difference, Verdict, answer, difference, tally

COMPARED = (
    "cp-als", "sgd", "trip", "paper", "paper-no-l21", "psgd", "psgd-no-l21", "exact",
    "exact-no-l21", "patient", "random",
)  # fmt: skip
_PLAIN = ("raw-codes", "volume", "planted")
_DRAWN = ("cp-als", "trip", "paper", "psgd", "exact", "patient", "random")
_PAIRS = (
    ("paper", "trip"), ("paper", "cp-als"), ("psgd", "trip"), ("psgd", "cp-als"),
    ("exact", "trip"), ("exact", "cp-als"), ("patient", "trip"), ("patient", "cp-als"),
    ("patient", "paper"), ("patient", "raw-codes"), ("patient", "random"),
    ("paper", "paper-no-l21"), ("psgd", "psgd-no-l21"), ("exact", "exact-no-l21"),
)  # fmt: skip
_JUDGED = ("paper", "psgd", "exact", "patient")
"""Versions of DPFact: the paper's noise, both solvers without noise, and patient mode."""
_LEAST = 20
"""Smallest rank at which DPFact is above its rivals in the paper."""
_L21 = (("paper", "paper-no-l21"), ("psgd", "psgd-no-l21"), ("exact", "exact-no-l21"))


def _jobs(plan: Plan, data: Dataset, system: str, rank: int) -> list[Job]:
    """Return one fit per initialisation, or one job for a system that is not a factorisation."""
    if system in _PLAIN:
        return [Job(data.name, system, 0, 0, splits=plan.splits)]
    return [
        fit_job(plan, data, system, rank=rank, seed=seed, tables=rank == data.rank and not seed)
        for seed in range(plan.starts)
    ]


def jobs(plan: Plan) -> list[Job]:
    """Return the fits of every system and rank."""
    found = []
    for data in plan.sets(plan.prediction):
        for system in _PLAIN:
            found += _jobs(plan, data, system, 0)
        for rank, system in product(plan.ranks, COMPARED):
            found += _jobs(plan, data, system, rank)
    return found


def section(plan: Plan, results: Results) -> Section:
    """Return the figure, the tables and the verdicts on the paper's claims about utility."""
    rows, pairs = [], []
    groups = [
        (data, group)
        for data in plan.sets(plan.prediction)
        for group in ("overall", *([data.distinct] if data.distinct else []))
        if _has(plan, data, group, results)
    ]
    for data, group in groups:
        rows += _rows(plan, data, group, results)
        pairs += _paired(plan, data, group, results)
    return Section(
        "Utility: AUC of in-hospital death against rank",
        "A logistic regression predicts death from phenotype memberships (rows of the patient "
        "factor). The regression is fitted to 60 % of the patients and tested on the others, "
        f"with the same {plan.splits} random splits for all systems. *Random factors* are the "
        "exact solver's factors with the values in each column shuffled. The last site's patients "
        "are unusual, like those of the paper's neonatal unit, and have a separate regression. "
        "Confidence intervals come from the corrected resampled t-test (Nadeau and Bengio 2003).",
        _figures(plan, groups, results),
        [
            Table(
                "auc",
                rows,
                about="AUC of every system at every rank (± standard deviation over splits), "
                "and the paper's AUC on MIMIC-III",
            ),
            Table("auc_paired", pairs, about="paired differences in AUC, at every rank"),
            Table(
                "auc_paired_by_rank",
                _over_ranks(pairs),
                about="smallest and largest difference in AUC between two systems, over all ranks",
            ),
        ],
        _verdicts(plan, pairs, groups),
    )


def _figures(
    plan: Plan, groups: Sequence[tuple[Dataset, str]], results: Results
) -> list[tuple[str, str, Figure]]:
    if not groups:
        return []
    figure, axes = panels(len(groups))
    for (data, group), ax in zip(groups, axes, strict=True):
        _draw(ax, plan, data, group, results)
    legend(figure, axes)
    return [("auc", "AUC against rank", figure)]


def _scores(
    plan: Plan, data: Dataset, system: str, rank: int, group: str, results: Results
) -> list[float] | None:
    """Return each split's AUC, averaged over the initialisations."""
    wanted = _jobs(plan, data, system, rank)
    if not results.complete(wanted):
        return None
    found = [results[job].values["auc"].get(group) for job in wanted]
    return np.mean(found, axis=0).tolist() if all(found) else None


def _has(plan: Plan, data: Dataset, group: str, results: Results) -> bool:
    return any(
        _scores(plan, data, system, rank, group, results)
        for rank, system in product(plan.ranks, COMPARED)
    )


def _rows(plan: Plan, data: Dataset, group: str, results: Results) -> list[dict[str, Any]]:
    rows = []
    for system in (*COMPARED, *_PLAIN):
        row: dict[str, Any] = {
            "data": data.title, "patients": group, "system": SYSTEMS[system].title,
            "epsilon": f"{data.epsilon:g}" if SYSTEMS[system].noise else "",
        }  # fmt: skip
        for rank in plan.ranks:
            scores = _scores(plan, data, system, rank, group, results)
            shown = f"{np.mean(scores):.3f} ± {np.std(scores, ddof=1):.3f}" if scores else None
            row[f"R = {rank}"] = shown
        first, last = plan.ranks[0], plan.ranks[-1]
        paper = [published.AUC_BY_RANK.get(rank, {}).get(system) for rank in (first, last)]
        if group == "overall" and None not in paper:
            row[f"paper, {first} / {last}"] = f"{paper[0]:.3f} / {paper[1]:.3f}"
        else:
            row[f"paper, {first} / {last}"] = None
        if any(row[f"R = {rank}"] for rank in plan.ranks):
            rows.append(row)
    return rows


def _paired(plan: Plan, data: Dataset, group: str, results: Results) -> list[dict[str, Any]]:
    rows = []
    for better, than in _PAIRS:
        for rank in plan.ranks:
            one = _scores(plan, data, better, rank, group, results)
            other = _scores(plan, data, than, rank, group, results)
            if one is None or other is None:
                continue
            found = paired(one, other)
            rows.append(
                {
                    "data": data.title,
                    "patients": group,
                    "R": rank,
                    "system": SYSTEMS[better].title,
                    "against": SYSTEMS[than].title,
                    "difference": found.mean,
                    "± splits": found.spread,
                    **found.interval(),
                    "p": found.p,
                    "above?": found.case("above"),
                    ".05 to .2?": found.case_within(0.05, 0.2),
                }
            )
    return rows


def _over_ranks(pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Summarise each comparison over all ranks in one row."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in pairs:
        key = tuple(str(row[name]) for name in ("data", "patients", "system", "against"))
        groups.setdefault(key, []).append(row)
    return [
        {
            "data": data,
            "patients": patients,
            "system": system,
            "against": against,
            "smallest": min(row["difference"] for row in rows),
            "largest": max(row["difference"] for row in rows),
            "± splits": float(np.median([row["± splits"] for row in rows])),
            "above?": tally([row["above?"] for row in rows]),
        }
        for (data, patients, system, against), rows in groups.items()
    ]


def paired(one: Sequence[float], other: Sequence[float]) -> Difference:
    """Return the difference between two systems, corrected for the overlap of the splits."""
    return difference(one, other, overlap=(1 - TRAIN) / TRAIN)


def _draw(ax: Any, plan: Plan, data: Dataset, group: str, results: Results) -> None:
    for system in _DRAWN:
        points = [
            (rank, scores)
            for rank in plan.ranks
            if (scores := _scores(plan, data, system, rank, group, results))
        ]
        if points:
            ax.errorbar(
                [rank for rank, _ in points], [np.mean(scores) for _, scores in points],
                [np.std(scores, ddof=1) for _, scores in points], marker="o", ms=3, capsize=2,
                lw=1.2, **style(system),
            )  # fmt: skip
    for system, line in (("raw-codes", "--"), ("volume", ":"), ("planted", "-.")):
        scores = _scores(plan, data, system, 0, group, results)
        if scores:
            ax.axhline(np.mean(scores), color="0.4", ls=line, label=SYSTEMS[system].title)
    ax.set(title=f"{data.title}: {group}", xlabel="rank", ylabel="AUC", xticks=plan.ranks)
    ax.title.set_fontsize("small")


def _verdicts(
    plan: Plan, pairs: list[dict[str, Any]], groups: list[tuple[Dataset, str]]
) -> list[Verdict]:
    overall = [row for row in pairs if row["patients"] == "overall"]
    distinct = [row for row in pairs if row["patients"] in {data.distinct for data, _ in groups}]
    least = min(_LEAST, max(plan.ranks))
    from_20 = [row for row in overall if row["R"] >= least]
    l21 = [_between(overall, system, (without,)) for system, without in _L21]
    return [
        _against(
            "DPFact's AUC is above TRIP's and CP-ALS's from rank 20", from_20, ("trip", "cp-als"),
            _beside(from_20),
        ),
        _against(
            "DPFact's AUC is above TRIP's at the site unlike all other sites",
            distinct,
            ("trip",),
            "",
        ),
        Verdict(
            "The l2,1 term is worth .05 to .2 AUC",
            answer([row[".05 to .2?"] for rows in l21 for row in rows]),
            "Each combination of a data set and a rank is a case. A case contradicts the claim if "
            "the interval lies outside the range."
            + "".join(
                f"<br>{SYSTEMS[system].title}: {tally([row['.05 to .2?'] for row in rows])} "
                f"({_extent(rows)})"
                for (system, _), rows in zip(_L21, l21, strict=True) if rows
            ),
        ),
    ]  # fmt: skip


def _between(
    rows: list[dict[str, Any]], system: str, rivals: Sequence[str]
) -> list[dict[str, Any]]:
    titles = {SYSTEMS[rival].title for rival in rivals}
    return [r for r in rows if r["system"] == SYSTEMS[system].title and r["against"] in titles]


def _against(claim: str, rows: list[dict[str, Any]], rivals: Sequence[str], more: str) -> Verdict:
    """Judge a claim about the system with the paper's noise. The other systems do not count."""
    of = {system: _between(rows, system, rivals) for system in _JUDGED}
    why = "".join(
        f"<br>{SYSTEMS[system].title}: {tally(_cases(found))} ({_extent(found)})"
        for system, found in of.items()
        if found
    )
    text = f"Each combination of a data set, a rank and a rival is a case.{why}{more}"
    return Verdict(claim, answer(_cases(of["paper"])), text)


def _cases(rows: list[dict[str, Any]]) -> list[Case]:
    return [row["above?"] for row in rows]


def _beside(rows: list[dict[str, Any]]) -> str:
    """Compare the AUC of patient mode with that of raw codes and that of random factors."""
    found = {rival: _between(rows, "patient", (rival,)) for rival in ("raw-codes", "random")}
    return "".join(
        f"<br>Patient mode against {SYSTEMS[rival].title}: {tally(_cases(rows))} ({_extent(rows)})"
        for rival, rows in found.items()
        if rows
    )


def _extent(rows: list[dict[str, Any]]) -> str:
    values = [row["difference"] for row in rows]
    return f"{min(values):+.3f} to {max(values):+.3f} AUC"
