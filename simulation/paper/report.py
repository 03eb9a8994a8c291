"""The page's section about an experiment, and functions that write its tables and figures."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from dpfact_flower.evaluation.page import STYLE
from dpfact_flower.evaluation.run_folder import read_json, write_json
from simulation.paper.systems import SYSTEMS
from simulation.paper.verdicts import Verdict

_COLOURS = {
    "cp-als": "#000000", "sgd": "#999999", "trip": "#009e73", "psgd": "#e69f00",
    "paper": "#d55e00", "paper-small": "#cc79a7", "exact": "#56b4e9", "patient": "#0072b2",
    "naive": "#8a6d00", "random": "#cc79a7",
}  # fmt: skip
"""Colours of the systems in all figures, mostly from Okabe and Ito."""


def style(system: str, label: str = "") -> dict[str, Any]:
    """Return the colour and the legend label of a system."""
    return {"color": _COLOURS[system], "label": label or SYSTEMS[system].title}


@dataclass(frozen=True)
class Table:
    """A table with a header. Each value is a number, a string or None.

    `name` is the name of the table's files. The keys of `rows` are the columns, in order of
    appearance. `digits` maps columns to numbers of decimals, on the page and in the page's CSV
    file. The default is three. `about` is the page's description of the file.
    """

    name: str
    rows: list[dict[str, Any]]
    digits: dict[str, int] = field(default_factory=dict)
    about: str = ""

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(dict.fromkeys(key for row in self.rows for key in row))

    def markdown(self) -> str:
        """Return the table as the page shows it."""
        if not self.rows:
            return "(no data)"
        columns = self.columns
        lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        for row in self.rows:
            cells = [self._text(name, row.get(name)).replace("|", "/") or "-" for name in columns]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def write(self, folder: Path) -> None:
        """Write JSON and CSV with unrounded values."""
        write_json(folder / f"{self.name}.json", self.rows)
        self._csv(folder, self.rows)

    def write_rounded(self, folder: Path) -> None:
        """Write CSV with rounded values as on the page, so that few values change in a rerun."""
        self._csv(folder, [{k: self._text(k, value) for k, value in r.items()} for r in self.rows])

    def _csv(self, folder: Path, rows: Sequence[dict[str, Any]]) -> None:
        with open(folder / f"{self.name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    def _text(self, column: str, value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, float):
            return f"{value:.{self.digits.get(column, 3)}f}"
        return str(value)


@dataclass(frozen=True)
class Section:
    """The page's section about an experiment.

    `figures` holds names, captions and figures. The page links to the files of `tables`. `missing`
    is the number of missing fits. `summary` is an introduction and a table for the top of the page.
    """

    title: str
    text: str
    figures: list[tuple[str, str, Figure]]
    tables: list[Table]
    verdicts: list[Verdict]
    missing: int = 0
    summary: tuple[str, Table] | None = None


def written_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the `Table` named ``table`` in a folder, or [] if there is none."""
    path = folder / "table.json"
    return read_json(path) if path.exists() else []


def save_figure(figure: Figure, path: Path) -> None:
    """Write PNG and SVG without dates, so that the same figure always gives the same files."""
    with mpl.rc_context({key: STYLE[key] for key in ("svg.fonttype", "svg.hashsalt")}):
        figure.savefig(path.with_suffix(".png"), dpi=110, metadata={"Software": None})
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def panels(count: int, *, height: float = 3.2) -> tuple[Figure, list[Any]]:
    """Return a figure of several panels, at most three per row."""
    wide = min(count, 3)
    rows = -(-count // wide)
    figure = Figure(figsize=(max(4.2 * wide, 6.6), height * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, wide, squeeze=False).ravel().tolist()
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


_LETTERS = 14
"""Number of a legend's letters per inch."""


def legend(figure: Figure, axes: Sequence[Any]) -> None:
    """Add one legend for all panels. It is below the panels and fits their width."""
    named = {
        label: handle
        for ax in axes
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    widest = 0.6 + max(map(len, named), default=0) / _LETTERS  # inches per column, with the line
    figure.legend(
        list(named.values()), list(named), loc="outside lower center", fontsize="small",
        ncols=min(3, max(1, int(figure.get_figwidth() / widest))),
    )  # fmt: skip
