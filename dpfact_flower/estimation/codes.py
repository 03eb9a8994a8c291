"""Use the sites' code counts to choose the codes that a run keeps, and to weight these codes."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.tensor import Factors, Selection, Weights
from dpfact_flower.tensor.arrays import LEAST_WEIGHT

_MOST_PAIRED = 4000
"""If there are at most this many codes, a start without noise pairs all of them. A site then
releases up to 8 million values."""
_FREQUENT = 1000
"""Number of codes to pair if there are more than `_MOST_PAIRED`. In a synthetic cohort with 13,515
codes, pairing 4,000 codes was no better and took the server 65 s instead of 4 s."""
_SEEN = 3.0
"""Smallest count, in standard deviations of its noise. Lower counts are raised to this value."""


def kept_codes(
    releases: Sequence[NDArray[np.float32]], sizes: Sequence[int], kept: Sequence[int]
) -> tuple[NDArray[np.int32], ...]:
    """Return, for each mode, the positions of the codes with the largest sums of noisy counts.

    Positions are in ascending order. If two codes are equally frequent, the earlier code is kept.
    """
    total = np.sum(np.asarray(releases, np.float64), axis=0)
    modes = np.split(total, np.cumsum(sizes)[:-1])
    return tuple(
        np.sort(np.argsort(-counts, kind="stable")[:most]).astype(np.int32)
        for counts, most in zip(modes, kept, strict=True)
    )


def paired_codes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the number of codes per mode to pair in a start without noise, or () for all codes.

    If code lists are long, each mode gets an equal part of `_FREQUENT` codes. If a list is shorter
    than its part, the other modes share the rest.
    """
    if sum(sizes) <= _MOST_PAIRED:
        return ()
    left, kept = _FREQUENT, [0] * len(sizes)
    for modes, mode in zip(range(len(sizes), 0, -1), np.argsort(sizes, kind="stable"), strict=True):
        kept[mode] = min(sizes[mode], max(left // modes, 1))
        left -= kept[mode]
    return tuple(kept)


def code_weights(
    releases: Sequence[NDArray[np.float32]], sizes: Sequence[int], selection: Selection,
    sigma: float,
) -> Weights:  # fmt: skip
    """Return weights in [`LEAST_WEIGHT`, 1] for the codes in `selection`.

    The weight of a code that c patients have is proportional to 1 / sqrt(c). The rarest code has
    weight 1. A cell's squared error is therefore divided by the frequencies of the cell's codes, as
    in correspondence analysis. The noise in each site's counts has standard deviation `sigma`.
    """
    total = np.sum(np.asarray(releases, np.float64), axis=0)
    modes = np.split(total, np.cumsum(sizes)[:-1])
    least = max(_SEEN * sigma * math.sqrt(len(releases)), float(np.finfo(np.float32).tiny))
    known = [np.maximum(m[kept], least) for m, kept in zip(modes, selection, strict=True)]
    weights = (np.sqrt(counts.min() / counts) for counts in known)
    return tuple(np.maximum(each, LEAST_WEIGHT).astype(np.float32) for each in weights)


def unweighted(factors: Factors, weights: Weights) -> Factors:
    """Convert factors of weighted cells to factors of unweighted cells. Columns have norm 1."""
    counted = (f / w.astype(np.float64)[:, None] for f, w in zip(factors, weights, strict=True))
    return tuple((f / np.linalg.norm(f, axis=0)).astype(np.float32) for f in counted)
