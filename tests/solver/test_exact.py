from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import khatri_rao
from scipy.optimize import minimize, nnls

from dpfact_flower.errors import DivergenceError
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver.exact import exact, update_features, update_patients
from dpfact_flower.solver.mttkrp import mttkrp
from dpfact_flower.solver.objective import LocalProblem
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.cp import CPModel
from tests.problems import loss_bound, mttkrp_by_entries
from tests.rounding import DIVISION, assert_within, unit
from tests.rounding import gamma as gamma_of

SHAPES = [(9, 5), (7, 5, 6), (5, 4, 3, 6)]


def exact_settings(**changes) -> SolverSettings:
    return SolverSettings(
        **({"rank": 3, "solver": "exact", "tau": 1, "gamma": 0.0, "relative_l21": 0.0} | changes)
    )


def unfolded(case, mode):
    """Rows of the matricised tensor, and the Khatri-Rao product they are regressed on."""
    data = np.moveaxis(case.tensor.to_dense(), mode, 0).reshape(case.tensor.shape[mode], -1)
    others = [f.astype(np.float64) for n, f in enumerate(case.factors) if n != mode]
    design = others[0]
    for other in others[1:]:
        design = khatri_rao(design, other)
    return data, design


def ridge_rows(case, mode, gamma):
    """As `unfolded`, with sqrt(gamma) rows that pull to the anchors appended."""
    data, design = unfolded(case, mode)
    rank = case.rank
    data = np.hstack([data, math.sqrt(gamma) * case.anchors[mode - 1].astype(np.float64)])
    return data, np.vstack([design, math.sqrt(gamma) * np.eye(rank)])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_free_feature_update_is_dense_least_squares(problem, shape, gamma):
    case = problem(shape, signed=True)
    for mode in range(1, len(shape)):
        data, design = ridge_rows(case, mode, gamma)
        expected = np.linalg.lstsq(design, data.T, rcond=None)[0].T
        plain = unfolded(case, mode)[1]
        updated = update_features(
            case.factors[mode], mttkrp_by_entries(case.tensor, case.factors, mode),
            plain.T @ plain, case.anchors[mode - 1], gamma, -math.inf,
        )  # fmt: skip
        # Solved in float64, whose roundings the normal equations' condition multiplies by a few
        # terms' worth, and rounded to float32 once.
        solved = 100 * np.finfo(float).eps * np.linalg.cond(design) ** 2 * np.abs(expected).max()
        assert_within(updated, expected, unit() * np.abs(expected) + solved)


def least_change(rank, factor, target, q, moved, panel=8):
    """What a column update sees in a gradient: less than this from zero, it leaves alone.

    Its own roundings, as in `column_by_column`; that the columns after it have `moved` since; and
    that the new column itself is rounded. So where nothing moves any more, factors minimise the
    objective exactly for a target that is at most this far from the given one.
    """
    size = np.abs(target) + np.abs(factor) @ np.abs(q)
    own = (moved + DIVISION * unit() * np.abs(factor)) @ np.abs(q)
    return own + gamma_of(2 * rank + 2 * panel + 4) * size


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_repeated_column_updates_reach_nonnegative_least_squares(problem, shape, gamma):
    case = problem(shape)
    for mode in range(len(shape)):
        data, design = ridge_rows(case, mode, gamma) if mode else unfolded(case, 0)
        expected = np.stack([nnls(design, row)[0] for row in data])
        factor, product = case.factors[mode], mttkrp_by_entries(case.tensor, case.factors, mode)
        plain = unfolded(case, mode)[1]
        before = factor
        for _ in range(500):
            before = factor
            if mode:
                anchor = case.anchors[mode - 1]
                factor = update_features(factor, product, plain.T @ plain, anchor, gamma, 0.0)
            else:
                factor = update_patients(factor, product, plain.T @ plain, 0.0, 0.0)
        # The solution follows the target by at most the reciprocal of the least eigenvalue.
        q, target = design.T @ design, data @ design
        moved = np.abs(factor.astype(np.float64) - before)
        bound = np.linalg.norm(least_change(case.rank, factor, target, q, moved), axis=1)
        assert moved.max() <= 4 * unit() * factor.max()
        assert_within(factor, expected, bound[:, None] / np.linalg.eigvalsh(q)[0])


