"""The server's start: its results without noise and with noise, and its choice."""

import math
import os
import threading
from unittest.mock import Mock

import numpy as np
import pytest

from dpfact_flower.estimation import start as module
from dpfact_flower.estimation.pair_fit import Model, explained, fit_pairs, matrices_of
from dpfact_flower.estimation.start import greedy_init, grown, start_factors, usage_of
from dpfact_flower.tensor.cp import factor_match_score
from tests.bits import assert_bits
from tests.patience import PATIENCE

SIZES, RANK = (14, 18), 4


def planted(sites=3, sizes=SIZES, seed=0):
    """Return sparse factors, and the packed co-occurrences that they imply at each site."""
    rng = np.random.default_rng(seed)
    parts = [rng.gamma(1.0, 1.0, (n, RANK)) * (rng.random((n, RANK)) < 0.35) + 1e-3 for n in sizes]
    parts = [part / np.linalg.norm(part, axis=0) for part in parts]
    F = np.concatenate(parts) / math.sqrt(len(parts))
    usage = 100 * rng.gamma(2.0, 0.5, (sites, RANK))
    usage[1:, 0] = 0  # a phenotype of only the first site
    upper = np.triu_indices(len(F), 1)
    packed = [(math.sqrt(2) * ((F * d) @ F.T)[upper]).astype(np.float32) for d in usage]
    return parts, usage, packed


@pytest.mark.parametrize("sizes", [SIZES, (9, 11, 13)], ids=["two modes", "three modes"])
def test_planted_factors_come_back(sizes):
    parts, usage, packed = planted(sizes=sizes)
    start = start_factors(packed, sizes, RANK, 0.0, np.random.default_rng(1))
    assert factor_match_score(start.factors, parts) > 0.95
    assert start.usage.shape == usage.shape
    for factor in start.factors:
        assert factor.dtype == np.float32
        assert (factor >= 0).all()
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1, rtol=1e-5)


def test_the_number_of_threads_has_no_say(monkeypatch):
    _, _, packed = planted()
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        found.append(start_factors(packed, SIZES, RANK, 0.1, np.random.default_rng(1)))
    one, three = ([*each.factors, each.usage] for each in found)
    assert_bits(one, three)


