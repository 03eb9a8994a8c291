"""The estimator under scikit-learn's checks and tools, and the charges for private fits."""

import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted

from dpfact_flower import DPFactPhenotyper
from dpfact_flower.errors import DataError, PrivacyRefusedError, SettingsError
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.tensor.cp import factor_match_score

pytestmark = pytest.mark.slow

PLAIN = {"privacy": "none", "rounds": 2}
# scikit-learn runs this check if SCIPY_ARRAY_API is set, but sites compute only with NumPy.
EXEMPT = {"check_array_api_input": "arrays of other libraries become NumPy's"}


@parametrize_with_checks(
    [DPFactPhenotyper(rank=2, **PLAIN)], expected_failed_checks=lambda _: EXEMPT
)
def test_it_keeps_scikit_learns_rules(estimator, check):
    """These are the rules for transformers of non-negative matrices."""
    check(estimator)


@pytest.fixture(scope="module")
def fitted(cohort):
    return DPFactPhenotyper(rank=3, **PLAIN).fit(cohort)


def test_patients_are_fitted_to_what_was_found(fitted, cohort):
    scores = fitted.transform(cohort)
    assert scores.shape == (sum(map(len, cohort.sites)), 3)
    second = scores[len(cohort.sites[0]) :][: len(cohort.sites[1])]
    np.testing.assert_array_equal(second, fitted.transform(cohort.sites[1]))
    assert fitted.components_.shape == (3, 9 + 12)
    assert fitted.codes_[0] == "procedures=P00"
    assert list(fitted.get_feature_names_out()) == ["phenotype_1", "phenotype_2", "phenotype_3"]
    shown = fitted.memberships(cohort.sites[:1])
    np.testing.assert_array_equal(shown.to_numpy(), scores[: len(cohort.sites[0])])
    assert shown.index[0] == "1"
    assert shown.index.name == "patient"
    assert fitted.memberships(cohort).loc[cohort.sites[1].name].shape == second.shape


def test_it_pickles_and_clones(fitted, cohort):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform(cohort), fitted.transform(cohort))
    assert again.run_.guarantee == fitted.run_.guarantee
    with pytest.raises(SettingsError, match="rank"):
        clone(fitted).set_params(rank=0).fit(cohort)


def test_a_matrix_is_the_same_dense_and_sparse_and_with_names(cohort):
    counts = np.random.default_rng(1).poisson(0.7, (50, 7))
    dense = DPFactPhenotyper(rank=2, **PLAIN).fit(counts)
    frame = pd.DataFrame(counts, columns=list("abcdefg"), index=[f"p{n}" for n in range(50)])
    long = scipy.sparse.coo_array((counts[at := np.nonzero(counts)], at))  # has 64-bit indices
    for other in (scipy.sparse.csr_array(counts), scipy.sparse.coo_matrix(counts), long, frame):
        found = DPFactPhenotyper(rank=2, **PLAIN).fit(other)
        np.testing.assert_array_equal(found.components_, dense.components_)
        np.testing.assert_array_equal(found.transform(other), dense.transform(counts))
    assert list(found.codes_) == list("abcdefg")
    table = found.set_output(transform="pandas").transform(frame)
    assert list(table.index) == list(frame.index)
    assert list(table.columns) == ["phenotype_1", "phenotype_2"]


@pytest.mark.nightly
def test_sites_are_cross_validated_by_patients(cohort):
    """Rows are the patients of one site, or of all sites of a cohort."""
    died = np.arange(len(cohort)) % 3 == 0
    pipeline = make_pipeline(DPFactPhenotyper(rank=2, **PLAIN), LogisticRegression())
    assert len(cross_val_score(pipeline, cohort, died, cv=2, scoring="roc_auc")) == 2
    site = cohort.sites[0]
    assert len(cross_val_score(pipeline, site, died[: len(site)], cv=2)) == 2


def test_private_fits_are_charged_and_stopped_by_a_budget_that_lasts(cohort, tmp_path):
    private = DPFactPhenotyper(
        rank=2, epsilon=6.0, settings={"patients": 100}, state_dir=tmp_path, max_epsilon=7.0
    )
    private.fit(cohort)
    assert private.run_.epsilon == pytest.approx(6.0, rel=1e-3)
    assert "proven: patient-level" in private.run_.guarantee
    ledger = private.run_.ledger()
    assert set(ledger["site"]) == {site.name for site in cohort.sites}
    shutil.rmtree(tmp_path / "site-2")  # a preflight tells whether all sites would answer
    with pytest.raises(PrivacyRefusedError, match="max-epsilon is 7; with the planned releases"):
        private.fit(cohort)
    assert not (tmp_path / "site-2" / LEDGER).exists()
    with Ledger(tmp_path / "site-1", create=False) as kept:
        assert len(kept.rows()) == (ledger["site"] == "site-1").sum()
        assert kept.verify() == []


def test_without_a_state_dir_a_private_fit_leaves_nothing(cohort, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = DPFactPhenotyper(rank=2, epsilon=8.0).fit(cohort)
    assert not list(tmp_path.iterdir())
    assert found.run_.epsilon == pytest.approx(8.0, rel=1e-3)


def test_seeded_noise_is_for_simulation(cohort):
    """Two runs give the same phenotypes, and neither is called private."""
    seeded = {"noise_seed": 3}
    one, two = (DPFactPhenotyper(rank=2, settings=seeded).fit(cohort) for _ in range(2))
    assert factor_match_score(one.model_.factors, two.model_.factors) == pytest.approx(1)
    np.testing.assert_array_equal(one.components_, two.components_)
    assert "not private" in one.run_.guarantee


def test_codes_that_patient_mode_left_out_are_not_missed(cohort):
    counts = np.random.default_rng(2).poisson(1.0, (80, 9))
    kept = DPFactPhenotyper(rank=2, settings={"codes": "4"}).fit(counts)
    assert kept.components_.shape == (2, 4)
    assert kept.transform(counts).shape == (80, 2)


def test_a_fit_that_failed_is_no_fit(cohort):
    estimator = DPFactPhenotyper(rank=2, privacy="none", rounds=0)
    with pytest.raises(SettingsError, match="rounds"):
        estimator.fit(cohort)
    with pytest.raises(NotFittedError):
        check_is_fitted(estimator)
    assert estimator.set_params(rounds=1).fit(cohort).__sklearn_is_fitted__()
    for name in ("epsilon", "max_epsilon", "max-epsilon", "measure"):
        with pytest.raises(SettingsError, match="settings: cannot hold"):
            estimator.set_params(settings={name: 8.0}).fit(cohort)


def test_a_budget_that_cannot_last_is_refused(cohort, tmp_path):
    with pytest.raises(SettingsError, match="needs state_dir"):
        DPFactPhenotyper(max_epsilon=4.0).fit(cohort)
    with pytest.raises(SettingsError, match="public estimate of the number of patients"):
        DPFactPhenotyper(max_epsilon=4.0, state_dir=tmp_path).fit(cohort)


def test_rows_of_several_sites_keep_their_order(cohort):
    assert [len(site) for site in cohort[np.arange(10, 60)].sites] == [30, 20]
    for rows, says in (([3, 1], "rows must ascend"), ("north", "for a site, use cohort.sites")):
        with pytest.raises(DataError, match=says):
            cohort[rows]
