"""Triangles of symmetric matrices: every layout, compared with loops over the matrix."""

import math

import numpy as np
import pytest

from dpfact_flower.estimation.pair_fit import matrices_of
from dpfact_flower.tensor import triangle


@pytest.mark.parametrize("order", [1, 2, 7])
def test_a_whole_triangle_is_the_rows_from_the_diagonal_on(order):
    half = np.random.default_rng(order).standard_normal((order, order))
    matrix = half + half.T
    places = [(j, k) for j in range(order) for k in range(j, order)]
    packed = np.array([matrix[j, k] * (1 if j == k else math.sqrt(2)) for j, k in places])
    assert len(packed) == triangle.whole_size(order)
    # One multiplication and one division by sqrt(2), and a sum with 0: a few roundings of a value.
    again = triangle.unpack_whole(packed, order)
    np.testing.assert_allclose(again, matrix, rtol=4 * np.finfo(float).eps)


@pytest.mark.parametrize("order", [1, 2, 7])
def test_a_strict_triangle_is_the_rows_beyond_the_diagonal(order):
    places = [(j, k) for j in range(order) for k in range(j + 1, order)]
    size = triangle.strict_size(order)
    assert [triangle.strict_row(j, order) + k for j, k in places] == list(range(size))
    (matrix,) = matrices_of([np.arange(1.0, size + 1)], order).swapaxes(0, 1)
    for number, (j, k) in enumerate(places, start=1):
        assert matrix[j, k] == matrix[k, j] == np.float32(number / math.sqrt(2))
    assert (np.diag(matrix) == 0.0).all()
