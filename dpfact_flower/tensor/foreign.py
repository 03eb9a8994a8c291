"""Conversion of other libraries' tensors to `SparseTensor`, without importing the libraries."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpfact_flower.errors import DataError
from dpfact_flower.tensor.sparse import SparseTensor


def as_tensor(value: Any) -> SparseTensor:
    """Convert another library's tensor of counts, whose first mode is the patients.

    The input is a scipy.sparse matrix or array, a pyttb.sptensor, a sparse.COO, or an array. The
    zero cells of an array are dropped.
    """
    if isinstance(value, SparseTensor):
        return value
    if hasattr(value, "subs") and hasattr(value, "vals"):  # pyttb.sptensor
        return _of_coordinates(value.subs, value.vals, value.shape)
    if hasattr(value, "tocoo"):  # scipy.sparse
        value = value.tocoo()
    if hasattr(value, "coords") and hasattr(value, "data"):  # scipy.sparse, and sparse.COO
        return _of_coordinates(np.transpose(np.asarray(value.coords)), value.data, value.shape)
    is_pyttb = type(value).__module__.partition(".")[0] == "pyttb"
    cells = np.asarray(value.data if is_pyttb else value)
    if cells.dtype.kind not in "biuf":
        raise DataError(f"tensor: need numbers, got dtype {cells.dtype}")
    places = np.nonzero(cells)
    return SparseTensor.from_coo(np.transpose(places), cells[places], cells.shape)


def _of_coordinates(indices: Any, values: Any, shape: Any) -> SparseTensor:
    numbers = np.asarray(values).reshape(-1)
    places = np.asarray(indices).reshape(len(numbers), len(shape))
    return SparseTensor.from_coo(places, numbers, shape)
