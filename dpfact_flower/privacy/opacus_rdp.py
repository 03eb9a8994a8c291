"""Opacus' RDP analysis over our events: a second opinion, without the seconds that torch takes.

The analysis is one file of Opacus that needs NumPy and SciPy alone; it is loaded by itself, as
importing any of Opacus' modules imports Opacus, and so torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np

from dpfact_flower.errors import MissingDependencyError, SettingsError
from dpfact_flower.privacy.events import ReleaseEvent, positive

_FILE = Path("accountants", "analysis", "rdp.py")
# Opacus' own list stops at order 63, too low for small costs; above 1029 its binomials overflow.
_ORDERS = [
    *(1 + x / 10 for x in range(1, 100)),
    *range(12, 64),
    *(2**k * m for k in range(5, 9) for m in (2, 3)),
]


def epsilon_rdp_opacus(events: Sequence[ReleaseEvent], delta: float) -> float:
    """Epsilon of the events by Opacus' RDP analysis.

    Raises
    ------
    SettingsError
        If there are no events, or `delta` is not in (0, 1).
    MissingDependencyError
        If Opacus is not installed.
    """
    if not events:
        raise SettingsError("events: nothing was released, so there is nothing to account for")
    if positive("delta", delta) >= 1:
        raise SettingsError(f"delta: must lie in (0, 1), got {delta!r}")
    return epsilon_of_steps(((event.noise_multiplier, 1.0, 1) for event in events), delta)


def epsilon_of_steps(history: Iterable[tuple[float, float, int]], delta: float) -> float:
    """Epsilon of a history as Opacus' accountants keep it.

    Parameters
    ----------
    history : iterable of (noise multiplier, sample rate, steps)
    delta : float
    """
    found = analysis()
    rdp = sum(
        found.compute_rdp(q=rate, noise_multiplier=multiplier, steps=steps, orders=_ORDERS)
        for multiplier, rate, steps in history
    )
    epsilon, _ = found.get_privacy_spent(orders=_ORDERS, rdp=rdp, delta=delta)
    return max(0.0, float(np.asarray(epsilon)))  # below 0 where delta alone covers the cost


@cache
def analysis() -> ModuleType:
    """Opacus' module ``opacus.accountants.analysis.rdp``, Opacus itself not imported.

    Raises
    ------
    MissingDependencyError
        If Opacus is not installed, or has the analysis elsewhere.
    """
    package = find_spec("opacus")
    places = package.submodule_search_locations if package else None
    files = [Path(place) / _FILE for place in places or ()]
    file = next((file for file in files if file.is_file()), None)
    spec = spec_from_file_location(f"{__name__}.analysis", file) if file else None
    if spec is None or spec.loader is None:
        raise MissingDependencyError(
            "Opacus is not installed; install it with: pip install 'dpfact-flower[opacus]'"
        )
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
