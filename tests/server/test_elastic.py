"""The server's arithmetic, compared with plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfact_flower.errors import SettingsError
from dpfact_flower.server.elastic import elastic_average, elastic_step
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.settings import SolverSettings
from tests.bits import assert_bits

SIZES = (6, 4, 5)
RANK = 3


def make(seed):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal((n, RANK)).astype(np.float32) for n in SIZES)


def by_loops(anchors, replies, step):
    """Compute one pull, eq. (global), cell by cell in Python's own floats."""
    moved = tuple(np.empty_like(anchor) for anchor in anchors)
    for mode, anchor in enumerate(anchors):
        for cell, here in np.ndenumerate(anchor.astype(float)):
            pull = sum(float(reply[mode][cell]) - here for reply in replies)
            moved[mode][cell] = here + step * pull
    return moved


@pytest.mark.parametrize("sites", [1, 2, 5])
@pytest.mark.parametrize("step", [0.01, 0.2])
def test_one_pull_is_the_papers(sites, step):
    anchors, replies = make(0), [make(seed) for seed in range(1, sites + 1)]
    assert_bits(elastic_average(anchors, replies, step), by_loops(anchors, replies, step))


@given(st.lists(st.sampled_from([1.0, -1.0]), min_size=1, max_size=6))
def test_replies_of_any_float32_leave_the_factors_finite(signs):
    # A stable step gives a convex combination, so no reply can drive the model to infinity.
    largest = np.finfo(np.float32).max
    replies = [(np.full((1, 1), sign * largest, np.float32),) for sign in signs]
    anchors = (np.full((1, 1), -largest, np.float32),)
    step = elastic_step(SolverSettings(), 1 / len(signs), len(signs))
    (moved,) = elastic_average(anchors, replies, step)
    assert np.isfinite(moved).all()


def test_the_step_is_eta_times_gamma_unless_it_is_set():
    settings, still = (SolverSettings(solver="psgd", eta=1e-3, gamma=gamma) for gamma in (5.0, 0.0))
    assert elastic_step(settings, 0.0, 6) == pytest.approx(5e-3)
    assert elastic_step(settings, 0.1, 6) == 0.1
    rounded = SolverSettings(solver="psgd", eta=0.51, gamma=1 / (5 * 0.51))
    assert elastic_step(rounded, 0.0, 5) * 5 > 1  # by a rounding error
    with pytest.raises(SettingsError, match=r"0\.005 \* 201 = 1\.005"):
        elastic_step(settings, 0.0, 201)
    with pytest.raises(SettingsError, match="would never move; set elastic-step"):
        elastic_step(still, 0.0, 2)
    assert elastic_step(still, 0.25, 2) == 0.25


@pytest.mark.parametrize("sites", [1, 3, 7, 49, 1000])
def test_the_exact_solver_takes_the_mean_and_a_step_beyond_it_is_refused_with_its_numbers(sites):
    settings = SolverSettings(solver="exact", eta=0.5, gamma=100.0)
    assert elastic_step(settings, 0.0, sites) == 1 / sites
    assert elastic_step(settings, 1e-3, sites) == 1e-3
    assert elastic_step(settings, 1 + 1e-9, 1) > 1  # the tolerance
    step = min(1.01 / sites, 1.0)
    with pytest.raises(SettingsError, match=f"{step:g} \\* {sites + 1} = {step * (sites + 1):g}"):
        elastic_step(SolverSettings(), step, sites + 1)


def test_the_start_has_unit_positive_columns():
    factors = initial_factors(SIZES, RANK, 0)
    assert [factor.shape for factor in factors] == [(size, RANK) for size in SIZES]
    for factor in factors:
        assert factor.dtype == np.float32
        assert 0 < factor.min() < 0.3 * factor.max()
        np.testing.assert_allclose(np.linalg.norm(factor.astype(float), axis=0), 1, rtol=1e-6)
