import itertools
import math
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import minimize

import dpfact_flower.tensor.sparse as tensor_module
from dpfact_flower.errors import DivergenceError
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver.kernels.order import visits, zero_visits
from dpfact_flower.solver.psgd import psgd, shrink_columns
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.stack import row_offsets, stack_factors, stacked_values
from tests.bits import assert_bits
from tests.problems import assert_moved, dense_model, make_problem, shrunk, visit_one_by_one

SHAPES = [(9, 5), (7, 5, 6), (5, 4, 3, 6)]
psgd_settings = partial(SolverSettings, rank=3, solver="psgd", tau=1, eta=0.02, gamma=0.0)


def assert_is_one_pass_by_hand(case, options, seed, result):
    """Undone passes leave nothing but the draws that they used."""
    rng, model = np.random.default_rng(seed), stack_factors(case.factors)[:, : case.rank]
    for _ in range(1 + result.rollbacks):
        drawn = list(visits(case.tensor, zero_visits(case.tensor, options), rng, model))
    eta = options.eta / 2**result.rollbacks
    cells = np.concatenate([rows for rows, _ in drawn]) - row_offsets(case.tensor.shape)[:-1]
    counts = np.concatenate([counts for _, counts in drawn])
    expected = visit_one_by_one(
        case.factors, case.anchors, cells, counts,
        eta=eta, gamma=options.gamma, clip=options.clip,
        floor=0.0 if options.nonnegative else -math.inf,
    )  # fmt: skip
    for r in range(case.rank):
        expected[0][:, r] = shrunk(expected[0][:, r], eta * options.mu)
    assert_moved(result.factors, case.factors, expected)
    assert result.eta == pytest.approx(min(eta * 1.05, options.eta))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("zeros", ["none", "stratified"])
@pytest.mark.parametrize(
    "terms", [{}, {"gamma": 4.0, "mu": 2.0}, {"gamma": 4.0, "clip": 0.5, "nonnegative": False}]
)
def test_a_pass_equals_algorithm_1_by_hand(shape, zeros, terms):
    case = make_problem(shape, signed=not terms.get("nonnegative", True))
    options = psgd_settings(zeros=zeros, zero_ratio=0.7, **terms)
    assert_is_one_pass_by_hand(case, options, 4, psgd(case.ask(options, 4)))


@pytest.mark.parametrize("zeros", ["none", "stratified"])
def test_an_undone_pass_leaves_no_trace(zeros):
    case = make_problem(highest=40, scale=2.0)
    options = psgd_settings(eta=0.5, zeros=zeros)
    result = psgd(case.ask(options, 8))
    assert result.rollbacks > 0
    assert_is_one_pass_by_hand(case, options, 8, result)


def gradient_estimate(case, zeros, rng, model):
    """Sum the weighted data gradient over one pass's visits, for the first feature factor."""
    tensor = case.tensor
    total = np.zeros(case.factors[1].shape)
    stack, offsets = stack_factors(case.factors), row_offsets(tensor.shape)
    for rows, counts in visits(tensor, zeros, rng, model):
        cells = (rows - offsets[:-1]).astype(np.int32)
        error = stacked_values(cells, stack, offsets) - np.maximum(counts, 0)
        error *= np.where(counts > 0, 1.0, -counts)
        others = case.factors[0][cells[:, 0]] * case.factors[2][cells[:, 2]]
        np.add.at(total, cells[:, 1], error[:, None] * others)
    return total


@pytest.mark.slow
@pytest.mark.parametrize("drawn_from", ["nothing", "itself", "another", "one cell"])
def test_the_stratified_gradient_is_unbiased(drawn_from):
    case = make_problem((6, 4, 5), density=0.4)
    error = dense_model(case.factors) - case.tensor.to_dense()
    truth = np.einsum("ijk,ir,kr->jr", error, case.factors[0], case.factors[2])
    rng = np.random.default_rng(3)
    stacks = {
        "nothing": np.zeros((15, 1), np.float32),
        "itself": stack_factors(case.factors),
        "another": stack_factors(make_problem((6, 4, 5), seed=5, signed=True).factors),
        "one cell": np.zeros((15, 2), np.float32),
    }
    stacks["one cell"][[2, 7, 12], 1] = 1e-3
    draws = np.array([gradient_estimate(case, 20, rng, stacks[drawn_from]) for _ in range(3000)])
    z = (draws.mean(axis=0) - truth) / (draws.std(axis=0, ddof=1) / np.sqrt(len(draws)))
    assert np.abs(z).max() < stats.norm.isf(1e-4 / z.size)


