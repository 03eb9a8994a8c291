"""What NumPy does too slowly, against NumPy."""

import numpy as np
import pytest

from dpfact_flower.tensor.arrays import distinct


@pytest.mark.parametrize("size", [0, 1, 2, 1000])
@pytest.mark.parametrize("low", [-5, 0, np.iinfo(np.int64).max - 7])
def test_distinct_is_unique(size, low):
    numbers = low + np.random.default_rng(size).integers(0, 7, size)
    np.testing.assert_array_equal(distinct(numbers), np.unique(numbers))
