"""Figures of a run, drawn from the values in its folder: for the report, and for notebooks.

Every function takes values as `run_folder` reads them from the folder's files, and draws them into
the axes that it is given, or else into a new `matplotlib.figure.Figure`; it returns the figure.
`pyplot` and its global state are not used. A `DataError` says that a value was not measured.

Lines have Okabe and Ito's colours, which differ in any colour vision, and a marker each; shades
keep their order in grey. None of the values belongs to a single patient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import DataError, MissingDependencyError, shown
from dpfact_flower.evaluation.model import CodeRow
from dpfact_flower.evaluation.summary import AUC, GroupAUC, OutcomePrediction, Summary
from dpfact_flower.evaluation.tables import SiteUsage
from dpfact_flower.server.history import RoundRecord

try:
    from matplotlib.axes import Axes
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator
except ImportError:
    raise MissingDependencyError(
        'matplotlib is not installed; install it with: pip install "dpfact-flower[report]"'
    ) from None

BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
INK, LINE, PAPER = "#1b2733", "#c9d1da", "#fefefe"
SHADES = ("#fdf6d8", "#f2dc7e", "#c8bd77", "#8f9a86", "#4d6c8e", "#00366e")
"""Little to much use: the order is kept in grey and in every colour vision."""
ON_LITTLE, ON_MUCH = "#111213", "#fdfeff"
"""Text on the first four shades, and on the others."""
THEME = {
    BLUE: "--blue", ORANGE: "--orange", GREEN: "--green",
    INK: "--ink", LINE: "--line", PAPER: "--paper",
}  # fmt: skip
"""Colours that a page may replace by CSS variables of its own, for dark screens."""

STYLE: dict[str, Any] = {
    "font.size": 9, "axes.titlesize": 10, "axes.titlelocation": "left", "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK,
    "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": LINE, "grid.linewidth": 0.6,
    "svg.fonttype": "none", "svg.hashsalt": "dpfact-flower",
}  # fmt: skip
"""Settings of matplotlib that the report draws with; a notebook keeps its own."""

_WIDTH = 9.6
_MANY_ROUNDS = 40
_SMALL = 16
"""Number of phenotypes up to which a cell of the heat map has room for its number."""
_LABEL_DIGITS = 120
"""Digits of phenotype numbers that fit side by side: 60 numbers of two."""
_LONGEST_NAME, _LONGEST_CODE = 24, 48
_ERRORS = {
    "all_cells": "RMSE over all cells",
    "nonzeros": "RMSE over non-zero cells",
    "fit": "Fit (share of the data explained)",
}
"""Title of each panel of `convergence`, by the field of `RoundErrors`."""

_QUALITIES: dict[str, Callable[[Summary], float | None]] = {
    "shared fit": lambda s: s.measured.fit_shared if s.measured else None,
    "AUC, first outcome": lambda s: s.measured.auc if s.measured else None,
    "match with the planted": lambda s: s.measured.fms if s.measured else None,
}
"""What a run can be good at, by the title of its panel."""

_LEVELS = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 1.0)
_MUCH = _LEVELS[4]

_PREDICTORS: tuple[tuple[str, str, str, Callable[[GroupAUC], AUC | None]], ...] = (
    ("phenotype memberships", "o", BLUE, lambda group: group.memberships),
    ("raw codes", "s", ORANGE, lambda group: group.raw_codes),
    ("code volume alone", "^", GREEN, lambda group: group.volume),
)


def convergence(summary: Summary) -> Figure:
    """Errors of the sites' models after each round: all cells, non-zero cells, and fit.

    In a deployment only the sites can measure them.
    """
    figure = Figure(figsize=(_WIDTH, 2.6), layout="constrained")
    for axes, measure in zip(figure.subplots(1, len(_ERRORS)), _ERRORS, strict=True):
        errors(summary, measure, axes)
    return figure


def errors(summary: Summary, measure: str = "fit", axes: Axes | None = None) -> Figure:
    """One of `convergence`'s panels: "fit", "all_cells" or "nonzeros", as in `RoundErrors`."""
    if not summary.errors or not summary.errors.error_by_round:
        raise DataError("summary: no error_by_round; errors are measured only where the data is")
    if measure not in _ERRORS:
        raise DataError(f"measure: must be one of {', '.join(_ERRORS)}; got {shown(measure)}")
    values = {error.round: getattr(error, measure) for error in summary.errors.error_by_round}
    values = {number: value for number, value in values.items() if value is not None}
    rounds = list(values)
    axes = axes or _new_axes(2.6)
    axes.plot(rounds, list(values.values()), color=BLUE, marker=_marker(rounds))
    axes.set_title(_ERRORS[measure])
    axes.ticklabel_format(axis="y", useOffset=False)
    _round_axis(axes)
    return _figure_of(axes)


