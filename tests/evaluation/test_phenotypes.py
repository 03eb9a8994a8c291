"""Phenotype tables against loops, 2 x 2 tables, scikit-learn and planted risks."""

import json
import sys
from dataclasses import asdict

import numpy as np
import pytest
import scipy.stats
from sklearn.linear_model import LogisticRegression

from dpfact_flower.data.synthetic import preset, synthetic, true_memberships
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.phenotypes import has_phenotype, phenotype_table, site_usage
from dpfact_flower.evaluation.tables import Association
from dpfact_flower.tensor.cp import CPModel

VOCABULARIES = (
    Vocabulary("procedures", tuple(f"P{i}" for i in range(6)), tuple("uvwxyz")),
    Vocabulary("diagnoses", tuple(f"D{i}" for i in range(8))),
)


def features(rank, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((6, rank)) + 0.1, rng.random((8, rank)) + 0.1


def patients(rank, count=400, seed=0):
    """Sparse memberships, each phenotype in about a third of the patients."""
    rng = np.random.default_rng(seed)
    return rng.gamma(2.0, 1.0, (count, rank)) * (rng.random((count, rank)) < 0.35)


def labels_for(memberships, risk, seed=0):
    logit = -1.5 + memberships @ np.asarray(risk, float)
    return (np.random.default_rng(seed).random(len(logit)) < 1 / (1 + np.exp(-logit))).astype(int)


def test_top_codes_agree_with_sorting_by_hand():
    model = CPModel((patients(3), *features(3)))
    table = phenotype_table(model, VOCABULARIES, top=4)
    for r, phenotype in enumerate(table.phenotypes):
        assert phenotype.number == r + 1
        assert list(phenotype.codes) == ["procedures", "diagnoses"]
        for vocabulary, factor in zip(VOCABULARIES, model.features, strict=True):
            codes = phenotype.codes[vocabulary.name]
            ranked = sorted(range(len(factor)), key=lambda i: -factor[i, r])[:4]
            assert [c.code for c in codes] == [vocabulary.codes[i] for i in ranked]
            assert [c.description for c in codes] == [vocabulary.descriptions[i] for i in ranked]
            shares = [factor[i, r] / factor[:, r].sum() for i in ranked]
            np.testing.assert_allclose([c.weight for c in codes], shares)


def test_codes_of_no_weight_are_not_listed_and_signs_are_kept():
    B = np.array([[0.0, 0], [-3, 0], [1, 0], [0, 0], [0, 0], [0, 0]])
    table = phenotype_table(CPModel((patients(2), B, features(2)[1])), VOCABULARIES)
    first, second = (p.codes["procedures"] for p in table.phenotypes)
    assert [(c.code, c.weight) for c in first] == [("P1", -0.75), ("P2", 0.25)]
    assert second == ()
    assert table.phenotypes[1].weight == 0


@pytest.mark.parametrize("threshold", [0.0, 0.01, 0.3])
def test_prevalence_agrees_with_a_loop_and_not_with_the_scaling(threshold):
    A, (B, C) = patients(3, 60), features(3)
    has = np.zeros((60, 3), bool)
    for i in range(60):
        weighted = [A[i, r] * np.linalg.norm(B[:, r]) * np.linalg.norm(C[:, r]) for r in range(3)]
        for r in range(3):
            has[i, r] = weighted[r] > threshold * sum(weighted)
    np.testing.assert_array_equal(has_phenotype(CPModel((A, B, C)), threshold), has)
    scale = np.array([1e-3, 1.0, 1e4])
    moved = CPModel((A / scale, B * scale, C))
    np.testing.assert_array_equal(has_phenotype(moved, threshold), has)
    table = phenotype_table(moved, VOCABULARIES, threshold=threshold)
    for r, phenotype in enumerate(table.phenotypes):
        assert phenotype.prevalence == pytest.approx(has[:, r].mean())
        norms = [np.linalg.norm(f[:, r]) for f in (A, B, C)]
        assert phenotype.weight == pytest.approx(np.prod(norms))


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "<10"), (9, "<10"), (10, 10 / 200), (20, 20 / 200)]
)
def test_prevalences_of_few_patients_are_hidden(count, shown):
    A = patients(2, 200)
    A[:, 1] = 0
    A[:count, 1] = 1.0
    died = np.arange(200) % 2 == 0
    model = CPModel((A, *features(2)))
    phenotype = phenotype_table(model, VOCABULARIES, labels={"died": died}).phenotypes[1]
    assert phenotype.prevalence == shown
    assert (phenotype.outcomes["died"].coefficient is None) == (count < 20)  # half of them died
    open_table = phenotype_table(model, VOCABULARIES, labels={"died": died}, small_cells=False)
    assert open_table.phenotypes[1].prevalence == count / 200


