"""What earlier refinements said, averaged with the newest: their noises are independent.

A release says what the factors of its round should become. From one round to the next factors move
little where noise is what holds them back, so the average over rounds has the same message and less
noise. It is post-processing of what was released.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.tensor.arrays import Array


class Average(NamedTuple):
    """One mode's releases of some sites, averaged over rounds, and the noise left on each value."""

    sites: tuple[str, ...]
    values: NDArray[np.float32]
    sigma: float


class RunningAverage:
    """Of each mode's releases: the last average makes up a `share` of the next one, 0 or more."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._averages: dict[int, Average] = {}

    def averaged(
        self, mode: int, sites: Sequence[str], releases: Sequence[Array], sigma: float
    ) -> Average:
        """Average of a mode's newest releases and the remembered ones; it is remembered instead.

        Where other sites answered than before, what is remembered is dropped: each site's average
        is to have the same noise.
        """
        newest = Average(tuple(sites), np.asarray(releases, np.float32), sigma)
        if not self._share:
            return newest
        before = self._averages.get(mode)
        if before is not None and before.sites == newest.sites:
            old, new = self._share, 1 - self._share
            values = np.float32(old) * before.values + np.float32(new) * newest.values
            newest = newest._replace(
                values=values, sigma=math.hypot(old * before.sigma, new * sigma)
            )
        self._averages[mode] = newest
        return newest

    def arrays(self) -> dict[str, Array]:
        """What `restore` takes, for a checkpoint."""
        found: dict[str, Array] = {}
        for mode, average in self._averages.items():
            found[f"average_{mode}"] = average.values
            found[f"average_{mode}_sites"] = np.array(average.sites)
            found[f"average_{mode}_sigma"] = np.array(average.sigma)
        return found

    def restore(self, arrays: Mapping[str, Array], modes: int) -> None:
        """Take over what `arrays` gave of so many modes; other arrays are left alone."""
        self._averages = {
            mode: Average(
                tuple(arrays[f"{name}_sites"].tolist()),
                arrays[name],
                float(arrays[f"{name}_sigma"]),
            )
            for mode in range(modes)
            if (name := f"average_{mode}") in arrays
        }
