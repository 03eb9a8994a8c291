"""Losses other than the squared loss, compared with slow references and pyttb."""

import importlib
import sys
from dataclasses import replace

import numpy as np
import pytest

from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver import solve
from dpfact_flower.solver.kernels.order import visits, zero_visits
from dpfact_flower.solver.losses import Loss, losses
from dpfact_flower.solver.psgd import _sampled_loss, psgd
from dpfact_flower.tensor.stack import stack_factors
from tests.problems import dense_model, make_problem

NAMES = ("squared", "poisson", "bernoulli")
LIKELIHOODS = NAMES[1:]
SHAPES = [(7, 5, 6), (5, 4, 3, 6)]


def asked(loss, **changes):
    given = {"rank": 3, "solver": "psgd", "scale": "counts", "gamma": 0.0} | changes
    return SolverSettings(loss=loss, **given)


def of_all_cells(loss: Loss, tensor, dense) -> float:
    return float(loss.value(tensor.to_dense(), dense).sum())


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_finite_differences(name):
    loss = losses.find(name)
    data, model = np.meshgrid([0.0, 1.0, 3.0], [0.02, 0.4, 2.0, 9.0])
    step = 1e-6 * model
    rise = (loss.value(data, model + step) - loss.value(data, model - step)) / (2 * step)
    np.testing.assert_allclose(np.vectorize(loss.gradient)(data, model), rise, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_the_best_model_that_is_alike_at_all_cells(name):
    loss = losses.find(name)
    tensor = loss.prepared(make_problem().tensor)
    level = loss.nothing(tensor.values.sum() / tensor.cells)
    found = loss.of_nothing(tensor)
    assert found == pytest.approx(of_all_cells(loss, tensor, np.full(tensor.shape, level)))
    if name != "squared":
        for other in (0.9 * level, 1.1 * level):
            assert found < of_all_cells(loss, tensor, np.full(tensor.shape, other))


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_loss_of_all_cells_is_estimated_without_bias(name, shape):
    case, loss = make_problem(shape, density=0.2), losses.find(name)
    tensor = loss.prepared(case.tensor)
    zeros = zero_visits(tensor, asked(name))
    stack, found = stack_factors(case.factors), []
    for seed in range(60):
        drawn = [*visits(tensor, zeros, np.random.default_rng(seed), stack[:, :3].copy())]
        found.append(_sampled_loss(loss, drawn, stack, case.factors, zeros=True))
    expected = of_all_cells(loss, tensor, dense_model(case.factors))
    error = np.std(found) / np.sqrt(len(found)) + 1e-5 * expected
    assert abs(np.mean(found) - expected) < 4 * error
    if name == "poisson":  # terms that are linear in the model need no sample
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    entries = [*visits(tensor, 0, np.random.default_rng(0))]
    alone = loss.value(tensor.to_dense(), dense_model(case.factors))[tensor.to_dense() > 0].sum()
    assert _sampled_loss(loss, entries, stack, case.factors, zeros=False) == pytest.approx(alone)


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("zeros", ["none", "stratified"])
def test_passes_descend_their_own_loss(name, zeros):
    loss, case = losses.find(name), make_problem((30, 6, 7), highest=2)
    tensor = loss.prepared(case.tensor)
    settings = asked(name, tau=20, zeros=zeros, mu=0.1, gamma=-1.0)
    result = solve(tensor, case.factors, case.anchors, settings, np.random.default_rng(0))
    assert result.objective[-1] < 0.9 * result.objective[0]
    assert result.error is None
    assert all((factor >= 0).all() for factor in result.factors)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_model_that_is_zero_at_counts_is_found_again(name):
    loss, case = losses.find(name), make_problem((30, 6, 7), highest=2)
    for factor in case.factors:
        factor[::2] = 0
    tensor = loss.prepared(case.tensor)
    settings = asked(name, tau=30)
    result = solve(tensor, case.factors, case.anchors, settings, np.random.default_rng(0))
    assert result.objective[-1] < loss.of_nothing(tensor) * 1.1 < result.objective[0]


@pytest.mark.process  # importing pyttb starts a process to query the platform
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_it_comes_near_pyttbs_gcp_opt(name):
    pyttb = pytest.importorskip("pyttb")
    handles = pytest.importorskip("pyttb.gcp.handles").Objectives
    optimizer = pytest.importorskip("pyttb.gcp.optimizers").LBFGSB(maxiter=300)
    objective = {"poisson": handles.POISSON, "bernoulli": handles.BERNOULLI_ODDS}[name]
    loss, case = losses.find(name), make_problem((30, 6, 7), highest=2)
    tensor = loss.prepared(case.tensor)
    dense = tensor.to_dense().astype(np.float64)
    init = pyttb.ktensor([np.asfortranarray(factor, np.float64) for factor in case.factors])
    peer, _, info = pyttb.gcp_opt(
        pyttb.tensor(dense), 3, objective, optimizer, init=init, printitn=0
    )
    theirs = of_all_cells(loss, tensor, peer.full().data)
    assert theirs == pytest.approx(info["final_f"])
    result = psgd(case.ask(asked(name, tau=100), tensor=tensor))
    ours, nothing = of_all_cells(loss, tensor, dense_model(result.factors)), loss.of_nothing(tensor)
    assert nothing - ours > 0.75 * (nothing - theirs), "less than a stochastic gradient can"


def test_presence_is_all_that_bernoulli_looks_at():
    tensor = losses.find("bernoulli").prepared(make_problem().tensor)
    assert (tensor.values == 1).all()
    assert losses.find("poisson").prepared(tensor) is tensor


@pytest.mark.slow  # compiles kernels
def test_a_gradient_of_numbers_is_compiled_again_when_what_it_reads_changes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    case, code = make_problem(), "def slope(x, m): return SCALE * (m - x if m > x else m - x)"
    for scale in (1.0, 0.0):
        (tmp_path / "mine.py").write_text(f"SCALE = {scale}\n{code}")
        sys.modules.pop("mine", None)
        mine = replace(losses.find("squared"), gradient=importlib.import_module("mine").slope)
        monkeypatch.setitem(losses._more, "mine", mine)
        settings = asked("mine", gamma=-1.0, tau=1)
        result = solve(**vars(case), settings=settings, rng=np.random.default_rng(0))
        assert np.array_equal(result.factors[0], case.factors[0]) == (scale == 0)


def test_a_clip_bounds_rows_as_paper_mode_claims():
    case = make_problem(highest=2)
    moved = psgd(case.ask(asked("poisson", clip=0.05, eta=0.01, zeros="none")))
    for before, after in zip(case.factors, moved.factors, strict=True):
        furthest = 0.01 * 0.05 * case.tensor.nnz
        assert np.linalg.norm(after - before) <= furthest * (1 + 1e-5)