@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize("mu", [0.0, 0.7, 3.0])
def test_repeated_patient_updates_reach_the_group_lasso(problem, nonnegative, mu):
    case = problem((8, 4, 5))
    data, design = unfolded(case, 0)
    q, cross = design.T @ design, data @ design

    def value(flat):
        A = flat.reshape(8, 3)
        norms = np.sqrt(np.sum(A**2, axis=0) + 1e-16)
        slope = A @ q - cross + mu * A / norms
        return 0.5 * np.sum(A @ q * A) - np.sum(A * cross) + mu * norms.sum(), slope.ravel()

    bounds = [(0.0 if nonnegative else None, None)] * 24
    options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 20_000, "maxfun": 200_000}
    best = minimize(
        value, np.full(24, 0.2), jac=True, bounds=bounds, method="L-BFGS-B", options=options
    )
    A = case.factors[0]
    before, product = A, mttkrp_by_entries(case.tensor, case.factors, 0)
    for _ in range(1000):
        before, A = A, update_patients(A, product, q, mu, 0.0 if nonnegative else -math.inf)
    # With a least eigenvalue e, a gradient of norm g is no more than g^2 / (2 e) above the least.
    moved = np.abs(A.astype(np.float64) - before)
    left = np.linalg.norm(least_change(3, A, cross, q, moved))
    bound = left**2 / (2 * np.linalg.eigvalsh(q)[0])
    reference = 1e-9 * abs(best.fun) + 1e-8 * 3 * mu  # the minimiser's own, and that of its norms
    assert value(A.astype(float).ravel())[0] == pytest.approx(
        best.fun, rel=0, abs=bound + reference
    )
    if mu == 3.0:
        assert not A.any(axis=0).all(), "this mu is meant to switch a column off"


def rise_by_rounding(case, *models):
    """What roundings alone may raise the objective by in one update of a column, at most.

    An update misses a column's minimum by its gradient's roundings over q_rr, and costs half their
    square over q_rr. With k of them, each relative to the gradient's terms, these are at most
    k u sqrt(q_rr) (||x|| + sum_s ||m_s||) for a row x of the tensor and the model's components m_s
    of it (Cauchy-Schwarz). So q_rr cancels, and rows add up to the whole tensor and components.
    """
    wide = [[f.astype(np.float64) for f in model] for model in models]
    components = max(
        np.prod([np.linalg.norm(f, axis=0) for f in model], axis=0).sum() for model in wide
    )
    size = math.sqrt(case.tensor.norm_squared()) + components
    roundings = len(case.factors) + case.tensor.nnz + 2 * case.rank + 2 * 8 + 4
    return 0.5 * (gamma_of(roundings) * size) ** 2


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from(SHAPES),
    gamma=st.sampled_from([0.0, 1.0, 50.0]),
    mu=st.sampled_from([0.0, 1.0, 20.0]),
    nonnegative=st.booleans(),
)
def test_the_objective_never_rises(problem, objective, seed, shape, gamma, mu, nonnegative):
    """That of the factors, summed over the dense tensor; the reported one has float32's digits."""
    case = problem(shape, seed=seed, highest=300, signed=not nonnegative)
    before, start, last = objective(case, case.factors, gamma=gamma, mu=mu), case.factors, 0
    for tau in (1, 2, 3, 5, 8, 13, 21, 30):
        options = exact_settings(tau=tau, gamma=gamma, mu=mu, nonnegative=nonnegative)
        result = exact(case.ask(options))
        now = objective(case, result.factors, gamma=gamma, mu=mu)
        updates = (tau - last) * case.rank * (4 + 2 * (len(shape) - 1))  # sweeps of A, of others
        assert now <= before + updates * rise_by_rounding(case, start, result.factors)
        assert_is_the_objective(case, result.objective[-1], result.factors, now)
        before, start, last = now, result.factors, tau


