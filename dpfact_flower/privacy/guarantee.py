"""Compute the privacy guarantee for a site's releases, with an epsilon from each accountant.

The guarantee holds only if the sensitivity in each `ReleaseEvent` is correct.
"""

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context
from typing import Any

from dpfact_flower.errors import MissingDependencyError, SettingsError, shown
from dpfact_flower.machine.registry import Registry
from dpfact_flower.privacy import conversions
from dpfact_flower.privacy.conversions import SLACK, ZCDP_TIGHT
from dpfact_flower.privacy.release import Neighbours, ReleaseEvent, Unit, about_rows_of, claim_of

_logger = logging.getLogger(__name__)


def rounded_up(epsilon: float) -> str:
    """Format an epsilon with four digits, rounded up so as never to overstate privacy."""
    up = Context(prec=4, rounding=ROUND_CEILING)
    return f"{up.create_decimal_from_float(epsilon * (1 - SLACK)):f}"


def price_of_replacing(epsilon: float | None) -> str:
    """Describe the epsilon for replacing a patient's record, or return "" if `epsilon` is None."""
    return "" if epsilon is None else f"; replacing a patient's record: {rounded_up(epsilon)}"


@dataclass(frozen=True)
class Figure:
    """An epsilon, with its delta, its accountant, and a claim about what is proven.

    `replacing`, if not None, is the epsilon for replacing a patient's record.
    """

    accountant: str
    epsilon: float
    delta: float
    claim: str
    replacing: float | None = None

    def __str__(self) -> str:
        price = about_rows_of(self.claim, price_of_replacing(self.replacing))
        return (
            f"epsilon {rounded_up(self.epsilon)} at delta {self.delta:g} ({self.accountant}{price})"
            f" [{self.claim}]"
        )


@dataclass(frozen=True)
class Guarantee:
    """The total privacy cost of several releases. `claim` says what is proven about the cost.

    `rho` and `mu` are the total costs in zCDP and Gaussian DP. For secure sums, `alone` gives the
    epsilon that remains valid if all other sites collude with the server.
    """

    releases: int
    rho: float
    mu: float
    figures: tuple[Figure, ...]
    delta: float
    unit: Unit
    neighbours: Neighbours
    claim: str
    alone: Figure | None = None

    @property
    def headline(self) -> Figure:
        """The DPFact paper's epsilon in paper mode, and otherwise the smallest proven epsilon."""
        return self.figures[0]

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary of plain values for ``summary.json``."""
        return {
            "epsilon": self.headline.epsilon,
            "delta": self.delta,
            "accountant": self.headline.accountant,
            "claim": self.claim,
            "unit": self.unit,
            "neighbours": self.neighbours,
            "releases": self.releases,
            "rho": self.rho,
            "mu": self.mu,
            "epsilons": {figure.accountant: figure.epsilon for figure in self.figures},
            "replacing": self.headline.replacing,
            "alone": self.alone.epsilon if self.alone else None,
        }


Accountant = Callable[[Sequence[ReleaseEvent], float], float]
"""A function that computes epsilon for one site's releases and a given delta, or raises a
`MissingDependencyError` if a required package is missing."""
accountants: Registry[Accountant] = Registry("accountant", "dpfact_flower.privacy.guarantee")
"""Additional accountants for comparison, keyed by the name that is printed with each epsilon. A
site's decisions never depend on these accountants."""


