"""Figure of several runs: what epsilon buys, from the values in their summaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpfact_flower.evaluation.plots import BLUE, INK, ORANGE
from dpfact_flower.evaluation.summary import Summary

QUALITIES: dict[str, Callable[[Summary], float | None]] = {
    "shared fit": lambda s: s.measured.fit_shared if s.measured else None,
    "AUC, first outcome": lambda s: s.measured.auc if s.measured else None,
    "match with the planted": lambda s: s.measured.fms if s.measured else None,
}
"""What a run can be good at, by the title of its panel."""


def measured_qualities(runs: Mapping[str, Summary]) -> dict[str, dict[str, float]]:
    """Value of each quality by run; one that no run has is left out."""
    found = {
        title: {name: value for name, run in runs.items() if (value := of(run)) is not None}
        for title, of in QUALITIES.items()
    }
    return {title: values for title, values in found.items() if values}


def tradeoff(runs: Mapping[str, Summary]) -> Figure:
    """Quality against epsilon, a panel a quality; runs without noise are lines across.

    Parameters
    ----------
    runs : mapping of str to Summary
        By name; what was measured in none has no panel.
    """
    panels = measured_qualities(runs)
    figure = Figure(figsize=(9.6, 2.8), layout="constrained")
    columns = figure.subplots(1, max(len(panels), 1), squeeze=False)[0]
    for axes, (title, values) in zip(columns, panels.items(), strict=False):
        _panel(axes, title, runs, values)
    return figure


def _panel(
    axes: Axes, title: str, runs: Mapping[str, Summary], values: Mapping[str, float]
) -> None:
    points = [(runs[name].spent, name, value) for name, value in values.items()]
    for spent, name, value in points:
        if spent is None:
            axes.axhline(value, color=ORANGE, linestyle="--", linewidth=1)
            axes.annotate(
                name, (0.02, value), xycoords=("axes fraction", "data"), va="bottom", fontsize=8,
                color=INK, parse_math=False,
            )  # fmt: skip
        else:
            axes.plot([spent.epsilon], [value], "o", color=BLUE)
            axes.annotate(
                name, (spent.epsilon, value), xytext=(4, -9), textcoords="offset points",
                fontsize=8, color=INK, parse_math=False,
            )  # fmt: skip
    if any(spent for spent, _, _ in points):
        axes.set_xscale("log")
        ticks = sorted({spent.epsilon for spent, _, _ in points if spent})
        axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
        axes.minorticks_off()
    axes.margins(x=0.25, y=0.2)
    axes.set_title(title)
    axes.set_xlabel("epsilon, each with the claim in the table")
