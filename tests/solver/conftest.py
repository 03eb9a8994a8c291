"""Problems and references as fixtures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.problems import Problem, dense_model, dense_objective, make_problem, visit_one_by_one


@pytest.fixture(scope="session")
def problem() -> Callable[..., Problem]:
    return make_problem


@pytest.fixture(scope="session")
def model() -> Callable[..., np.ndarray]:
    return dense_model


@pytest.fixture(scope="session")
def objective() -> Callable[..., float]:
    return dense_objective


@pytest.fixture(scope="session")
def reference_visits() -> Callable[..., list[np.ndarray]]:
    return visit_one_by_one
