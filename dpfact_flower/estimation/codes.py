"""Choose each mode's number of codes for a run, and choose the codes by their noisy counts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.tensor import Selection

_MOST_PAIRED = 4000
"""Maximum number of codes of which a noiseless run counts all pairs (8 million for 4,000 codes)."""
_FREQUENT = 1000
"""Number of codes to pair if there are more than `_MOST_PAIRED` codes. In a synthetic cohort with
13,515 codes, pairing 4,000 codes was no better and took the server 65 s instead of 4 s."""


def kept_codes(
    releases: Sequence[NDArray[np.float32]], sizes: Sequence[int], kept: Sequence[int]
) -> Selection:
    """Return, for each mode, the positions of the codes with the largest sums of noisy counts.

    Positions are in ascending order. Among equally frequent codes, earlier codes are preferred.
    """
    total = np.sum(np.asarray(releases, np.float64), axis=0)
    modes = np.split(total, np.cumsum(sizes)[:-1])
    return tuple(
        np.sort(np.argsort(-counts, kind="stable")[:most]).astype(np.int32)
        for counts, most in zip(modes, kept, strict=True)
    )


def paired_codes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return how many codes of each mode a noiseless run pairs, or () if it pairs all codes."""
    return divided_equally(_FREQUENT, sizes) if sum(sizes) > _MOST_PAIRED else ()


def divided_equally(total: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return how many codes each mode gets if `total` codes are divided equally.

    If a mode has fewer codes (in `sizes`) than its share, the other modes get more codes.
    """
    left, kept = total, [0] * len(sizes)
    for modes, mode in zip(range(len(sizes), 0, -1), np.argsort(sizes, kind="stable"), strict=True):
        kept[mode] = min(sizes[mode], left // modes)
        left -= kept[mode]
    return tuple(kept)
