"""Finished runs side by side: a table, and a page with the phenotypes and epsilon against quality.

Everything on the page is compared with the first run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dpfact_flower.errors import SettingsError
from dpfact_flower.evaluation.headline import uninformative_message
from dpfact_flower.evaluation.model import GlobalModel
from dpfact_flower.evaluation.page import belonging, figure, write_page
from dpfact_flower.evaluation.prose import titles
from dpfact_flower.evaluation.replication import protection, replications
from dpfact_flower.evaluation.run_folder import read_summary
from dpfact_flower.evaluation.summary import AUC, Errors, GroupAUC, Summary
from dpfact_flower.privacy import SEEDED_CLAIM, rounded_up

_UNKNOWN = "-"


def comparison(folders: Sequence[Path]) -> str:
    """Markdown table of several runs, one row each; what was not measured is ``-``."""
    rows: list[tuple[str, ...]] = [("run", *_COLUMNS), ("---",) * (1 + len(_COLUMNS))]
    for folder in folders:
        summary = read_summary(folder)
        rows.append((folder.resolve().name, *(text(summary) for text in _COLUMNS.values())))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


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
        auc = kind(first.overall) if first else None
        return f"{auc.mean:.3f} ± {auc.spread:.3f}" if auc else _UNKNOWN

    return text


def _match(summary: Summary) -> str:
    fms = summary.measured.fms if summary.measured else None
    return _UNKNOWN if fms is None else f"{fms:.2f}"


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


# --- The page -------------------------------------------------------------------------------------


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Write a page about several finished runs, readable by its owner alone."""
    if not out.absolute().parent.is_dir():
        raise SettingsError(f"--out: there is no folder {out.parent}")
    with belonging(folders[0]):
        return write_page(out, "compare.html.j2", _content(_read(folders)))


@dataclass(frozen=True)
class _Run:
    folder: Path
    name: str
    summary: Summary
    model: GlobalModel

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(v.name for v in self.model.vocabularies)

    @property
    def uninformative(self) -> str:
        return uninformative_message(self.summary)


def _read(folders: Sequence[Path]) -> list[_Run]:
    """Runs, each with a name that no other has."""
    names = [folder.resolve().name for folder in folders]
    counts = Counter(names)
    return [
        _Run(
            folder,
            name if counts[name] == 1 else f"{folder.resolve().parent.name}/{name}",
            read_summary(folder),
            GlobalModel.read(folder),
        )
        for folder, name in zip(folders, names, strict=True)
    ]


def _content(runs: Sequence[_Run]) -> dict[str, Any]:
    """What the template shows."""
    first, *others = runs
    alike = [run for run in others if run.modes == first.modes and not run.uninformative]
    found = () if first.uninformative else replications(first.folder, [run.folder for run in alike])
    titles_of = [titles(run.model) for run in alike]
    qualities, picture = _qualities(runs)
    return {
        "runs": runs,
        "first": first,
        "columns": {title: [text(run.summary) for run in runs] for title, text in _COLUMNS.items()},
        "protection": {run.name: protection(run.summary) for run in runs},
        "alike": alike,
        "left_out": [run for run in others if run not in alike],
        "titles": titles(first.model),
        "matched": list(zip(alike, found, titles_of, strict=False)),
        "qualities": qualities,
        "figure": picture,
    }


def _qualities(runs: Sequence[_Run]) -> tuple[dict[str, dict[str, float]], Any]:
    """Each quality that some run has, by run; and their figure, None without any."""
    from dpfact_flower.evaluation import plots  # noqa: PLC0415 - matplotlib is slow to import

    found: dict[str, dict[str, float]] = {}
    panels = []
    for title, of in plots.QUALITIES.items():
        values = {run.name: value for run in runs if (value := of(run.summary)) is not None}
        if values:
            found[title] = values
            points = {run.name: (run.summary.spent, values[run.name])
                      for run in runs if run.name in values}  # fmt: skip
            panels.append(partial(plots.tradeoff, title=title, runs=points))
    if not panels:
        return found, None
    return found, figure("tradeoff", "Quality against epsilon", 2.8, *panels)
