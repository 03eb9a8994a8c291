"""Sparse tensors, their CP models, and measures of error and similarity.

Models are in `cp`, which needs numba. The tensor type does not need numba, which takes half a
second to import.
"""

from dpfact_flower.tensor.arrays import Array, Factors, Floats, Selection
from dpfact_flower.tensor.sparse import SparseTensor, SquaredError

__all__ = ["Array", "Factors", "Floats", "Selection", "SparseTensor", "SquaredError"]
