from dataclasses import astuple, replace

import numpy as np
import pytest

from dpfact_flower.errors import DataError, DivergenceError, SettingsError
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver import solve
from dpfact_flower.solver.exact import exact
from dpfact_flower.solver.psgd import psgd
from dpfact_flower.solver.solvers import solvers
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.cp import CPModel
from tests.bits import assert_bits
from tests.problems import assert_near, dense_model, dense_objective, make_problem

SHAPES = [(9, 5), (7, 5, 6), (5, 4, 3, 6)]


def run(case, solver="exact", **changes):
    settings = SolverSettings(rank=3, gamma=1.0, tau=2, solver=solver)
    return solve(**vars(case) | changes, settings=settings, rng=np.random.default_rng(0))


@pytest.mark.parametrize("solver", [exact, psgd])
def test_solve_runs_the_solver_asked_for(solver):
    case = make_problem()
    settings = SolverSettings(rank=3, gamma=1.0, tau=2, solver=solver.__name__)
    direct = solver(case.ask(settings, eta=0.004))
    result = run(case, solver.__name__, eta=0.004)
    assert result.objective == direct.objective
    assert_bits(result.factors, direct.factors)
    for ours, size in zip(result.factors, case.tensor.shape, strict=True):
        assert (ours.dtype, ours.shape) == (np.float32, (size, 3))
        assert ours.flags.c_contiguous
        assert ours.flags.owndata or ours.base is None or ours.base.nbytes == ours.nbytes


def swapped(matrices, position, matrix):
    return (*matrices[:position], matrix, *matrices[position + 1 :])


@pytest.mark.parametrize("name", ["factors", "anchors"])
def test_what_does_not_fit_the_tensor_is_refused_by_name(name):
    case = make_problem()
    good = getattr(case, name)
    for wrong in (good[:-1], swapped(good, 1, good[1][:1]), swapped(good, 1, good[1][:, :2])):
        with pytest.raises(DataError, match=rf"{name}: need shapes .*, got"):
            run(case, **{name: wrong})
    for value in (np.nan, np.inf, 1e300):
        spoiled = good[1].astype(np.float64)
        spoiled[0, 0] = value
        with pytest.raises(DataError, match=rf"{name}: not all values are finite"):
            run(case, **{name: swapped(good, 1, spoiled)})


def test_an_empty_tensor_is_refused():
    case = make_problem()
    empty = SparseTensor.from_coo(np.empty((0, 3), int), [], case.tensor.shape)
    with pytest.raises(DataError, match="no non-zero cells"):
        run(case, tensor=empty)


def test_double_precision_factors_are_taken_as_float32():
    case = make_problem()
    wide = tuple(f.astype(np.float64) for f in case.factors)
    assert_bits(run(case, factors=wide).factors, run(case).factors)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"solver": "psgd", "eta": 0.5, "gamma": 2.0}, "eta \\* gamma must be below 1"),
        ({"solver": "exact", "clip": 1.0},
         "clip: applies to psgd alone; set it to 0 with solver 'exact'"),
        ({"solver": "exact", "mu": 1.0, "relative_l21": 0.5},
         "mu: with solver 'exact', relative-l21 = 0.5"),
        ({"solver": "exact", "loss": "poisson"}, "loss: solver 'exact' minimises squared errors"),
        ({"solver": "psgd", "loss": "poisson"}, "loss: 'poisson' .* set scale to 'counts'"),
        ({"solver": "psgd", "loss": "bernoulli", "nonnegative": False},
         "loss: 'bernoulli' .* set nonnegative to true"),
        ({"solver": "psgd", "loss": "hinge"}, "loss: there is no 'hinge'; there are squared, pois"),
    ],
)  # fmt: skip
def test_what_a_solver_cannot_do_is_refused_before_it_computes(settings, line):
    case = make_problem()
    asked = SolverSettings(rank=3, **settings)
    with pytest.raises(SettingsError, match=f"^{line}"):
        solvers.find(asked.solver).check(asked)
    with pytest.raises(SettingsError, match=f"^{line}"):
        solve(case.tensor, case.factors, case.anchors, asked, np.random.default_rng(0))


def test_the_exact_solver_takes_any_elastic_weight():
    asked = SolverSettings(solver="exact", eta=0.5, gamma=100.0)
    solvers.find("exact").check(asked)  # raises no error


# --- Properties of every solver -------------------------------------------------------------------


def asked(solver, **changes) -> SolverSettings:
    given = {"rank": 3, "solver": solver.__name__, "eta": 0.02, "gamma": 0.0, "relative_l21": 0.0}
    return SolverSettings(**given | changes)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mu", [0.0, 0.8])
