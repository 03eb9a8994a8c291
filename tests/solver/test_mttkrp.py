import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfact_flower.machine.compiled import WIDTH
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver.exact import exact
from dpfact_flower.solver.kernels.patients import update_rows
from dpfact_flower.solver.mttkrp import BLOCK, Fibres, mttkrp, squared_error
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.cp import CPModel
from dpfact_flower.tensor.stack import slices, stack_factors
from tests.bits import assert_bits
from tests.problems import Problem, assert_near, column_by_column, dense_model, mttkrp_by_entries

SHAPES = [(7, 5), (7, 5, 6), (5, 4, 3, 6), (4, 3, 3, 2, 5)]
RANKS = [3, 20, 130]  # at most one register, more than one, and more than a slice has


def random_tensor(shape, nnz, seed=0) -> SparseTensor:
    rng = np.random.default_rng(seed)
    return SparseTensor.from_coo(
        np.stack([rng.integers(0, n, nnz) for n in shape], axis=1), rng.integers(1, 5, nnz), shape
    )


def random_factors(shape, rank, seed=1, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [rng.uniform(-0.5, 1, (n, rank)).astype(dtype) for n in shape]


@pytest.fixture(scope="module")
def large():
    """Several chunks, with full blocks and with blocks of few patients with many fibres."""
    heavy = random_tensor((3, 300, 40), 30_000, seed=2)
    light = random_tensor((3000, 300, 40), 120_000, seed=3)
    rows = light.indices.copy()
    rows[:, 0] += 3
    return SparseTensor.from_coo(
        np.concatenate([heavy.indices, rows]),
        np.concatenate([heavy.values, light.values]),
        (3010, 300, 40),  # the last patients have no entries
    )


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mttkrp_is_the_sum_over_entries(shape, rank, dtype):
    tensor = random_tensor(shape, 60)
    factors = random_factors(shape, rank, dtype=dtype)
    for mode in range(len(shape)):
        product = mttkrp(tensor, factors, mode)
        assert product.dtype == (np.float64 if mode else dtype)
        expected = mttkrp_by_entries(tensor, factors, mode)
        assert_near(product, expected, 1e-6 if dtype == np.float32 else 1e-14)


def test_sums_of_whole_numbers_are_exact(large):
    """float32 represents every whole number below 2^24, so the order of sums has no effect."""
    rng = np.random.default_rng(4)
    factors = [rng.integers(-2, 3, (n, 20)).astype(np.float32) for n in large.shape]
    for mode in range(3):
        expected = mttkrp_by_entries(large, factors, mode)
        assert np.abs(expected).max() < 2**24
        np.testing.assert_array_equal(mttkrp(large, factors, mode), expected)


def test_chunks_are_added_up_in_float64(large):
    """A chunk's sums stay below 2^24. The total does not, and odd totals have no float32 value."""
    values = zip(large.shape, (37, 61, 53), strict=True)
    factors = [np.full((n, 1), value, np.float32) for n, value in values]
    expected = mttkrp_by_entries(large, factors, 2)
    assert expected.min() > 2**24
    assert (expected % 2 == 1).any()
    np.testing.assert_array_equal(mttkrp(large, factors, 2), expected)


@settings(max_examples=80)
@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    nnz=st.integers(0, 40),
    seed=st.integers(0, 1000),
)
def test_fibres_are_the_distinct_beginnings(shape, nnz, seed):
    tensor = random_tensor(tuple(shape), nnz, seed)
    fibres = Fibres.of(tensor)
    beginnings, first = np.unique(tensor.indices[:, :-1], axis=0, return_index=True)
    np.testing.assert_array_equal(fibres.starts, [*first, tensor.nnz])
    of_patient = np.searchsorted(beginnings[:, 0], np.arange(tensor.n_patients + 1))
    np.testing.assert_array_equal(fibres.patients, of_patient)


def test_blocks_and_chunks_divide_the_patients(large):
    fibres = Fibres.of(large)
    ends = large.n_patients, len(fibres.blocks) - 1
    for bounds, end in zip((fibres.blocks, fibres.chunks), ends, strict=True):
        assert (bounds[0], bounds[-1]) == (0, end)
        assert (np.diff(bounds) > 0).all()
    assert len(fibres.chunks) > 2, "this tensor is meant to have several"
    assert np.diff(fibres.blocks).max() <= BLOCK
    each = 3 * BLOCK
    one_each = SparseTensor.from_coo([[i, 0] for i in range(each)], np.ones(each), (each, 1))
    np.testing.assert_array_equal(Fibres.of(one_each).blocks, BLOCK * np.arange(4))
    assert np.diff(fibres.patients[fibres.blocks]).max() <= 4096


@given(rank=st.integers(1, 1000))
def test_slices_cover_a_row(rank):
    registers, width = slices(rank)
    assert width >= rank
    assert width % (WIDTH * len(registers)) == 0
    assert width < 1.25 * rank + WIDTH
    assert len(registers) <= 8
    assert slices(width) == (registers, width)


