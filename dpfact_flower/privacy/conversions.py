"""Compute the cost of Gaussian releases in zCDP, RDP and Gaussian DP, and convert costs to epsilon.

The costs are exact for Gaussian noise without subsampling, and hold for the same neighbouring
relation as the sensitivity. Sources: Bun & Steinke 2016 (zCDP; Propositions 2.7 to 2.9 in the
DPFact paper), Canonne, Kamath & Steinke 2020, Balle & Wang 2018, and Dong, Roth & Su 2022.
"""

import math
from collections.abc import Callable

from scipy.special import erfcx, log_ndtr, ndtr, ndtri

from dpfact_flower.errors import SettingsError
from dpfact_flower.privacy.release import positive

PROPOSITION_2_8 = "zCDP, Proposition 2.8"
ZCDP_TIGHT = "zCDP, tight"
GAUSSIAN_DP = "Gaussian DP, exact"
GAUSSIAN_DP_DISCRETE = "Gaussian DP, discrete noise"
RDP = "RDP"

# Relative margin by which search intervals are widened, so that rounding cannot exclude a root.
SLACK = 1e-12
# Bound on the error from treating discrete Gaussian noise as rounded Gaussian noise. The bound is
# absolute for epsilon and relative for delta. For d released values, a lemma in
# docs/explanation/noise.md gives (3 d + 3200) / (24 SIGMA**2), or 4.5e-10 for a million values.
DISCRETE_SLACK = 1e-6
# The lemma holds within these limits on the number of released values, epsilon and delta.
MOST_DISCRETE_VALUES = 2_000_000_000
_LARGEST_DISCRETE_EPSILON = 500.0
_LEAST_DISCRETE_DELTA = 1e-100
# Keeps a logarithm's argument above 0 if two terms cancel in floating point (mu below 1e-15).
_TINY = 1e-300
ROUNDING = 1 - 1e-12
"""Factor that reduces a budget slightly, so that rounding errors cannot cause an overrun."""
# Orders at which RDP is evaluated. Opacus' own list stops at 63, but small costs need higher
# orders. Above 1029, Opacus' binomial coefficients for subsampled steps overflow.
RDP_ORDERS: tuple[float, ...] = (
    *(1 + x / 10 for x in range(1, 100)),
    *range(12, 64),
    *(2**k * m for k in range(5, 9) for m in (2, 3)),
)


def sigma_of(rho: float, sensitivity: float) -> float:
    """Return the noise's standard deviation for a release of cost `rho`: sensitivity / sqrt(2 rho).

    The DPFact paper's text mistakenly gives the variance, sensitivity**2 / (2 rho), as the standard
    deviation. The paper's Proposition 2.7 and Bun & Steinke give the correct formula.
    """
    return positive("sensitivity", sensitivity) / math.sqrt(2 * positive("rho", rho))


def epsilon_proposition_2_8(rho: float, delta: float) -> float:
    """Return the DPFact paper's epsilon, rho + 2 sqrt(rho log(1/delta)), which is not tight."""
    return rho + 2 * math.sqrt(rho * log_of_inverse(delta))


def rho_for_epsilon(epsilon: float, delta: float) -> float:
    """Return the largest rho for which `epsilon_proposition_2_8` is at most `epsilon`."""
    target, log_inverse = positive("epsilon", epsilon), log_of_inverse(delta)
    return (target / (math.sqrt(log_inverse + target) + math.sqrt(log_inverse))) ** 2


def epsilon_zcdp_tight(rho: float, delta: float) -> float:
    """Return the smallest epsilon that rho-zCDP implies (Canonne, Kamath & Steinke 2020, Prop. 12).

    Every order alpha > 1 gives a valid epsilon. This function finds the smallest.
    """
    log_inverse = log_of_inverse(delta)
    # The order is alpha = 1 + x. At `high`, epsilon's slope is >= 0.
    high = math.sqrt(log_inverse) / math.sqrt(rho)  # their quotient might overflow
    x = root_of(lambda x: rho * x * x + math.log1p(x) - log_inverse, 0.0, high)
    alpha = 1 + x
    return max(0.0, alpha * rho + math.log(x / alpha) + (log_inverse - math.log1p(x)) / x)


