"""Draw exact integer noise from the discrete Gaussian with standard deviation `SIGMA`.

Floating-point noise can reveal the protected value (Mironov 2012). This module therefore uses only
integer arithmetic. As the privacy proof assumes, each integer n has a probability exactly
proportional to exp(-n**2 / (2 SIGMA**2)).

The rejection sampler follows Canonne, Kamath & Steinke 2020, Algorithms 1 to 3. The sampler
proposes discrete Laplace values with scale `SIGMA`. Because `SIGMA` is a power of two, every random
decision is an exact comparison of two integers.

If the random bytes run out in the middle of a sample, the sampler reads more bytes and restarts at
the sample's first bit. No two samples share bits. The time to draw a sample depends only on the
random bits, never on patients' data (``docs/explanation/noise.md``).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.machine.compiled import compiled

SIGMA_BITS = 24
SIGMA = 1 << SIGMA_BITS
"""Standard deviation of the noise, in grid units. Statistics are truncated to whole grid units."""

Bits = NDArray[np.uint64]


def discrete_gaussian(
    count: int, random_bytes: Callable[[int], bytes], bits: int = SIGMA_BITS, at_once: int = 4096
) -> NDArray[np.int64]:
    """Draw `count` exact samples of the discrete Gaussian with standard deviation 2**bits.

    `random_bytes` is `os.urandom`, or a seeded source in simulations. Each call of `random_bytes`
    returns `at_once` 64-bit words. Only tests change `at_once` or `bits`.
    """
    samples = np.empty(count, np.int64)
    words = np.empty(0, np.uint64)
    done, position = 0, 0
    while done < len(samples):
        fresh = np.frombuffer(random_bytes(8 * at_once), "<u8").astype(np.uint64)
        # Keep all words from the first bit of the incomplete sample on.
        words = np.concatenate([words[position // 64 :], fresh])
        done, position = _fill(samples, done, bits, words, position % 64)
    return samples


# Below, `words` holds random bits, and `cursor[0]` is the position of the next unread bit. After
# the last bit, `_take` returns -1, every loop ends, and `_fill` discards the incomplete sample.


@compiled()
def _take(count: int, words: Bits, cursor: NDArray[np.int64]) -> int:
    """Return the next `count` (< 64) bits as a number, lowest bit first, or -1 if bits run out."""
    if count == 0:
        return 0
    first = cursor[0]
    cursor[0] = first + count
    if cursor[0] > 64 * len(words):
        return -1
    word, shift = first >> 6, first & 63
    value = words[word] >> np.uint64(shift)
    if shift + count > 64:
        value |= words[word + 1] << np.uint64(64 - shift)
    # The result is signed, because numba would compare signed and unsigned numbers as floats.
    return np.int64(value & ((np.uint64(1) << np.uint64(count)) - np.uint64(1)))  # type: ignore[return-value]


@compiled()
def _one_in(k: int, words: Bits, cursor: NDArray[np.int64]) -> bool:
    width = 0
    while (1 << width) < k:
        width += 1
    number = _take(width, words, cursor)
    while number >= k:
        number = _take(width, words, cursor)
    return number == 0


@compiled()
def _exp(numerator: int, bits: int, words: Bits, cursor: NDArray[np.int64]) -> bool:
    """Return True with probability exp(-g), for g = numerator / 2**bits <= 1 (Algorithm 1)."""
    # A Bernoulli(g/k) draw is the product of independent Bernoulli(1/k) and Bernoulli(g) draws.
    k = 1
    while _one_in(k, words, cursor) and _take(bits, words, cursor) >= (1 << bits) - numerator:
        k += 1
    return k % 2 == 1


@compiled()
def _exp_power(
    times: int, numerator: int, bits: int, words: Bits, cursor: NDArray[np.int64]
) -> bool:
    """Return True with probability exp(-times * numerator / 2**bits)."""
    fallen = 0
    while fallen < times and _exp(numerator, bits, words, cursor):
        fallen += 1
    return fallen == times


@compiled()
def _laplace(bits: int, words: Bits, cursor: NDArray[np.int64]) -> int:
    """Draw a discrete Laplace value with scale 2**bits (Algorithm 2 with s = 1 and t = 2**bits)."""
    while True:
        low = _take(bits, words, cursor)
        if low < 0:
            return low  # out of bits
        if not _exp(low, bits, words, cursor):
            continue
        high = 0
        while _exp(1, 0, words, cursor):
            high += 1
        size = low + (high << bits)
        negative = _one_in(2, words, cursor)
        if size or not negative:  # reject -0, or 0 would occur too often
            return -size if negative else size


@compiled()
def _gaussian(bits: int, words: Bits, cursor: NDArray[np.int64]) -> int:
    """Draw a discrete Gaussian value with standard deviation s = 2**bits (Algorithm 3 with t = s).

    A discrete Laplace value y is accepted with probability exp(-(|y| - s)**2 / (2 s**2)).
    """
    # If the distance between |y| and s is w s + r (`whole` and `rest`), this probability is the
    # product of exp(-1/2)**(w**2), exp(-r / s)**w and exp(-r**2 / (2 s**2)). Each draw is exact.
    while True:
        value = _laplace(bits, words, cursor)
        size = abs(value)
        whole, rest = (size >> bits) - 1, size & ((1 << bits) - 1)
        if whole < 0:  # |y| is below s
            whole, rest = 0, (1 << bits) - rest
        if (
            _exp_power(whole * whole, 1, 1, words, cursor)
            and _exp_power(whole, rest, bits, words, cursor)
            and _exp(rest * rest, 2 * bits + 1, words, cursor)
        ) or cursor[0] > 64 * len(words):
            return value


@compiled()
def _fill(
    samples: NDArray[np.int64], done: int, bits: int, words: Bits, position: int
) -> tuple[int, int]:
    """Draw the samples from index `done` on, using the bits from `position` on, while bits remain.

    Return the number of complete samples and the position of the next sample's first bit.
    """
    cursor = np.array([position])
    while done < len(samples):
        value = _gaussian(bits, words, cursor)
        if cursor[0] > 64 * len(words):
            break
        samples[done] = value
        done += 1
        position = cursor[0]
    return done, position
