"""Sparse tensors, their CP models, and measures of both.

`sparse` defines the tensor type, and `frostt` reads its text format. `cp` defines a model and
computes its exact error. `match` measures the similarity of two models, and `error` defines the
error measures. `stack` and `triangle` are memory layouts that several packages share. Import `cp`
and `match` from their own modules, because they need numba, which takes half a second to import.
The tensor type does not need numba.
"""

from dpfact_flower.tensor.arrays import Array, Factors, Floats, Selection, Weights
from dpfact_flower.tensor.error import RMSE, SquaredError
from dpfact_flower.tensor.sparse import SparseTensor

__all__ = [
    "RMSE",
    "Array",
    "Factors",
    "Floats",
    "Selection",
    "SparseTensor",
    "SquaredError",
    "Weights",
]
