"""Patients that `dpfact plan` asks for against epsilon, with what was measured beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from dpfact_flower.privacy.patient.outlook import good_strength
from dpfact_flower.privacy.patient.plan import plan_patient
from dpfact_flower.settings import PrivacySettings

_EPSILONS = tuple(2.0**power for power in range(-1, 5))
_ASKED = 10**6
"""Patients of the plan that a number is read from: signal is in proportion to them."""

_ASIDE = 1.06
"""Epsilons of one kind of run, relative to those of the kind before it."""


def patients_needed(sizes: Sequence[int], rank: int, sites: int, epsilon: float) -> int:
    """Patients at all sites together from which a plan's verdict is "good"."""
    settings = PrivacySettings(epsilon=epsilon, delta=1e-5, patients=_ASKED)
    signal = plan_patient(settings, sizes=sizes, rank=rank, sites=sites).outlook.signal
    return math.ceil(_ASKED * good_strength() / (signal * math.sqrt(rank)))


def figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """One line for each list of codes and rank; filled where every model beat every null."""
    drawn = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = drawn.subplots()
    kinds = dict.fromkeys((row["codes"], row["rank"], row["sites"]) for row in rows)
    for number, (codes, rank, sites) in enumerate(kinds):
        aside = _ASIDE ** (number - (len(kinds) - 1) / 2)  # or one would hide another
        sizes = [int(size) for size in codes.split("x")]
        needed = [patients_needed(sizes, rank, sites, epsilon) for epsilon in _EPSILONS]
        colour, label = f"C{number}", f"{codes}, R = {rank}, {sites} sites"
        axes.plot(_EPSILONS, needed, color=colour, label=label)
        for row in rows:
            same = (row["codes"], row["rank"], row["sites"]) == (codes, rank, sites)
            if same and isinstance(row["beats_null"], bool) and row["epsilon"] != "inf":
                face = colour if row["beats_null"] else "none"
                axes.plot(
                    aside * row["epsilon"], row["patients"], "o", color=colour, markerfacecolor=face
                )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(_EPSILONS, [f"{epsilon:g}" for epsilon in _EPSILONS])
    axes.set(xlabel="epsilon for the whole run", ylabel="patients at all sites")
    axes.legend(fontsize="small", title="line: called good; filled: every model beat every null",
                title_fontsize="small")  # fmt: skip
    return drawn
