"""Paper mode: the paper's noise on feature factors, its plan, and its claim.

The sensitivity is the paper's claim and does NOT hold (see `psgd_sensitivity`), so nothing here is
a privacy guarantee. The mode is for reproducing the paper, and every release is marked accordingly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpfact_flower.privacy.conversions import rho_for_epsilon, sigma_of
from dpfact_flower.privacy.guarantee import Guarantee, account
from dpfact_flower.privacy.noise_source import Noise
from dpfact_flower.privacy.release import (
    PAPER_CLAIM,
    Release,
    ReleaseEvent,
    at_least_one,
    checked_factors,
    fixed,
    positive,
)
from dpfact_flower.settings import PrivacySettings, SolverSettings
from dpfact_flower.tensor.arrays import Array


@dataclass(frozen=True)
class PaperPlan:
    """The paper's schedule: each of the feature factors costs `rho` in each round (E rounds)."""

    rho: float
    delta: float
    rounds: int
    factors: int = 2

    @property
    def total_rho(self) -> float:
        """Cost in zCDP of the whole run at one site."""
        return self.rho * self.rounds * self.factors

    def sigma(self, sensitivity: float) -> float:
        """Return the standard deviation of the noise on each value."""
        return sigma_of(self.rho, sensitivity)

    def guarantee(self) -> Guarantee:
        """Return the paper's claim for the whole run."""
        event = ReleaseEvent("factor", 1.0, self.sigma(1.0), 1, "entry", "replace", PAPER_CLAIM)
        return account([event] * (self.rounds * self.factors), self.delta)


def plan_paper(epsilon: float, delta: float, rounds: int, factors: int = 2) -> PaperPlan:
    """Divide `epsilon` evenly among factors and rounds, by the exact inverse of Proposition 2.8."""
    releases = at_least_one("rounds", rounds) * at_least_one("factors", factors)
    return PaperPlan(rho_for_epsilon(epsilon, delta) / releases, delta, rounds, factors)


def paper_rho(settings: PrivacySettings, rounds: int, factors: int = 2) -> float:
    """Return the cost of one factor in one round, as set or as planned from epsilon."""
    return settings.rho or plan_paper(settings.epsilon, settings.delta, rounds, factors).rho


def psgd_sensitivity(tau: int, clip: float, eta: float) -> float:
    """Return the L2 sensitivity 2 tau L eta that the paper claims for a factor after `tau` passes.

    The passes are P-SGD. The claim assumes (Wu et al. 2017) one L-Lipschitz loss that is convex in
    all updated variables, eta <= 2/beta, each entry visited once per pass, and an order and a start
    that do not depend on the data. Clipping each entry's data gradient to `clip` enforces L for any
    loss. The other assumptions do not hold: the joint pass over the factors is not convex, factors
    are carried over without noise from round to round, the l2,1 step couples all patients, a zero
    that becomes a one changes the length of the pass, sampled zeros may repeat, and the step size
    adapts to the data. The number is therefore a noise scale, not a bound.
    """
    return 2 * at_least_one("tau", tau) * positive("clip", clip) * positive("eta", eta)


def perturb(
    factors: Sequence[Array],
    solver: SolverSettings,
    rho: float,
    noise: Noise,
    *,
    round_number: int,
    modes: Sequence[str],
) -> Release:
    """Add Gaussian noise of variance sensitivity**2 / (2 rho), eq. (priv), in paper mode.

    Unit: one tensor entry. Neighbours: the value of this entry is replaced. Sensitivity:
    `psgd_sensitivity` per factor, from the settings with which the factors were made; not proven.
    `rho` is the cost in zCDP of each factor. `round_number` and `modes` name the events.
    """
    matrices = checked_factors(factors)
    sizes = {mode: factor.size for mode, factor in zip(modes, matrices, strict=True)}
    events = planned_events(solver, rho, sizes, round_number=round_number, seeded=noise.seeded)
    noisy = tuple(fixed(f + noise.gaussian(f.shape, events[0].sigma)) for f in matrices)
    return Release(noisy, events)


def planned_events(
    solver: SolverSettings, rho: float, sizes: Mapping[str, int], *, round_number: int, seeded: bool
) -> tuple[ReleaseEvent, ...]:
    """Return the events of a future `perturb` of factors of these `sizes`, by mode."""
    at_least_one("round", round_number)
    sensitivity = psgd_sensitivity(solver.tau, solver.clip, solver.eta)
    sigma = sigma_of(rho, sensitivity)
    return tuple(
        ReleaseEvent(
            f"round {round_number}, {mode}", sensitivity, sigma, size,
            "entry", "replace", PAPER_CLAIM, seeded,
        )
        for mode, size in sizes.items()
    )  # fmt: skip