def epsilon_rdp(rho: float, delta: float) -> float:
    """Return epsilon by Opacus' formula for a Renyi-DP cost of alpha * rho at every order alpha."""
    log_inverse = log_of_inverse(delta)
    return max(0.0, min(
        order * rho + math.log1p(-1 / order) + (log_inverse - math.log(order)) / (order - 1)
        for order in RDP_ORDERS
    ))  # fmt: skip


def epsilon_gaussian(mu: float, delta: float) -> float:
    """Return the smallest epsilon that mu-Gaussian DP implies at `delta`."""
    log_delta = -log_of_inverse(delta)
    if log_delta_gaussian(mu, 0.0) <= log_delta:
        return 0.0
    # At `high`, the first term of delta's formula equals `delta`, so the root is below `high`.
    high = mu * (mu / 2 - float(ndtri(delta))) * (1 + SLACK)
    return root_of(lambda e: log_delta - log_delta_gaussian(mu, e), 0.0, high)


def epsilon_gaussian_discrete(mu: float, delta: float, count: int) -> float:
    """Return the epsilon of releasing `count` values in total with discrete Gaussian noise.

    The result includes a margin (`DISCRETE_SLACK`) for the difference between discrete and rounded
    Gaussian noise. The result is infinite if `count`, `delta` or the epsilon is outside the limits
    of the proof (``docs/explanation/noise.md``).
    """
    if count > MOST_DISCRETE_VALUES or delta < _LEAST_DISCRETE_DELTA:
        return math.inf
    epsilon = epsilon_gaussian(mu, delta * (1 - DISCRETE_SLACK)) + DISCRETE_SLACK
    return epsilon if epsilon <= _LARGEST_DISCRETE_EPSILON else math.inf


def mu_for_epsilon(epsilon: float, delta: float) -> float:
    """Return the largest mu for which `epsilon_gaussian` is at most `epsilon`."""
    target, log_delta = positive("epsilon", epsilon), -log_of_inverse(delta)
    z = -float(ndtri(delta))
    root = math.sqrt(z * z + 2 * target)
    # `low` inverts `high` in `epsilon_gaussian`, with a formula that avoids cancellation.
    low = high = (2 * target / (z + root) if z > 0 else root - z) * (1 - SLACK)
    while log_delta_gaussian(high, target) < log_delta:
        high *= 2
    return root_of(lambda m: log_delta_gaussian(m, target) - log_delta, low, high)


def log_delta_gaussian(mu: float, epsilon: float) -> float:
    """Return the logarithm of the smallest delta that mu-Gaussian DP implies at `epsilon` >= 0.

    Delta is ``Phi(-epsilon/mu + mu/2) - exp(epsilon) Phi(-epsilon/mu - mu/2)`` (Balle & Wang 2018,
    Theorem 8). For one release, mu is sensitivity / sigma. Over several releases, mu**2 adds up.
    """
    near = (epsilon / mu - mu / 2) / math.sqrt(2)
    far = (epsilon / mu + mu / 2) / math.sqrt(2)
    if near < 0:  # delta is large, and erfcx(near) might overflow
        tail = math.exp(epsilon + float(log_ndtr(-math.sqrt(2) * far)))
        return math.log(max(float(ndtr(-math.sqrt(2) * near)) - tail, _TINY))
    # exp(epsilon) cancels: Phi(-sqrt(2) x) = exp(-x^2) erfcx(x) / 2 and far^2 = near^2 + epsilon.
    return math.log(max(float(erfcx(near) - erfcx(far)) / 2, _TINY)) - near * near


def root_of(rising: Callable[[float], float], low: float, high: float) -> float:
    """Find an increasing function's root in [low, high] by bisection, accurate to the last bit."""
    # Importing scipy.optimize instead would take 0.13 s for each message to a hospital.
    while low < (middle := low + (high - low) / 2) < high:
        if rising(middle) > 0:
            high = middle
        else:
            low = middle
    return low


def log_of_inverse(delta: float) -> float:
    """Return log(1/delta) for a delta in (0, 1)."""
    if positive("delta", delta) >= 1:
        raise SettingsError(f"delta: must lie in (0, 1), got {delta!r}")
    return -math.log(delta)
