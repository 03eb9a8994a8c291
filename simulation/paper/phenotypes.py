"""Tables of leading phenotypes. The last compares one site's phenotype with and without noise."""

from pathlib import Path
from typing import Any

import numpy as np

from dpfact_flower.evaluation.page import p_value
from dpfact_flower.tensor.cp import match_columns
from simulation.paper.convergence import fit_job
from simulation.paper.datasets import Dataset, load
from simulation.paper.jobs import Job, Result, Results
from simulation.paper.measures import codes_of
from simulation.paper.plan import Plan
from simulation.paper.report import Section, Table
from simulation.paper.systems import SYSTEMS

_SHOWN = 6
_MODELS = ("exact", "patient", "paper")


def _job(plan: Plan, data: Dataset, system: str) -> Job:
    return fit_job(plan, data, system, rank=data.rank, seed=0, tables=True)


def jobs(plan: Plan) -> list[Job]:
    """Return three fits per data set: without noise, in patient mode and with the paper's noise."""
    return [_job(plan, data, system) for data in plan.sets(plan.phenotypes) for system in _MODELS]


def section(plan: Plan, results: Results) -> Section:
    """Return tables of leading phenotypes, and one that compares a phenotype across models."""
    tables = []
    for data in plan.sets(plan.phenotypes):
        jobs_of = {system: _job(plan, data, system) for system in _MODELS}
        if results.complete(list(jobs_of.values())):
            tables += _tables(data, {system: results[job] for system, job in jobs_of.items()})
    return Section(
        "Phenotypes",
        "A coefficient is the change in the log odds of death per standard deviation of "
        "membership. One maximum-likelihood logistic regression gives all coefficients. Wald "
        "p-values are not corrected for multiple testing. Counts below ten are not shown. The "
        "tables come from patient factors, so no privacy guarantee covers them.",
        [],
        tables,
        [],
    )


def _tables(data: Dataset, found: dict[str, Result]) -> list[Table]:
    name, tables = Path(data.name).name, found["exact"].values["tables"]
    made = [
        Table(
            f"phenotypes_{name}", _leading(tables["global"]), _DIGITS,
            "the phenotypes with the largest weights (lambda), from DPFact (exact) without noise",
        )
    ]  # fmt: skip
    if data.distinct:
        made.append(
            Table(
                f"phenotypes_{name}_{data.distinct}",
                _leading(tables["sites"][data.distinct], by="coefficient"), _DIGITS,
                f"the phenotypes with the largest absolute coefficients in {data.distinct}'s own "
                "model",
            )
        )  # fmt: skip
    return [*made, _beside(data, found, data.distinct or max(tables["sites"]), name)]


_DIGITS = {"lambda": 1, "prevalence": 3, "coefficient": 2}


def _leading(phenotypes: list[dict[str, Any]], by: str = "lambda") -> list[dict[str, Any]]:
    def size(phenotype: dict[str, Any]) -> float:
        if by == "lambda":
            return float(phenotype["weight"])
        mortality = phenotype["outcomes"].get("died", {})
        return abs(float(mortality.get("coefficient") or 0.0))

    return [_row(p) for p in sorted(phenotypes, key=size, reverse=True)[:_SHOWN]]


def _row(phenotype: dict[str, Any]) -> dict[str, Any]:
    mortality = phenotype["outcomes"].get("died", {})
    p = mortality.get("p_value")
    return {
        "number": phenotype["number"],
        **{mode: "; ".join(c["description"] or c["code"] for c in codes[:4])
           for mode, codes in phenotype["codes"].items()},
        "lambda": phenotype["weight"], "prevalence": phenotype["prevalence"],
        "coefficient": mortality.get("coefficient"),
        "p-value": None if p is None else p_value(p),
        "why none": mortality.get("reason"),
    }  # fmt: skip


def _beside(data: Dataset, found: dict[str, Result], site: str, name: str) -> Table:
    """Tabulate the phenotype most specific to a site, and its counterparts in other models."""
    exact = found["exact"]
    norms = np.square(np.asarray(exact.values["norms"]))
    own = exact.values["sites"].index(site)
    weight = norms[own] / np.maximum(norms.sum(axis=0), 1e-12)
    column = int(np.argmax(np.where(norms[own] > 0.2 * norms[own].mean(), weight, 0)))
    local = exact.values["tables"]["sites"][site][column]
    cohort = load(data.name)
    codes = {system: codes_of(result.shared, cohort) for system, result in found.items()}
    rows = [_codes("this site's own factors, w/o DP", local["codes"]),
            _texts("shared factors, w/o DP", codes["exact"][column])]  # fmt: skip
    for system in ("patient", "paper"):
        match = match_columns(found[system].shared, exact.shared)
        position = int(np.flatnonzero(match.truth == column)[0])
        title = f"{SYSTEMS[system].title}, epsilon {data.epsilon:g} ({SYSTEMS[system].noise})"
        row = _texts(title, codes[system][int(match.estimate[position])])
        rows.append(row | {"cosine": float(match.cosines[position])})
    rows = [{"cosine": None, **row} for row in rows]
    return Table(
        f"counterparts_{name}", [{"model": r.pop("model"), **r} for r in rows], {"cosine": 2},
        f"the phenotype most specific to {site} ({site} has "
        f"{100 * weight[column]:.0f} % of the phenotype's squared loadings), and matching "
        "phenotypes of other models",
    )  # fmt: skip


def _codes(model: str, codes: dict[str, Any]) -> dict[str, Any]:
    return {"model": model} | {
        mode: "; ".join(code["description"] or code["code"] for code in listed)
        for mode, listed in codes.items()
    }


def _texts(model: str, codes: dict[str, list[str]]) -> dict[str, Any]:
    return {"model": model} | {mode: "; ".join(texts) for mode, texts in codes.items()}
