"""The server's start: what it finds without noise and with it, against a slow reference."""

import math
from itertools import pairwise

import numpy as np
import pytest

from dpfact_flower.cp import factor_match_score
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.postprocess import start as module
from dpfact_flower.postprocess.start import start_factors, unpack, usage_of

SIZES, RANK = (14, 18), 4


def planted(sites=3, sizes=SIZES, seed=0):
    """Sparse factors, and each site's packed co-occurrences made of them."""
    rng = np.random.default_rng(seed)
    parts = [rng.gamma(1.0, 1.0, (n, RANK)) * (rng.random((n, RANK)) < 0.35) + 1e-3 for n in sizes]
    parts = [part / np.linalg.norm(part, axis=0) for part in parts]
    F = np.concatenate(parts) / math.sqrt(len(parts))
    usage = 100 * rng.gamma(2.0, 0.5, (sites, RANK))
    usage[1:, 0] = 0  # a phenotype of the first site alone
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


def test_noise_far_below_the_signal_changes_little():
    parts, _, packed = planted()
    rng = np.random.default_rng(2)
    noisy = [(p + rng.normal(0, 0.3, p.shape)).astype(np.float32) for p in packed]
    start = start_factors(noisy, SIZES, RANK, 0.3, np.random.default_rng(1))
    assert factor_match_score(start.factors, parts) > 0.9


def test_equal_inputs_give_equal_bits_and_the_order_of_sites_only_their_usage():
    _, _, packed = planted()
    one, two = (start_factors(packed, SIZES, RANK, 0.1, np.random.default_rng(1)) for _ in "ab")
    for first, second in zip(one.factors, two.factors, strict=True):
        assert first.tobytes() == second.tobytes()
    turned = start_factors(packed[::-1], SIZES, RANK, 0.1, np.random.default_rng(1))
    for first, second in zip(one.factors, turned.factors, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-3)
    np.testing.assert_allclose(one.usage, turned.usage[::-1], rtol=1e-2, atol=1e-1)


def squared_error(sites, F, d):
    """Beside the diagonals, entry by entry."""
    codes, rank = F.shape
    return sum(
        (site[j, k] - sum(use[r] * F[j, r] * F[k, r] for r in range(rank))) ** 2
        for site, use in zip(sites, d, strict=True)
        for j in range(codes)
        for k in range(codes)
        if j != k
    )


