"""Names for kinds of arrays, and the one thing that NumPy does too slowly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""An array whose type the caller chooses, or that compiled code takes as it comes."""

Floats = NDArray[np.float64]

Factors = tuple[NDArray[np.float32], ...]
"""Factor matrices of a CP model, one per mode, (I_n, R) each; patients first, where present."""

Selection = tuple[NDArray[np.int32], ...]
"""Codes that are kept: ascending positions in the vocabulary, one array per feature mode."""

Weights = tuple[NDArray[np.float32], ...]
"""What a cell is multiplied by for each of its codes, one array per feature mode."""
LEAST_WEIGHT = 2.0**-20
"""Smallest of them: below any that real counts make, and far from subnormal numbers."""


def distinct(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each number once, ascending: `numpy.unique`, by sorting.

    NumPy 2.3 and later fill a hash table, which takes 50 times as long as the sort for some
    millions of numbers that are made of a patient and a code.
    """
    ordered: NDArray[np.int64] = np.sort(numbers)
    different: NDArray[np.bool_] = np.diff(ordered, prepend=ordered[:1] - 1) != 0
    return ordered[different]
