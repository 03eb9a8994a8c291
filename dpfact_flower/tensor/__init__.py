"""Sparse tensors, CP models, and measures of a model's error and of two models' similarity.

Models are in `cp`, so that importing `SparseTensor` does not include the slow import of numba.
"""

from dpfact_flower.tensor.arrays import Array, Factors, Floats, Selection
from dpfact_flower.tensor.sparse import SparseTensor, SquaredError

__all__ = ["Array", "Factors", "Floats", "Selection", "SparseTensor", "SquaredError"]
