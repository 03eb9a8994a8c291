"""Block coordinate descent: each column is the minimiser, given those before it."""

from __future__ import annotations

import numpy as np
import pytest

from dpfact_flower.solver.exact import update_patients
from dpfact_flower.solver.kernels.columns import descend
from tests.problems import assert_near, column_by_column

ROWS = 300


@pytest.fixture(params=[1, 3, 20, 70])
def quadratic(request):
    """F, P and Q of ``1/2 tr(F Q F^T) - tr(F P^T)``; Q is a Gram matrix, as a solver's is."""
    rank = request.param
    rng = np.random.default_rng(rank)
    factor, target = (rng.uniform(-0.5, 1, (ROWS, rank)).astype(np.float32) for _ in range(2))
    wide = rng.uniform(-0.5, 1, (90, rank))
    return factor, (20 * target).astype(np.float32), wide.T @ wide


@pytest.mark.parametrize("floor", [0.0, -np.inf])
@pytest.mark.parametrize("mu", [0.0, 5.0, 1e3])
def test_a_sweep_minimises_over_one_column_after_the_other(quadratic, floor, mu):
    old, target, q = quadratic
    for _ in range(2):
        new = update_patients(old, target, q, mu, floor)
        assert_near(new, column_by_column(old, new, target, q, floor, mu), 1e-4)
        old = new
    assert new.any() == (mu < 1e3)


def test_a_sweep_in_float64_keeps_float64(quadratic):
    old, target, q = (x.astype(np.float64) for x in quadratic)
    columns = np.ascontiguousarray(old.T)
    descend(columns, np.ascontiguousarray(target.T), q, 0.0, 0.0)
    assert_near(columns.T, column_by_column(old, columns.T, target, q, 0.0), 1e-10)
