"""Add noise to feature factors, and compute the privacy cost that the DPFact paper claims.

The paper's sensitivity does NOT hold (see `psgd_sensitivity`), so paper mode gives no privacy
guarantee. Paper mode exists to reproduce the paper, and marks every release "not proven".
"""

from collections.abc import Mapping, Sequence

from dpfact_flower.privacy.conversions import ROUNDING, rho_for_epsilon, sigma_of
from dpfact_flower.privacy.noise_source import Noise
from dpfact_flower.privacy.release import PAPER_CLAIM, Release, ReleaseEvent, fixed
from dpfact_flower.settings import PrivacySettings, SolverSettings
from dpfact_flower.tensor.arrays import Array


def paper_rho(settings: PrivacySettings, rounds: int, factors: int) -> float:
    """Return `settings.rho` if set, or the budget divided equally among all rounds and factors."""
    whole = rho_for_epsilon(settings.epsilon, settings.delta) * ROUNDING
    return settings.rho or whole / (rounds * factors)


def psgd_sensitivity(tau: int, clip: float, eta: float) -> float:
    """Return the DPFact paper's claimed L2 sensitivity after `tau` passes of SGD over the data.

    Wu et al. (2017) prove this bound for permutation SGD under several assumptions. The loss must
    be L-Lipschitz, beta-smooth and convex in all updated variables, with eta <= 2/beta. Each pass
    must visit every entry once. The visiting order and the initial values must not depend on the
    data. Clipping each entry's gradient to `clip` ensures L <= `clip`, but the other assumptions do
    not hold. The loss is not convex in all factors jointly, and the l2,1 penalty couples all
    patients. Each round starts from noiseless factors that depend on the data. If an entry changes
    from zero to one, the length of a pass changes. Zeros are sampled with replacement, so a pass
    may visit a zero twice. The step size adapts to the data. The result is therefore not a bound.
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
    """Add the DPFact paper's noise, of variance sensitivity**2 / (2 rho), to each factor.

    Neighbouring data sets differ in the value of one tensor entry. `solver` holds the settings with
    which the factors were computed. The sensitivity, which is not proven, follows from these
    settings. `rho` is the zCDP cost of each factor.
    """
    sizes = {mode: factor.size for mode, factor in zip(modes, factors, strict=True)}
    events = paper_events(solver, rho, sizes, round_number=round_number, seeded=noise.seeded)
    noisy = tuple(fixed(f + noise.gaussian(f.shape, events[0].sigma)) for f in factors)
    return Release(noisy, events)


def paper_events(
    solver: SolverSettings, rho: float, sizes: Mapping[str, int], *, round_number: int, seeded: bool
) -> tuple[ReleaseEvent, ...]:
    """Return the release events that `perturb` will record for factors of these sizes."""
    sensitivity = psgd_sensitivity(solver.tau, solver.clip, solver.eta)
    sigma = sigma_of(rho, sensitivity)
    return tuple(
        ReleaseEvent(
            f"round {round_number}, {mode}", sensitivity, sigma, size,
            "entry", "replace", PAPER_CLAIM, seeded,
        )
        for mode, size in sizes.items()
    )  # fmt: skip
