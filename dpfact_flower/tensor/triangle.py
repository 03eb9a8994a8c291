"""Represent symmetric matrices as vectors of the upper triangle's values, row by row.

An off-diagonal value, which occurs twice in the matrix, is multiplied by sqrt(2) in the vector. The
vector then has the same norm as the matrix. *Strict* triangles exclude the diagonal.
"""

import math

import numpy as np

from dpfact_flower.tensor.arrays import Array, Floats

ROOT2 = math.sqrt(2.0)
CROSS = 2.0
"""Weight of two-mode blocks in a start, relative to one-mode blocks (docs/explanation/start.md)."""


def whole_size(order: int) -> int:
    """Return the number of values in a triangle that includes the diagonal and has `order` rows."""
    return order * (order + 1) // 2


def strict_size(order: int) -> int:
    """Return the number of values in the strict triangle of a matrix with `order` rows."""
    return order * (order - 1) // 2


def strict_row(row: int, order: int) -> int:
    """Return a row's offset: entry (row, column) of a strict triangle is at offset + column."""
    return row * order - row * (row + 1) // 2 - row - 1


def unpack_whole(triangle: Array, order: int) -> Floats:
    """Return the symmetric matrix with the given triangle, which includes the diagonal."""
    matrix = np.zeros((order, order))
    matrix[np.triu_indices(order)] = triangle
    matrix = (matrix + matrix.T) / ROOT2
    np.fill_diagonal(matrix, np.diag(matrix) / ROOT2)
    return matrix
