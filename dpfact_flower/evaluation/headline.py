"""A finished run in a few lines, for a terminal: what was learned, promised and sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpfact_flower.evaluation.words import duration, number, percent, size
from dpfact_flower.privacy import rounded_up


def headline(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and text of each line; what only the sites of a deployment could measure is left out.

    Parameters
    ----------
    summary : mapping
        Of ``summary.json``.
    """
    lines = {
        "run": "{name}: {sites} sites, {rounds} rounds, {rank} phenotypes".format(**summary),
        "privacy": _promise(summary),
        "fit": _fit(summary),
        "factor match": _match(summary),
        "deaths": _deaths(summary),
        "sent": _traffic(summary),
        "time": _time(summary),
        "failures": _failures(summary),
    }
    return [(label, text) for label, text in lines.items() if text]


def _promise(summary: Mapping[str, Any]) -> str:
    """Never an epsilon without its claim, and never one that is rounded down."""
    if summary["epsilon"] is None:
        return str(summary["claim"])
    return (
        f"epsilon {rounded_up(summary['epsilon'])} at delta {summary['delta']:g} "
        f"({summary['accountant']}) [{summary['claim']}]"
    )


def _fit(summary: Mapping[str, Any]) -> str:
    if summary["fit"] is None:
        return ""
    return (
        f"{percent(summary['fit'])} of the data, RMSE {number(summary['rmse'])} over all cells, "
        f"{number(summary['rmse_nonzeros'])} over non-zeros"
    )


def _match(summary: Mapping[str, Any]) -> str:
    found = summary["fms"]
    return "" if found is None else f"{found:.3f} with the planted phenotypes, of 1"


def _deaths(summary: Mapping[str, Any]) -> str:
    if summary["auc"] is None:
        return ""
    measured = summary["prediction"]["overall"]
    return "AUC {:.3f} ± {:.3f} by phenotypes, {:.3f} by raw codes, {:.3f} by volume".format(
        measured["memberships"]["mean"], measured["memberships"]["spread"],
        measured["raw_codes"]["mean"], measured["volume"]["mean"],
    )  # fmt: skip


def _traffic(summary: Mapping[str, Any]) -> str:
    up, down, paper = (size(summary[key]) for key in ("bytes_up", "bytes_down", "bytes_paper"))
    trip = size(summary["bytes_trip"])
    return f"{up} up, {down} down (so many rounds of the paper's scheme {paper}, of TRIP {trip})"


def _time(summary: Mapping[str, Any]) -> str:
    solver = summary.get("solver_seconds")
    text = duration(summary["seconds"])
    return text if solver is None else f"{text} of rounds, {duration(solver)} of them solver"


def _failures(summary: Mapping[str, Any]) -> str:
    missing = summary.get("sites_without_a_round", [])
    never = f"; no round of {', '.join(missing)}" if missing else ""
    return f"{summary['failures']} failed replies{never}" if summary["failures"] or never else ""
