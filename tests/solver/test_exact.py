import math
from functools import partial, reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import khatri_rao
from scipy.optimize import minimize, nnls

from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver.exact import descend, exact, update_features, update_patients
from dpfact_flower.solver.mttkrp import mttkrp
from tests.problems import (
    assert_near,
    column_by_column,
    dense_objective,
    make_problem,
    model_size,
    mttkrp_by_entries,
)

SHAPES = [(9, 5), (7, 5, 6), (5, 4, 3, 6)]
exact_settings = partial(SolverSettings, rank=3, solver="exact", tau=1, gamma=0.0, relative_l21=0.0)


def unfolded(case, mode):
    """Return the rows of the matricised tensor, and the Khatri-Rao product for their regression."""
    data = np.moveaxis(case.tensor.to_dense(), mode, 0).reshape(case.tensor.shape[mode], -1)
    others = (f.astype(np.float64) for n, f in enumerate(case.factors) if n != mode)
    return data, reduce(khatri_rao, others)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gamma", [0.0, 2.0])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_feature_updates_reach_dense_least_squares(shape, gamma, nonnegative):
    """Rows times sqrt(gamma) pull to the anchors. Free rows take one sweep."""
    case = make_problem(shape, signed=not nonnegative)
    for mode in range(1, len(shape)):
        factor, anchor = case.factors[mode], case.anchors[mode - 1]
        data, design = unfolded(case, mode)
        given = mttkrp_by_entries(case.tensor, case.factors, mode), design.T @ design, anchor, gamma
        data = np.hstack([data, math.sqrt(gamma) * anchor.astype(np.float64)])
        design = np.vstack([design, math.sqrt(gamma) * np.eye(case.rank)])
        if nonnegative:
            for _ in range(500):
                factor = update_features(factor, *given, 0.0)
            assert_near(factor, np.stack([nnls(design, row)[0] for row in data]), 1e-4)
        else:
            expected = np.linalg.lstsq(design, data.T, rcond=None)[0].T
            assert_near(update_features(factor, *given, -math.inf), expected, 1e-6)


@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize("mu", [0.0, 0.7, 3.0])
def test_repeated_patient_updates_reach_the_group_lasso(nonnegative, mu):
    case = make_problem((8, 4, 5))
    data, design = unfolded(case, 0)
    q, cross = design.T @ design, data @ design

    def value(flat):
        A = flat.reshape(8, 3)
        norms = np.sqrt(np.sum(A**2, axis=0) + 1e-16)
        slope = A @ q - cross + mu * A / norms
        return 0.5 * np.sum(A @ q * A) - np.sum(A * cross) + mu * norms.sum(), slope.ravel()

    bounds = [(0.0 if nonnegative else None, None)] * 24
    options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 20_000, "maxfun": 200_000}
    best = minimize(value, np.full(24, 0.2), jac=True, bounds=bounds, options=options)
    A = case.factors[0]
    product = mttkrp_by_entries(case.tensor, case.factors, 0)
    for _ in range(1000):
        A = update_patients(A, product, q, mu, 0.0 if nonnegative else -math.inf)
    assert value(A.astype(float).ravel())[0] == pytest.approx(best.fun, rel=1e-7)
    if mu == 3.0:
        assert not A.any(axis=0).all(), "this mu is meant to switch a column off"


def assert_never_rises(case, taus, gamma=0.0, mu=0.0, **changes):
    """The objective is summed over the dense tensor. The reported one has float32 precision."""

    def rounding(*models) -> float:
        """Return a bound on the rounding error of an objective that is summed from its terms."""
        return 1e-8 * (math.sqrt(case.tensor.norm_squared()) + max(map(model_size, models))) ** 2

    before, start = dense_objective(case, case.factors, gamma=gamma, mu=mu), case.factors
    for tau in taus:
        result = exact(case.ask(exact_settings(tau=tau, gamma=gamma, mu=mu, **changes)))
        now = dense_objective(case, result.factors, gamma=gamma, mu=mu)
        assert now <= before + rounding(start, result.factors)
        # Compare objectives, where <X, M> and A's Gram matrix are summed in float32.
        off = 1e3 * rounding(result.factors)
        assert result.objective[-1] == pytest.approx(now, rel=1e-12, abs=off)
        before, start = now, result.factors


@pytest.mark.nightly
@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from(SHAPES),
    gamma=st.sampled_from([0.0, 1.0, 50.0]),
    mu=st.sampled_from([0.0, 1.0, 20.0]),
    nonnegative=st.booleans(),
)
def test_the_objective_never_rises(seed, shape, gamma, mu, nonnegative):
    case = make_problem(shape, seed=seed, highest=300, signed=not nonnegative)
    assert_never_rises(case, (1, 2, 3, 5, 8, 13, 21, 30), gamma, mu, nonnegative=nonnegative)


@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize("gamma", [0.0, 2.0])
@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize("dead", [0, 1])
def test_dead_columns_make_no_nan(nonnegative, gamma, mu, dead):
    case = make_problem()
    for column in range(2):  # one dead column, then only dead columns
        case.factors[dead][:, column:] = 0
        result = exact(case.ask(exact_settings(tau=5, gamma=gamma, mu=mu, nonnegative=nonnegative)))
        assert all(np.isfinite(f).all() for f in result.factors)
        assert np.isfinite(result.objective).all()


@pytest.mark.parametrize("nonnegative", [True, False])
def test_a_mu_beyond_every_gradient_switches_all_off_and_features_follow_their_anchors(nonnegative):
    case = make_problem()
    result = exact(case.ask(exact_settings(mu=1e5, gamma=2.0, nonnegative=nonnegative)))
    assert not result.factors[0].any()
    for ours, anchor in zip(result.factors[1:], case.anchors, strict=True):
        np.testing.assert_allclose(ours, anchor, rtol=1e-5, atol=1e-6)
    assert result.objective[-1] == pytest.approx(0.5 * case.tensor.norm_squared(), rel=1e-5)


@pytest.mark.parametrize(("share", "back"), [(0.99, True), (1.01, False)])
def test_a_phenotype_that_is_off_comes_back_by_its_own_gradient_alone(share, back):
    case = make_problem(rank=1)
    case.factors[0][:] = 0
    pull = np.linalg.norm(np.maximum(mttkrp(case.tensor, case.factors, 0), 0))
    result = exact(case.ask(exact_settings(rank=1, mu=float(share * pull))))
    assert bool(result.factors[0].any()) is back


def test_equal_phenotypes_make_a_singular_system_but_no_rise():
    case = make_problem(signed=True)
    for factor in case.factors:
        factor[:, 1] = factor[:, 0]
    assert_never_rises(case, range(1, 11), nonnegative=False)


# --- Each column of a sweep is the minimiser, given the previous columns


@pytest.fixture(params=[1, 3, 20, 70])
def quadratic(request):
    """F, P and Q of ``1/2 tr(F Q F^T) - tr(F P^T)``, where Q is a Gram matrix."""
    rank = request.param
    rng = np.random.default_rng(rank)
    factor, target = (rng.uniform(-0.5, 1, (300, rank)).astype(np.float32) for _ in range(2))
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
