"""Plot the number of patients that `dpfact plan` requires per epsilon, next to measured results."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpfact_flower.privacy.patient.plan import plan_patient
from dpfact_flower.privacy.patient.strength import GOOD_STRENGTH
from dpfact_flower.settings import PrivacySettings

_EPSILONS = tuple(2.0**power for power in range(-1, 5))
_ASKED = 10**6
"""Number of patients in the plan from which results are scaled. Signal is proportional to it."""

_ASIDE = 1.08
"""Shift of a rank's points relative to the previous rank, so that no point hides another."""
_ACROSS = 3
"""Number of panels side by side."""


def patients_needed(sizes: Sequence[int], rank: int, sites: int, epsilon: float) -> int:
    """Return the smallest total number of patients for which a plan's verdict is "good"."""
    settings = PrivacySettings(epsilon=epsilon, delta=1e-5, patients=_ASKED)
    plan = plan_patient(settings, sizes=sizes, rank=rank, sites=sites)
    signal = plan.facts.start_signal(plan.start.rho)
    needed: int = math.ceil(_ASKED * GOOD_STRENGTH / (signal * math.sqrt(rank)))
    return needed


def figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw a panel per code list and a line per rank. A point is filled if all models pass."""
    kinds = list(dict.fromkeys((row["codes"], row["sites"]) for row in rows))
    ranks = sorted({row["rank"] for row in rows})
    down = math.ceil(len(kinds) / _ACROSS)
    drawn = Figure(figsize=(9, 0.8 + 2.6 * down), layout="constrained")
    panels = drawn.subplots(
        down, min(_ACROSS, len(kinds)), sharex=True, sharey=True, squeeze=False
    ).ravel()
    for axes, kind in zip(panels, kinds, strict=False):
        _panel(axes, [row for row in rows if (row["codes"], row["sites"]) == kind], ranks)
    for axes in panels[len(kinds) :]:
        axes.set_axis_off()
    for axes in panels[max(0, len(kinds) - _ACROSS) : len(kinds)]:  # the lowest of each column
        axes.tick_params(labelbottom=True)
    named = [Line2D([], [], color=f"C{n}", label=f"R = {rank}") for n, rank in enumerate(ranks)]
    title = "line: patients from which a plan is called good; filled: every model beat every null"
    drawn.legend(handles=named, ncols=len(ranks), loc="outside upper center", title=title)
    drawn.supxlabel("epsilon for the whole run")
    drawn.supylabel("patients at all sites")
    return drawn


def _panel(axes: Axes, rows: Sequence[Mapping[str, Any]], ranks: Sequence[int]) -> None:
    codes, sites = rows[0]["codes"], rows[0]["sites"]
    sizes = [int(size) for size in codes.split("x")]
    for number, rank in enumerate(ranks):
        own = [row for row in rows if row["rank"] == rank]
        if not own:
            continue
        needed = [patients_needed(sizes, rank, sites, epsilon) for epsilon in _EPSILONS]
        axes.plot(_EPSILONS, needed, color=f"C{number}")
        aside = _ASIDE ** (number - (len(ranks) - 1) / 2)
        for row in own:
            if isinstance(row["beats_null"], bool) and row["epsilon"] != "inf":
                face = f"C{number}" if row["beats_null"] else "none"
                at = aside * row["epsilon"], row["patients"]
                axes.plot(*at, "o", color=f"C{number}", markerfacecolor=face)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(_EPSILONS, [f"{epsilon:g}" for epsilon in _EPSILONS])
    axes.set_title(f"{codes}, {sites} sites", fontsize="medium")
