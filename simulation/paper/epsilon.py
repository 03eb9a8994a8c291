"""Factor match score against epsilon, compared with noiseless fits and with shuffled patients."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dpfact_flower.tensor.cp import factor_match_score
from simulation.paper.datasets import DELTA, Dataset
from simulation.paper.jobs import Job, Result, Results
from simulation.paper.plan import Plan
from simulation.paper.report import Section, Table, legend, panels, style
from simulation.paper.systems import SYSTEMS
from simulation.paper.verdicts import Case, Verdict, answer, held, tally
from simulation.systems import NO_NOISE

PRIVATE = ("patient", "paper", "paper-small", "naive")
_HIGH = 0.9
"""An FMS above this value counts as having risen to 1."""
_NOTHING = 0.02
"""Shared factors with a fit below this value explain almost nothing."""
_REFERENCES = (0, 1, 2)
"""Seeds of the fits without noise."""


def _reference(plan: Plan, data: Dataset, seed: int) -> Job:
    return Job(data.name, "exact-no-l21", data.rank, plan.rounds, seed=seed)


def _nulls(plan: Plan, data: Dataset) -> list[Job]:
    return [Job(data.name, "null", data.rank, plan.rounds, seed=s) for s in range(plan.starts)]


def _private(plan: Plan, data: Dataset, system: str, epsilon: float) -> list[Job]:
    return [
        Job(data.name, system, data.rank, plan.rounds, seed=seed, epsilon=epsilon, delta=DELTA)
        for seed in range(plan.starts)
    ]


def jobs(plan: Plan) -> list[Job]:
    """Return jobs: noiseless fits, fits to shuffled patients, and private fits at each epsilon."""
    found = []
    for data in plan.sets(plan.epsilon):
        found += [_reference(plan, data, seed) for seed in _REFERENCES]
        found += _nulls(plan, data)
        for epsilon, system in product((*plan.epsilons, NO_NOISE), _systems(data)):
            found += _private(plan, data, system, epsilon)
    return found


def _systems(data: Dataset) -> tuple[str, ...]:
    """Return a data set's private systems, except `naive` at sizes where it would take hours."""
    return PRIVATE[:3] if data.name.startswith("paper-") else PRIVATE


def section(plan: Plan, results: Results) -> Section:
    """Return the figure, the table and the verdict on the paper's claim about epsilon."""
    rows, data_sets = [], []
    for data in plan.sets(plan.epsilon):
        references = [_reference(plan, data, seed) for seed in _REFERENCES]
        if results.complete([*references, *_nulls(plan, data)]):
            data_sets.append(data)
            rows += _rows(plan, data, results)
    return Section(
        "Privacy: factor match against epsilon",
        "The factor match score (FMS) compares two models' shared factors. The paper's "
        "FMS also includes patient factors and weights. As in the paper, *FMS with itself* "
        "compares a system's models with and without noise, from the same starting point. "
        "*FMS with a fit* is the mean FMS between a model and "
        f"{len(_REFERENCES)} noiseless fits from other starting points. The ceiling is the mean "
        "FMS between pairs of noiseless fits. The null is the mean *FMS with a fit* of "
        "models of shuffled data, in which a patient's procedures and diagnoses come from "
        "different people. A high *FMS with itself* proves nothing: even a fit that never leaves "
        "its starting point scores high.",
        _figures(data_sets, rows),
        [
            Table(
                "fms_against_epsilon", rows,
                {"FMS with itself": 2, "FMS with a fit": 2, "FMS planted": 2, "fit, shared": 3},
                "FMS of every system and epsilon, of noiseless fits, and of fits to shuffled data",
            )
        ],
        _verdicts(rows),
    )  # fmt: skip


def _figures(
    data_sets: Sequence[Dataset], rows: list[dict[str, Any]]
) -> list[tuple[str, str, Figure]]:
    if not data_sets:
        return []
    figure, axes = panels(len(data_sets))
    for data, ax in zip(data_sets, axes, strict=True):
        _draw(ax, [row for row in rows if row["data"] == data.title])
    legend(figure, axes)
    return [("fms_against_epsilon", "FMS with noiseless fits at each epsilon", figure)]


def _title(system: str) -> str:
    return f"{SYSTEMS[system].title} ({SYSTEMS[system].noise})"


