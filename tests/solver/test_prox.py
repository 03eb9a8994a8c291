from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from dpfact_flower.solver.psgd import shrink_columns


def minimiser(column: np.ndarray, threshold: float, lower: float | None) -> np.ndarray:
    """Of 1/2 ||t - column||^2 + threshold ||t||, found without knowing its closed form."""

    def value(t):
        return 0.5 * np.sum((t - column) ** 2) + threshold * np.sqrt(np.sum(t**2) + 1e-18)

    def slope(t):
        return t - column + threshold * t / np.sqrt(np.sum(t**2) + 1e-18)

    start = np.full_like(column, 0.3)
    bounds = [(lower, None)] * len(column)
    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 10_000, "maxfun": 100_000}
    found = minimize(value, start, jac=slope, bounds=bounds, method="L-BFGS-B", options=options)
    return found.x


@pytest.mark.parametrize("lower", [None, 0.0])
@pytest.mark.parametrize("threshold", [0.0, 0.4, 1.3, 50.0])
def test_project_then_shrink_is_the_minimiser_of_its_definition(threshold, lower):
    A = np.random.default_rng(0).normal(size=(6, 4))
    expected = np.stack([minimiser(column, threshold, lower) for column in A.T], axis=1)
    projected = A if lower is None else np.maximum(A, lower)
    shrink_columns(projected, threshold)
    np.testing.assert_allclose(projected, expected, atol=1e-5)


def test_columns_no_longer_than_the_threshold_become_zero():
    A = np.array([[3.0, 0.3, 0.0, 1e25], [4.0, 0.4, 0.0, 1e25]], np.float32)  # too large to square
    shrink_columns(A, 1.0)
    np.testing.assert_allclose(A, [[2.4, 0, 0, 1e25], [3.2, 0, 0, 1e25]], rtol=1e-6)
