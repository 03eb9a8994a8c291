"""Finished runs side by side: a table, and a page with the phenotypes and epsilon against quality.

Everything on the page is compared with the first run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfact_flower.errors import SettingsError
from dpfact_flower.evaluation.cards import titles
from dpfact_flower.evaluation.headline import uninformative_message
from dpfact_flower.evaluation.model import GlobalModel
from dpfact_flower.evaluation.page import belonging, check_libraries, render, svg
from dpfact_flower.evaluation.replication import Pair, Replication, protection, replications
from dpfact_flower.evaluation.run_folder import read_model, read_summary
from dpfact_flower.evaluation.summary import AUC, Errors, GroupAUC, Summary
from dpfact_flower.machine.files import replacing
from dpfact_flower.privacy import SEEDED_CLAIM, rounded_up

_UNKNOWN = "-"


def comparison(folders: Sequence[Path]) -> str:
    """Markdown table of several runs, one row each; what was not measured is ``-``."""
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
    check_libraries()
    if not out.absolute().parent.is_dir():
        raise SettingsError(f"--out: there is no folder {out.parent}")
    runs = _read(folders)
    with belonging(folders[0]):
        page = render("compare.html.j2", _content(runs))
    with replacing(out) as file:
        file.write(page)
    return out


@dataclass(frozen=True)
class _Run:
    folder: Path
    name: str
    summary: Summary
    modes: tuple[str, ...]

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
            tuple(v.name for v in read_model(folder)[1]),
        )
        for folder, name in zip(folders, names, strict=True)
    ]


def _content(runs: Sequence[_Run]) -> dict[str, Any]:
    from dpfact_flower.evaluation import plots  # noqa: PLC0415 - matplotlib is slow to import

    first, *others = runs
    alike = [run for run in others if run.modes == first.modes and not run.uninformative]
    found = () if first.uninformative else replications(first.folder, [run.folder for run in alike])
    summaries = {run.name: run.summary for run in runs}
    qualities = plots.measured_qualities(summaries)
    draw = lambda: plots.tradeoff(summaries)  # noqa: E731
    return {
        "runs": runs,
        "first": first,
        "columns": {run.name: columns(run.summary) for run in runs},
        "protection": {run.name: protection(run.summary) for run in runs},
        "alike": alike,
        "left_out": [run for run in others if run not in alike],
        "rows": _rows(first, alike, found),
        "replications": found,
        "qualities": qualities,
        "figure": svg("tradeoff", draw, "Quality against epsilon") if qualities else None,
    }


def _rows(
    first: _Run, others: Sequence[_Run], runs: Sequence[Replication]
) -> list[tuple[int, str, list[tuple[Pair, str] | None]]]:
    """Number and title of each phenotype of the first run, and its pairs in the others."""
    if not runs:
        return []
    titles_of = [titles(GlobalModel.read(other.folder)) for other in others]
    pairs_of = [{pair.number: pair for pair in run.pairs} for run in runs]
    return [
        (
            number,
            title,
            [
                (pairs[number], known[pairs[number].other]) if number in pairs else None
                for pairs, known in zip(pairs_of, titles_of, strict=True)
            ],
        )
        for number, title in titles(GlobalModel.read(first.folder)).items()
    ]
