"""Which codes a run keeps, chosen from the sites' noisy counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def kept_codes(
    releases: Sequence[NDArray[np.float32]], sizes: Sequence[int], kept: Sequence[int]
) -> tuple[NDArray[np.int32], ...]:
    """Most frequent codes of each mode by the sum of the sites' noisy counts.

    Parameters
    ----------
    releases : sequence of ndarray of float32, shape (sum of sizes,), one per site
        As `dpfact_flower.privacy.patient.statistics.code_counts` orders them, with noise.
    sizes : sequence of int
        Number of codes of each mode.
    kept : sequence of int
        How many to keep of each mode, at most its size.

    Returns
    -------
    tuple of ndarray of int32
        Ascending positions, one array per mode; ties go to the earlier code.
    """
    total = np.sum(np.asarray(releases, np.float64), axis=0)
    modes = np.split(total, np.cumsum(sizes)[:-1])
    return tuple(
        np.sort(np.argsort(-counts, kind="stable")[:most]).astype(np.int32)
        for counts, most in zip(modes, kept, strict=True)
    )