def test_zero_cells_are_spread_over_blocks_by_their_zero_cells():
    patients = 1300  # two full blocks, the first nearly dense, and a rest
    dense = np.ones((patients, 4))
    dense[:512, 3] = 0
    dense[512:, :3] = 0
    tensor = SparseTensor.from_coo(np.argwhere(dense), dense[dense > 0], dense.shape)
    nothing = np.zeros((patients + 4, 1), np.float32)
    drawn = list(visits(tensor, 30_000, np.random.default_rng(0), nothing))
    rows = np.concatenate([rows[counts < 0] for rows, counts in drawn])
    assert sum(np.count_nonzero(counts <= 0) for _, counts in drawn) == 30_000
    cells = rows - row_offsets(tensor.shape)[:-1]
    assert not dense[tuple(cells.T)].any()
    zero_cells = (dense == 0).sum(axis=1)
    often = np.bincount(cells[:, 0], minlength=patients)
    expected = zero_cells / zero_cells.sum() * len(rows)
    assert stats.chisquare(often, expected).pvalue > 1e-4
    blocks = [int(rows[0, 0]) // 512 for rows, _ in drawn]
    orders = {
        tuple(int(rows[0, 0]) // 512 for rows, _ in visits(tensor, 0, np.random.default_rng(s)))
        for s in range(40)
    }
    assert sorted(blocks) == [0, 1, 2]
    assert orders == set(itertools.permutations(range(3)))


@pytest.mark.parametrize("zeros", ["none", "stratified"])
def test_a_dense_tensor_has_no_zero_cells_to_visit(zeros):
    tensor = SparseTensor.from_coo([[0, 0], [0, 1], [1, 0], [1, 1]], [1, 2, 3, 4], (2, 2))
    options = psgd_settings(rank=1, zeros=zeros, tau=3)
    assert zero_visits(tensor, options) == 0
    result = psgd(make_problem((2, 2), rank=1).ask(options, tensor=tensor))
    assert result.objective[-1] < result.objective[0]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    size=st.floats(0.1, 30),
    zeros=st.sampled_from(["none", "stratified"]),
    nonnegative=st.booleans(),
)
def test_overdispersed_counts_at_eta_1_end_finite_or_with_an_error(seed, size, zeros, nonnegative):
    rng = np.random.default_rng(seed)
    counts = np.minimum(rng.negative_binomial(0.05, 0.01, 60) + 1, 328)
    cells = np.stack([rng.integers(0, n, 60) for n in (12, 5, 6)], axis=1)
    tensor = SparseTensor.from_coo(cells, counts, (12, 5, 6))
    case = make_problem((12, 5, 6), seed=seed, scale=size)
    options = psgd_settings(eta=1.0, tau=4, zeros=zeros, nonnegative=nonnegative)
    try:
        result = psgd(case.ask(options, seed, tensor=tensor))
    except DivergenceError:
        return
    assert all(np.isfinite(f).all() for f in result.factors)
    assert np.isfinite(result.objective).all()
    assert all(b <= a for a, b in itertools.pairwise(result.objective))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize(("shape", "mu"), [((30, 6, 7), 0.0), ((9, 5), 0.1)])
def test_a_pass_that_leaves_float32_is_undone_whole_and_in_silence(nonnegative, shape, mu):
    """This includes the padding of rows, where a non-finite value would spoil all later passes."""
    case = make_problem(shape, density=0.4, highest=100)
    options = psgd_settings(tau=2, eta=1.0, zeros="none", nonnegative=nonnegative, mu=mu)
    result = psgd(case.ask(options))
    assert result.rollbacks > 5
    assert result.objective[-1] < result.objective[0]
    assert all(np.isfinite(factor).all() for factor in result.factors)


@pytest.mark.parametrize("carried", [None, 1e-3, 5.0])
def test_the_step_size_grows_by_5_percent_and_never_beyond_the_settings(carried):
    case = make_problem(scale=0.3)
    result = psgd(case.ask(psgd_settings(eta=0.004, tau=3, zeros="none"), eta=carried))
    assert result.rollbacks == 0
    assert result.eta == pytest.approx(0.001 * 1.05**3 if carried == 1e-3 else 0.004)


def test_anchors_far_from_the_data_are_no_divergence():
    # Every visit pulls, so a pass weights the anchors by gamma * visits, and eq. (norm) rises at
    # every step size. The control must also accept passes that reduce their own objective.
    case = make_problem((40, 5, 6), scale=0.3)
    far = tuple(np.full_like(a, 3.0) for a in case.anchors)
    result = psgd(case.ask(psgd_settings(gamma=0.5, tau=5, zeros="none"), anchors=far))
    assert max(np.diff(result.objective)) > 0
    for ours, start, anchor in zip(result.factors[1:], case.factors[1:], far, strict=True):
        assert np.linalg.norm(ours - anchor) < np.linalg.norm(start - anchor)


def test_clipped_passes_all_stand_unless_the_fit_is_worse_than_none():
    # One count dominates the squared error, but its gradient is clipped. Near a fit of all other
    # counts, the objective need not fall at any step size.
    case = make_problem((40, 5, 6), highest=1)
    values = case.tensor.values.copy()
    values[0] = 60
    tensor = SparseTensor.from_coo(case.tensor.indices, values, case.tensor.shape)
    result = psgd(case.ask(psgd_settings(clip=0.05, tau=60, eta=0.05, zeros="none"), tensor=tensor))
    assert max(np.diff(result.objective)) > 0
    assert (result.rollbacks, result.eta) == (0, 0.05)
    assert max(result.objective) <= 0.5 * tensor.norm_squared()


def test_a_large_mu_switches_phenotypes_off_and_their_own_gradient_on_again():
    case = make_problem()
    off = psgd(case.ask(psgd_settings(mu=1e4)))
    assert not off.factors[0].any()
    on = psgd(case.ask(psgd_settings(), factors=off.factors))
    assert on.factors[0].any(axis=0).all()
    still = psgd(case.ask(psgd_settings(mu=1e4), factors=off.factors))
    assert not still.factors[0].any()


@pytest.mark.parametrize("zeros", ["none", "stratified"])
def test_same_seed_same_bits(zeros):
    case = make_problem((1100, 5, 6), density=0.05, signed=True)
    options = psgd_settings(tau=2, zeros=zeros, gamma=1.0, mu=0.1)
    first, again, other = (psgd(case.ask(options, seed)) for seed in (1, 1, 2))
    assert_bits(first.factors, again.factors)
    assert first.objective == again.objective
    assert first.factors[0].tobytes() != other.factors[0].tobytes()


def test_sites_at_once_in_threads_get_what_each_gets_alone():
    cases = [make_problem((700, 8, 9), rank=20, seed=seed) for seed in range(4)]
    options = psgd_settings(rank=20, tau=5, gamma=1.0, mu=0.1)

    def solved(case):
        return psgd(case.ask(options))

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(solved, cases))
    for ours, theirs in zip(together, map(solved, cases), strict=True):
        assert ours.objective == theirs.objective
        assert_bits(ours.factors, theirs.factors)


