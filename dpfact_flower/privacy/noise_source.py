"""Draw noise from the operating system's random generator or, in simulations, from a seed.

Only paper mode uses `Noise.gaussian`. Patient mode avoids floating-point noise, because such noise
can reveal the protected value (Mironov 2012). `Noise.gaussian` never exceeds about 9.2 standard
deviations, but a true Gaussian variable does with probability 2**-64.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dpfact_flower.errors import PrivacyRefusedError
from dpfact_flower.settings import PrivacySettings


@dataclass(frozen=True)
class Noise:
    """A source of noise. If `seeded` is true, the noise comes from a seed and can be recomputed."""

    random_bytes: Callable[[int], bytes] = field(repr=False)
    seeded: bool

    @classmethod
    def from_os(cls) -> Noise:
        """Make a source that uses the operating system's cryptographic generator."""
        return cls(os.urandom, seeded=False)

    @classmethod
    def from_seed(cls, *key: int) -> Noise:
        """Make a source of repeatable noise for simulations. Such noise gives no privacy.

        `key` lists the seed, site and round, so that each site draws different noise in each round.
        """
        # The key is hashed, because NumPy treats [7] and [7, 0] as the same seed.
        seed = int.from_bytes(hashlib.sha256(repr(key).encode()).digest(), "big")
        return cls(np.random.Generator(np.random.PCG64DXSM(seed)).bytes, seeded=True)

    @classmethod
    def from_settings(
        cls, settings: PrivacySettings, *, stream: Sequence[int], simulation: bool
    ) -> Noise:
        """Make the source that the settings specify. Refuse a noise seed outside simulations.

        `stream` lists the run's seed, site and round, so that noise is never repeated.
        """
        if settings.noise_seed < 0:
            return cls.from_os()
        if not simulation:
            raise PrivacyRefusedError("noise-seed: allowed in simulation only; set it to -1")
        return cls.from_seed(settings.noise_seed, *stream)

    def gaussian(self, shape: tuple[int, ...], sigma: float) -> NDArray[np.float64]:
        """Draw independent Gaussian values with mean 0 and standard deviation `sigma`."""
        words = np.frombuffer(self.random_bytes(8 * int(np.prod(shape))), np.uint64)
        return sigma * _standard_normal(words).reshape(shape)

    def integers(self, count: int) -> NDArray[np.int64]:
        """Draw exact values of the discrete Gaussian with standard deviation `noise.SIGMA`."""
        from dpfact_flower.privacy.noise import discrete_gaussian  # noqa: PLC0415  # numba is slow

        return discrete_gaussian(count, self.random_bytes)


def _standard_normal(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Convert uniform 64-bit words to standard normal values.

    One bit of each word determines the sign, and the other 63 bits determine the tail probability.
    All quantiles are computed in the lower tail, where floating-point numbers are most precise.
    """
    tail = (words >> np.uint64(1)).astype(np.float64)
    lower = ndtri((tail + 0.5) * 2.0**-64)
    return np.where(words & np.uint64(1), lower, -lower)
