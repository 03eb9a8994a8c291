"""Sparse tensors, CP models of them, and what both are measured by.

`sparse` is the tensor type, `frostt` reads its text format, `cp` is a model and its exact error,
`match` how alike two models are, `error` what errors are. `stack` and `triangle` are layouts of
memory that several rooms agree on. `cp` and `match` are imported by their own names: they need
numba, which takes half a second to import, and a tensor does not.
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
