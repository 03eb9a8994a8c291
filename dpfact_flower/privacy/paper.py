"""Paper mode: the noise that the paper adds to feature factors, with its privacy cost and claim.

The sensitivity that the paper claims does NOT hold (see `psgd_sensitivity`), so nothing here is a
privacy guarantee. Paper mode exists to reproduce the paper, and marks every release "not proven".
"""

from collections.abc import Mapping, Sequence

from dpfact_flower.privacy.conversions import rho_for_epsilon, sigma_of
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


def paper_rho(settings: PrivacySettings, rounds: int, factors: int = 2) -> float:
    """Return one factor's zCDP cost in one round: `rho`, or an equal share of epsilon's cost."""
    releases = at_least_one("rounds", rounds) * at_least_one("factors", factors)
    return settings.rho or rho_for_epsilon(settings.epsilon, settings.delta) / releases


def psgd_sensitivity(tau: int, clip: float, eta: float) -> float:
    """Return 2 tau L eta, the L2 sensitivity that the paper claims for a factor after `tau` passes.

    The solver is permutation SGD. The claim (Wu et al. 2017) assumes one L-Lipschitz, beta-smooth
    loss that is convex in all updated variables, eta <= 2/beta, and one visit to each entry per
    pass. Neither visiting order nor start may depend on the data. Clipping each entry's data
    gradient to `clip` enforces L for any loss, but the other assumptions do not hold. The joint
    pass over the factors is not convex, and the l2,1 step couples all patients. Factors are carried
    over from round to round without noise. A zero that becomes a one changes the length of the
    pass, sampled zeros may repeat, and the step size adapts to the data. The result is a noise
    scale, not a bound.
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
    """Add Gaussian noise with variance sensitivity**2 / (2 rho), eq. (priv), in paper mode.

    Unit: one tensor entry. Neighbours: the value of this entry is replaced. Sensitivity (not
    proven): `psgd_sensitivity` for each factor, from the settings that produced the factors. `rho`
    is the zCDP cost of each factor. `round_number` and `modes` name the events.
    """
    matrices = checked_factors(factors)
    sizes = {mode: factor.size for mode, factor in zip(modes, matrices, strict=True)}
    events = planned_events(solver, rho, sizes, round_number=round_number, seeded=noise.seeded)
    noisy = tuple(fixed(f + noise.gaussian(f.shape, events[0].sigma)) for f in matrices)
    return Release(noisy, events)


def planned_events(
    solver: SolverSettings, rho: float, sizes: Mapping[str, int], *, round_number: int, seeded: bool
) -> tuple[ReleaseEvent, ...]:
    """Return the events of a future call to `perturb`, given the size of each mode's factor."""
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