def test_candidates_have_random_numbers_of_their_own(monkeypatch):
    """With threads, the first candidate draws last, but each candidate draws the same numbers."""
    _, _, packed = planted()
    codes, drawn, second = sum(SIZES), {}, threading.Event()

    def candidate(number):
        def begin(rng):
            if number == 0 and os.environ["OMP_NUM_THREADS"] == "2":
                assert second.wait(PATIENCE)
            drawn.setdefault(number, []).append(rng.random())
            if number == 1:
                second.set()
            return Model(np.ones((codes, RANK)), np.ones((len(packed), RANK)))

        return begin

    known = [candidate(0), candidate(1)]
    monkeypatch.setattr(module, "_candidates", lambda *_: known)
    for threads in ("1", "2"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        second.clear()
        start_factors(packed, SIZES, RANK, 0.1, np.random.default_rng(1))
    assert drawn[0][0] == drawn[0][1] != drawn[1][0] == drawn[1][1]


def test_candidates_are_judged_by_noise_they_were_not_fitted_to(monkeypatch):
    """One candidate fits the noise, another fits the phenotypes, and the latter is chosen."""
    parts, usage, packed = planted()
    F = np.concatenate(parts) / math.sqrt(2)
    rng, sigma = np.random.default_rng(4), 4.0
    noisy = np.array([p + rng.normal(0, sigma, p.shape) for p in packed], np.float32)
    sites = matrices_of(noisy, len(F))
    begun = Model(rng.random((len(F), 25)), np.ones((len(noisy), 25)))
    loaded = fit_pairs(sites, begun, threshold=0.0, iterations=60)
    assert explained(sites, loaded) > explained(sites, Model(F, usage))
    known = [lambda _: loaded, lambda _: None, lambda _: Model(F, usage)]
    monkeypatch.setattr(module, "_candidates", lambda *_: known)
    assert module._best_candidate(noisy, len(F), RANK, sigma, rng).F.shape == F.shape


def test_fresh_noise_is_independent_of_what_is_tested_and_as_large_as_said(monkeypatch):
    """For pure noise, the data for fitting and for testing are uncorrelated."""
    sigma, codes = 3.0, 300
    rng = np.random.default_rng(0)
    noise = rng.normal(0, sigma, (2, codes * (codes - 1) // 2)).astype(np.float32)
    seen, unseen = [], []
    nothing = Model(np.zeros((codes, 1)), np.zeros((2, 1)))
    known = [lambda _: nothing]
    monkeypatch.setattr(module, "_candidates", lambda sites, *_: seen.append(sites) or known)
    monkeypatch.setattr(module, "explained", lambda sites, _: unseen.append(sites) or 0.0)
    module._best_candidate(noise, codes, 1, sigma, rng)
    upper = np.triu_indices(codes, 1)
    tested, fitted = (
        np.concatenate(s, axis=1).transpose(1, 0, 2)[:, *upper].ravel() * math.sqrt(2) / sigma
        for s in (unseen[:2], seen)  # for the first candidate
    )
    assert np.corrcoef(tested, fitted)[0, 1] == pytest.approx(0, abs=0.015)
    assert fitted.std() == pytest.approx(math.hypot(1, 0.5), rel=0.01)
    assert tested.std() == pytest.approx(math.hypot(1, 2), rel=0.01)


@pytest.mark.parametrize("best", [True, False], ids=["growth is best", "a random one is"])
def test_growth_is_one_candidate_and_may_end_with_too_few_factors(monkeypatch, best):
    parts, usage, packed = planted()
    monkeypatch.setattr(module, "_RESTARTS", 2)
    monkeypatch.setattr(module, "_POOLED", 1)  # too few iterations for a random start
    monkeypatch.setattr(module, "_JOINT", 1)
    truth = Model(np.concatenate(parts), usage / len(parts))
    # None: growth ended with too few factors, as if phenotypes were below the noise.
    monkeypatch.setattr(module, "grown", lambda *given: truth if best else None)
    rng = np.random.default_rng(1)
    noisy = [(p + rng.normal(0, 0.3, p.shape)).astype(np.float32) for p in packed]
    found = module._best_candidate(noisy, sum(SIZES), RANK, 0.3, rng)
    assert (factor_match_score([found.F], [truth.F]) > 0.95) == best


def test_sites_of_unequal_size_and_a_phenotype_of_the_smallest():
    parts, _, packed = planted()
    share = np.array([0.2, 1.0, 3.0])
    unequal = [(s * p).astype(np.float32) for s, p in zip(share, packed, strict=True)]
    start = start_factors(unequal, SIZES, RANK, 0.0, np.random.default_rng(1))
    assert factor_match_score(start.factors, parts) > 0.95
    own = np.argmax(start.usage[0] / (start.usage[1:].sum(axis=0) + 1e-3))
    for factor, part in zip(start.factors, parts, strict=True):
        assert factor[:, own] @ part[:, 0] > 0.95


def test_more_sites_than_are_told_apart_are_pooled_with_one_deviation_of_noise(monkeypatch):
    """Seven sites form three groups. The fitted matrices have equal noise, and usages are sums."""
    parts, usage, packed = planted(sites=7)
    monkeypatch.setattr(module, "MOST_SEPARATE", 3)
    best_candidate = Mock(side_effect=module._best_candidate)
    monkeypatch.setattr(module, "_best_candidate", best_candidate)
    start = start_factors(packed, SIZES, RANK, 0.0, np.random.default_rng(1))
    groups = np.split(np.array(packed, np.float64), [3, 5])
    wanted = [group.sum(axis=0) / math.sqrt(len(group)) for group in groups]
    np.testing.assert_allclose(best_candidate.call_args_list[0].args[0], wanted, rtol=1e-5)
    assert factor_match_score(start.factors, parts) > 0.95
    order = np.argmax(parts[0].T @ start.factors[0], axis=1)
    sums = [group.sum(axis=0) for group in np.split(usage, [3, 5])]
    scale = np.square(np.linalg.norm(start.stacked, axis=0))
    np.testing.assert_allclose((start.usage * scale)[:, order], sums, rtol=0.05, atol=3)


def test_usage_is_non_negative_least_squares_beside_the_diagonal():
    parts, usage, packed = planted()
    factors = tuple(part.astype(np.float32) for part in parts)
    for release, wanted in zip(packed, usage, strict=True):
        found, spread = usage_of(release, factors, 0.5)
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=0.05)
    stacked = np.concatenate(parts) / math.sqrt(len(parts))
    column = np.outer(stacked[:, 0], stacked[:, 0])[np.triu_indices(len(stacked), 1)]
    assert spread[0] == pytest.approx(0.5 / np.linalg.norm(math.sqrt(2) * column), rel=1e-4)


def test_pure_noise_still_gives_valid_factors():
    rng = np.random.default_rng(3)
    codes = sum(SIZES)
    noise = [rng.normal(0, 5, codes * (codes - 1) // 2).astype(np.float32) for _ in range(2)]
    for factor in start_factors(noise, SIZES, RANK, 5.0, rng).factors:
        assert np.isfinite(factor).all()
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1, rtol=1e-5)


def test_a_factor_that_drowns_in_the_noise_stays_as_it_began(monkeypatch):
    parts, usage, packed = planted()
    faint, sigma = np.random.default_rng(0).random((sum(SIZES), 1)), 4.0
    F = np.column_stack([np.concatenate(parts) / math.sqrt(2), faint])
    begun = Model(F, np.column_stack([usage, np.full(len(usage), 1e-3)]))
    fitted = fit_pairs(matrices_of(packed, len(F)), begun, threshold=sigma / 2**0.5, iterations=10)
    assert list(fitted.F.any(axis=0)) == [True] * RANK + [False]
    monkeypatch.setattr(module, "_best_candidate", lambda *_: begun)
    start = start_factors(packed, SIZES, RANK + 1, sigma, np.random.default_rng(1))
    for found, part in zip(start.factors, np.split(faint[:, 0], [SIZES[0]]), strict=True):
        np.testing.assert_allclose(found[:, RANK], part / np.linalg.norm(part), atol=1e-5)


def sites_of(F, d):
    """Return matrices that the model fits exactly, as `Sites`."""
    matrices = np.einsum("jr,tr,kr->jtk", F, d, F)
    matrices[np.arange(len(F)), :, np.arange(len(F))] = 0
    return matrices


@pytest.fixture
def two():
    """Return phenotypes without a common code. The stronger one is at one site only."""
    F = np.zeros((9, 2))
    F[:4, 0], F[4:, 1] = 1 / 2, 1 / math.sqrt(5)
    return Model(F, np.array([[3.0, 0.0], [3.0, 9.0]]))


def test_new_factors_take_most_of_the_residual_and_are_unlike_each_other(two):
    there = Model(two.F[:, :0], two.d[:, :0])
    found = greedy_init(sites_of(*two), there, 0.0, 5, np.random.default_rng(0))
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
    expected = np.einsum("jtk,km->tjm", sites - sites_of(*model), X)
    np.testing.assert_allclose(module.residual_times(sites, model, X), expected, atol=1e-12)


def test_all_planted_factors_are_found():
    parts, usage, _ = planted()
    F = np.concatenate(parts)
    sites = sites_of(F, usage)
    begun = grown(sites, RANK, 0.0, np.random.default_rng(0))
    assert factor_match_score([fit_pairs(sites, begun, threshold=0.0, iterations=40).F], [F]) > 0.95


def test_no_more_than_there_are_above_the_noise(two):
    sites, rng = sites_of(*two), np.random.default_rng(0)
    assert grown(np.zeros((9, 2, 9)), 4, 0.05, rng) is None
    assert grown(sites, 4, 0.05, rng) is None
    assert grown(sites, 2, 0.05, rng).F.shape == (9, 2)


@pytest.mark.parametrize(("noise", "found"), [(0.5, True), (1.0, False)])
def test_the_threshold_comes_down_for_a_faint_factor_above_the_noise(noise, found):
    """There are five strong factors and one with entries of .75, without a common code."""
    F = np.kron(np.eye(6), np.full((4, 1), 0.5))
    d = np.array([[30.0] * 5 + [3.0]])
    model = grown(sites_of(F, d), 6, noise, np.random.default_rng(0))
    assert (model is not None) == found
    if model is not None:
        assert sorted(model.F.argmax(axis=0) // 4) == list(range(6))  # one of each block
