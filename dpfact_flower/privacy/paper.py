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
    """Return a factor's zCDP cost in one round, computed from `epsilon` if `rho` is 0."""
    whole = rho_for_epsilon(settings.epsilon, settings.delta) * ROUNDING
    return settings.rho or whole / (rounds * factors)


def psgd_sensitivity(tau: int, clip: float, eta: float) -> float:
    """Return the L2 sensitivity that the DPFact paper claims for `tau` passes of SGD over the data.

    Wu and others (2017) prove the bound ``2 tau clip eta`` for permutation SGD, if gradients have
    norms up to `clip`. DPFact violates most other assumptions of this proof, so the result is not a
    bound on DPFact's sensitivity. The proof requires a smooth convex loss, but DPFact's loss is not
    convex in all factors jointly, and the l2,1 penalty couples all patients. The proof requires
    that each pass visits every entry once, but DPFact samples zeros with replacement. One changed
    entry can also change a pass's number of steps. The proof requires initial values and a step
    size that do not depend on the data, but in DPFact both depend on the data.
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
    """Add noise N(0, sensitivity**2 / (2 rho)) to each factor, as in the DPFact paper.

    Neighbouring data sets differ in the value of one tensor entry. The sensitivity is computed from
    the settings of the fit (`solver`), and is not proven. `rho` is the zCDP cost of each factor.
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
