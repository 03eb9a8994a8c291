"""Average a mode's refinements over rounds, which have independent noise.

If noise limits refinement, factors move little, and the average has the same signal and less noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.tensor.arrays import Array


class Average(NamedTuple):
    """Average of one mode's releases over rounds, and the deviation of the noise on its values."""

    sites: tuple[str, ...]
    values: NDArray[np.float32]
    sigma: float


class RunningAverage:
    """Averages of each mode's releases. The last average has weight `share` in the next average."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._averages: dict[int, Average] = {}

    def averaged(
        self, mode: int, sites: Sequence[str], releases: Sequence[Array], sigma: float
    ) -> Average:
        """Average a mode's newest releases with the kept average, and keep the result.

        If the set of answering sites has changed, the kept average is dropped, because the averages
        of all sites must have the same noise.
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
        """Return the averages as arrays for a checkpoint; see `restore`."""
        found: dict[str, Array] = {}
        for mode, average in self._averages.items():
            found[f"average_{mode}"] = average.values
            found[f"average_{mode}_sites"] = np.array(average.sites)
            found[f"average_{mode}_sigma"] = np.array(average.sigma)
        return found

    def restore(self, arrays: Mapping[str, Array], modes: int) -> None:
        """Load the averages of `modes` modes from `arrays`. Other arrays are ignored."""
        self._averages = {
            mode: Average(
                tuple(arrays[f"{name}_sites"].tolist()),
                arrays[name],
                float(arrays[f"{name}_sigma"]),
            )
            for mode in range(modes)
            if (name := f"average_{mode}") in arrays
        }
