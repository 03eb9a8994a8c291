"""Sparse tensors, CP models, and measures of a model's error and of two models' similarity.

Models are in the module `cp`, so that `SparseTensor` can be imported without numba, which is slow.
"""

from dpfact_flower.tensor.arrays import Array, Factors, Floats, Selection
from dpfact_flower.tensor.sparse import SparseTensor, SquaredError

__all__ = ["Array", "Factors", "Floats", "Selection", "SparseTensor", "SquaredError"]
