"""Bound the difference between a sum of several sites' noise and Gaussian noise.

A site draws the discrete Gaussian of `privacy.noise`, of standard deviation 2**24 in units of the
site's grid. The sum of m such shares is almost a discrete Gaussian. The tau of Kairouz, Liu &
Steinke 2021 ("The distributed discrete Gaussian mechanism for federated learning with secure
aggregation") bounds the difference.
"""

from __future__ import annotations

import math


def log10_tau(honest: int, sigma: float = 2.0**24) -> float:
    """Return the logarithm of tau, the distance of `honest` shares from one discrete Gaussian.

    ``tau = 10 sum_{k=1}^{m-1} exp(-2 pi^2 s^2 k / (k + 1))``, per value, for m shares of standard
    deviation s >= 1/2, in units of the grid (Kairouz, Liu & Steinke 2021, Proposition 14). The
    logarithm of the ratio of the two probabilities is within tau/2. A single share is exactly a
    discrete Gaussian.
    """
    exponents = [-2 * (math.pi * sigma) ** 2 * k / (k + 1) for k in range(1, honest)]
    if not exponents:
        return -math.inf
    largest = exponents[0]
    rest = math.fsum(math.exp(exponent - largest) for exponent in exponents)
    return 1 + (largest + math.log(rest)) / math.log(10)


def shares_slack(count: int, honest: int) -> float:
    """Return the extra epsilon of `honest` shares over exact Gaussian noise, for `count` values.

    The result is `gaussian_slack` for the m-fold variance, plus tau for each value and each of two
    data sets.
    """
    from dpfact_flower.privacy.noise import gaussian_slack  # noqa: PLC0415  # numba is slow

    tau: float = 10.0 ** log10_tau(honest)
    return gaussian_slack(count) / honest + 2 * count * tau