@pytest.mark.parametrize(
    ("solver", "zeros"), [(exact, "stratified"), (psgd, "none"), (psgd, "stratified")]
)
def test_what_it_reports_is_of_its_factors(solver, zeros, mu, shape):
    case, terms = make_problem(shape), {"gamma": 1.5, "mu": mu, "zeros": zeros}
    result = solver(case.ask(asked(solver, tau=3, **terms)))
    assert len(result.objective) == 4
    expected = [dense_objective(case, each, **terms) for each in (case.factors, result.factors)]
    assert [result.objective[0], result.objective[-1]] == pytest.approx(expected, rel=1e-5)
    assert result.objective[-1] < 0.95 * result.objective[0]
    for mine, factor in zip(result.grams, result.factors, strict=True):
        assert_near(mine, factor.astype(np.float64).T @ factor)
    found, expected = result.error, CPModel.of(*result.factors).squared_error(case.tensor)
    if solver is exact:  # exact does not visit the non-zero cells
        assert found.nonzeros is None
        found = replace(found, nonzeros=expected.nonzeros)
    assert astuple(found) == pytest.approx(astuple(expected), rel=1e-5)


@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize(("solver", "eta", "left"), [(exact, 0.02, 1e-5), (psgd, 0.1, 1e-3)])
def test_it_fits_a_tensor_that_can_be_fitted(solver, eta, left, nonnegative):
    counts = dense_model(make_problem((30, 6, 7), rank=2).factors)
    tensor = SparseTensor.from_coo(np.argwhere(counts), counts[counts > 0], counts.shape)
    options = asked(solver, rank=2, tau=300, eta=eta, nonnegative=nonnegative)
    result = solver(make_problem((30, 6, 7), rank=2, seed=9).ask(options, tensor=tensor))
    assert result.objective[-1] < left * tensor.norm_squared()


@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize(
    ("solver", "says"), [(exact, "float32"), (psgd, r"step size from 0\.02 down to")]
)
def test_factors_beyond_float32_are_a_divergence_error(solver, says, nonnegative):
    with pytest.raises(DivergenceError, match=says):
        solver(make_problem(scale=1e30).ask(asked(solver, nonnegative=nonnegative)))


@pytest.mark.parametrize("solver", [exact, psgd])
def test_inputs_are_left_alone(solver):
    case = make_problem(signed=True)
    copies = [f.copy() for f in (*case.factors, *case.anchors)]
    result = solver(case.ask(asked(solver, tau=2, mu=0.1), eta=0.003))
    assert_bits([*case.factors, *case.anchors], copies)
    assert all((f >= 0).all() for f in result.factors)
    if solver is exact:
        assert (result.eta, result.rollbacks) == (0.003, 0)


# --- Elastic weight -------------------------------------------------------------------------------


def elastic_weight(tensor, factors, settings):
    return solvers.find(settings.solver).elastic_weight(tensor, factors, settings)


@pytest.mark.parametrize(
    ("given", "weight"),
    [({"gamma": 2.5}, 2.5), ({"solver": "psgd", "relative_elastic": 1e9, "eta": 0.1}, 0.5 / 0.1)],
)
def test_a_given_elastic_weight_is_taken_and_a_relative_one_keeps_psgd_stable(given, weight):
    case = make_problem()
    assert elastic_weight(case.tensor, case.factors, SolverSettings(rank=3, **given)) == weight


@pytest.mark.parametrize("solver", ["exact", "psgd"])
def test_a_relative_weight_grows_as_the_curvature_it_is_up_against(solver):
    """With patients four times as large, the squared error is sixteen times as steep."""
    case = make_problem()
    settings = SolverSettings(rank=3, solver=solver, relative_elastic=1e-3)
    patients, *features = case.factors
    small, large = (
        elastic_weight(case.tensor, (scale * patients, *features), settings) for scale in (1, 4)
    )
    assert large == pytest.approx(16 * small)
    twice = elastic_weight(case.tensor, case.factors, replace(settings, relative_elastic=2e-3))
    assert twice == pytest.approx(2 * small)


def test_psgds_relative_weight_adds_up_over_a_pass_to_three_tenths_of_the_exact_solvers():
    """The weight is applied at every visit to a feature's row."""
    case = make_problem()
    whole, visited = (
        SolverSettings(rank=3, solver=name, relative_elastic=1e-3) for name in ("exact", "psgd")
    )
    visits = case.tensor.nnz / np.mean(case.tensor.feature_shape)
    each = elastic_weight(case.tensor, case.factors, visited)
    assert each * visits == pytest.approx(0.3 * elastic_weight(case.tensor, case.factors, whole))
