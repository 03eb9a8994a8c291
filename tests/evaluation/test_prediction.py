"""Mortality AUCs, compared with scikit-learn, planted truth, and null labels."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from dpfact_flower.data.synthetic import preset, synthetic, true_memberships
from dpfact_flower.evaluation import prediction
from dpfact_flower.evaluation.prediction import code_presence, code_volume, predict_outcome

SETTINGS = preset("demo", patients=2400, shares="3,2,1")


@pytest.fixture(scope="module")
def sites():
    return synthetic(SETTINGS).sites


@pytest.fixture(scope="module")
def members():
    return true_memberships(SETTINGS)


def test_baselines_agree_with_a_dense_tensor(sites):
    tensor = sites[2].tensor.select_patients(np.arange(40))
    dense = tensor.to_dense()
    present = np.hstack([dense.sum(axis=2) > 0, dense.sum(axis=1) > 0])
    np.testing.assert_array_equal(code_presence(tensor).toarray(), present)
    np.testing.assert_allclose(code_volume(tensor)[:, 0], np.log1p(dense.sum(axis=(1, 2))))


@pytest.mark.slow
def test_true_memberships_predict_and_shuffled_labels_do_not(sites, members):
    found = predict_outcome(members, sites)
    assert found.overall.memberships.mean > 0.75
    assert found.overall.memberships.mean > found.overall.raw_codes.mean
    assert found.overall.raw_codes.mean > found.overall.volume.mean + 0.05
    rng = np.random.default_rng(0)
    null = [replace(site, labels=rng.permutation(site.labels["died"])) for site in sites]
    found = predict_outcome(members, null)
    for auc in (found.overall.memberships, found.overall.raw_codes, found.overall.volume):
        assert abs(auc.mean - 0.5) < 0.08
        assert 0 < auc.spread < 0.1


@pytest.mark.slow
def test_figures_agree_with_scikit_learn_by_hand(sites, members):
    rng = np.random.default_rng(0)
    members = [own * rng.random(own.shape) for own in members]
    found = predict_outcome(members, sites)
    labels = np.concatenate([site.labels["died"] for site in sites])
    site = np.repeat(np.arange(3), [len(m) for m in members])
    pooled = np.concatenate(members) ** 0.25  # they are skewed
    volume = np.concatenate([code_volume(s.tensor) for s in sites])
    for group, rows in ((found.overall, site >= 0), (found.sites[1], site == 1)):
        for name, predictors in (("memberships", pooled), ("volume", volume)):
            expected = []
            for training in prediction.training_masks(2 * site + labels, 0.6, 3, 0):
                train, test = rows & training, rows & ~training
                mean, std = predictors[train].mean(0), predictors[train].std(0)
                scaled = (predictors - mean) / np.where(std > 0, std, 1)
                model = LogisticRegression(max_iter=1000).fit(scaled[train], labels[train])
                probability = model.predict_proba(scaled[test])[:, 1]
                expected.append(roc_auc_score(labels[test], probability))
            auc = getattr(group, name)
            assert auc.mean == pytest.approx(np.mean(expected), abs=1e-9)
            assert auc.spread == pytest.approx(np.std(expected, ddof=1), abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    train=st.floats(0.05, 0.95),
    seed=st.integers(0, 1000),
)
def test_splits_are_stratified_and_differ(sizes, train, seed):
    strata = np.repeat(np.arange(len(sizes)), sizes)
    masks = list(prediction.training_masks(strata, train, 3, seed))
    for mask in masks:
        for stratum, size in enumerate(sizes):
            inside = mask[strata == stratum].sum()
            assert abs(inside - train * size) <= 1
            if size > 1:
                assert 0 < inside < size
    if min(sizes) > 20 and 0.3 < train < 0.7:
        assert not np.array_equal(masks[0], masks[1])


def test_groups_without_enough_deaths_say_so(sites, members):
    few = np.zeros(len(members[1]), int)
    few[:9] = 1
    mixed = (sites[0], replace(sites[1], labels=few), replace(sites[2], labels=None))
    found = predict_outcome(members, mixed)
    assert found.sites[0].memberships is not None
    assert found.sites[1].memberships is None
    assert found.sites[1].reason == "fewer than 10 patients with it, or without it"
    assert found.sites[2].reason == "no labels"
    assert found.overall.memberships is not None
    assert found.overall.patients == len(members[0]) + len(members[1])
    rare = [sites[0][np.arange(n, 200, 12)] for n in range(12)]  # each site has one death
    died = [(np.arange(len(site)) == 0).astype(int) for site in rare]
    alone = [replace(site, labels={"died": own}) for site, own in zip(rare, died, strict=True)]
    assert 0 < predict_outcome([members[0][: len(s)] for s in rare], alone).overall.volume.mean < 1
    everybody = [replace(site, labels=np.ones(len(site), int)) for site in sites]
    found = predict_outcome(members, everybody)
    assert found.overall.reason == "fewer than 10 patients with it, or without it"
    assert [site.memberships for site in found.sites] == [None] * 3
