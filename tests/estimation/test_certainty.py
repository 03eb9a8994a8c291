"""Halves of a release have independent noise, and estimates reflect what returns in both."""

import numpy as np
import pytest

from dpfact_flower.estimation import certainty
from dpfact_flower.tensor.triangle import strict_size

SIZES, SIGMA = (20, 30), 2.0
NOISE = SIGMA * np.sqrt(3)  # of three sites
CODES = sum(SIZES)
UPPER = np.triu_indices(CODES, 1)


def releases(sites=3, seed=0):
    rng = np.random.default_rng(seed)
    return [SIGMA * rng.standard_normal(strict_size(CODES)) for _ in range(sites)]


def test_halves_have_independent_noise_of_the_deviation_that_they_say():
    noise = []
    for seed in range(20):
        rng = np.random.default_rng(seed + 100)
        found = list(certainty.halves(releases(seed=seed), CODES, NOISE, rng))
        assert len(found) == 2 * certainty.SPLITS
        noise.append([half[UPPER] / NOISE for half in found[:2]])
    first, second = np.concatenate(noise, axis=1)
    assert [np.std(first), np.std(second)] == pytest.approx([1, 1], abs=0.02)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02  # for P + z / 2 and P - z / 2, it is 0.6


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nothing_is_said_of_patients_with_one_mode_or_of_masses_beyond_any_number():
    assert certainty.typical_counts([np.ones(strict_size(5))], [5]) == []
    beyond = np.full(strict_size(CODES), np.float32(3e38))
    assert certainty.typical_counts([beyond] * 40, SIZES) == []
    assert len(certainty.typical_counts([np.ones(strict_size(CODES))], SIZES)) == 2


def model(rank=4, seed=1):
    rng = np.random.default_rng(seed)
    found = tuple(rng.random((size, rank)) ** 6 for size in SIZES)
    return tuple((f / np.linalg.norm(f, axis=0)).astype(np.float32) for f in found)


def fits(*models):
    return tuple(np.stack(factors) for factors in zip(*models, strict=True))


def test_a_phenotype_returns_where_it_is_in_the_fits_whatever_its_place():
    own, other = model(), model(seed=2)
    turned = tuple(factor[:, [2, 0, 3, 1]] for factor in own)
    mixed = tuple(np.hstack([a[:, :2], b[:, 2:]]) for a, b in zip(own, other, strict=True))
    np.testing.assert_allclose(certainty.similarities(own, fits(turned, own)), 1, rtol=1e-6)
    found = certainty.similarities(own, fits(turned, mixed)).mean(axis=0)
    np.testing.assert_allclose(found[:2], 1, rtol=1e-6)
    assert (found[2:] < 0.8).all()
    chance = certainty.false_discovery(own, fits(turned, mixed), 2.0)
    assert max(chance[:2]) < 0.05 < 0.1 < min(chance[2:])


def test_only_phenotypes_that_return_are_counted_and_where_they_are_few_none_is_trusted():
    own, other = model(), model(seed=2)
    mixed = tuple(np.hstack([a[:, :3], b[:, 3:]]) for a, b in zip(own, other, strict=True))
    assert certainty.distinct_number(own, fits(mixed, mixed), 2.0) == 3
    assert certainty.distinct_number(own, fits(other, other), 2.0) == 1
    mostly = tuple(np.hstack([a[:, :1], b[:, 1:]]) for a, b in zip(own, other, strict=True))
    assert certainty.similarities(own, fits(mostly, mostly))[:, 0] == pytest.approx(1)
    assert min(certainty.false_discovery(own, fits(mostly, mostly), 2.0)) > 0.1


def test_a_phenotype_of_frequent_codes_alone_is_not_trusted():
    own = model()
    # The fits' first six phenotypes share codes. They match best if their modes are exchanged.
    worse = [0.9 * factor[:, :1] + 0.1 * factor.mean(axis=1, keepdims=True) for factor in own]
    common = [
        np.hstack([(factor[:, :1], blurred)[(mode + n) % 2] for n in range(6)])
        for mode, (factor, blurred) in enumerate(zip(own, worse, strict=True))
    ]
    frequent = tuple(np.hstack(each) for each in zip(common, (f[:, 1:] for f in own), strict=True))
    assert certainty.similarities(own, fits(frequent)).min() > 0.9
    chance = certainty.false_discovery(own, fits(frequent), 2.0)
    assert chance[0] == 0.5
    assert max(chance[1:]) < 0.1
    # In the other fits, the first phenotype's modes belong together.
    distinct = tuple(np.hstack([f, model(5, seed=3)[n]]) for n, f in enumerate(own))
    often = certainty.false_discovery(own, fits(frequent, distinct, distinct, distinct), 2.0)
    assert max(often) < 0.1
    assert certainty.false_discovery(own, fits(frequent, distinct, distinct), 2.0)[0] == 0.5


def test_chances_rise_with_the_share_of_absent_phenotypes_alone():
    few, many = np.full(10, 0.34), np.repeat([0.2, 0.6], [4, 6])
    np.testing.assert_allclose(certainty._for_share(few), few)
    raised = certainty._for_share(many)
    odds = raised / (1 - raised) * (1 - many) / many  # all by one factor, that of the share
    share = raised.mean()
    np.testing.assert_allclose(odds, share / (1 - share) * 0.65 / 0.35, rtol=1e-6)
    assert share > many.mean()


def test_a_phenotype_that_may_be_a_part_of_another_is_doubted_where_patients_have_many_cells():
    own = model()
    own[1][:, 1] = own[1][:, 0]
    assert np.argwhere(certainty.alike(own)).tolist() == [[0, 1], [1, 0]]
    same = fits(own, own)
    assert certainty.distinct_number(own, same, 2.0) == 4
    assert certainty.distinct_number(own, same, 10.0) == 3
    assert max(certainty.false_discovery(own, same, 2.0)) < 0.05
    many = certainty.false_discovery(own, same, 10.0)
    assert min(many[:2]) >= 0.5
    assert max(many[2:]) < 0.05


def test_surrogates_of_a_half_have_no_more_cells_than_there_is_time_for():
    large, rng = [100 + each for each in releases()], np.random.default_rng(0)
    half = next(certainty.halves(large, CODES, NOISE, rng))
    found = certainty.half_patients(half, NOISE, [8.0, 8.0], SIZES, 3, np.random.default_rng(1))
    assert found.nnz < 1.5 * certainty._MOST_CELLS * found.n_patients
