"""Each vector operation, compared with NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numba import njit

from dpfact_flower.machine.compiled import WIDTH
from dpfact_flower.solver.kernels import instructions as do

pytestmark = pytest.mark.slow

REGISTERS = (0, 0, 0)
SIZE = len(REGISTERS) * WIDTH
OPERATIONS = 7

numbers = st.floats(-1000, 1000, width=32)
vectors = arrays(np.float32, SIZE, elements=numbers)


@njit
def computed(registers, x, y, z, number, found):
    """Compute one operation per row."""
    a, b = do.load(registers, do.pointer(x), 0), do.load(registers, do.pointer(y), 0)
    c = do.load(registers, do.pointer(z), 0)
    rows, size = do.pointer(found), len(x)
    do.store(rows, 0, do.mul(a, b))
    do.store(rows, size, do.add(a, b))
    do.store(rows, 2 * size, do.fma(a, b, c))
    do.store(rows, 3 * size, do.at_least(a, b))
    do.store(rows, 4 * size, do.fma(number, a, b))
    do.store(rows, 5 * size, do.at_least(a, number))
    do.store(rows, 6 * size, do.zeros(registers, rows))
    return do.total(a), do.read(do.pointer(x), 1)


@given(vectors, vectors, vectors, numbers)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_operations_are_numpys(dtype, x, y, z, number):
    x, y, z, number = (a.astype(dtype) for a in (x, y, z, np.float32(number)))
    rows, subnormal = np.full((OPERATIONS, SIZE), np.nan, dtype), np.finfo(dtype).smallest_subnormal
    sum_of_x, second = computed(REGISTERS, x, y, z, number, rows)
    np.testing.assert_array_equal(rows[0], x * y)
    np.testing.assert_array_equal(rows[1], x + y)
    # One or two roundings, of the product and the sum, relative only to normal numbers.
    for found, a, b, c in ((rows[2], x, y, z), (rows[4], number, x, y)):
        expected = a.astype(np.float64) * b + c
        size = np.abs(a.astype(np.float64) * b) + np.abs(expected)
        assert (np.abs(found - expected) <= 4 * (np.finfo(dtype).eps * size + subnormal)).all()
    np.testing.assert_array_equal(rows[3], np.maximum(x, y))
    np.testing.assert_array_equal(rows[5], np.maximum(x, number))
    assert not rows[6].any()
    off = float(8 * np.finfo(dtype).eps * np.abs(x).sum(dtype=np.float64))
    assert sum_of_x == pytest.approx(x.sum(dtype=np.float64), rel=0, abs=off)
    assert second == x[1]


@pytest.mark.parametrize("place", [0, WIDTH + 3, SIZE - 1])
def test_a_nan_passes_the_floor_and_reaches_the_sum(place):
    x = np.arange(SIZE, dtype=np.float32)
    x[place] = np.nan
    found = np.empty((OPERATIONS, SIZE), np.float32)
    for floor in (x, np.zeros_like(x)):
        sum_of_x, _ = computed(REGISTERS, x, floor, x, np.float32(0), found)
        assert np.isnan(sum_of_x)
        assert np.isnan(found[3, place])


@njit
def copied(source, target, first):
    do.store(do.pointer(target), first, do.load((0,), do.pointer(source), first))


@pytest.mark.parametrize("first", [0, 1, 8, 13])
def test_any_offset_will_do(first):
    source, target = np.arange(64, dtype=np.float32) + 1, np.zeros(64, np.float32)
    copied(source, target, first)
    where = slice(first, first + WIDTH)
    np.testing.assert_array_equal(target[where], source[where])
    assert np.count_nonzero(target) == WIDTH


@njit
def outer_product(registers, weights, x, sums):
    row, before = do.load((0, 0), do.pointer(x), 0), do.load(registers, do.pointer(sums), 0)
    do.store(do.pointer(sums), 0, do.outer(do.pointer(weights), 1, row, before))


def test_outer_products_are_added_to_the_sums():
    rng = np.random.default_rng(0)
    weights, x = rng.integers(-9, 9, 4), rng.integers(-9, 9, 2 * WIDTH)
    sums = rng.integers(-9, 9, (3, 2 * WIDTH))
    expected, found = sums + np.outer(weights[1:], x), sums.astype(np.float32)
    outer_product((0,) * 6, weights.astype(np.float32), x.astype(np.float32), found)
    np.testing.assert_array_equal(found, expected)
