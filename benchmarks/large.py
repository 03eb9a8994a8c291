"""Make tensor L, with a million patients, in blocks and with its final data types."""

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.tensor import SparseTensor

FEATURES = (1000, 1500)
_ENTRIES = 50  # average number per patient
_DRAWN = 51.4  # leaves 50 distinct cells after duplicates are removed
_STRIDE = 617  # a prime that divides neither size
_BLOCK = 20_000  # patients made together


def large(patients: int) -> SparseTensor:
    """Return counts with about 50 non-zeros per patient. Code frequencies fall as 1 / rank."""
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
    # Cells are generated sorted, unique and in range, so nothing needs to be checked or copied.
    indices.resize((size, 3), refcheck=False)
    values.resize(size, refcheck=False)
    return SparseTensor(indices, values, (patients, *FEATURES))


def _cells(patients: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the distinct cells of a block of patients as sorted row-major numbers."""
    cells = np.repeat(np.arange(patients), rng.poisson(_DRAWN, patients))
    for size in FEATURES:
        often = np.cumsum(1 / np.arange(1, size + 1))
        rank = np.searchsorted(often / often[-1], rng.random(len(cells)))
        cells = cells * size + rank * _STRIDE % size  # spreads out the frequent codes
    return np.unique(cells)
