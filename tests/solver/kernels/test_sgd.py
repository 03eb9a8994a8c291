"""Stochastic gradient steps, compared with a plain loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfact_flower.solver.kernels import sgd
from dpfact_flower.solver.kernels.sgd import Step
from dpfact_flower.solver.losses import bernoulli, poisson, squared
from dpfact_flower.tensor.stack import row_offsets, stack_factors
from tests.problems import assert_moved, make_problem, visit_one_by_one

SHAPES = [(7, 5), (7, 5, 6), (5, 4, 3, 6)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gamma", [0.0, 3.0])
@pytest.mark.parametrize("clip", [0.0, 0.3])
@pytest.mark.parametrize(
    ("loss", "floor"), [(squared, 0.0), (squared, -np.inf), (poisson, 0.0), (bernoulli, 0.0)]
)
# One vector per row, and three vectors, one of them padded.
@pytest.mark.parametrize("rank", [5, 21])
def test_visits_equal_the_plain_loop(shape, gamma, clip, loss, floor, rank):
    case = make_problem(shape, rank=rank, signed=floor < 0)
    rng = np.random.default_rng(1)
    cells = np.stack([rng.integers(0, n, 30) for n in shape], axis=1)
    counts = rng.choice([-2.5, -0.5, 0, 1, 2, 3], 30).astype(np.float32)  # half are zero cells
    step = Step(eta=0.01, gamma=gamma, clip=clip, floor=floor, patients=1 + gamma, loss=loss)
    expected = visit_one_by_one(case.factors, case.anchors, cells, counts, **vars(step))
    offsets = row_offsets(shape)
    rows = (cells + offsets[:-1]).astype(np.int32)
    stack = stack_factors(case.factors)
    sgd.visit(stack, stack_factors(case.anchors), rows, counts, step)
    assert_moved(np.split(stack[:, :rank], offsets[1:-1]), case.factors, expected)
    assert not stack[:, rank:].any(), "the padding must stay zero"


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    modes=st.integers(2, 4),
    clip=st.floats(1e-3, 10),
    count=st.sampled_from([-1e3, 0, 1, 328]),
    size=st.floats(1e-3, 100),
)
def test_no_row_moves_further_than_the_clip_allows(seed, modes, clip, count, size):
    rng = np.random.default_rng(seed)
    factors = [(size * rng.normal(size=(1, 6))).astype(np.float32) for _ in range(modes)]
    stack = stack_factors(factors)
    rows = np.arange(modes, dtype=np.int32)[None]
    step = Step(eta=1.0, clip=clip, floor=-np.inf)
    before = stack.astype(np.float64)
    sgd.visit(stack, stack[1:].copy(), rows, np.array([count], np.float32), step)
    rounding = 8 * np.finfo(np.float32).eps * np.linalg.norm(before, axis=1)
    assert (np.linalg.norm(stack - before, axis=1) <= clip * (1 + 1e-5) + rounding).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_projection_does_not_hide_a_nan(shape):
    case = make_problem(shape)
    stack = stack_factors(case.factors)
    stack[0, 1] = np.nan
    rows = row_offsets(shape)[:-1].astype(np.int32)[None]
    one = np.ones(1, np.float32)
    sgd.visit(stack, stack_factors(case.anchors), rows, one, Step(eta=0.1, floor=0.0))
    assert np.isnan(stack[rows[0], :3]).all()