def tiny(seed=0, codes=7, sites=2, rank=3):
    """Any sites, not of the model, and any factors and usages."""
    rng = np.random.default_rng(seed)
    matrices = np.array([unpack(rng.normal(size=codes * (codes - 1) // 2), codes) for _ in "ab"])
    return matrices[:sites], rng.random((codes, rank)), rng.random((sites, rank))


def test_error_and_model_against_sums_over_entries():
    sites, F, d = tiny()
    expected = squared_error(sites, F, d)
    assert module._error(sites, F, d) == pytest.approx(expected)
    assert np.square(sites - module._model(F, d)).sum() == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(3))
def test_iterations_never_raise_the_error(seed):
    sites, F, d = tiny(seed)
    errors = [squared_error(sites, F, d)]
    for _ in range(8):
        F, d = module._fit(sites, F, d, 0.0, 1)
        errors.append(squared_error(sites, F, d))
    assert all(after <= before + 1e-9 for before, after in pairwise(errors))
    assert errors[-1] < errors[0]


def test_the_fit_ends_where_no_entry_can_be_improved():
    sites, F, d = tiny()
    F, d = module._fit(sites, F, d, 0.0, 3000)
    best = squared_error(sites, F, d)
    for place in np.ndindex(F.shape):
        for step in (-1e-3, 1e-3):
            moved = F.copy()
            moved[place] = max(0.0, moved[place] + step)
            assert squared_error(sites, moved, d) >= best - 1e-9
    for place in np.ndindex(d.shape):
        for step in (-1e-3, 1e-3):
            moved = d.copy()
            moved[place] = max(0.0, moved[place] + step)
            assert squared_error(sites, F, moved) >= best - 1e-9


def test_growth_adds_what_takes_most_of_the_residual():
    """Two phenotypes without a common code: the one at one site alone is the stronger."""
    F = np.zeros((9, 2))
    F[:4, 0], F[4:, 1] = 1 / 2, 1 / math.sqrt(5)
    d = np.array([[3.0, 0.0], [3.0, 9.0]])
    f, usage = module._strongest(module._model(F, d), 0.0, np.random.default_rng(0))
    np.testing.assert_allclose(f, F[:, 1], atol=1e-6)
    np.testing.assert_allclose(usage, d[:, 1], atol=1e-5)


def test_growth_finds_them_all_and_gives_up_on_more_than_there_are():
    parts, usage, packed = planted()
    sites = np.array([unpack(release, sum(SIZES)) for release in packed])
    F, d = module._grown(sites, RANK, 0.0, np.random.default_rng(0))
    F, d = module._fit(sites, F, d, 0.0, 40)
    assert factor_match_score(np.split(F, [SIZES[0]]), parts) > 0.95
    assert d.shape == usage.shape
    silent = np.zeros((2, 9, 9))
    assert module._grown(silent, RANK, 0.1, np.random.default_rng(0)) is None


def test_candidates_are_judged_by_noise_they_were_not_fitted_to(monkeypatch):
    """One candidate knows the noise by heart, another the phenotypes: the latter is taken."""
    parts, usage, packed = planted()
    F = np.concatenate(parts) / math.sqrt(2)
    rng, noise = np.random.default_rng(4), 3.0
    sites = np.array([unpack(p, len(F)) for p in packed])
    z = noise * rng.standard_normal(sites.shape)
    sites = sites + np.tril(z, -1) + np.tril(z, -1).transpose(0, 2, 1)
    loaded = module._fit(sites, rng.random((len(F), 25)), np.ones((len(sites), 25)), 0.0, 60)
    assert squared_error(sites, *loaded) < squared_error(sites, F, usage)
    monkeypatch.setattr(module, "_candidates", lambda *_: iter([loaded, (F, usage)]))
    found, _ = module._best_candidate(sites, RANK, noise, rng, 1)
    assert found.shape == F.shape


def test_sites_of_unequal_size_and_a_phenotype_of_the_smallest():
    parts, _, packed = planted()
    share = np.array([0.2, 1.0, 3.0])
    unequal = [(s * p).astype(np.float32) for s, p in zip(share, packed, strict=True)]
    start = start_factors(unequal, SIZES, RANK, 0.0, np.random.default_rng(1))
    assert factor_match_score(start.factors, parts) > 0.95
    own = np.argmax(start.usage[0] / (start.usage[1:].sum(axis=0) + 1e-3))
    for factor, part in zip(start.factors, parts, strict=True):
        assert factor[:, own] @ part[:, 0] > 0.95


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
    start = start_factors(noise, SIZES, RANK, 5.0, rng)
    for factor in start.factors:
        assert np.isfinite(factor).all()
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1, rtol=1e-5)


def test_unpack_is_symmetric_without_a_diagonal():
    matrix = unpack(np.array([1.0, 2.0, 3.0]) * math.sqrt(2), 3)
    np.testing.assert_allclose(matrix, [[0, 1, 2], [1, 0, 3], [2, 3, 0]])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"rank": 0}, SettingsError),
        ({"sigma": -1.0}, SettingsError),
        ({"sigma": math.nan}, SettingsError),
        ({"releases": []}, DataError),
        ({"releases": [np.zeros(3, np.float32)]}, DataError),
        ({"releases": [np.full(32 * 31 // 2, np.nan, np.float32)]}, DataError),
    ],
)
def test_what_does_not_fit_is_refused(changes, error):
    given = {"releases": planted()[2], "rank": RANK, "sigma": 0.0} | changes
    with pytest.raises(error):
        start_factors(
            given["releases"], SIZES, given["rank"], given["sigma"], np.random.default_rng(0)
        )
