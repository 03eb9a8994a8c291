"""The distribution of sums of noise shares, and its distance from a discrete Gaussian.

The bound is that of Kairouz, Liu & Steinke 2021, "The distributed discrete Gaussian mechanism for
federated learning with secure aggregation".
"""

import os

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpfact_flower.privacy.noise import SIGMA, discrete_gaussian
from tests.privacy.secure_sum.group import Group

ALPHA = 1e-6


def log10_tau(honest, sigma=2.0**24):
    """Return the logarithm of ``tau = 10 sum_{k=1}^{m-1} exp(-2 pi^2 s^2 k / (k + 1))``.

    By Proposition 14, for m shares of standard deviation s >= 1/2 on the grid, the log ratio of
    their distribution to one discrete Gaussian is within tau/2 at each value.
    """
    with mpmath.workdps(50):
        rate = -2 * (mpmath.pi * mpmath.mpf(sigma)) ** 2
        terms = [mpmath.exp(rate * k / (k + 1)) for k in range(1, honest)]
        return float(mpmath.log10(10 * sum(terms)))


def law(sigma, span):
    """Return exact probabilities of the discrete Gaussian on -span .. span, with 60 digits."""
    weights = [mpmath.exp(-(n**2) / (2 * mpmath.mpf(sigma) ** 2)) for n in range(-span, span + 1)]
    total = sum(weights)
    return [weight / total for weight in weights]


def convolved(one, other):
    out = [mpmath.mpf(0)] * (len(one) + len(other) - 1)
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            out[i + j] += a * b
    return out


@pytest.mark.parametrize("sigma", ["0.5", "0.7", "1.0"])
@pytest.mark.parametrize("honest", [2, 3, 4])
def test_tau_bounds_the_logarithm_of_every_ratio(sigma, honest):
    """Exact distributions on coarse grids show the difference. Two shares are near the bound."""
    with mpmath.workdps(60):
        sigma = mpmath.mpf(sigma)
        share = law(sigma, 22)
        total = share
        for _ in range(honest - 1):
            total = convolved(total, share)
        middle = len(total) // 2
        single = law(sigma * mpmath.sqrt(honest), middle)
        reach = int(8 * float(sigma) * honest**0.5)
        near = range(middle - reach, middle + reach + 1)
        ratio = max(abs(mpmath.log(total[n] / single[n])) for n in near)
    tau = 10 ** log10_tau(honest, float(sigma))
    assert ratio <= tau / 2
    assert honest > 2 or ratio > tau / 20


def test_at_the_products_grid_tau_is_nothing():
    assert log10_tau(50) < log10_tau(2) + 1 < -1e15
    # Shares of m sites therefore have the slack of m times the variance, and tau adds nothing.
    of_one = (3 * 134_000 + 3200) / (24 * SIGMA**2)  # the lemma of docs/explanation/noise.md
    slack = of_one / 4 + 2 * 134_000 * 10.0 ** log10_tau(4)
    assert slack == pytest.approx(of_one / 4, rel=1e-15)
    assert slack < 2e-10


@pytest.mark.slow
@pytest.mark.parametrize(("honest", "bits"), [(2, 1), (4, 1), (4, 2), (16, 1)])
def test_sums_of_shares_have_the_discrete_gaussians_law(honest, bits):
    """A chi-squared test with the exact distribution, for shares of standard deviation 2 and 4."""
    count, scale = 400_000 // honest, 2**bits * honest**0.5
    shares = discrete_gaussian(honest * count, os.urandom, bits).reshape(honest, count)
    reach = int(3 * scale)  # all larger values count as one value
    values = np.arange(-12 * int(scale), 12 * int(scale) + 1)
    exact = np.exp(-(values**2) / (2 * scale**2))
    inner = exact[np.abs(values) <= reach] / exact.sum()
    places = np.clip(shares.sum(axis=0), -reach - 1, reach + 1) + reach + 1
    seen = np.bincount(places, minlength=2 * reach + 3)
    beyond = (1 - inner.sum()) / 2
    expected = count * np.array([beyond, *inner, beyond])
    assert expected.min() > 5
    assert stats.chisquare(seen, expected).pvalue > ALPHA


def test_variance_at_the_products_grid_and_through_the_masks():
    """Of six sites, one colludes and one may be lost, so 4 of the 6 shares in a sum are certain."""
    count = 20_000
    group = Group(6, 1, 1, count=count)
    for name in group.names:
        group.vectors[name] = discrete_gaussian(count, os.urandom)
    found = group.sum(group.question(), group.ask_all(), group.names)
    assert abs((found / SIGMA).var() / 6 - 1) < 6 * np.sqrt(2 / count)
    assert stats.kstest(found / SIGMA / np.sqrt(6), "norm").pvalue > ALPHA
