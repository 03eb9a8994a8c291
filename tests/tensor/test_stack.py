import numpy as np
import pytest

from dpfact_flower.tensor.stack import row_offsets, stack_factors, stacked_values
from tests.problems import assert_near, dense_model, make_problem

SHAPES = [(7, 5), (7, 5, 6), (5, 4, 3, 6)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [1, 11, 50])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_stacked_values_are_those_of_the_dense_model(shape, rank, dtype):
    factors = tuple(f.astype(dtype) for f in make_problem(shape, rank=rank, signed=True).factors)
    cells = np.argwhere(np.ones(shape)).astype(np.int32)
    values = stacked_values(cells, stack_factors(factors), row_offsets(shape))
    assert values.dtype == np.float64
    assert_near(values, dense_model(factors).ravel(), 1e-5 if dtype == np.float32 else 1e-13)
