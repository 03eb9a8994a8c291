"""Sparse tensors, CP models, and measures of models' errors and similarity.

Models are in `cp`, which needs numba. `SparseTensor` does not need numba, whose import is slow.
"""

from dpfact_flower.tensor.arrays import Array, Factors, Floats, Selection
from dpfact_flower.tensor.sparse import SparseTensor, SquaredError

__all__ = ["Array", "Factors", "Floats", "Selection", "SparseTensor", "SquaredError"]
