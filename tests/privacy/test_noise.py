import hashlib
import math
import os
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from dpfact_flower.privacy import noise
from dpfact_flower.privacy.noise import SIGMA, discrete_gaussian

ALPHA = 1e-7


class Tape:
    """A repeatable stream of bytes (SHA-256 in counter mode) that remembers its output."""

    def __init__(self, seed=0, start=b""):
        self.seed, self.data, self.given = seed, bytearray(start), 0

    def __call__(self, size):
        while len(self.data) < self.given + size:
            self.data += hashlib.sha256(f"{self.seed} {len(self.data)}".encode()).digest()
        self.given += size
        return bytes(self.data[self.given - size : self.given])

    def bit(self, position):
        while len(self.data) <= position // 8:
            Tape.__call__(self, 8)
        return self.data[position // 8] >> (position % 8) & 1


class OneBitAtATime:
    """Plain Algorithms 1 to 3 of Canonne, Kamath & Steinke 2020 for sigma = t = 2**bits."""

    def __init__(self, tape):
        self.tape, self.used = tape, 0

    def number(self, bits):
        value = 0
        for place in range(bits):
            value += self.tape.bit(self.used) * 2**place
            self.used += 1
        return value

    def uniform(self, size):
        while (value := self.number(math.ceil(math.log2(size)))) >= size:
            pass
        return value

    def bernoulli_exp(self, numerator, bits):
        """Draw with exp(-numerator / 2**bits), by von Neumann's trick with coins of gamma / k."""
        k = 1
        while self.uniform(k) == 0 and 2**bits - 1 - self.number(bits) < numerator:
            k += 1
        return k % 2 == 1

    def laplace(self, bits):
        while True:
            low = self.number(bits)
            if not self.bernoulli_exp(low, bits):
                continue
            high = 0
            while self.bernoulli_exp(1, 0):
                high += 1
            minus = self.uniform(2) == 0
            if minus and (low, high) == (0, 0):
                continue
            return (low + 2**bits * high) * (-1 if minus else 1)

    def gaussian(self, bits):
        scale = 2**bits
        while True:
            value = self.laplace(bits)
            whole, rest = divmod(abs(abs(value) - scale), scale)
            if value == 0:  # the only distance not below the next multiple of the scale
                whole, rest = 0, scale
            coins = [(1, 1)] * whole**2 + [(rest, bits)] * whole + [(rest**2, 2 * bits + 1)]
            assert sum(Fraction(top, 2**below) for top, below in coins) == Fraction(
                (abs(value) - scale) ** 2, 2 * scale**2
            )
            if all(self.bernoulli_exp(*coin) for coin in coins):
                return value


def pmf(values, sigma):
    """Return exact probabilities. The support beyond 12 sigma has less than 1e-31."""
    everything = np.arange(-12 * sigma, 12 * sigma + 1)
    weight = np.exp(-(everything.astype(float) ** 2) / (2 * sigma**2))
    return np.exp(-(values.astype(float) ** 2) / (2 * sigma**2)) / weight.sum()


def rounded_gaussian(values, sigma):
    """Return the probabilities of a Gaussian rounded to integers, for successive `values`."""
    edges = np.append(values - 0.5, values[-1] + 0.5)
    return np.diff(stats.norm.cdf(edges / sigma))


# --- the same values as a plain sampler -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "count"), [(1, 3000), (2, 2000), (7, 2000), (24, 4000)])
def test_values_are_those_of_a_sampler_that_reads_one_bit_at_a_time(bits, count):
    plain = OneBitAtATime(Tape(bits))
    expected = [plain.gaussian(bits) for _ in range(count)]
    assert discrete_gaussian(count, Tape(bits), bits).tolist() == expected
    assert max(map(abs, expected)) >= 3 * 2**bits  # rare coins were seen too


@example(24, 1, 1, 50)  # the second word's last bit is the value's
@example(24, 1, 1, 32)  # the first word's last bit is a refused value's
@example(24, 1, 1, 2851)  # the last bit of a word goes on
@given(st.integers(1, 24), st.integers(1, 60), st.integers(1, 20), st.integers(0, 2**32))
def test_bits_are_used_in_order_and_none_is_skipped_or_used_twice(bits, count, at_once, seed):
    plain = OneBitAtATime(Tape(seed))
    expected = [plain.gaussian(bits) for _ in range(count)]
    tape = Tape(seed)
    assert discrete_gaussian(count, tape, bits, at_once).tolist() == expected
    # Another buffer was requested only after all earlier bits were used.
    assert tape.given == 8 * at_once * math.ceil(plain.used / (64 * at_once))


# --- far values -----------------------------------------------------------------------------------


def far_value(low, high):
    """Return the bits that propose and accept -(low + high * SIGMA), one list per decision."""

    def number(value, bits):
        return [value >> place & 1 for place in range(bits)]

    once_more = [0, *number(1, 2)]  # k = 2 falls, k = 3 does not: odd
    enough = [1]  # k = 2 does not fall: even
    whole = high - 1
    return [
        number(low, 24),
        [0] * 24,  # exp(-low / SIGMA): does not fall at k = 1, which is odd; so do all below
        *[once_more] * high,
        enough,
        [0],  # the sign
        *[[0]] * whole**2,
        *[[0] * 24] * whole,
        [0] * 49,
    ]


def packed(decisions):
    data = np.packbits(np.concatenate(decisions).astype(np.uint8), bitorder="little").tobytes()
    return data + b"\0" * (-len(data) % 8)


# Beyond 181 sigma, the square of the distance would overflow 64 bits.
@pytest.mark.slow
@pytest.mark.parametrize("high", [5, 181, 182, 183, 200])
def test_far_values_are_exact(high):
    low = 2**24 - 3
    bits = packed(far_value(low, high))
    tape = Tape(start=bits)
    assert discrete_gaussian(1, tape, at_once=16)[0] == -(low + high * SIGMA)
    assert tape.given == 128 * math.ceil(len(bits) / 128)
    assert OneBitAtATime(Tape(start=bits)).gaussian(24) == -(low + high * SIGMA)


@pytest.mark.slow
@pytest.mark.parametrize("last", [1, 2, 200, 201, 200 + 199**2])
def test_one_coin_that_does_not_fall_refuses_a_far_value(last):
    decisions = far_value(low=2**24 - 3, high=200)
    # All ones: falls at k = 1, does not at k = 2, which is even. What follows is another value.
    bits = packed([*decisions[:-last], [1] * (len(decisions[-last]) + 1)])
    value = discrete_gaussian(1, Tape(start=bits))[0]
    assert abs(value) < 10 * SIGMA
    assert value == OneBitAtATime(Tape(start=bits)).gaussian(24)


# --- the right distribution -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("bits", [1, 2, 3, 5])
def test_every_integer_has_its_exact_probability(bits):
    sigma, count = 2**bits, 1_000_000
    samples = discrete_gaussian(count, os.urandom, bits)
    support = np.arange(-12 * sigma, 12 * sigma + 1)
    expected = count * pmf(support, sigma)
    observed = np.bincount(samples + 12 * sigma, minlength=len(support))
    assert len(observed) == len(support)
    kept = expected >= 10
    chi_square = ((observed - expected)[kept] ** 2 / expected[kept]).sum()
    assert stats.chi2.sf(chi_square, kept.sum()) > ALPHA
    assert stats.poisson.sf(observed[~kept].sum() - 1, count - expected[kept].sum()) > ALPHA


def test_entropy_per_sample_is_modest():
    tape = Tape()
    discrete_gaussian(50_000, tape)
    assert tape.given / 50_000 < 30
    assert tape.given % 2**15 == 0


@pytest.mark.slow
def test_bits_used_say_little_about_the_size():
    words = np.frombuffer(Tape()(8 * 400_000), "<u8").astype(np.uint64)
    sizes, used, position = np.empty(100_000), np.empty(100_000), 0
    for draws in range(100_000):
        sample = np.empty(1, np.int64)
        done, end = noise._fill(sample, 0, 24, words, position)
        assert done == 1
        sizes[draws], used[draws], position = abs(sample[0]), end - position, end
    # The figure in docs/explanation/noise.md.
    assert np.corrcoef(sizes, used)[0, 1] == pytest.approx(0.06, abs=0.015)


# --- the certificate ------------------------------------------------------------------------------


def log_rounded_over_gaussian(n, sigma):
    """log(q(n) / phi(n)) of a Gaussian rounded to integers, to about 40 digits."""
    with mpmath.workdps(60 + int((n / sigma) ** 2 / 4)):
        scale = mpmath.sqrt(2) * sigma
        low, high = (mpmath.erfc((mpmath.mpf(n) + side) / scale) for side in (-0.5, 0.5))
        density = mpmath.exp(-(mpmath.mpf(n) ** 2) / (2 * sigma**2))
        return mpmath.log((low - high) / 2 / (density / (scale * mpmath.sqrt(mpmath.pi))))


@pytest.mark.parametrize("sigma", [1, 2, 16, 1000, SIGMA])
def test_log_ratio_of_one_value_lies_between_the_bounds(sigma):
    multiples = (0, 1e-6, 0.01, 0.5, 0.999, 1, 1.001, 2, 3.7, 10, 25, 40)
    for n in sorted({int(k * sigma) for k in multiples} | {1, 2, sigma + 1}):
        ratio = log_rounded_over_gaussian(n, sigma)
        assert -1 / mpmath.mpf(24 * sigma**2) <= ratio <= mpmath.mpf(n**2) / (24 * sigma**4)


def test_bounds_of_the_log_ratio_are_attained():
    at_zero = log_rounded_over_gaussian(0, SIGMA)
    assert float(at_zero * 24 * SIGMA**2) == pytest.approx(-1, rel=1e-12)
    far = log_rounded_over_gaussian(30 * SIGMA, SIGMA)
    assert float(far * 24 * SIGMA**2) == pytest.approx(30**2 - 1, rel=1e-12)


def test_normalisation_is_that_of_the_poisson_sum():
    for sigma in (0.5, 0.75, 1):
        with mpmath.workdps(50):
            total = mpmath.nsum(lambda n, s=sigma: mpmath.exp(-(n**2) / (2 * s**2)), [-60, 60])
            excess = total / (sigma * mpmath.sqrt(2 * mpmath.pi)) - 1
            bound = 2 * mpmath.exp(-2 * mpmath.pi**2 * sigma**2)
            assert bound < excess < 1.0001 * bound
    with mpmath.workdps(50):
        assert mpmath.log10(2) - 2 * mpmath.pi**2 * SIGMA**2 / mpmath.log(10) < -1e15


@pytest.mark.parametrize("count", [1, 10, 1000, 134_000, 10**6, 10**9])
def test_noise_leaves_the_good_set_with_negligible_probability(count):
    threshold = 2 * count + 3200
    # Chernoff at 1/4, where E exp(Z^2 / 4) is sqrt(2); rounding adds less than 1e-10 a value.
    assert count * (math.log(2) / 2 + 1e-10) - threshold / 4 < -800
    if count <= 10**6:
        assert stats.chi2.logsf(threshold, count) < -800


@pytest.mark.parametrize("sigma", [1, 2, 8, 64])
def test_rounding_adds_next_to_nothing_to_the_moment_of_the_tail_bound(sigma):
    n = np.arange(-7 * sigma, 7 * sigma + 1)  # beyond lies less than 1e-5 of the moment
    moment = (rounded_gaussian(n, sigma) * np.exp(n**2 / (4 * sigma**2))).sum()
    assert math.sqrt(2) < moment + 1e-5
    assert moment <= math.sqrt(2 / (1 - 1 / (6 * sigma**2))) < math.exp(0.5)
    # The slack absorbs the tail at extreme epsilon and delta.
    assert mpmath.exp(500 - 800) / mpmath.mpf("1e-100") < mpmath.expm1(3200 / (24 * SIGMA**2))


@pytest.mark.parametrize("epsilon", [0.1, 1, 4])
@pytest.mark.parametrize("shift", [1, 16, 40])
def test_lemma_holds_for_the_exact_curve_of_one_value_on_a_coarse_grid(shift, epsilon):
    sigma = 16
    n = np.arange(-11 * sigma, 11 * sigma + 1)  # beyond lies 1e-27
    slack = (1 + (11 + shift / sigma) ** 2) / (24 * sigma**2)

    def delta(epsilon, probabilities):
        there, shifted = probabilities(n, sigma), probabilities(n - shift, sigma)
        return np.maximum(there - math.exp(epsilon) * shifted, 0).sum()

    bound = math.exp(slack) * delta(epsilon, rounded_gaussian)
    assert delta(epsilon + slack, pmf) <= bound + 1e-15