def account(
    events: Sequence[ReleaseEvent], delta: float, *, second_opinions: bool = False
) -> Guarantee:
    """Add up the costs of one site's releases, all of which may involve the same patient.

    All releases must have the same privacy unit and neighbouring relation. If `second_opinions` is
    true, the result includes an epsilon from every accountant whose packages are installed.
    """
    if not events:
        raise SettingsError("events: nothing was released, so there is nothing to account for")
    relations = {(event.unit, event.neighbours) for event in events}
    if len(relations) > 1:
        raise SettingsError("events: can't add up different units or neighbouring relations")
    unit, neighbours = relations.pop()
    rho = math.fsum(event.rho for event in events)
    count = sum(event.count for event in events)
    epsilons = _epsilons(rho, delta, count, unit)
    replacing: dict[str, float] = {}
    if neighbours == "add-remove":
        # Replacing a record means removing one record and adding another. By the triangle
        # inequality, this changes a sum over patients by at most twice the sensitivity. The cost is
        # 4 rho in zCDP and 2 mu in Gaussian DP, as for group privacy with two patients (Bun &
        # Steinke 2016, Proposition 1.9; Dong, Roth & Su 2022). `DISCRETE_SLACK` stays the same,
        # because this bound does not depend on the data.
        replacing = _epsilons(4 * rho, delta, count, unit)
    if second_opinions:
        epsilons |= _opinions(events, delta, epsilons)
        if replacing:
            doubled = [
                replace(event, sensitivity=2 * event.sensitivity, neighbours="replace")
                for event in events
            ]
            replacing |= _opinions(doubled, delta, replacing)
    claim = claim_of(events)
    figures = tuple(
        Figure(name, epsilon, delta, claim, replacing.get(name, replacing.get(ZCDP_TIGHT)))
        for name, epsilon in epsilons.items()
    )
    shared = any(event.shared for event in events)
    alone = account([event.alone for event in events], delta).headline if shared else None
    return Guarantee(
        len(events), rho, math.sqrt(2 * rho), figures, delta, unit, neighbours, claim, alone
    )


def _opinions(
    events: Sequence[ReleaseEvent], delta: float, own: Collection[str]
) -> dict[str, float]:
    """Return the epsilons of all accountants that are installed, succeed, and have unused names."""
    epsilons: dict[str, float] = {}
    for name in accountants.names():
        try:
            epsilon = float(accountants.find(name)(events, delta))
            if name in own or not 0 <= epsilon < math.inf:
                raise ValueError("its name is taken" if name in own else f"it says {epsilon}")
            epsilons[name] = epsilon
        except MissingDependencyError:
            pass
        except Exception as error:  # a paid run must not fail because of a second opinion
            _logger.warning("accountant %s is left out: %s", shown(name), error)
    return epsilons


def _epsilons(rho: float, delta: float, count: int, unit: Unit) -> dict[str, float]:
    """Return each accountant's epsilon. The first epsilon is used for `Guarantee.headline`."""
    mu = math.sqrt(2 * rho)
    bounds = {
        conversions.PROPOSITION_2_8: conversions.epsilon_proposition_2_8(rho, delta),
        ZCDP_TIGHT: conversions.epsilon_zcdp_tight(rho, delta),
        conversions.RDP: conversions.epsilon_rdp(rho, delta),
    }
    if unit == "entry":
        return bounds | {conversions.GAUSSIAN_DP: conversions.epsilon_gaussian(mu, delta)}
    # Patient mode's noise is discrete, so only bounds that hold for discrete noise are used.
    discrete = conversions.epsilon_gaussian_discrete(mu, delta, count)
    if math.isfinite(discrete):
        return {conversions.GAUSSIAN_DP_DISCRETE: discrete} | bounds
    return {ZCDP_TIGHT: bounds[ZCDP_TIGHT]} | bounds  # the smallest proven epsilon comes first


def delta_warning(delta: float, patients: int) -> str:
    """Return a warning if delta exceeds 1 / (10 * patients), and otherwise an empty string."""
    if 10 * delta * patients <= 1:
        return ""
    safe = 10.0 ** -math.ceil(math.log10(10 * patients))
    return (
        f"delta {delta:g} is large for a site of {patients:,} patients: publishing the whole "
        f"record of one of them with a chance of {min(delta * patients, 1):.0%} would be within "
        f"the guarantee; choose delta = {safe:g}"
    )
