"""Plot the quality of private models at each epsilon, together with the null and the ceiling."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_PANELS = {
    "share_of_fit": "share of the best fit",
    "fms": "factor match score",
    "auc": "AUC of death in hospital",
}
_SPREADS = {"share_of_fit": "share_spread", "fms": "fms_spread", "auc": "auc_spread"}
_BANDS = {"ceiling": "C2", "null": "C3"}
_NO_NOISE = 2
"""Position of the models without noise, in axis steps to the right of the last epsilon."""


def figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw a row of panels for each data set and rank.

    Points with error bars show private models, and are filled if every model beat every null. Bands
    show noiseless fits, both to the same patients and to shuffled patients.
    """
    kinds = list(dict.fromkeys((row["data"], row["rank"]) for row in rows))
    drawn = Figure(figsize=(10, 0.6 + 2.4 * len(kinds)), layout="constrained")
    grid = drawn.subplots(len(kinds), len(_PANELS), squeeze=False)
    for (data, rank), panels in zip(kinds, grid, strict=True):
        own = [row for row in rows if (row["data"], row["rank"]) == (data, rank)]
        for (measure, title), axes in zip(_PANELS.items(), panels, strict=True):
            _panel(axes, own, measure)
            axes.set_title(f"{data}, R = {rank}: {title}", fontsize="small")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    drawn.legend(handles, labels, ncols=len(labels), loc="outside upper center", fontsize="small")
    drawn.supxlabel("epsilon for the whole run", fontsize="medium")
    return drawn


def _panel(axes: Axes, rows: Sequence[Mapping[str, Any]], measure: str) -> None:
    rows = [row for row in rows if row[measure] is not None]
    private = [row for row in rows if row["epsilon"] is not None]
    finite = sorted({row["epsilon"] for row in private if row["epsilon"] != "inf"})
    places = {epsilon: float(epsilon) for epsilon in finite}
    places["inf"] = max(finite, default=1) * _NO_NOISE
    for kind, colour in _BANDS.items():
        for row in (row for row in rows if row["model"].startswith(kind)):
            label = "fits without privacy" if kind == "ceiling" else "shuffled patients (chance)"
            around = row[measure] - row[_SPREADS[measure]], row[measure] + row[_SPREADS[measure]]
            axes.axhspan(*around, color=colour, alpha=0.25, lw=0)
            axes.axhline(row[measure], color=colour, lw=1, label=label)
            if measure == "auc" and row["auc_raw_codes"] is not None:
                axes.axhline(row["auc_raw_codes"], color="0.4", lw=1, ls=":")
                at = places["inf"], row["auc_raw_codes"]
                axes.text(*at, "all codes", ha="right", va="top", size="x-small", color="0.4")
    for row in private:
        face = "C0" if row["beats_null"] is True else "none"
        axes.errorbar(places[row["epsilon"]], row[measure], row[_SPREADS[measure]], color="C0",
                      marker="o", markerfacecolor=face, capsize=3)  # fmt: skip
    axes.plot([], [], "o", color="C0", label="private models; filled: every one beats chance")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(places.values()), [f"{e:g}" if e != "inf" else "∞" for e in places])
    axes.minorticks_off()
    axes.tick_params(labelsize="small")
