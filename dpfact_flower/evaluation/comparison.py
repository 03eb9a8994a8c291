"""Several finished runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dpfact_flower.evaluation.run_folder import read_summary
from dpfact_flower.evaluation.summary import AUC, Errors, GroupAUC, Summary
from dpfact_flower.privacy import SEEDED_CLAIM, rounded_up

_UNKNOWN = "-"


def comparison(folders: Sequence[Path]) -> str:
    """Markdown table of several runs, one row each; what was not measured is ``-``.

    Parameters
    ----------
    folders : sequence of Path
        Of finished runs, simulated or deployed.

    Raises
    ------
    DataError
        If a folder holds no finished run.
    """
    header = ("run", *_COLUMNS)
    rows = [header, ("---",) * len(header)]
    for folder in folders:
        summary = read_summary(folder)
        rows.append((folder.resolve().name, *columns(summary).values()))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def columns(summary: Summary) -> dict[str, str]:
    """What is compared of a run, by the column's header."""
    return {header: text(summary) for header, text in _COLUMNS.items()}


def _privacy(summary: Summary) -> str:
    """The mode, and in what way its epsilon is less than a guarantee."""
    if SEEDED_CLAIM in summary.claim:
        return f"{summary.privacy} ({SEEDED_CLAIM})"
    if "not proven" in summary.claim:
        return f"{summary.privacy} ({summary.claim})"
    return summary.privacy


def _epsilon(summary: Summary) -> str:
    """With the price of replacing a patient's record in brackets, as `dpfact ledger` has it."""
    if summary.spent is None:
        return _UNKNOWN
    epsilon, replacing = summary.spent.epsilon, summary.spent.replacing
    return rounded_up(epsilon) + (f" ({rounded_up(replacing)})" if replacing is not None else "")


def _of_errors(text: Callable[[Errors], str]) -> Callable[[Summary], str]:
    """A column of what is known where errors were measured."""
    return lambda summary: text(summary.errors) if summary.errors else _UNKNOWN


def _of_auc(kind: Callable[[GroupAUC], AUC | None]) -> Callable[[Summary], str]:
    """A column of an AUC of all sites' patients."""

    def text(summary: Summary) -> str:
        first = summary.measured.prediction if summary.measured else None
        found = kind(first.overall) if first else None
        return f"{found.mean:.3f} ± {found.spread:.3f}" if found else _UNKNOWN

    return text


def _match(summary: Summary) -> str:
    found = summary.measured.fms if summary.measured else None
    return _UNKNOWN if found is None else f"{found:.2f}"


_COLUMNS: dict[str, Callable[[Summary], str]] = {
    "data": lambda s: s.name,
    "sites": lambda s: str(s.sites),
    "patients": _of_errors(lambda e: f"{sum(site.patients for site in e.per_site_data):,}"),
    "non-zeros": _of_errors(lambda e: f"{sum(site.nonzeros for site in e.per_site_data):,}"),
    "R": lambda s: str(s.rank),
    "rounds": lambda s: str(s.rounds),
    "privacy": _privacy,
    "epsilon (replacing a record)": _epsilon,
    "fit": _of_errors(lambda e: f"{e.fit:.3f}"),
    "RMSE all cells": _of_errors(lambda e: f"{e.rmse:.5f}"),
    "RMSE non-zeros": _of_errors(lambda e: f"{e.rmse_nonzeros:.4f}"),
    "AUC": _of_auc(lambda group: group.memberships),
    "AUC raw codes": _of_auc(lambda group: group.raw_codes),
    "AUC volume": _of_auc(lambda group: group.volume),
    "FMS": _match,
    "MB down": lambda s: f"{s.exchange.bytes_down / 1e6:.1f}",
    "MB up": lambda s: f"{s.exchange.bytes_up / 1e6:.1f}",
    "seconds": lambda s: f"{s.exchange.seconds:.0f}",
    "of them solver": _of_errors(lambda e: f"{e.solver_seconds:.1f}"),
}
"""What each column shows of a run, by the column's header."""
