from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpfact_flower.solver.kernels import (
    Step,
    draw_visits,
    model_values,
    mttkrp,
    row_offsets,
    stack_factors,
    visit,
)
from dpfact_flower.tensor import SparseTensor

SHAPES = [(7, 5), (7, 5, 6), (5, 4, 3, 6)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-14)])
def test_model_values_are_those_of_the_dense_model(problem, model, shape, dtype, tolerance):
    case = problem(shape, rank=11)
    factors = tuple(f.astype(dtype) for f in case.factors)
    cells = np.argwhere(np.ones(shape)).astype(np.int32)
    values = model_values(cells, factors)
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, model(factors).ravel(), rtol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float64, 1e-13)])
def test_mttkrp_is_the_dense_contraction(problem, shape, dtype, tolerance):
    case = problem(shape, rank=11)
    factors = [f.astype(dtype) for f in case.factors]
    letters = "abcd"[: len(shape)]
    for mode in range(len(shape)):
        others = [m for m in range(len(shape)) if m != mode]
        spec = f"{letters},{','.join(letters[m] + 'r' for m in others)}->{letters[mode]}r"
        dense = np.einsum(spec, case.tensor.to_dense(), *[factors[m].astype(float) for m in others])
        product = mttkrp(case.tensor, factors, mode)
        assert product.dtype == (np.float64 if mode else dtype)
        np.testing.assert_allclose(product, dense, rtol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("in_turn", [False, True], ids=["joint", "sequential"])
@pytest.mark.parametrize("gamma", [0.0, 3.0])
@pytest.mark.parametrize("clip", [0.0, 0.3])
@pytest.mark.parametrize("floor", [0.0, -np.inf])
def test_visits_equal_the_plain_loop(problem, reference_visits, shape, in_turn, gamma, clip, floor):
    case = problem(shape, rank=5, signed=floor < 0)
    rng = np.random.default_rng(1)
    cells = np.stack([rng.integers(0, n, 60) for n in shape], axis=1)
    counts = rng.integers(0, 4, 60).astype(np.float32)  # a quarter are sampled zeros
    numbers = {"eta": 0.05, "gamma": gamma, "clip": clip, "floor": floor}
    expected = reference_visits(
        case.factors, case.anchors, cells, counts, weight=2.5, in_turn=in_turn, **numbers
    )

    stack, offsets = stack_factors(case.factors), row_offsets(shape)
    rows = (cells + offsets[:-1]).astype(np.int32)
    step = Step(zero_weight=2.5, sequential=in_turn, **numbers)
    visit(stack, stack_factors(case.anchors), rows, counts, step)

    np.testing.assert_allclose(stack[:, :5], np.concatenate(expected), rtol=2e-5, atol=2e-6)
    assert not stack[:, 5:].any(), "the padding must stay zero"


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    modes=st.integers(2, 4),
    in_turn=st.booleans(),
    clip=st.floats(1e-3, 10),
    count=st.sampled_from([0, 1, 328]),
    size=st.floats(1e-3, 100),
)
def test_no_row_moves_further_than_the_clip_allows(seed, modes, in_turn, clip, count, size):
    rng = np.random.default_rng(seed)
    factors = [(size * rng.normal(size=(1, 6))).astype(np.float32) for _ in range(modes)]
    stack = stack_factors(factors)
    rows = np.arange(modes, dtype=np.int32)[None]
    step = Step(eta=1.0, clip=clip, zero_weight=1e3, floor=-np.inf, sequential=in_turn)
    before = stack.astype(np.float64)
    visit(stack, stack[1:].copy(), rows, np.array([count], np.float32), step)
    rounding = 8 * np.finfo(np.float32).eps * np.linalg.norm(before, axis=1)
    assert (np.linalg.norm(stack - before, axis=1) <= clip * (1 + 1e-5) + rounding).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("in_turn", [False, True], ids=["joint", "sequential"])
def test_projection_does_not_hide_a_nan(problem, shape, in_turn):
    case = problem(shape)
    stack = stack_factors(case.factors)
    stack[0, 1] = np.nan
    rows = row_offsets(shape)[:-1].astype(np.int32)[None]
    visit(
        stack, stack_factors(case.anchors), rows, np.ones(1, np.float32),
        Step(eta=0.1, floor=0.0, sequential=in_turn),
    )  # fmt: skip
    assert np.isnan(stack[rows[0], :3]).all()


def drawn(tensor: SparseTensor, zeros: int, rng: np.random.Generator, patients=None):
    first, last = patients or (0, tensor.n_patients)
    starts = np.searchsorted(tensor.indices[:, 0], np.arange(first, last + 1))
    size = starts[-1] - starts[0] + zeros
    rows, counts = np.empty((size, tensor.ndim), np.int32), np.empty(size, np.float32)
    offsets = row_offsets(tensor.shape)
    draw_visits(tensor.indices, tensor.values, offsets, starts, first, rows, counts, rng)
    return rows - offsets[:-1], counts


@pytest.mark.parametrize("shape", SHAPES)
def test_draw_visits_every_entry_once_and_fills_up_with_zero_cells(problem, shape):
    tensor = problem(shape).tensor
    first, last = 2, 5
    cells, counts = drawn(tensor, 200, np.random.default_rng(0), (first, last))
    here = (tensor.indices[:, 0] >= first) & (tensor.indices[:, 0] < last)
    entries = cells[counts > 0]
    order = np.lexsort(entries.T[::-1])
    np.testing.assert_array_equal(entries[order], tensor.indices[here])
    np.testing.assert_array_equal(counts[counts > 0][order], tensor.values[here])
    zeros = cells[counts == 0]
    assert len(zeros) == 200
    assert ((zeros[:, 0] >= first) & (zeros[:, 0] < last)).all()
    assert not tensor.to_dense()[tuple(zeros.T)].any()


def test_zero_cells_are_uniform_and_their_places_random():
    tensor = SparseTensor.from_coo([[0, 0], [0, 2], [1, 1], [2, 0], [2, 1]], [1] * 5, (3, 3))
    rng = np.random.default_rng(5)
    draws = [drawn(tensor, 4, rng) for _ in range(4000)]
    cells = np.concatenate([cells[counts == 0] for cells, counts in draws])
    _, often = np.unique(cells, axis=0, return_counts=True)
    assert len(often) == 4
    assert stats.chisquare(often).pvalue > 1e-4
    # All 9 visits are alike to a shuffle: each takes each place equally often.
    places = np.zeros((6, 9))
    for cells, counts in draws:
        for k, cell in enumerate(tensor.indices):
            places[k, np.flatnonzero((cells == cell).all(axis=1) & (counts > 0))] += 1
        places[5] += counts == 0
    assert (places[:5].sum(axis=1) == 4000).all()
    assert min(stats.chisquare(row).pvalue for row in places) > 1e-4


def test_import_survives_where_numba_cannot_write_a_cache():
    # numba's own search for a folder is emptied: what it does when it finds none to write to.
    code = (
        "import numba.core.caching as c; c.CacheImpl._locator_classes = [];\n"
        "import numpy as np\n"
        "from dpfact_flower.solver.kernels import model_values\n"
        "print(model_values(np.zeros((1, 2), np.int32), [np.full((1, 2), 3.0)] * 2)[0])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "18.0"
