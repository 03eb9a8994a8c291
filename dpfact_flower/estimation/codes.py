"""The codes that a run keeps, and their weights, from the sites' counts of codes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.tensor import Factors, Selection, Weights
from dpfact_flower.tensor.arrays import LEAST_WEIGHT

_MOST_PAIRED = 4000
"""Without noise, all codes are paired up to this number in all: 8 million values per site."""
_FREQUENT = 1000
"""Codes that are paired if there are more. On 13,515 codes of a synthetic cohort, 4,000 were no
better and took the server 65 s instead of 4."""
_SEEN = 3.0
"""A count below so many deviations of its noise counts as that many deviations."""


def kept_codes(
    releases: Sequence[NDArray[np.float32]], sizes: Sequence[int], kept: Sequence[int]
) -> tuple[NDArray[np.int32], ...]:
    """Most frequent codes of each mode by the sum of the sites' noisy counts.

    `releases` are as `dpfact_flower.privacy.patient.statistics.code_counts` orders them, with
    noise. Positions ascend, and ties go to the earlier code.
    """
    total = np.sum(np.asarray(releases, np.float64), axis=0)
    modes = np.split(total, np.cumsum(sizes)[:-1])
    return tuple(
        np.sort(np.argsort(-counts, kind="stable")[:most]).astype(np.int32)
        for counts, most in zip(modes, kept, strict=True)
    )


def paired_codes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Number of codes of each mode that a start without noise pairs; empty means all of them.

    With long lists it is `_FREQUENT` codes, divided equally among modes, except those with fewer.
    """
    if sum(sizes) <= _MOST_PAIRED:
        return ()
    left, kept = _FREQUENT, [0] * len(sizes)
    for modes, mode in zip(range(len(sizes), 0, -1), np.argsort(sizes, kind="stable"), strict=True):
        kept[mode] = min(sizes[mode], max(left // modes, 1))
        left -= kept[mode]
    return tuple(kept)


def code_weights(
    releases: Sequence[NDArray[np.float32]],
    sizes: Sequence[int],
    selection: Selection,
    sigma: float,
) -> Weights:
    """Weights of codes by which squared errors count with the inverse of code frequency.

    A code that c patients have gets 1 / sqrt(c), relative to the rarest. A cell's squared error
    then counts with the product of its codes' inverse frequencies, as in correspondence analysis.
    `sigma` is the noise on each site's counts; a count below `_SEEN` deviations is raised to that.
    Weights lie in [`LEAST_WEIGHT`, 1], for the codes in `selection`. `releases` and `sizes` are as
    for `kept_codes`.
    """
    total = np.sum(np.asarray(releases, np.float64), axis=0)
    modes = np.split(total, np.cumsum(sizes)[:-1])
    least = max(_SEEN * sigma * math.sqrt(len(releases)), float(np.finfo(np.float32).tiny))
    known = [np.maximum(m[kept], least) for m, kept in zip(modes, selection, strict=True)]
    weights = (np.sqrt(counts.min() / counts) for counts in known)
    return tuple(np.maximum(each, LEAST_WEIGHT).astype(np.float32) for each in weights)


def unweighted(factors: Factors, weights: Weights) -> Factors:
    """Factors of the cells themselves from factors of weighted cells; columns have norm 1."""
    counted = (f / w.astype(np.float64)[:, None] for f, w in zip(factors, weights, strict=True))
    return tuple((f / np.linalg.norm(f, axis=0)).astype(np.float32) for f in counted)
