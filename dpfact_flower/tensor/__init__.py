"""Sparse tensors, their CP models, and measures of both.

Import models from `cp`, which needs numba. Importing numba takes half a second, and the tensor type
does not need it.
"""

from dpfact_flower.tensor.arrays import Array, Factors, Floats, Selection, Weights
from dpfact_flower.tensor.error import SquaredError
from dpfact_flower.tensor.sparse import SparseTensor

__all__ = ["Array", "Factors", "Floats", "Selection", "SparseTensor", "SquaredError", "Weights"]