@pytest.mark.slow
@pytest.mark.parametrize("floor", [0.0, pytest.param(-np.inf, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", RANKS)
def test_rows_are_swept_by_blocks_one_column_after_the_other(shape, rank, floor):
    shape = (1200, *shape[1:])
    tensor, factors = random_tensor(shape, 3000), random_factors(shape, rank)
    fibres, stack = Fibres.of(tensor), stack_factors(factors)
    q = np.prod([f.T.astype(float) @ f for f in factors[1:]], axis=0)
    target = mttkrp_by_entries(tensor, factors, 0)
    old, new = factors[0], stack[: len(factors[0])]
    for _ in range(2):
        result = update_rows(fibres, stack, q, floor=floor, sweeps=1)
        assert_near(new[:, :rank], column_by_column(old, new[:, :rank], target, q, floor), 1e-4)
        assert not new[:, rank:].any(), "the padding must stay zero"
        assert_sums_are_of(tensor, factors, old, new[:, :rank], *result)
        old = new[:, :rank].copy()
    at_once = stack_factors(factors)
    update_rows(fibres, at_once, q, floor=floor, sweeps=2)
    np.testing.assert_array_equal(at_once, stack)


def assert_sums_are_of(tensor, factors, old, new, product, inner, gram):
    """Check the sums that the update of A's rows returns, for the old and new rows."""
    size = np.sum(np.abs(old) * mttkrp_by_entries(tensor, [np.abs(f) for f in factors], 0))
    before = np.sum(old * mttkrp_by_entries(tensor, factors, 0))
    assert inner == pytest.approx(before, rel=0, abs=1e-5 * size)
    wide = new.astype(np.float64)
    assert_near(gram, wide.T @ wide)
    after = [new, *factors[1:]]
    if len(factors) > 2:
        assert_near(product[:, : new.shape[1]], mttkrp_by_entries(tensor, after, 1))


def test_the_gram_matrix_is_added_up_in_float64():
    """Nine blocks' sums stay below 2^24. The total does not, so odd totals need float64."""
    shape, value = (1201, 5, 6), 191.0
    fibres = Fibres.of(random_tensor(shape, 3000))
    stack = stack_factors([np.full((n, 3), value, np.float32) for n in shape])
    _, _, gram = update_rows(fibres, stack, np.eye(3), floor=0.0, sweeps=0)
    assert 9 * BLOCK * value**2 < 2**24 < shape[0] * value**2
    np.testing.assert_array_equal(gram, np.full((3, 3), shape[0] * value**2))


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_threads_change_no_bit(large, monkeypatch, mu):
    factors = [np.abs(f) for f in random_factors(large.shape, 12)]
    options = SolverSettings(rank=12, tau=2, mu=mu, relative_l21=0.0)
    results, products = [], []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        results.append(exact(Problem(large, factors, factors[1:]).ask(options)))
        products.append(tuple(mttkrp(large, factors, mode) for mode in range(3)))
    for other, product in zip(results[1:], products[1:], strict=True):
        assert other.objective == results[0].objective
        assert_bits(other.factors + product, results[0].factors + products[0])


@pytest.mark.parametrize("rank", [3, 130])
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_squared_errors_are_those_of_the_dense_model(shape, rank):
    tensor, factors = random_tensor(shape, 60), random_factors(shape, rank)
    ours = squared_error(tensor, tuple(factors))
    data, fitted = tensor.to_dense(), dense_model(factors)
    squares = (data - fitted) ** 2
    assert ours.nonzeros == pytest.approx(squares[data > 0].sum(), rel=1e-5)
    assert ours.all_cells == pytest.approx(squares.sum(), rel=1e-5)
    assert ours.data == pytest.approx(np.sum(data**2), rel=1e-12)
    assert (ours.cells, ours.nnz) == (data.size, np.count_nonzero(data))


def sparse_objective(tensor, factors, start, options):
    """Compute eq. (norm) of float32 factors, in float64 and without a dense tensor."""
    wide = CPModel.of(*factors)
    pull = sum(np.sum((f - g) ** 2) for f, g in zip(wide.features, start[1:], strict=True))
    groups = np.linalg.norm(wide.factors[0], axis=0).sum()
    error = wide.squared_error(tensor).all_cells
    return 0.5 * error + 0.5 * options.gamma * pull + options.mu * groups


@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize("nonnegative", [True, False])
def test_the_objective_is_its_factors_and_falls(large, mu, nonnegative):
    """This holds for all whole solves, although single values differ after a few sweeps."""
    factors = [np.abs(f) for f in random_factors(large.shape, 12)]
    last = math.inf
    for tau in (1, 2, 3):
        options = SolverSettings(rank=12, tau=tau, mu=mu, relative_l21=0.0, nonnegative=nonnegative)
        found = exact(Problem(large, factors, factors[1:]).ask(options))
        now = sparse_objective(large, found.factors, factors, options)
        assert found.objective[-1] == pytest.approx(now, rel=1e-5)
        assert now < last
        last = now
