"""The artificial EHR, compared with the model from which it is drawn."""

import itertools

import numpy as np
import pytest
import scipy.stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from dpfact_flower.data.synthetic import PRESETS, preset, synthetic, true_memberships
from dpfact_flower.errors import SettingsError

SMALL = {"patients": 600, "modes": "procedures:20:2,diagnoses:30:3", "phenotypes": 5}


def values(cohort):
    return np.concatenate([site.tensor.values for site in cohort.sites])


def test_equal_settings_give_equal_data_and_other_seeds_others():
    first, again = synthetic(preset("demo", **SMALL)), synthetic(preset("demo", **SMALL))
    other = synthetic(preset("demo", seed=1, **SMALL))
    for a, b, c in zip(first.sites, again.sites, other.sites, strict=True):
        assert a.tensor.fingerprint() == b.tensor.fingerprint() != c.tensor.fingerprint()
        np.testing.assert_equal(a.labels, b.labels)
    np.testing.assert_array_equal(first.truth.usage, again.truth.usage)


def test_sites_have_their_shares_and_the_right_shapes():
    settings = preset("demo", patients=1003, shares="3,1,1", modes="procedures:11:1,drugs:7:2.5")
    cohort = synthetic(settings)
    assert [site.tensor.n_patients for site in cohort.sites] == [602, 201, 200]
    assert [vocabulary.name for vocabulary in cohort.vocabularies] == ["procedures", "drugs"]
    assert cohort.sites[0].tensor.feature_shape == (11, 7)
    assert cohort.truth.usage.shape == (3, 12)
    for site in cohort.sites:  # every patient has a cell
        assert len(np.unique(site.tensor.indices[:, 0])) == site.tensor.n_patients


@pytest.mark.parametrize(
    "modes", ["a:9:3", "a:9:2,b:8:3", "a:9:2,b:8:3,c:7:2", "a:5:1,b:4:2,c:3:1,d:6:2"]
)
def test_all_combinations_of_a_window_co_occur(modes):
    """With one window per patient, the cells are all combinations of codes, with equal counts."""
    settings = preset(
        "demo", patients=300, modes=modes, active=1, windows=1, repeats=2, phenotypes=3, shares="1"
    )
    tensor = synthetic(settings).sites[0].tensor
    counts, most = set(), np.zeros(tensor.ndim - 1, int)
    for patient in range(300):
        mine = tensor.indices[:, 0] == patient
        cells = tensor.indices[mine, 1:]
        codes = [np.unique(column) for column in cells.T]
        most = np.maximum(most, [len(distinct) for distinct in codes])
        assert {tuple(cell) for cell in cells.tolist()} == set(itertools.product(*codes))
        assert len(np.unique(tensor.values[mine])) == 1
        counts.add(float(tensor.values[mine][0]))
    assert {1.0, 2.0, 3.0} <= counts
    means = np.array([mode.per_window for mode in settings.feature_modes])
    assert (most > means).sum() == (means > 1).sum()


def test_without_background_every_cell_belongs_to_an_active_phenotype():
    settings = preset("demo", background=0, **SMALL)
    cohort, members = synthetic(settings), true_memberships(settings)
    for site, has in zip(cohort.sites, members, strict=True):
        patient, *codes = site.tensor.indices.T
        allowed = has[patient]
        for factor, code in zip(cohort.truth.factors, codes, strict=True):
            allowed = allowed & (factor[code] > 0)
        assert allowed.any(axis=1).all()
    noisy = synthetic(preset("demo", background=0.3, **SMALL))
    assert values(noisy).sum() > 0
    patient, j, _ = noisy.sites[0].tensor.indices.T
    outside = ~(members[0][patient] & (noisy.truth.factors[0][j] > 0)).any(axis=1)
    assert 0.03 < outside.mean() < 0.4


def test_codes_follow_the_planted_distribution():
    """With one phenotype, and one code per window and mode, counts are multinomial."""
    settings = preset(
        "demo", patients=20_000, modes="a:30:1,b:40:1", phenotypes=1, background=0,
        windows=1, repeats=1, shares="1", local=0,
    )  # fmt: skip
    cohort = synthetic(settings)
    for mode, factor in enumerate(cohort.truth.factors, 1):
        seen = np.bincount(cohort.sites[0].tensor.indices[:, mode], minlength=len(factor))
        expected = factor[:, 0] / factor[:, 0].sum() * 20_000
        assert not seen[expected == 0].any()
        some = expected > 0
        assert scipy.stats.chisquare(seen[some], expected[some]).pvalue > 1e-4


def test_background_codes_follow_a_power_law():
    settings = preset(
        "demo", patients=30_000, modes="a:100:1,b:2:1", background=1, active=1, windows=1,
        repeats=1, shares="1",
    )  # fmt: skip
    seen = np.bincount(synthetic(settings).sites[0].tensor.indices[:, 1], minlength=100)
    law = (np.arange(100) + 6.0) ** -0.8
    np.testing.assert_allclose(np.sort(seen)[::-1] / 30_000, law / law.sum(), rtol=0.15)


