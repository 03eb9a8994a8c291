from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfact_flower.machine.compiled import WIDTH
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver.error import squared_error
from dpfact_flower.solver.exact import exact, update_patients
from dpfact_flower.solver.kernels.choice import VARIABLE
from dpfact_flower.solver.kernels.fibres import BLOCK, Fibres
from dpfact_flower.solver.kernels.vector.patients import update_rows
from dpfact_flower.solver.mttkrp import mttkrp, stacked_mttkrp
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.stack import slices, stack_factors

SHAPES = [(7, 5), (7, 5, 6), (5, 4, 3, 6), (4, 3, 3, 2, 5)]
RANKS = [3, 11, 20, 70, 130]  # one register or less, more, and more than a slice has


def random_tensor(shape, nnz, seed=0) -> SparseTensor:
    rng = np.random.default_rng(seed)
    return SparseTensor.from_coo(
        np.stack([rng.integers(0, n, nnz) for n in shape], axis=1), rng.integers(1, 5, nnz), shape
    )


def random_factors(shape, rank, seed=1, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [rng.uniform(-0.5, 1, (n, rank)).astype(dtype) for n in shape]


def one_by_one(tensor, factors, mode):
    """MTTKRP from its definition, an entry after the other, in float64."""
    total = np.zeros((tensor.shape[mode], factors[0].shape[1]))
    for cell, value in zip(tensor.indices, tensor.values, strict=True):
        row = np.full(total.shape[1], float(value))
        for n, index in enumerate(cell):
            if n != mode:
                row *= factors[n][index]
        total[cell[mode]] += row
    return total


@pytest.fixture(scope="module")
def large():
    """Several chunks, blocks that are full and blocks of few patients with many fibres."""
    heavy = random_tensor((3, 300, 40), 30_000, seed=2)
    light = random_tensor((3000, 300, 40), 120_000, seed=3)
    rows = light.indices.copy()
    rows[:, 0] += 3
    return SparseTensor.from_coo(
        np.concatenate([heavy.indices, rows]),
        np.concatenate([heavy.values, light.values]),
        (3010, 300, 40),  # the last patients have nothing
    )


@pytest.fixture(params=["vector", "plain"])
def _kernels(request, monkeypatch):
    monkeypatch.setenv(VARIABLE, request.param)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 5e-6), (np.float64, 1e-13)])
def test_mttkrp_is_the_sum_over_entries(shape, rank, dtype, tolerance):
    tensor = random_tensor(shape, 60)
    factors = random_factors(shape, rank, dtype=dtype)
    for mode in range(len(shape)):
        product = mttkrp(tensor, factors, mode)
        assert product.dtype == (np.float64 if mode else dtype)
        expected = one_by_one(tensor, factors, mode)
        np.testing.assert_allclose(product, expected, rtol=tolerance, atol=tolerance)


def test_sums_of_many_entries_keep_five_digits(large):
    factors = random_factors(large.shape, 12)
    for mode in range(3):
        expected = mttkrp(large, [f.astype(np.float64) for f in factors], mode)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(mttkrp(large, factors, mode), expected, atol=5e-6 * scale)


@settings(max_examples=80, deadline=None)
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
    for bounds, end in (
        (fibres.blocks, large.n_patients), (fibres.chunks, len(fibres.blocks) - 1),
    ):  # fmt: skip
        assert bounds[0] == 0
        assert bounds[-1] == end
        assert (np.diff(bounds) > 0).all()
    assert len(fibres.chunks) > 2, "this tensor is meant to have several"
    assert np.diff(fibres.blocks).max() <= BLOCK
    one_each = SparseTensor.from_coo(
        [[i, 0] for i in range(3 * BLOCK)], np.ones(3 * BLOCK), (3 * BLOCK, 1)
    )
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


@pytest.mark.parametrize("floor", [0.0, -np.inf])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [3, 20, 130])
def test_rows_by_blocks_are_the_columns_of_the_whole(shape, rank, floor):
    shape = (1200, *shape[1:])
    tensor, factors = random_tensor(shape, 3000), random_factors(shape, rank)
    fibres, stack = Fibres.of(tensor), stack_factors(factors)
    q = np.prod([f.T.astype(float) @ f for f in factors[1:]], axis=0)
    product, inner, gram = update_rows(fibres, stack, q, floor=floor, sweeps=3, threads=1)

    expected = update_patients(
        factors[0], mttkrp(tensor, factors, 0), q, 0.0, floor, sweeps=3
    )  # fmt: skip
    updated = fibres.rows(stack, 0)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(updated[:, :rank] / scale, expected / scale, atol=1e-5)
    assert not updated[:, rank:].any(), "the padding must stay zero"
    squares = updated[:, :rank].T.astype(np.float64) @ updated[:, :rank]
    np.testing.assert_allclose(gram, squares, rtol=1e-6, atol=1e-6 * np.abs(squares).max())
    before = np.sum(one_by_one(tensor, factors, 0) * factors[0])
    assert inner == pytest.approx(before, rel=1e-5)
    if len(shape) > 2:
        after = one_by_one(tensor, [updated[:, :rank], *factors[1:]], 1)
        size = np.abs(after).max()
        np.testing.assert_allclose(product[:, :rank] / size, after / size, atol=5e-6)


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_threads_change_no_bit(large, monkeypatch, mu):
    factors = [np.abs(f) for f in random_factors(large.shape, 12)]
    options = SolverSettings(rank=12, tau=2, mu=mu)
    results = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        results.append(exact(large, factors, factors[1:], options, np.random.default_rng(0)))
        fibres = Fibres.of(large)
        for mode in range(3):
            product = stacked_mttkrp(fibres, stack_factors(factors), mode, threads=int(threads))
            np.testing.assert_array_equal(product[:, :12], mttkrp(large, factors, mode))
    for other in results[1:]:
        assert other.objective == results[0].objective
        for ours, theirs in zip(other.factors, results[0].factors, strict=True):
            assert ours.tobytes() == theirs.tobytes()


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("rank", [3, 130])
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_squared_errors_are_those_of_the_dense_model(model, shape, rank):
    tensor, factors = random_tensor(shape, 60), random_factors(shape, rank)
    ours = squared_error(tensor, tuple(factors))
    data, fitted = tensor.to_dense(), model(factors)
    squares = (data - fitted) ** 2
    assert ours.all_cells == pytest.approx(squares.sum(), rel=2e-6)
    assert ours.nonzeros == pytest.approx(squares[data > 0].sum(), rel=2e-6)
    assert ours.data == pytest.approx(np.sum(data**2))
    assert (ours.cells, ours.nnz) == (data.size, np.count_nonzero(data))


@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize("nonnegative", [True, False])
def test_plain_and_vector_kernels_agree(large, monkeypatch, mu, nonnegative):
    factors = [np.abs(f) for f in random_factors(large.shape, 12)]
    options = SolverSettings(rank=12, tau=3, mu=mu, nonnegative=nonnegative)
    results = []
    for name in ("vector", "plain"):
        monkeypatch.setenv(VARIABLE, name)
        results.append(exact(large, factors, factors[1:], options, np.random.default_rng(0)))
    vector, plain = results
    assert vector.objective == pytest.approx(plain.objective, rel=1e-6)
    for ours, theirs in zip(vector.factors, plain.factors, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())