def assert_is_the_objective(case, found, factors, expected):
    """<X, M> is made of N products an entry and sums over entries and R; ||M||^2 of A's Gram
    matrix, summed in float32 over patients. All else is float64."""
    roundings = len(factors) + case.tensor.nnz + case.tensor.n_patients + case.rank
    assert found == pytest.approx(
        expected, rel=1e-12, abs=loss_bound(case.tensor, factors, roundings)
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_objective_is_that_of_the_dense_tensor(problem, objective, shape):
    case = problem(shape)
    options = exact_settings(tau=4, gamma=1.5, mu=0.8)
    result = exact(case.ask(options))
    assert len(result.objective) == 5
    for value, factors in (
        (result.objective[0], case.factors),
        (result.objective[-1], result.factors),
    ):
        expected = objective(case, factors, gamma=1.5, mu=0.8)
        assert_is_the_objective(case, value, factors, expected)


@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_the_gram_matrices_it_reports_are_those_of_its_factors(problem, mu):
    case = problem((7, 5, 6))
    options = exact_settings(tau=2, gamma=0.5, mu=mu)
    found = exact(case.ask(options))
    for mine, factor in zip(found.grams, found.factors, strict=True):
        wide = factor.astype(np.float64)
        # A's may be summed in float32 over the patients: a product, and as many sums.
        bound = gamma_of(len(wide) + 1) * (np.abs(wide).T @ np.abs(wide))
        assert_within(mine, wide.T @ wide, bound)


@pytest.mark.parametrize("mu", [0.0, 0.1])
def test_the_error_it_reports_is_that_of_its_factors(problem, mu):
    case = problem((30, 6, 5), seed=3)
    result = exact(case.ask(exact_settings(tau=3, mu=mu, gamma=0.3)))
    expected = CPModel.of(*result.factors).squared_error(case.tensor)
    assert result.error.all_cells == pytest.approx(
        expected.all_cells, rel=0, abs=1e-6 * expected.data
    )
    assert (result.error.data, result.error.cells, result.error.nnz) == (
        pytest.approx(expected.data), expected.cells, expected.nnz,
    )  # fmt: skip
    assert result.error.nonzeros is None


@pytest.mark.parametrize("nonnegative", [True, False])
def test_it_fits_a_tensor_that_can_be_fitted(problem, model, nonnegative):
    case = problem((30, 6, 7), rank=2)
    counts = model(case.factors)
    tensor = SparseTensor.from_coo(np.argwhere(counts), counts[counts > 0], counts.shape)
    start = problem((30, 6, 7), rank=2, seed=9).factors
    options = exact_settings(rank=2, tau=300, nonnegative=nonnegative)
    result = exact(LocalProblem(tensor, start, start[1:], options, np.random.default_rng(0)))
    assert result.objective[-1] < 1e-5 * tensor.norm_squared()


@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize("gamma", [0.0, 2.0])
@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize("dead", [0, 1])
def test_dead_columns_make_no_nan(problem, nonnegative, gamma, mu, dead):
    case = problem()
    for column in range(2):  # one dead column, then none but dead ones
        case.factors[dead][:, column:] = 0
        options = exact_settings(tau=5, gamma=gamma, mu=mu, nonnegative=nonnegative)
        result = exact(case.ask(options))
        assert all(np.isfinite(f).all() for f in result.factors)
        assert np.isfinite(result.objective).all()


@pytest.mark.parametrize("nonnegative", [True, False])
def test_a_mu_beyond_every_gradient_switches_all_off_and_features_follow_their_anchors(
    problem, nonnegative
):
    case = problem()
    options = exact_settings(mu=1e5, gamma=2.0, nonnegative=nonnegative)
    result = exact(case.ask(options))
    assert not result.factors[0].any()
    for ours, anchor in zip(result.factors[1:], case.anchors, strict=True):
        np.testing.assert_allclose(ours, anchor, rtol=1e-5, atol=1e-6)
    assert result.objective[-1] == pytest.approx(0.5 * case.tensor.norm_squared(), rel=1e-5)


@pytest.mark.parametrize(("share", "back"), [(0.99, True), (1.01, False)])
def test_a_phenotype_that_is_off_comes_back_by_its_own_gradient_alone(problem, share, back):
    case = problem(rank=1)
    case.factors[0][:] = 0
    pull = np.linalg.norm(np.maximum(mttkrp(case.tensor, case.factors, 0), 0))
    options = exact_settings(rank=1, mu=float(share * pull))
    result = exact(case.ask(options))
    assert bool(result.factors[0].any()) is back


def test_equal_phenotypes_make_a_singular_system_but_no_rise(problem, objective):
    case = problem(signed=True)
    for factor in case.factors:
        factor[:, 1] = factor[:, 0]
    before, start = objective(case, case.factors), case.factors
    for tau in range(1, 11):
        options = exact_settings(tau=tau, nonnegative=False)
        result = exact(case.ask(options))
        now = objective(case, result.factors)
        updates = case.rank * (4 + 2 * 2)  # sweeps of A, and of two others
        assert now <= before + updates * rise_by_rounding(case, start, result.factors)
        before, start = now, result.factors


@pytest.mark.parametrize("nonnegative", [True, False])
def test_factors_beyond_float32_are_a_divergence_error(problem, nonnegative):
    case = problem(scale=1e30)
    options = exact_settings(nonnegative=nonnegative)
    with pytest.raises(DivergenceError, match="float32"):
        exact(case.ask(options))


def test_inputs_are_left_alone(problem):
    case = problem(signed=True)
    copies = [f.copy() for f in (*case.factors, *case.anchors)]
    result = exact(case.ask(exact_settings(tau=2, mu=0.1), eta=0.003))
    for f, copy in zip((*case.factors, *case.anchors), copies, strict=True):
        np.testing.assert_array_equal(f, copy)
    assert all((f >= 0).all() for f in result.factors)
    assert (result.eta, result.rollbacks) == (0.003, 0)