def test_a_single_binary_membership_is_the_log_odds_ratio_of_a_2_by_2_table():
    has = np.repeat([1, 1, 0, 0], [30, 70, 40, 260])
    died = np.repeat([1, 0, 1, 0], [30, 70, 40, 260])
    model = CPModel((has[:, None].astype(float), *features(1)))
    association = (
        phenotype_table(model, VOCABULARIES, labels={"died": died}).phenotypes[0].outcomes["died"]
    )
    log_odds = np.log(30 * 260 / (70 * 40))
    error = np.sqrt(1 / 30 + 1 / 70 + 1 / 40 + 1 / 260)
    assert association.coefficient == pytest.approx(log_odds * has.std(), rel=1e-6)
    assert association.p_value == pytest.approx(2 * scipy.stats.norm.sf(log_odds / error), rel=1e-4)
    assert association.reason is None
    half = 1.959964 * error * has.std()  # Wald's, as the p-value
    low, high = association.interval
    assert (high + low) / 2 == pytest.approx(association.coefficient, rel=1e-6)
    assert (high - low) / 2 == pytest.approx(half, rel=1e-4)


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        ((20, 30, 40), (0.2, 0.3, 0.4)),
        ((3, 30, 40), ("<10", "hidden", 0.4)),  # 3 = all - 30 - 40
        ((3, 0, 40), ("<10", 0.0, "hidden")),  # a site that has switched it off says so anyhow
        ((3, 4, 40), ("<10", "<10", 0.4)),
    ],
)
def test_no_small_number_at_a_site_follows_from_the_others(counts, shown):
    memberships = np.zeros((300, 2))
    memberships[:, 0] = 1.0
    for site, count in enumerate(counts):
        memberships[100 * site : 100 * site + count, 1] = 1.0
    model = CPModel((memberships, *features(2)))
    sites = {"a": 100, "b": 100, "c": 100}
    first, second = phenotype_table(model, VOCABULARIES, sites=sites).phenotypes
    assert first.by_site == dict.fromkeys("abc", 1.0)
    assert tuple(second.by_site.values()) == shown
    tiny = phenotype_table(model, VOCABULARIES, sites=sites, small_cells=False).phenotypes[1]
    assert tuple(tiny.by_site.values()) == tuple(count / 100 for count in counts)
    with pytest.raises(DataError, match="200 patients, the model 300"):
        phenotype_table(model, VOCABULARIES, sites={"a": 200})


def test_coefficients_agree_with_scikit_learn_and_find_the_risk():
    A = patients(4, 3000)
    died = labels_for(A, [1.0, 0, -0.7, 0])
    table = phenotype_table(CPModel((A, *features(4))), VOCABULARIES, labels={"died": died})
    found = [p.outcomes["died"] for p in table.phenotypes]
    reference = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000)
    reference.fit((A - A.mean(0)) / A.std(0), died)
    np.testing.assert_allclose([a.coefficient for a in found], reference.coef_[0], rtol=1e-4)
    assert found[0].coefficient > 0 > found[2].coefficient
    assert max(found[0].p_value, found[2].p_value) < 1e-6
    assert min(found[1].p_value, found[3].p_value) > 1e-3


def test_p_values_are_uniform_for_shuffled_labels():
    A = patients(5, 500)
    model, rng = CPModel((A, *features(5))), np.random.default_rng(0)
    died = np.arange(500) < 100
    found = []
    for _ in range(20):
        table = phenotype_table(model, VOCABULARIES, labels={"died": rng.permutation(died)})
        found += [p.outcomes["died"].p_value for p in table.phenotypes]
    assert scipy.stats.kstest(found, "uniform").pvalue > 1e-3


