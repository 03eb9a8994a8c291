"""Draw one picture of a run: the figures with a target, and the time per non-zero."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.rows import Row

_MET, _MISSED, _PLAIN, _PEER = "#2a7f62", "#c0392b", "#4c72b0", "#9a9a9a"


def draw(path: Path, found: Sequence[Row], facts: Mapping[str, Any]) -> None:
    """Write a PNG."""
    targets = [row for row in found if row.met is not None]
    costs = [row for row in found if row.unit == "ns/nnz"]
    figure = Figure(figsize=(12, 2 + 0.27 * (len(targets) + len(costs))), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=[max(len(targets), 1), max(len(costs), 1)])
    _bars(
        upper, [row.name for row in targets], [_of_target(row) for row in targets],
        [_MET if row.met else _MISSED for row in targets],
        "of the target allowed (left of the line: met)",
    )  # fmt: skip
    upper.axvline(1, color="black", linewidth=1)
    _bars(
        lower, [row.name for row in costs], [row.value or 0 for row in costs],
        [_PEER if row.name.startswith("peer") else _PLAIN for row in costs],
        "ns per non-zero, one core (grey: peers)",
    )  # fmt: skip
    packages = facts["packages"]
    figure.suptitle(
        f"{facts['cpu']}; numpy {packages['numpy']}, numba {packages['numba']}", fontsize=9
    )
    figure.savefig(path, dpi=110)


def _of_target(row: Row) -> float:
    """Return value / target or, if the target is a lower bound, target / value."""
    value, target = row.value or 0.0, row.target or 0.0
    return target / value if row.at_least else value / target


def _bars(
    axes: Axes, names: Sequence[str], values: Sequence[float], colours: Sequence[str], label: str
) -> None:
    bars = axes.barh(range(len(names)), values, color=colours)
    axes.bar_label(bars, fmt="%.3g", padding=3, fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.margins(x=0.15)
    axes.spines[["top", "right"]].set_visible(False)
