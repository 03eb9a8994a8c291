"""Sparse tensors, their CP models, and measures of both.

`sparse` is the tensor type and `frostt` reads its text format. `cp` is a model and its exact error.
`match` measures how similar two models are, and `error` defines the error measures. `stack` and
`triangle` are memory layouts that several packages share. Import `cp` and `match` by their own
names: they need numba, which takes half a second to import, and a tensor does not.
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
