"""Add noise to feature factors, and compute the privacy cost that the DPFact paper claims.

The sensitivity claimed by the DPFact paper does NOT hold (see `psgd_sensitivity`), so paper mode
guarantees no privacy. Paper mode follows the DPFact paper, and marks every release "not proven".
"""

from collections.abc import Mapping, Sequence

from dpfact_flower.privacy.conversions import ROUNDING, rho_for_epsilon, sigma_of
from dpfact_flower.privacy.noise_source import Noise
from dpfact_flower.privacy.release import PAPER_CLAIM, Release, ReleaseEvent, fixed
from dpfact_flower.settings import PrivacySettings, SolverSettings
from dpfact_flower.tensor.arrays import Array


def paper_rho(settings: PrivacySettings, rounds: int, factors: int) -> float:
    """Return the zCDP cost of one factor in one round, as set by `rho` or planned from epsilon."""
    whole = rho_for_epsilon(settings.epsilon, settings.delta) * ROUNDING
    return settings.rho or whole / (rounds * factors)


def psgd_sensitivity(tau: int, clip: float, eta: float) -> float:
    """Return the L2 sensitivity that the DPFact paper claims for `tau` passes of SGD over the data.

    Wu and others (2017) prove the bound 2 tau L eta for permutation SGD under several assumptions.
    The loss must be L-Lipschitz, beta-smooth and convex in all updated variables, and eta must be
    at most 2/beta. Each pass must visit every entry once. The visiting order and the initial values
    must not depend on the data. Clipping each entry's gradient to `clip` ensures L <= `clip`, but
    the other assumptions do not hold. The loss is not convex in all factors jointly, and the l2,1
    penalty couples all patients. Each round starts from noiseless factors that depend on the data.
    If an entry changes from zero to one, the pass length changes. Zeros are sampled with
    replacement, so a pass may repeat a zero. The step size adapts to the data. The result is not a
    bound on the sensitivity.
    """
    return 2 * tau * clip * eta


def perturb(
    factors: Sequence[Array],
    solver: SolverSettings,
    rho: float,
    noise: Noise,
    *,
    round_number: int,
    modes: Sequence[str],
) -> Release:
    """Add Gaussian noise to each factor, with the DPFact paper's variance sensitivity**2 / (2 rho).

    Neighbouring data sets differ in the value of one tensor entry. `solver` holds the settings with
    which the factors were computed. The sensitivity is computed from `solver` and is not proven.
    `rho` is the zCDP cost of each factor.
    """
    sizes = {mode: factor.size for mode, factor in zip(modes, factors, strict=True)}
    events = paper_events(solver, rho, sizes, round_number=round_number, seeded=noise.seeded)
    noisy = tuple(fixed(f + noise.gaussian(f.shape, events[0].sigma)) for f in factors)
    return Release(noisy, events)


def paper_events(
    solver: SolverSettings, rho: float, sizes: Mapping[str, int], *, round_number: int, seeded: bool
) -> tuple[ReleaseEvent, ...]:
    """Return the release events that `perturb` will record for factors of the given sizes."""
    sensitivity = psgd_sensitivity(solver.tau, solver.clip, solver.eta)
    sigma = sigma_of(rho, sensitivity)
    return tuple(
        ReleaseEvent(
            f"round {round_number}, {mode}", sensitivity, sigma, size,
            "entry", "replace", PAPER_CLAIM, seeded,
        )
        for mode, size in sizes.items()
    )  # fmt: skip