def test_without_statsmodels_there_are_coefficients_but_no_p_values(monkeypatch):
    A = patients(2, 800)
    died = labels_for(A, [0.8, -0.4])
    model = CPModel((A, *features(2)))
    full = phenotype_table(model, VOCABULARIES, labels={"died": died})
    monkeypatch.setitem(sys.modules, "statsmodels.api", None)
    bare = phenotype_table(model, VOCABULARIES, labels={"died": died})
    for ours, theirs in zip(bare.phenotypes, full.phenotypes, strict=True):
        assert ours.outcomes["died"].coefficient == pytest.approx(
            theirs.outcomes["died"].coefficient, rel=1e-4
        )
        assert ours.outcomes["died"].p_value is None
        assert "statsmodels" in ours.outcomes["died"].reason


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("library", [True, False])
def test_designs_without_an_answer_say_why(monkeypatch, library):
    if not library:
        monkeypatch.setitem(sys.modules, "statsmodels.api", None)
    A = patients(3, 300)
    died = labels_for(A, [0.5, 0, 0])

    def reasons(A, died):
        table = phenotype_table(
            CPModel((A, *features(A.shape[1]))), VOCABULARIES, labels={"died": died}
        )
        assert all(
            (p.outcomes["died"].coefficient is None) <= (p.outcomes["died"].reason is not None)
            for p in table.phenotypes
        )
        return [p.outcomes["died"].reason if p.outcomes["died"].coefficient is None else None
                for p in table.phenotypes]  # fmt: skip

    off = A.copy()
    off[:, 1] = 0
    assert reasons(off, died) == [None, "the membership is the same for all patients", None]
    twice = A.copy()
    twice[:, 1] = 2 * twice[:, 0]
    assert reasons(twice, died) == ["memberships are linearly dependent"] * 3
    survived = np.where(A[:, 2] > 0, 0, died)
    assert reasons(A, survived)[2] == "fewer than 10 patients with both"
    dead = np.where(A[:, 2] > 0, 1, died)
    assert reasons(A, dead)[2] == "fewer than 10 patients who have it are without the outcome"
    parted = (A.sum(axis=1) > np.quantile(A.sum(axis=1), 0.8)).astype(int)
    assert reasons(A, parted) == ["separation: the likelihood has no maximum"] * 3
    nobody = np.zeros(300, int)
    nobody[:4] = 1
    assert reasons(A, nobody) == ["fewer than 5 patients with or without it"] * 3


def test_a_phenotype_that_nobody_has_gets_no_coefficient_where_small_cells_are_shown():
    A = patients(2, 300)
    died = labels_for(A, [0.5, 0])
    A[:, 0] += 1
    A[:, 1] = 1e-9 * np.arange(300)  # it varies, and is nobody's by the threshold
    table = phenotype_table(
        CPModel((A, *features(2))), VOCABULARIES, labels={"died": died}, small_cells=False
    )
    nobody = table.phenotypes[1]
    assert nobody.prevalence == 0
    assert nobody.outcomes["died"] == Association(reason="fewer than 5 patients have it")


@pytest.mark.parametrize(
    ("counts", "rate"),
    # with the outcome and without: of those who have the phenotype, and of the others
    [
        ((30, 70, 40, 260), 0.3),
        ((10, 90, 40, 260), 0.1),
        ((9, 91, 40, 260), "<10"),
        ((0, 100, 40, 260), "<10"),
        ((91, 9, 40, 260), "hidden"),
        ((30, 70, 9, 291), "hidden"),  # 9 = all who died - 30
        ((30, 70, 291, 9), "hidden"),
        ((30, 70, 0, 0), 0.3),
    ],
)
def test_no_small_number_follows_from_how_many_had_an_outcome(counts, rate):
    has, died = np.repeat([1, 1, 0, 0], counts), np.repeat([1, 0, 1, 0], counts)
    model = CPModel((has[:, None].astype(float), *features(1)))
    table = phenotype_table(model, VOCABULARIES, labels={"died": died})
    found = table.phenotypes[0].outcomes["died"]
    assert found.rate == rate
    assert table.rates == {"died": pytest.approx(died.mean())}
    few = min(counts[:2]) < 10
    assert (found.coefficient is None) == (few or sum(counts[2:]) == 0)
    bare = phenotype_table(model, VOCABULARIES, labels={"died": died}, small_cells=False)
    assert bare.phenotypes[0].outcomes["died"].rate == counts[0] / sum(counts[:2])