def _rows(plan: Plan, data: Dataset, results: Results) -> list[dict[str, Any]]:
    references = [results[_reference(plan, data, seed)].shared for seed in _REFERENCES]

    def row(system: str, epsilon: str, found: list[Result], own: float | None) -> dict[str, Any]:
        matches = [factor_match_score(a.shared, b) for a, b in product(found, references)]
        planted = [result.values["fms_planted"] for result in found]
        return {
            "data": data.title, "system": system, "epsilon": epsilon, "FMS with itself": own,
            "FMS with a fit": float(np.mean(matches)),
            "FMS planted": None if None in planted else float(np.mean(planted)),
            "fit, shared": float(np.mean([result.values["shared"]["fit"] for result in found])),
        }  # fmt: skip

    ceiling = row("ceiling: another fit", "", [results[_reference(plan, data, 0)]], None)
    ceiling["FMS with a fit"] = float(
        np.mean([factor_match_score(a, b) for a, b in combinations(references, 2)])
    )
    nulls = [results[job] for job in _nulls(plan, data)]
    rows = [ceiling, row("null: shuffled patients", "", nulls, None)]
    for system, epsilon in product(PRIVATE, (*plan.epsilons, NO_NOISE)):
        jobs, noiseless = (_private(plan, data, system, e) for e in (epsilon, NO_NOISE))
        if not results.complete([*jobs, *noiseless]):
            continue
        own = [
            factor_match_score(results[a].shared, results[b].shared)
            for a, b in zip(jobs, noiseless, strict=True)
        ]
        shown = "inf" if epsilon == NO_NOISE else f"{epsilon:g}"
        rows.append(row(_title(system), shown, [results[job] for job in jobs], float(np.mean(own))))
    return rows


def _draw(ax: Any, rows: list[dict[str, Any]]) -> None:
    for system in PRIVATE:
        own = [row for row in rows if row["system"] == _title(system)]
        finite = [row for row in own if row["epsilon"] != "inf"]
        look = style(system, _title(system))
        if finite:
            ax.plot(
                [float(row["epsilon"]) for row in finite], [r["FMS with a fit"] for r in finite],
                "o-", ms=4, **look,
            )  # fmt: skip
        for row in own[len(finite) :]:
            ax.axhline(row["FMS with a fit"], color=look["color"], lw=0.8, ls=":")
    for name, line in (("ceiling: another fit", "-"), ("null: shuffled patients", "--")):
        level = next(r["FMS with a fit"] for r in rows if r["system"] == name)
        ax.axhline(level, color="0.4", ls=line, lw=1, label=name)
    ax.set(title=rows[0]["data"], xlabel="epsilon (dotted: no noise)", ylabel="FMS with a fit",
           xscale="log", ylim=(0, 1))  # fmt: skip
    at = sorted({float(row["epsilon"]) for row in rows if row["epsilon"] not in ("", "inf")})
    ax.set_xticks(at, [f"{epsilon:g}" for epsilon in at])
    ax.set_xticks([], minor=True)


def _verdicts(rows: list[dict[str, Any]]) -> list[Verdict]:
    """Judge the claim by the two systems with the paper's noise."""
    private = {system: _risen(rows, system) for system in PRIVATE}
    paper = [case for system in ("paper", "paper-small") for case in private[system].values()]
    why = "".join(
        f"<br>{SYSTEMS[system].title}: {tally(list(cases.values()))}{_told(rows, system)}"
        for system, cases in private.items()
        if cases
    )
    return [
        Verdict(
            "With rising epsilon, the FMS with the model without noise rises to 1",
            answer(paper),
            "Each data set is a case. At the largest finite epsilon, the FMS with "
            f"itself must exceed {_HIGH:g} and the FMS at the smallest epsilon.{why}{_empty(rows)}",
        )
    ]


def _of(rows: list[dict[str, Any]], system: str) -> dict[str, list[dict[str, Any]]]:
    """Return a system's rows by data set, in order of epsilon. The noiseless row comes last."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["system"] == _title(system):
            found.setdefault(row["data"], []).append(row)
    return found


def _risen(rows: list[dict[str, Any]], system: str) -> dict[str, Case]:
    cases = {}
    for data, own in _of(rows, system).items():
        scores = [row["FMS with itself"] for row in own if row["epsilon"] != "inf"]
        if scores:
            cases[data] = held(scores[-1] > _HIGH and (len(scores) < 2 or scores[-1] > scores[0]))
    return cases


def _told(rows: list[dict[str, Any]], system: str) -> str:
    return "".join(
        f"<br>{SYSTEMS[system].title}, {data}: " + ", ".join(
            f"{row['FMS with itself']:.2f} at {row['epsilon']}" for row in own
            if row["epsilon"] != "inf"
        )
        for data, own in _of(rows, system).items()
    )  # fmt: skip


def _empty(rows: list[dict[str, Any]]) -> str:
    """If models with the paper's noise have a high FMS but explain almost nothing, say so."""
    empty = [
        row
        for system in ("paper", "paper-small")
        for own in _of(rows, system).values()
        for row in own
        if row["epsilon"] != "inf"
        and row["FMS with itself"] > _HIGH
        and row["fit, shared"] < _NOTHING
    ]
    if not empty:
        return ""
    fits = [row["fit, shared"] for row in empty]
    return (
        f"<br>{len(empty)} models with the paper's noise have an FMS with themselves above "
        f"{_HIGH:g} but explain less than {100 * _NOTHING:g} % of the data (fit {min(fits):.3f} to "
        f"{max(fits):.3f}), so they match without having learned."
    )
