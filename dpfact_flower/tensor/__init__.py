"""Sparse tensors, their CP models, and measures of error and similarity.

Models are in `cp`, which needs numba. `SparseTensor` avoids numba, which is slow to import.
"""

from dpfact_flower.tensor.arrays import Array, Factors, Floats, Selection
from dpfact_flower.tensor.sparse import SparseTensor, SquaredError

__all__ = ["Array", "Factors", "Floats", "Selection", "SparseTensor", "SquaredError"]