def test_rates_of_rare_outcomes_are_hidden():
    died = np.arange(400) < 9
    model = CPModel((patients(1), *features(1)))
    for label, rate in ((died, "<10"), (~died, "hidden")):
        table = phenotype_table(model, VOCABULARIES, labels={"died": label})
        assert table.rates == {"died": rate}
        assert isinstance(table.phenotypes[0].outcomes["died"].rate, str)


def test_planted_risks_are_found_on_the_artificial_ehr():
    settings = preset("demo", patients=4000)
    cohort = synthetic(settings)
    members = np.concatenate(true_memberships(settings)).astype(float)
    died = np.concatenate([site.labels["died"] for site in cohort.sites])
    model = CPModel((members, *cohort.truth.factors))
    table = phenotype_table(model, cohort.vocabularies, labels={"died": died})
    found = [p.outcomes["died"] for p in table.phenotypes]
    sure = [a for a in found if a.p_value is not None and a.p_value < 1e-6]
    assert 2 <= len(sure) <= 7
    assert sum(a.coefficient > 0 for a in sure) >= 2
    text = json.dumps(table.to_dict())
    assert json.loads(text)["phenotypes"][0]["codes"]["procedures"][0]["code"].startswith("P")
    assert "site-1-0" not in text


def test_labels_are_optional():
    table = phenotype_table(CPModel((patients(2), *features(2))), VOCABULARIES)
    assert [p.outcomes for p in table.phenotypes] == [{}, {}]


def test_site_usage_shows_norms_and_what_is_off():
    first, second = patients(3, 50), patients(3, 70, seed=1)
    second[:, 1] = 0
    first[:, 2] = 1e-200  # its norm underflows, but the phenotype is not off
    usage = site_usage([first, second], ["north", "south"])
    expected = [[np.sqrt((A[:, r] ** 2).sum()) for r in range(3)] for A in (first, second)]
    np.testing.assert_allclose(usage.norms, expected)
    assert usage.off == ((False, False, False), (False, True, False))
    assert json.loads(json.dumps(asdict(usage)))["off"][1] == [False, True, False]


def test_what_does_not_fit_is_refused():
    model = CPModel((patients(2), *features(2)))
    with pytest.raises(DataError, match="need 2, one per feature mode, got 1"):
        phenotype_table(model, VOCABULARIES[:1])
    with pytest.raises(DataError, match="vocabulary diagnoses: has 8 codes, the factor 6"):
        phenotype_table(model, VOCABULARIES[::-1])
    with pytest.raises(DataError, match=r"label died: need shape \(400,\)"):
        phenotype_table(model, VOCABULARIES, labels={"died": np.zeros(3)})
    with pytest.raises(DataError, match="label died: must be 1"):
        phenotype_table(model, VOCABULARIES, labels={"died": np.full(400, 2)})
    with pytest.raises(DataError, match="threshold in"):
        phenotype_table(model, VOCABULARIES, threshold=1.0)
    for top in (0, 2.5):
        with pytest.raises(DataError, match=f"whole number of top codes, .* got {top}"):
            phenotype_table(model, VOCABULARIES, top=top)
    with pytest.raises(DataError, match="one matrix for each of 0 sites"):
        site_usage([], [])
    with pytest.raises(DataError, match="must be finite"):
        site_usage([np.full((3, 2), np.nan)], ["only"])
    with pytest.raises(DataError, match="one matrix for each of 1 sites"):
        site_usage([np.ones((3, 2)), np.ones((3, 2))], ["only"])
    with pytest.raises(DataError, match="ranks differ"):
        site_usage([np.ones((3, 2)), np.ones((3, 3))], ["a", "b"])
