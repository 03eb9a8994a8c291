"""The patients who have a phenotype, compared with slow references."""

import numpy as np
import pytest
from scipy.optimize import nnls

from dpfact_flower import federate
from dpfact_flower.data.synthetic import preset, synthetic, true_memberships
from dpfact_flower.evaluation.membership import LEAST_SCORE, has_phenotype, leading_codes, scores
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.cp import match_columns
from tests.conftest import count_tensor


@pytest.fixture(scope="module")
def patients() -> SparseTensor:
    return count_tensor(60, seed=5)


@pytest.fixture(scope="module")
def features():
    """Sparse columns with different norms, so that phenotypes overlap little and norms matter."""
    rng = np.random.default_rng(4)
    return tuple(
        (rng.gamma(0.4, 1.0, (size, 4)) * [0.01, 1, 3, 50]).astype("f4") for size in (9, 12)
    )


def slow_scores(tensor, features):
    """Fit every dense patient of norm 1 to columns of norm 1 by non-negative least squares."""
    first, second = (f / np.linalg.norm(f, axis=0) for f in features)
    columns = np.einsum("ir,jr->ijr", first, second).reshape(-1, first.shape[1])
    rows = tensor.to_dense().reshape(len(tensor), -1)
    return np.array([nnls(columns, row / np.linalg.norm(row))[0] for row in rows])


def test_scores_are_those_of_non_negative_least_squares(patients, features):
    slow = slow_scores(patients, features)
    found = scores(patients, features)
    np.testing.assert_allclose(found, slow, atol=2e-4)
    clear = abs(slow - LEAST_SCORE) > 1e-3
    np.testing.assert_array_equal(has_phenotype(found)[clear], (slow > LEAST_SCORE)[clear])
    assert 0.05 < has_phenotype(found).mean() < 0.95


def test_scores_do_not_depend_on_the_scale_of_counts_or_columns(patients, features):
    found = scores(patients, features)
    times = np.random.default_rng(0).choice([0.25, 1, 8], len(patients))[patients.indices[:, 0]]
    scaled = SparseTensor.from_coo(patients.indices, patients.values * times, patients.shape)
    np.testing.assert_allclose(scores(scaled, features), found, atol=1e-5)
    moved = (features[0] * [8, 1, 0.5, 2], features[1] / [64, 1, 4, 1])
    np.testing.assert_allclose(scores(patients, [f.astype("f4") for f in moved]), found, atol=1e-4)


@pytest.mark.parametrize("many", [1, 5])
def test_a_record_that_is_nothing_but_a_phenotype_scores_1_however_long_it_is(many):
    features = tuple(np.eye(size, 1, dtype="f4") for size in (6, 8))
    for factor in features:
        factor[:many] = 1
    cells = np.argwhere(np.ones((1, many, many)))
    record = SparseTensor.from_coo(cells, np.ones(len(cells)), (1, 6, 8))
    assert scores(record, features) == pytest.approx(1)
    signed = tuple(-factor for factor in features[:1]) + features[1:]
    assert scores(record, signed, nonnegative=False) == pytest.approx(-1)
    assert has_phenotype(scores(record, signed, nonnegative=False)).all()


def test_codes_lead_from_a_third_of_the_largest_weight():
    factor = np.array([[0.9, 0.0], [0.3, 0.0], [0.29, 0.0], [-0.6, 0.0]])
    assert leading_codes(factor).astype(int).tolist() == [[1, 0], [1, 0], [0, 0], [1, 0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"privacy": "none"}, {"epsilon": 4.0, "noise_seed": 1}], ids=["none", "epsilon 4"]
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_prevalence_is_the_truth_within_a_factor_of_one_and_a_half(seed, how):
    settings = preset("demo", seed=seed)
    cohort = synthetic(settings)
    model = federate(sites=cohort, measure=False, rank=12, seed=seed, **how).model
    has = [model.memberships(site).has for site in cohort.sites]
    match = match_columns(model.factors, cohort.truth.factors)
    planted = np.concatenate(true_memberships(settings)).mean(axis=0)[match.truth]
    ratio = np.concatenate(has).mean(axis=0)[match.estimate] / planted
    assert np.mean((ratio > 1 / 1.5) & (ratio < 1.5)) >= 0.9, ratio