def test_counts_are_overdispersed():
    counts = values(synthetic("demo"))
    # Zero-truncated Poisson at rate x: mean m = x / (1 - exp(-x)), variance m (1 + x - m).
    rate = scipy.optimize.brentq(lambda x: x / -np.expm1(-x) - counts.mean(), 1e-6, 50)
    truncated = counts.mean() * (1 + rate - counts.mean())
    assert counts.var() > 1.5 * truncated
    assert counts.max() > 20
    assert (counts == np.round(counts)).all()


def test_members_have_one_to_four_phenotypes_and_sites_those_they_use():
    settings = preset("demo", patients=20_000, active=1.7)
    usage, members = synthetic(settings).truth.usage, true_memberships(settings)
    active = np.concatenate(members).sum(axis=1)
    assert set(active.tolist()) == {1, 2, 3, 4}
    # 1 + Poisson(.7), cut at 4
    expected = 1 + np.minimum(np.arange(30), 3) @ scipy.stats.poisson.pmf(np.arange(30), 0.7)
    assert active.mean() == pytest.approx(expected, abs=0.03)
    np.testing.assert_array_equal(usage, [has.any(axis=0) for has in members])


@pytest.mark.parametrize(("local", "expected"), [(0.0, 0), (0.2, 4), (0.5, 10)])
def test_local_phenotypes_exist_at_one_site(local, expected):
    usage = synthetic(preset("demo", phenotypes=20, local=local)).truth.usage
    assert (usage.sum(axis=0) == 1).sum() == expected
    assert (usage.sum(axis=0) == 6).sum() == 20 - expected
    assert (usage[:, usage.sum(axis=0) == 1].sum(axis=1) <= -(-expected // 6)).all()


def test_a_distinct_site_has_a_population_of_its_own():
    settings = preset("demo", phenotypes=20, distinct=6)
    usage = synthetic(settings).truth.usage
    members = true_memberships(settings)
    local = usage.sum(axis=0) == 1
    assert usage[5, local].sum() >= 2
    assert usage[5, ~local].sum() == 3
    assert usage[:5][:, ~local].all()
    likeness = np.corrcoef([has.mean(axis=0) for has in members])
    assert likeness[5, :5].max() < likeness[:5, :5].min()


@pytest.mark.parametrize("name", ["demo", "paper-synthetic"])
def test_deaths_are_as_common_as_asked_and_depend_on_phenotypes(name):
    labels = np.concatenate([site.labels["died"] for site in synthetic(name).sites])
    spread = np.sqrt(0.1 * 0.9 / len(labels))
    assert abs(labels.mean() - 0.1) < 4 * spread
    members = np.concatenate(true_memberships(preset(name)))
    half = np.arange(len(labels)) % 2 == 0
    model = LogisticRegression(C=100).fit(members[half], labels[half])
    assert roc_auc_score(labels[~half], model.decision_function(members[~half])) > 0.75


@pytest.mark.slow
def test_presets_have_the_papers_sizes():
    cohort = synthetic("paper-synthetic")
    assert [site.tensor.shape for site in cohort.sites] == [(1000, 300, 800)] * 5
    assert len(values(cohort)) == pytest.approx(12_000, rel=0.05)
    cohort = synthetic("paper-mimic")
    assert sum(site.tensor.n_patients for site in cohort.sites) == 40_662
    assert cohort.sites[0].tensor.feature_shape == (202, 316)
    assert len(cohort.sites) == 6
    assert cohort.truth.usage.shape[1] == 50
    assert len(values(cohort)) == pytest.approx(1_500_000, rel=0.05)


def test_codes_are_readable():
    procedures, diagnoses = synthetic("demo").vocabularies
    assert procedures.codes[7] == "P007"
    assert diagnoses.descriptions[42].startswith("Diagnosis 042 (")
    truth = synthetic("demo").truth.factors[1]
    cardiac = [i for i, text in enumerate(diagnoses.descriptions) if text.endswith("(cardiac)")]
    assert cardiac
    assert (truth[cardiac, 0] > 0).all()
    unplanted = ~truth.any(axis=1)
    assert all(
        text.endswith("(general)") == alone
        for text, alone in zip(diagnoses.descriptions, unplanted, strict=True)
    )


def test_presets_have_names():
    with pytest.raises(SettingsError, match="must be one of demo, paper-synthetic, paper-mimic"):
        synthetic("mimic")
    with pytest.raises(SettingsError, match="every site needs a patient"):
        synthetic(preset("demo", patients=3))
    assert all(PRESETS[name].name == name for name in PRESETS)


def test_more_phenotypes_than_a_site_has_do_not_break_the_draw():
    settings = preset("demo", phenotypes=2, local=0.5, active=4.0)
    members = true_memberships(settings)
    usage = synthetic(settings).truth.usage
    for has, used in zip(members, usage, strict=True):
        assert not has[:, ~used].any()
        assert has.any(axis=1).all()
