"""Least squares of co-occurrences, compared with sums over entries and a slow plain iteration."""

import math

import numpy as np
import pytest

from dpfact_flower.estimation import pair_fit
from dpfact_flower.estimation.pair_fit import Model, explained, fit_pairs


def tiny(seed=0, codes=7, sites=2, rank=3, signal=0.0):
    """Make symmetric matrices: noise plus `signal` times a model with random factors and usages."""
    rng = np.random.default_rng(seed)
    model = Model(rng.random((codes, rank)), rng.random((sites, rank)))
    lower = np.tril(rng.normal(size=(sites, codes, codes)) + signal * (model.F @ model.F.T), -1)
    return lower + lower.transpose(0, 2, 1), model


def laid_out(matrices, dtype=np.float64):
    """Return the matrices as `Sites`."""
    return np.ascontiguousarray(matrices.transpose(1, 0, 2), dtype)


def squared_error(matrices, model):
    """Return the error off the diagonals, entry by entry."""
    codes, rank = model.F.shape
    return sum(
        (matrix[j, k] - sum(use[r] * model.F[j, r] * model.F[k, r] for r in range(rank))) ** 2
        for matrix, use in zip(matrices, model.d, strict=True)
        for j in range(codes)
        for k in range(codes)
        if j != k
    )


def descend(x, target, system, sweeps):
    for _ in range(sweeps):
        for r in range(len(x)):
            if system[r, r] > 1e-12:
                x[r] = max(0.0, x[r] + (target[r] - system[r] @ x) / system[r, r])
            else:
                x[r] = 0.0


def plain_iteration(matrices, model, threshold):
    """Update one row after another, and then the usages, without caches or blocks."""
    norms = np.linalg.norm(model.F, axis=0)
    norms[norms == 0] = 1
    F, d = model.F / norms, model.d * norms**2
    for j in range(len(F)):
        others = np.delete(F, j, axis=0)
        system = (d.T @ d) * (others.T @ others)
        both = zip(matrices, d, strict=True)
        target = sum(use * (np.delete(matrix[j], j) @ others) for matrix, use in both)
        descend(F[j], target - threshold * np.sqrt(np.diag(system)), system, 2)
    beside = ~np.eye(len(F), dtype=bool)
    pairs = np.array([np.outer(f, f)[beside] for f in F.T])
    for matrix, use in zip(matrices, d, strict=True):
        descend(use, pairs @ matrix[beside], pairs @ pairs.T, 3)
    return Model(F, d)


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.0, 1.5])
@pytest.mark.parametrize("codes", [9, 32, 75], ids=["less than a block", "one block", "blocks"])
def test_iterations_are_those_of_plain_coordinate_descent(codes, threshold):
    matrices, model = tiny(codes=codes, sites=3, rank=5, signal=2.0)
    expected = model
    for _ in range(4):
        expected = plain_iteration(matrices, expected, threshold)
    assert 0 < (expected.F == 0).mean() < 0.9
    found = fit_pairs(laid_out(matrices), model, threshold=threshold, iterations=4)
    np.testing.assert_allclose(found.F, expected.F, atol=1e-9)
    np.testing.assert_allclose(found.d, expected.d, atol=1e-9)


def test_what_is_explained_against_sums_over_entries():
    matrices, model = tiny()
    expected = np.square(matrices).sum() - squared_error(matrices, model)
    assert explained(laid_out(matrices), model) == pytest.approx(expected)


def test_the_fit_ends_where_no_entry_can_be_improved():
    matrices, model = tiny()
    model = fit_pairs(laid_out(matrices), model, threshold=0.0, iterations=3000)
    best = squared_error(matrices, model)
    for number, part in enumerate(model):
        for place in np.ndindex(part.shape):
            for step in (-1e-3, 1e-3):
                moved = [model.F.copy(), model.d.copy()]
                moved[number][place] = max(0.0, moved[number][place] + step)
                assert squared_error(matrices, Model(*moved)) >= best - 1e-9


def test_a_fit_that_no_longer_moves_ends_early():
    matrices, model = tiny()
    sites = laid_out(matrices)
    far = fit_pairs(sites, model, threshold=0.0, iterations=3000)
    early = fit_pairs(sites, model, threshold=0.0, iterations=3000, settled=1e-6)
    once = fit_pairs(sites, early, threshold=0.0, iterations=1)
    assert not np.array_equal(early.F, far.F)
    gained = explained(sites, once) - explained(sites, early)
    assert 0 <= gained < 1e-6 * explained(sites, early)


def test_usages_are_non_negative_least_squares():
    matrices, model = tiny(codes=9)
    beside = ~np.eye(9, dtype=bool)
    pairs = np.array([np.outer(f, f)[beside] for f in model.F.T])
    system = pair_fit.pairs_gram(model.F)
    np.testing.assert_allclose(system, pairs @ pairs.T)
    found = np.zeros_like(model.d)
    times = pair_fit.times(laid_out(matrices), model.F)
    pair_fit.solve_usages(found, pair_fit.inner(times, model.F), system, 2000)
    for matrix, usage in zip(matrices, found, strict=True):
        slope = pairs @ (matrix[beside] - usage @ pairs)
        np.testing.assert_allclose(slope[usage > 0], 0, atol=1e-9)
        assert (slope[usage == 0] <= 1e-9).all()


def test_unpack_is_symmetric_without_a_diagonal():
    sites = pair_fit.matrices_of([np.array([1.0, 2.0, 3.0]) * math.sqrt(2), np.zeros(3)], 3)
    np.testing.assert_allclose(sites[:, 0], [[0, 1, 2], [1, 0, 3], [2, 3, 0]], rtol=1e-6)
    assert not sites[:, 1].any()
