"""Which codes a run keeps, and how much each counts, from the sites' counts of codes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.tensor import Factors, Selection, Weights
from dpfact_flower.tensor.arrays import LEAST_WEIGHT

_MOST_PAIRED = 4000
"""Codes of all modes up to which all are paired without noise: 8 million values of a site."""
_FREQUENT = 1000
"""Codes that are paired where there are more. On 13,515 codes of a synthetic cohort a start from
4,000 was no better, and took the server 65 s where this took 4."""
_SEEN = 3.0
"""Deviations of a count's noise below which nothing is known of it but that it is small."""


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
    """How many codes of each mode a start without noise is made from; empty: all of them.

    Long lists are too long for all pairs of codes: `_FREQUENT` codes then, as many of each mode as
    of another, but for modes that have fewer.
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
    """What to multiply cells by so that squared errors count by the inverse of their frequency.

    A code that c patients have gets 1 / sqrt(c), relative to that of the rarest. A cell's squared
    error then counts by the product of its codes' inverse frequencies, as in correspondence
    analysis. Where the noise, of deviation `sigma` on each site's counts, is larger than a count,
    `_SEEN` deviations stand for it. Weights lie in [`LEAST_WEIGHT`, 1], for the codes in
    `selection` alone; `releases` and `sizes` are as for `kept_codes`.
    """
    total = np.sum(np.asarray(releases, np.float64), axis=0)
    modes = np.split(total, np.cumsum(sizes)[:-1])
    least = max(_SEEN * sigma * math.sqrt(len(releases)), float(np.finfo(np.float32).tiny))
    known = [np.maximum(m[kept], least) for m, kept in zip(modes, selection, strict=True)]
    weights = (np.sqrt(counts.min() / counts) for counts in known)
    return tuple(np.maximum(each, LEAST_WEIGHT).astype(np.float32) for each in weights)


def unweighted(factors: Factors, weights: Weights) -> Factors:
    """Factors of weighted cells as factors of the cells themselves, columns of norm 1.

    The model of weighted cells is the weights times the model of the cells, mode by mode.
    """
    counted = (f / w.astype(np.float64)[:, None] for f, w in zip(factors, weights, strict=True))
    return tuple((f / np.linalg.norm(f, axis=0)).astype(np.float32) for f in counted)
