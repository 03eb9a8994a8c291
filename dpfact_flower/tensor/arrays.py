"""Names for kinds of arrays; every other module takes them from here."""

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
