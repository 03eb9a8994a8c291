"""Several finished runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpfact_flower.evaluation.run_folder import read_summary
from dpfact_flower.privacy import SEEDED_CLAIM, rounded_up


def comparison(folders: Sequence[Path]) -> str:
    """Markdown table of several runs, a row each; what was not measured is ``-``.

    Parameters
    ----------
    folders : sequence of Path
        Of finished runs, simulated or deployed.

    Raises
    ------
    DataError
        If a folder holds no finished run.
    """
    header = (
        "run", "data", "sites", "patients", "non-zeros", "R", "rounds", "privacy", "epsilon", "fit",
        "RMSE all cells", "RMSE non-zeros", "AUC", "AUC raw codes", "AUC volume", "FMS",
        "MB down", "MB up", "seconds", "of them solver",
    )  # fmt: skip
    rows = [header, ("---",) * len(header)]
    rows += [(folder.resolve().name, *_row(read_summary(folder))) for folder in folders]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _claim(summary: dict[str, Any]) -> str:
    """The mode, and in what way its epsilon is less than a guarantee."""
    claim = str(summary.get("claim", ""))
    if SEEDED_CLAIM in claim:
        return f"{summary['privacy']} ({SEEDED_CLAIM})"
    return f"{summary['privacy']} ({claim})" if "not proven" in claim else str(summary["privacy"])


def _row(summary: dict[str, Any]) -> tuple[str, ...]:
    sites = summary.get("per_site_data", [])
    overall = summary.get("prediction", {}).get("overall", {})

    def auc(kind: str) -> str:
        found = overall.get(kind)
        return f"{found['mean']:.3f} ± {found['spread']:.3f}" if found else "-"

    def number(key: str, digits: str) -> str:
        return "-" if summary.get(key) is None else format(summary[key], digits)

    epsilon = summary["epsilon"]
    return (
        summary["name"], str(summary["sites"]),
        f"{sum(site['patients'] for site in sites):,}" if sites else "-",
        f"{sum(site['nonzeros'] for site in sites):,}" if sites else "-",
        str(summary["rank"]), str(summary["rounds"]), _claim(summary),
        "-" if epsilon is None else rounded_up(epsilon),
        number("fit", ".3f"), number("rmse", ".5f"), number("rmse_nonzeros", ".4f"),
        auc("memberships"), auc("raw_codes"), auc("volume"), number("fms", ".2f"),
        f"{summary['bytes_down'] / 1e6:.1f}", f"{summary['bytes_up'] / 1e6:.1f}",
        f"{summary['seconds']:.0f}", number("solver_seconds", ".1f"),
    )  # fmt: skip