def phenotype(rows: Sequence[CodeRow], axes: Axes) -> Figure:
    """One phenotype as bars: the share of each code in its mode.

    The rows are of one phenotype, as `GlobalModel.rows` gives them.
    """
    modes = list(dict.fromkeys(row.mode for row in rows))
    places = np.arange(len(rows))
    colours = (BLUE, ORANGE, GREEN)
    for number, mode in enumerate(modes):
        bars = [place for place, row in enumerate(rows) if row.mode == mode]
        shares = [100 * rows[place].share for place in bars]
        axes.barh(bars, shares, color=colours[number % len(colours)], label=mode)
    texts = [_short(f"{row.code} {row.description}".strip(), _LONGEST_CODE) for row in rows]
    axes.set_yticks(places, texts, parse_math=False)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("share of the phenotype's codes in this mode, %")
    axes.set_title(rows[0].name or f"phenotype {rows[0].phenotype}", parse_math=False)
    axes.legend(loc="lower right")
    return _figure_of(axes)


def traffic(records: Sequence[RoundRecord], axes: Axes | None = None) -> Figure:
    """Bytes sent in each round, in both directions, and the rounds in which a site failed."""
    rounds = [record.round for record in records]
    down = np.array([record.bytes_down for record in records], float)
    up = np.array([record.bytes_up for record in records], float)
    scale, unit = (1e6, "MB") if max(down.max(), up.max()) >= 1e6 else (1e3, "kB")
    given, axes = axes, axes or _new_axes(2.1)
    marker = _marker(rounds)
    axes.plot(rounds, down / scale, color=BLUE, marker=marker, label="down: server to sites")
    axes.plot(
        rounds, up / scale, color=ORANGE, linestyle="--", marker=marker and "s",
        label="up: sites to server",
    )  # fmt: skip
    failed = [record.round for record in records if record.failures]
    if failed:
        axes.plot(
            failed, [0] * len(failed), color=INK, linestyle="none", marker="x",
            label="a site failed", clip_on=False,
        )  # fmt: skip
    axes.set_ylim(0, 1.15 * max(down.max(), up.max()) / scale or 1)
    axes.set_ylabel(f"{unit} per round")
    _round_axis(axes)
    return _with_legend(axes, given, ncols=3)


def usage(usage: SiteUsage, axes: Axes, names: Mapping[int, str]) -> Figure:
    """Heat map of sites by phenotypes: how much each site uses each phenotype.

    A cell is the column norm of the site's patient factor, divided by the largest of that site,
    since norms grow with a site's number of patients. A column that is exactly zero, which the
    l2,1 penalty has switched off, is left blank and crossed. `names` are shown in place of numbers.
    """
    norms, off = np.array(usage.norms, float), np.array(usage.off, bool)
    largest = norms.max(axis=1, keepdims=True)
    shares = norms / np.where(largest > 0, largest, 1.0)
    sites, rank = shares.shape
    axes.grid(visible=False)
    colours = ListedColormap(list(SHADES))
    axes.pcolormesh(
        np.ma.masked_array(shares, off), cmap=colours, norm=BoundaryNorm(_LEVELS, colours.N),
        edgecolors=PAPER, linewidth=0.8,
    )  # fmt: skip
    rows, columns = np.nonzero(off)
    axes.plot(
        columns + 0.5, rows + 0.5, color=INK, linestyle="none", marker="x",
        markersize=6 if rank <= _SMALL else 4, gid="off",
    )  # fmt: skip
    if rank <= _SMALL:
        _write_percent(axes, shares, off)
    axes.invert_yaxis()
    axes.set_yticks(
        np.arange(sites) + 0.5, [_short(site) for site in usage.sites], parse_math=False
    )
    _phenotype_axis(axes, rank, names)
    return _with_legend(axes, axes, handles=_usage_legend(), ncols=len(SHADES) + 1)


