"""Tensor L: a million patients, made in blocks and in the types that it is kept in."""

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.tensor import SparseTensor

FEATURES = (1000, 1500)
_ENTRIES = 50  # a patient, on average
_DRAWN = 51.4  # so that 50 are left when cells drawn twice count once
_STRIDE = 617  # a prime that divides neither size
_BLOCK = 20_000  # patients made together


def large(patients: int) -> SparseTensor:
    """Counts of so many patients, 50 non-zeros each; code frequencies fall as 1 / rank."""
    rng = np.random.default_rng(0)
    indices = np.empty((patients * _ENTRIES * 11 // 10 + 1000, 3), np.int32)
    values = np.empty(len(indices), np.float32)
    size = 0
    for first in range(0, patients, _BLOCK):
        cells = _cells(min(_BLOCK, patients - first), rng)
        part = slice(size, size + len(cells))
        size += len(cells)
        indices[part, 2] = cells % FEATURES[1]
        indices[part, 1] = cells // FEATURES[1] % FEATURES[0]
        indices[part, 0] = first + cells // (FEATURES[0] * FEATURES[1])
        values[part] = rng.geometric(0.7, len(cells))
    # Cells are made sorted, unique and in range, so nothing is checked and nothing copied.
    indices.resize((size, 3), refcheck=False)
    values.resize(size, refcheck=False)
    return SparseTensor(indices, values, (patients, *FEATURES))


def _cells(patients: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Distinct cells of a block of patients, sorted, as numbers in row-major order."""
    cells = np.repeat(np.arange(patients), rng.poisson(_DRAWN, patients))
    for size in FEATURES:
        often = np.cumsum(1 / np.arange(1, size + 1))
        rank = np.searchsorted(often / often[-1], rng.random(len(cells)))
        cells = cells * size + rank * _STRIDE % size  # frequent codes lie apart, not side by side
    return np.unique(cells)
