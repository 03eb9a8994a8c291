"""Each vector operation against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numba import njit

from dpfact_flower.solver import vector
from dpfact_flower.solver.vector import (
    add,
    address,
    at_least,
    fma,
    load,
    mul,
    prefetch,
    splat,
    store,
    total,
)

octets = arrays(np.float32, 8, elements=st.floats(-1000, 1000, width=32))


@njit
def computed(x, y, z, number, found):
    """One operation a row."""
    a, b, c = load(address(x, 0), 0), load(address(y, 0), 0), load(address(z, 0), 0)
    rows = address(found, 0)
    store(rows, 0, mul(a, b))
    store(rows, 1, add(a, b))
    store(rows, 2, fma(a, b, c))
    store(rows, 3, at_least(a, b))
    store(rows, 4, splat(number))
    prefetch(rows, 5)
    return total(a)


@settings(deadline=None)  # the first call compiles
@given(octets, octets, octets, st.floats(-1000, 1000, width=32))
def test_operations_are_numpys(x, y, z, number):
    found = np.empty(40, np.float32)
    sum_of_x = computed(x, y, z, np.float32(number), found)
    rows = found.reshape(5, 8)
    np.testing.assert_array_equal(rows[0], x * y)
    np.testing.assert_array_equal(rows[1], x + y)
    # One rounding or two: between both lies the rounding of the product.
    exact = x.astype(np.float64) * y + z
    np.testing.assert_allclose(rows[2], exact, rtol=1e-6, atol=1e-6 * np.abs(x * y).max())
    np.testing.assert_array_equal(rows[3], np.maximum(x, y))
    np.testing.assert_array_equal(rows[4], np.float32(number))
    assert sum_of_x == pytest.approx(x.sum(dtype=np.float64), abs=1e-6 * float(np.abs(x).sum()))


def test_a_nan_passes_the_floor_and_reaches_the_sum():
    x = np.arange(8, dtype=np.float32)
    x[3] = np.nan
    found = np.empty(40, np.float32)
    assert np.isnan(computed(x, x, x, np.float32(0), found))
    assert np.isnan(found[24 + 3])
    assert np.isnan(computed(x, np.zeros(8, np.float32), x, np.float32(0), found))
    assert np.isnan(found[24 + 3])


@njit
def copied(source, target, first):
    store(address(target, first), 1, load(address(source, first), 1))


@pytest.mark.parametrize("first", [0, 1, 8, 13])
def test_any_address_will_do(first):
    source, target = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    copied(source, target, first)
    where = slice(first + 8, first + 16)
    np.testing.assert_array_equal(target[where], source[where])
    assert np.count_nonzero(target) == 8


def test_they_work_here():
    assert vector.works()
