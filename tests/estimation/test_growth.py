"""Growth: what a new factor is, when there are enough, and when there can't be as many."""

import math

import numpy as np
import pytest

from dpfact_flower.estimation.growth import greedy_init, grown, residual_times
from dpfact_flower.estimation.pair_fit import Model, fit
from dpfact_flower.tensor.match import factor_match_score


def sites_of(F, d):
    """Matrices that the model fits exactly, as `Sites`."""
    matrices = np.einsum("jr,tr,kr->jtk", F, d, F)
    matrices[np.arange(len(F)), :, np.arange(len(F))] = 0
    return matrices


def nothing(F, d):
    return Model(F[:, :0], d[:, :0])


@pytest.fixture
def two():
    """Phenotypes without a common code: the one at one site alone is the stronger."""
    F = np.zeros((9, 2))
    F[:4, 0], F[4:, 1] = 1 / 2, 1 / math.sqrt(5)
    return Model(F, np.array([[3.0, 0.0], [3.0, 9.0]]))


def test_new_factors_take_most_of_the_residual_and_are_unlike_each_other(two):
    found = greedy_init(sites_of(*two), nothing(*two), 0.0, 5, np.random.default_rng(0))
    np.testing.assert_allclose(found.F[:, :2], two.F[:, ::-1], atol=0.02)
    np.testing.assert_allclose(found.d[:, 0], two.d[:, 1], atol=0.1)
    alike = found.F.T @ found.F - np.eye(found.F.shape[1])
    assert alike.max() < 0.5


def test_what_the_model_has_is_not_found_again(two):
    there = Model(two.F[:, 1:], two.d[:, 1:])
    found = greedy_init(sites_of(*two), there, 0.0, 1, np.random.default_rng(0))
    np.testing.assert_allclose(found.F, two.F[:, :1], atol=0.02)


def test_residuals_are_those_of_whole_matrices():
    rng = np.random.default_rng(0)
    sites = sites_of(rng.random((8, 5)), rng.random((3, 5)))
    model, X = Model(rng.random((8, 2)), rng.random((3, 2))), rng.random((8, 4))
    residual = sites - sites_of(*model)
    expected = np.einsum("jtk,km->tjm", residual, X)
    np.testing.assert_allclose(residual_times(sites, model, X), expected, atol=1e-12)


def test_all_planted_factors_are_found():
    rng = np.random.default_rng(0)
    F = rng.gamma(1.0, 1.0, (32, 4)) * (rng.random((32, 4)) < 0.35) + 1e-3
    d = 100 * rng.gamma(2.0, 0.5, (3, 4))
    d[1:, 0] = 0  # a phenotype of the first site alone
    sites = sites_of(F, d)
    found = grown(sites, 4, 0.0, rng)
    found = fit(sites, found, threshold=0.0, iterations=40)
    assert factor_match_score([found.F], [F]) > 0.95


def test_no_more_than_there_are_above_the_noise(two):
    silent = np.zeros((9, 2, 9))
    assert grown(silent, 4, 0.05, np.random.default_rng(0)) is None
    assert grown(sites_of(*two), 4, 0.05, np.random.default_rng(0)) is None
    assert grown(sites_of(*two), 2, 0.05, np.random.default_rng(0)).F.shape == (9, 2)


@pytest.mark.parametrize(("noise", "found"), [(0.5, True), (1.0, False)])
def test_the_threshold_comes_down_for_a_faint_factor_above_the_noise(noise, found):
    """Five strong factors and one whose entries are .75, without a common code."""
    F = np.kron(np.eye(6), np.full((4, 1), 0.5))
    d = np.array([[30.0] * 5 + [3.0]])
    model = grown(sites_of(F, d), 6, noise, np.random.default_rng(0))
    assert (model is not None) == found
    if model is not None:
        assert sorted(model.F.argmax(axis=0) // 4) == list(range(6))  # one of each block
