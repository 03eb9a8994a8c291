"""Triangles of symmetric matrices: every layout against loops over the matrix."""

import math

import numpy as np
import pytest

from dpfact_flower.tensor.triangle import (
    pack_whole,
    strict_row,
    strict_size,
    unpack_strict,
    unpack_whole,
    whole_size,
)


def symmetric(order: int) -> np.ndarray:
    half = np.random.default_rng(order).standard_normal((order, order))
    return half + half.T


@pytest.mark.parametrize("order", [1, 2, 7])
def test_a_whole_triangle_is_the_rows_from_the_diagonal_on(order):
    matrix = symmetric(order)
    expected = [
        matrix[j, k] * (1 if j == k else math.sqrt(2))
        for j in range(order)
        for k in range(j, order)
    ]
    packed = pack_whole(matrix)
    np.testing.assert_array_equal(packed, expected)
    assert len(packed) == whole_size(order)
    assert np.linalg.norm(packed) == pytest.approx(np.linalg.norm(matrix), rel=1e-14)
    # sqrt(2), once multiplied and once divided by, and a sum with 0: a few roundings of one value.
    np.testing.assert_allclose(unpack_whole(packed, order), matrix, rtol=4 * np.finfo(float).eps)


@pytest.mark.parametrize("order", [1, 2, 7])
def test_a_strict_triangle_is_the_rows_beyond_the_diagonal(order):
    places = [(j, k) for j in range(order) for k in range(j + 1, order)]
    assert [strict_row(j, order) + k for j, k in places] == list(range(strict_size(order)))
    triangle = np.arange(1.0, strict_size(order) + 1)
    matrix = np.full((order, order), 9.0)
    unpack_strict(triangle, matrix)
    for place, (j, k) in enumerate(places):
        assert matrix[j, k] == matrix[k, j] == triangle[place] / math.sqrt(2)
    assert (np.diag(matrix) == 9.0).all()
