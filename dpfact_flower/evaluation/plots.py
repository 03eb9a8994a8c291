"""Draw a run's figures on the given axes, without `pyplot`.

Lines have different markers and Okabe-Ito colours, which colour-blind readers can distinguish.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dpfact_flower.errors import DataError, shown
from dpfact_flower.evaluation.model import CodeRow
from dpfact_flower.evaluation.page import BLUE, GREEN, INK, ORANGE
from dpfact_flower.evaluation.summary import AUC, GroupAUC, OutcomePrediction, RunSpending, Summary
from dpfact_flower.evaluation.tables import SiteUsage
from dpfact_flower.server.history import RoundRecord

ERRORS = {
    "all_cells": "RMSE over all cells",
    "nonzeros": "RMSE over non-zero cells",
    "fit": "Fit (share of the data explained)",
}
"""Measures that `errors` can draw: fields of `RoundErrors`, with titles for the figures."""
_PREDICTORS: tuple[tuple[str, str, str, Callable[[GroupAUC], AUC | None]], ...] = (
    ("phenotype memberships", "o", BLUE, lambda group: group.memberships),
    ("raw codes", "s", ORANGE, lambda group: group.raw_codes),
    ("code volume alone", "^", GREEN, lambda group: group.volume),
)
_MANY_ROUNDS = 40
"""Number of rounds above which lines are drawn without markers."""
_MANY_NAMES = 60
_LONGEST_NAME, _LONGEST_CODE = 24, 48


def errors(axes: Axes, summary: Summary, measure: str = "fit") -> None:
    """Plot an error measure ("fit", "all_cells" or "nonzeros") against the round number."""
    if not summary.errors or not summary.errors.error_by_round:
        raise DataError("summary: no error_by_round; errors are measured only where the data is")
    if measure not in ERRORS:
        raise DataError(f"measure: must be one of {', '.join(ERRORS)}; got {shown(measure)}")
    by_round = summary.errors.error_by_round
    values = {e.round: value for e in by_round if (value := getattr(e, measure)) is not None}
    _line(axes, list(values), list(values.values()), color=BLUE, marker="o")
    axes.set_title(ERRORS[measure])
    axes.ticklabel_format(axis="y", useOffset=False)
    _round_axis(axes)


def traffic(axes: Axes, records: Sequence[RoundRecord]) -> None:
    """Plot the bytes sent per round in each direction, and mark rounds in which a site failed."""
    rounds = [record.round for record in records]
    most = max(max(record.bytes_down, record.bytes_up) for record in records)
    scale, unit = (1e6, "MB") if most >= 1e6 else (1e3, "kB")
    down = [record.bytes_down / scale for record in records]
    up = [record.bytes_up / scale for record in records]
    _line(axes, rounds, down, color=BLUE, marker="o", label="down: server to sites")
    _line(axes, rounds, up, color=ORANGE, marker="s", ls="--", label="up: sites to server")
    if failed := [record.round for record in records if record.failures]:
        axes.plot(failed, [0] * len(failed), "x", color=INK, label="a site failed", clip_on=False)
    axes.set_ylim(0, 1.15 * most / scale or 1)
    axes.set_ylabel(f"{unit} per round")
    _round_axis(axes)
    _legend(axes)


def auc(axes: Axes, prediction: OutcomePrediction) -> None:
    """Plot the AUCs of three predictors of one outcome, over all sites and at each site."""
    groups = [group for group in (prediction.overall, *prediction.sites) if group.memberships]
    if not groups:
        raise DataError("prediction: no group of patients has figures")
    rows = np.arange(len(groups))
    axes.axvline(0.5, color=INK, linewidth=0.8, linestyle=":")
    for shift, (label, marker, colour, of) in zip((-0.2, 0.0, 0.2), _PREDICTORS, strict=True):
        areas = [area for group in groups if (area := of(group))]
        axes.errorbar(
            [area.mean for area in areas], rows + shift, xerr=[area.spread for area in areas],
            fmt=marker, color=colour, markersize=5, linewidth=1.2, label=label,
        )  # fmt: skip
    axes.set_yticks(rows, [_short(group.group) for group in groups], parse_math=False)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("AUC on test data, mean and standard deviation over splits (0.5: chance)")
    _legend(axes)


def phenotype(axes: Axes, rows: Sequence[CodeRow]) -> None:
    """Plot a phenotype's codes as bars. A bar's length is `CodeRow.share` in percent."""
    colours = (BLUE, ORANGE, GREEN)
    for number, mode in enumerate(dict.fromkeys(row.mode for row in rows)):
        bars = [place for place, row in enumerate(rows) if row.mode == mode]
        shares = [100 * rows[place].share for place in bars]
        axes.barh(bars, shares, color=colours[number % len(colours)], label=mode)
    texts = [_short(f"{row.code} {row.description}".strip(), _LONGEST_CODE) for row in rows]
    axes.set_yticks(np.arange(len(rows)), texts, parse_math=False)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("share of the phenotype's codes in this mode, %")
    axes.set_title(rows[0].name or f"phenotype {rows[0].phenotype}", parse_math=False)
    axes.legend(loc="lower right")


def usage(axes: Axes, used: SiteUsage, names: Mapping[int, str]) -> None:
    """Plot a heat map of how much each site uses each phenotype.

    A cell shows the norm of a phenotype's column in a site's patient factor, as a percentage of the
    site's largest norm. Crosses mark columns that the l2,1 penalty set to zero. If there are more
    than `_MANY_NAMES` phenotypes, the axis shows numbers instead of `names`.
    """
    norms, off = np.array(used.norms, float), np.array(used.off, bool)
    largest = norms.max(axis=1, keepdims=True)
    percent = 100 * norms / np.where(largest > 0, largest, 1.0)
    sites, rank = percent.shape
    phenotypes = np.arange(1, rank + 1)
    axes.grid(visible=False)
    cells = np.ma.masked_array(percent, off)
    edges = np.arange(0.5, rank + 1), np.arange(-0.5, sites)
    mesh = axes.pcolormesh(*edges, cells, cmap="cividis_r", vmin=0, vmax=100)
    axes.figure.colorbar(mesh, ax=axes, label="% of the site's most used")
    if off.any():
        rows, columns = np.nonzero(off)
        axes.plot(columns + 1, rows, "x", color=INK, label="switched off", gid="off")
        _legend(axes)
    axes.invert_yaxis()
    axes.set_yticks(np.arange(sites), [_short(site) for site in used.sites], parse_math=False)
    if names and rank <= _MANY_NAMES:
        texts = [_short(names.get(number, str(number))) for number in phenotypes.tolist()]
        axes.set_xticks(phenotypes, texts, rotation=40, ha="right", parse_math=False)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("phenotype")


def tradeoff(axes: Axes, title: str, runs: Mapping[str, tuple[RunSpending | None, float]]) -> None:
    """Plot a measure of quality against epsilon. Runs without noise appear as horizontal lines."""
    text: dict[str, Any] = {"fontsize": 8, "color": INK, "parse_math": False}
    values = [value for _, value in runs.values()]
    near, places = 0.1 * (max(values) - min(values)), list[tuple[float | None, float]]()
    for name, (spent, value) in runs.items():
        epsilon = spent.epsilon if spent else None
        before = sum(at == epsilon and abs(other - value) <= near for at, other in places)
        places.append((epsilon, value))
        if epsilon is None:
            axes.axhline(value, color=ORANGE, linestyle="--", linewidth=1)
            place, across = (0.3 + 0.2 * before, value), ("axes fraction", "data")
            axes.annotate(name, place, xycoords=across, va="bottom", **text)
        else:
            axes.plot(epsilon, value, "o", color=BLUE)
            place, below = (epsilon, value), (4, -9 - 9 * before)  # labels do not overlap
            axes.annotate(name, place, xytext=below, textcoords="offset points", **text)
    ticks = sorted({spent.epsilon for spent, _ in runs.values() if spent})
    if ticks:
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
        axes.minorticks_off()
    axes.margins(x=0.25, y=0.2)
    axes.set_title(title)
    axes.set_xlabel("epsilon (for its claim, see the table)")


def _line(axes: Axes, rounds: list[int], values: list[float], *, marker: str, **look: Any) -> None:
    marker = marker if len(rounds) <= _MANY_ROUNDS else ""
    axes.plot(rounds, values, marker=marker, markersize=3.5, linewidth=1.6, **look)


def _round_axis(axes: Axes) -> None:
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize="small")


def _short(name: str, longest: int = _LONGEST_NAME) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
