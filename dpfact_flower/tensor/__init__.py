"""Sparse tensors, their CP models, and measures of both.

Import `cp` and `match` from their own modules, because they need numba, which takes half a second
to import. The tensor type does not need numba.
"""

from dpfact_flower.tensor.arrays import Array, Factors, Floats, Selection, Weights
from dpfact_flower.tensor.error import SquaredError
from dpfact_flower.tensor.sparse import SparseTensor

__all__ = ["Array", "Factors", "Floats", "Selection", "SparseTensor", "SquaredError", "Weights"]