def test_memory_is_that_of_the_factors(monkeypatch):
    """The solver holds the stack, a backup copy or the result, and little else."""
    monkeypatch.setattr(tensor_module, "_PART", 1 << 12)
    case = make_problem((20_000, 10, 10), rank=16, density=0.4)
    options = psgd_settings(rank=16, tau=3, mu=0.1, zeros="none")
    psgd(case.ask(options))  # compiles
    tracemalloc.start()
    psgd(case.ask(options))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    block = 32 * 512 * 10 * 10 * 0.4  # visits of a block, and memory for their order
    gram_block = 8 * 16 * len(case.factors[0])  # all rows here fit into 65,536
    assert peak < 1.1 * (2 * 4 * 16 * sum(case.tensor.shape) + gram_block + block)
    assert 8 * case.tensor.nnz > 0.7 * peak, "a copy in float64 would not have gone unnoticed"


# --- The proximal step


def minimiser(column: np.ndarray, threshold: float, lower: float | None) -> np.ndarray:
    """Minimise 1/2 ||t - column||^2 + threshold ||t|| without its closed form."""

    def value(t):
        return 0.5 * np.sum((t - column) ** 2) + threshold * np.sqrt(np.sum(t**2) + 1e-18)

    def slope(t):
        return t - column + threshold * t / np.sqrt(np.sum(t**2) + 1e-18)

    start, bounds = np.full_like(column, 0.3), [(lower, None)] * len(column)
    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 10_000, "maxfun": 100_000}
    return minimize(value, start, jac=slope, bounds=bounds, options=options).x


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