def auc(prediction: OutcomePrediction, axes: Axes | None = None) -> Figure:
    """AUC of an outcome, overall and per site, each beside its two baselines."""
    groups = [group for group in (prediction.overall, *prediction.sites) if group.memberships]
    if not groups:
        raise DataError("prediction: no group of patients has figures")
    given, axes = axes, axes or _new_axes(1.3 + 0.36 * len(groups))
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
    axes.set_xlabel("AUC on test patients, mean and standard deviation over splits (0.5: chance)")
    return _with_legend(axes, given, ncols=3)


def measured_qualities(runs: Mapping[str, Summary]) -> dict[str, dict[str, float]]:
    """Value of each quality by run; one that no run has is left out."""
    qualities = {
        title: {name: value for name, run in runs.items() if (value := of(run)) is not None}
        for title, of in _QUALITIES.items()
    }
    return {title: values for title, values in qualities.items() if values}


def tradeoff(runs: Mapping[str, Summary]) -> Figure:
    """Quality against epsilon, a panel a quality; runs without noise are lines across."""
    panels = measured_qualities(runs)
    figure = Figure(figsize=(9.6, 2.8), layout="constrained")
    columns = figure.subplots(1, max(len(panels), 1), squeeze=False)[0]
    for axes, (title, values) in zip(columns, panels.items(), strict=False):
        _tradeoff_panel(axes, title, runs, values)
    return figure


def _tradeoff_panel(
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


def _new_axes(height: float) -> Axes:
    """The only axes of a new figure."""
    return Figure(figsize=(_WIDTH, height), layout="constrained").subplots()


def _figure_of(axes: Axes) -> Figure:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


def _with_legend(axes: Axes, given: Axes | None, **options: Any) -> Figure:
    """The figure with a legend above its axes: of the figure where it is ours, else of the axes."""
    figure = _figure_of(axes)
    if given is None:
        figure.legend(loc="outside upper left", **options)
    else:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize="small", **options)
    return figure


def _phenotype_axis(axes: Axes, rank: int, names: Mapping[int, str]) -> None:
    """Phenotypes below the columns of a heat map: by name where one has any, else by number."""
    if names and rank <= _LABEL_DIGITS / 2:
        texts = [_short(names.get(number, str(number))) for number in range(1, rank + 1)]
        axes.set_xticks(
            np.arange(rank) + 0.5, texts, fontsize=8, rotation=40, ha="right", parse_math=False,
            rotation_mode="anchor",
        )  # fmt: skip
    else:
        shown = np.arange(0, rank, -(-rank * len(str(rank)) // _LABEL_DIGITS))
        size = 9 if rank <= _LABEL_DIGITS / 4 else 7
        axes.set_xticks(shown + 0.5, [str(column + 1) for column in shown], fontsize=size)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("phenotype")


def _marker(rounds: Sequence[int]) -> str:
    return "o" if len(rounds) <= _MANY_ROUNDS else ""


def _round_axis(axes: Axes) -> None:
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for line in axes.lines:
        line.set_markersize(3.5 if line.get_marker() != "x" else 6)
        line.set_linewidth(1.6)


def _write_percent(axes: Axes, shares: NDArray[np.float64], off: NDArray[np.bool_]) -> None:
    """Numbers in the cells of a small heat map."""
    for row, column in np.argwhere(~off):
        share = shares[row, column]
        axes.text(
            column + 0.5, row + 0.5, f"{100 * share:.0f}", fontsize=8,
            color=ON_MUCH if share >= _MUCH else ON_LITTLE, ha="center", va="center_baseline",
        )  # fmt: skip


def _usage_legend() -> list[Patch | Line2D]:
    names = [f"{100 * low:.0f}–{100 * high:.0f} %" for low, high in pairwise(_LEVELS)]
    patches: list[Patch | Line2D] = [
        Patch(facecolor=shade, label=name) for shade, name in zip(SHADES, names, strict=True)
    ]
    cross = Line2D([], [], color=INK, linestyle="none", marker="x", label="switched off")
    return [*patches, cross]


def _short(name: str, longest: int = _LONGEST_NAME) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
