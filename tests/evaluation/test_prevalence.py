"""Phenotype tables, compared with loops, 2 x 2 tables, scikit-learn and planted risks."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import scipy.stats
from sklearn.linear_model import LogisticRegression

from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.evaluation import prevalence
from dpfact_flower.evaluation.membership import LEAST_SCORE
from dpfact_flower.evaluation.prevalence import phenotype_table, site_usage
from tests.evaluation.folders import site_of

VOCABULARIES = (
    Vocabulary("procedures", tuple(f"P{i}" for i in range(6)), tuple("uvwxyz")),
    Vocabulary("diagnoses", tuple(f"D{i}" for i in range(8))),
)


def features(rank, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((6, rank)) + 0.1, rng.random((8, rank)) + 0.1


def patients(rank, count=400, seed=0):
    """Draw sparse memberships, with each phenotype in about a third of the patients."""
    rng = np.random.default_rng(seed)
    return rng.gamma(2.0, 1.0, (count, rank)) * (rng.random((count, rank)) < 0.35)


def described(scores, died=None, *, sizes=None, factors=None, present=None, **more):
    """Return the table of patients with these scores, who by default all have the same codes."""
    factors = factors or features(scores.shape[1])
    present = present or [np.ones((len(scores), 1)) * (np.arange(len(f)) == 0) for f in factors]
    starts = np.cumsum(sizes or [len(scores)])[:-1]

    def site(name, rows):
        given = more if died is None else {"died": died, **more}
        labels = {name: np.asarray(label)[rows].astype(int) for name, label in given.items()}
        return site_of([mode[rows] for mode in present], VOCABULARIES, labels, name)

    sites = [*map(site, "abc", np.split(np.arange(len(scores)), starts))]
    return phenotype_table(np.split(scores, starts), factors, sites)


def labels_for(memberships, risk, seed=0):
    logit = -1.5 + memberships @ np.asarray(risk, float)
    return (np.random.default_rng(seed).random(len(logit)) < 1 / (1 + np.exp(-logit))).astype(int)


def test_top_codes_agree_with_sorting_by_hand():
    factors = features(3)
    for r, phenotype in enumerate(described(patients(3), factors=factors).phenotypes):
        assert phenotype.number == r + 1
        assert list(phenotype.codes) == ["procedures", "diagnoses"]
        assert phenotype.outcomes == {}
        for vocabulary, factor in zip(VOCABULARIES, factors, strict=True):
            codes = phenotype.codes[vocabulary.name]
            ranked = sorted(range(len(factor)), key=lambda i: -factor[i, r])[:8]
            assert [c.code for c in codes] == [vocabulary.codes[i] for i in ranked]
            assert [c.description for c in codes] == [vocabulary.descriptions[i] for i in ranked]
            shares = [factor[i, r] / factor[:, r].sum() for i in ranked]
            np.testing.assert_allclose([c.weight for c in codes], shares)


def test_codes_of_no_weight_are_not_listed_and_signs_are_kept():
    B = np.array([[0.0, 0], [-3, 0], [1, 0], [0, 0], [0, 0], [0, 0]])
    A = patients(2)
    table = described(A, factors=(B, features(2)[1]))
    first, second = (p.codes["procedures"] for p in table.phenotypes)
    assert [(c.code, c.weight) for c in first] == [("P1", -0.75), ("P2", 0.25)]
    assert second == ()
    assert [p.weight for p in table.phenotypes] == pytest.approx(np.linalg.norm(A, axis=0))


@pytest.mark.parametrize(
    ("count", "shown"), [(9, "<10"), (10, 0.05), (20, 0.1), (190, 0.95), (191, "nearly all")]
)
def test_prevalences_of_few_patients_are_hidden(count, shown):
    A = patients(2, 200)
    A[:, 1] = 0
    A[:count, 1] = 1.0
    died = np.arange(200) % 2 == 0
    phenotype = described(A, died).phenotypes[1]
    assert phenotype.prevalence == phenotype.by_site["a"] == shown
    if shown == "nearly all":  # a fraction would tell how many
        assert {phenotype.precision, phenotype.codes["diagnoses"][0].observed} <= {"<10", "hidden"}
    assert (phenotype.outcomes["died"].coefficient is None) == (count < 20)  # half of them died


def of_forty(scores, with_both, others):
    """40 of 200 may have the phenotype. `with_both` and `others` have its only leading code, P1."""
    P, D = np.zeros((200, 6)), np.zeros((200, 8))
    P[:, 0] = D[:, 0] = 1
    P[:with_both, 1] = P[40 : 40 + others, 1] = 1
    factors = np.array([[0.1], [1.0], [0], [0], [0], [0]]), D[:1].T
    return described(scores, factors=factors, present=[P, D]).phenotypes[0]


FORTY = (np.arange(200) < 40)[:, None].astype(float)


@pytest.mark.parametrize(
    ("carry", "shown"), [(9, "<10"), (10, 0.25), (30, 0.75), (31, "most"), (40, "most")]
)
def test_shares_of_patients_with_codes_hide_few_with_them_and_few_without(carry, shown):
    found = of_forty(FORTY, carry, 50)
    leading, other = found.codes["procedures"]
    assert leading.code == "P1"
    assert found.precision == leading.observed == shown
    assert found.carriers == leading.everybody == (50 + carry) / 200
    assert (other.observed, other.everybody) == ("most", "nearly all")
    nobody = of_forty(0 * FORTY, carry, 50)
    assert (nobody.prevalence, nobody.precision) == ("<10", "<10")


@pytest.mark.parametrize(
    ("others", "shown"), [(9, "hidden"), (10, 0.2), (150, 0.9), (151, "hidden")]
)
def test_few_patients_with_a_code_and_without_the_phenotype_follow_from_nothing(others, shown):
    found = of_forty(FORTY, 30, others)
    leading = found.codes["procedures"][0]
    assert leading.observed == found.precision == 0.75
    assert leading.everybody == shown
    assert found.carriers == shown


def test_carriers_have_a_leading_code_of_every_mode():
    A, rng = patients(3, 600), np.random.default_rng(0)
    factors = [factor**3 for factor in features(3)]
    present = [rng.random((600, len(factor))) < 0.2 for factor in factors]
    for of_mode in present:
        of_mode[np.arange(600), rng.integers(of_mode.shape[1], size=600)] = True
    table = described(A, sizes=[150, 200, 250], factors=factors, present=present)
    for r, found in enumerate(table.phenotypes):
        has = A[:, r] > LEAST_SCORE
        leads = [factor[:, r] >= factor[:, r].max() / 3 for factor in factors]
        first, second = ((own & lead).any(axis=1) for own, lead in zip(present, leads, strict=True))
        carries = first & second
        assert found.precision == carries[has].mean()
        assert found.carriers == carries.mean()
        for vocabulary, of_mode in zip(VOCABULARIES, present, strict=True):
            for code in found.codes[vocabulary.name]:
                column = of_mode[:, vocabulary.index[code.code]]
                assert (code.observed, code.everybody) == (column[has].mean(), column.mean())


@pytest.mark.parametrize(
    ("count", "alone", "without"),
    [(191, 10, "<10"), (190, 10, 0.05), (190, 9, "hidden"), (0, 0, "nearly all")],
)
def test_the_share_without_a_phenotype_is_guarded_too(count, alone, without):
    """Each phenotype is the only one of `alone` patients."""
    row = np.arange(200)
    A = np.column_stack([row < count - alone, (alone <= row) & (row < count)])
    assert described(A.astype(float)).without == without


def test_a_single_binary_membership_is_the_log_odds_ratio_of_a_2_by_2_table(monkeypatch):
    monkeypatch.setattr(prevalence, "_RIDGE", 1e-9)
    has = np.repeat([1, 1, 0, 0], [30, 70, 40, 260])
    died = np.repeat([1, 0, 1, 0], [30, 70, 40, 260])
    association = described(has[:, None].astype(float), died).phenotypes[0].outcomes["died"]
    log_odds = np.log(30 * 260 / (70 * 40))
    error = np.sqrt(1 / 30 + 1 / 70 + 1 / 40 + 1 / 260)
    assert association.coefficient == pytest.approx(log_odds * has.std(), rel=1e-6)
    assert association.p_value == pytest.approx(2 * scipy.stats.norm.sf(log_odds / error), rel=1e-4)
    assert association.reason is None
    half = 1.959964 * error * has.std()  # Wald's interval, like the p-value
    low, high = association.interval
    assert (high + low) / 2 == pytest.approx(association.coefficient, rel=1e-6)
    assert (high - low) / 2 == pytest.approx(half, rel=1e-4)


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        ((20, 30, 40), (0.2, 0.3, 0.4)),
        ((3, 30, 40), ("<10", "hidden", 0.4)),  # 3 = all - 30 - 40
        ((3, 0, 40), ("<10", "<10", "hidden")),  # or 3 of two sites
        ((3, 4, 40), ("<10", "<10", "hidden")),
        ((1, 1, 40), ("<10", "<10", "hidden")),
        ((9, 9, 40), ("<10", "<10", "hidden")),  # or 9 of each
        ((6, 7, 40), ("<10", "<10", "hidden")),  # or 4 of each, at least
        ((9, 11, 90), ("<10", "hidden", 0.9)),
        ((1, 11, 90), ("<10", "hidden", "hidden")),  # or 2 at most
        ((0, 10, 90), ("<10", "hidden", "hidden")),  # 0: a hidden number is 10 or more
        ((9, 20, 20), ("<10", "hidden", "hidden")),  # 9: the number does not exceed those shown
        ((9, 100, 100), ("hidden", "hidden", "hidden")),  # 9: a site has 100 patients
        ((3, 2, 1), ("<10", "<10", "<10")),  # fewer than ten in all, which is not shown
        ((97, 70, 60), ("nearly all", "hidden", 0.6)),  # 3 lack it: all - 30 - 40
    ],
)
def test_no_small_number_at_a_site_follows_from_the_others(counts, shown):
    memberships = np.full((300, 2), LEAST_SCORE / 2)
    memberships[:, 0] = 1.0
    for site, count in enumerate(counts):
        memberships[100 * site : 100 * site + count, 1] = 1.0
    first, second = described(memberships, sizes=[100, 100, 100]).phenotypes
    assert first.by_site == dict.fromkeys("abc", "nearly all")
    assert tuple(second.by_site.values()) == shown


@pytest.mark.parametrize("spared", [False, True])
def test_coefficients_agree_with_scikit_learn_and_find_the_risk(spared):
    """All phenotypes are in the model, even one whose coefficient is not shown."""
    A = patients(4, 3000)
    died = labels_for(A, [1.0, 0, -0.7, 0])
    if spared:
        died[A[:, 3] > LEAST_SCORE] = 0
    found = [p.outcomes["died"] for p in described(A, died).phenotypes]
    reference = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000)
    reference.fit((A - A.mean(0)) / A.std(0), died)
    shown = 3 if spared else 4
    coefficients = [association.coefficient for association in found]
    np.testing.assert_allclose(coefficients[:shown], reference.coef_[0][:shown], rtol=1e-4)
    assert coefficients[shown:] == [None] * (4 - shown)
    if spared:
        return
    assert found[0].coefficient > 0 > found[2].coefficient
    assert max(found[0].p_value, found[2].p_value) < 1e-6
    assert min(found[1].p_value, found[3].p_value) > 1e-3


@pytest.mark.filterwarnings("error")
def test_designs_without_an_answer_say_why():
    A = patients(3, 300)
    died = labels_for(A, [0.5, 0, 0])

    def reasons(A, died):
        found = [p.outcomes["died"] for p in described(A, died).phenotypes]
        assert all(a.rate and (a.coefficient is None) == (a.reason is not None) for a in found)
        return [association.reason for association in found]

    off = A.copy()
    for score, reason in (0, "fewer than 10 have it"), (1, "all scores are equal"):
        off[:, 1] = score  # the reason does not tell none from few
        assert reasons(off, died) == [None, reason, None]
    twice = A[:, [0, 0, 2]] * [1, 2, 1]
    assert reasons(twice, died) == [None] * 3  # the penalty shares the coefficient
    survived = np.where(A[:, 2] > 0, 0, died)
    assert reasons(A, survived)[2] == "fewer than 10 have both"
    dead = np.where(A[:, 2] > 0, 1, died)
    assert reasons(A, dead)[2] == "fewer than 10 who have it lack the outcome"
    parted = (A.sum(axis=1) > np.quantile(A.sum(axis=1), 0.8)).astype(int)
    assert reasons(A, parted) == [None] * 3
    nobody = np.zeros(300, int)
    nobody[:9] = 1
    assert reasons(A, nobody) == ["fewer than 10 patients with it, or without it"] * 3


@pytest.mark.parametrize(
    ("counts", "rate"),
    # with and without the outcome, for patients with the phenotype and for the others
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
    table = described(has[:, None].astype(float), died)
    found = table.phenotypes[0].outcomes["died"]
    assert found.rate == rate
    assert table.rates == {"died": pytest.approx(died.mean())}
    few = min(counts[:2]) < 10
    assert (found.coefficient is None) == (few or sum(counts[2:]) == 0)


def test_rates_of_rare_outcomes_are_hidden():
    died = np.arange(400) < 9
    for label, rate in ((died, "<10"), (~died, "hidden")):
        table = described(patients(1), label)
        assert table.rates == {"died": rate}
        assert isinstance(table.phenotypes[0].outcomes["died"].rate, str)


@pytest.mark.parametrize(("more", "rate"), [(0, "hidden"), (9, "hidden"), (10, 0.4)])
@pytest.mark.parametrize("turned", [False, True], ids=["died or worse", "neither"])
def test_no_small_number_follows_from_labels_of_which_one_includes_the_other(more, rate, turned):
    has, died = np.arange(400) < 100, np.arange(400) % 100 < 30
    worse = died | ((np.arange(400) >= 130) & (np.arange(400) % 100 < 50))
    worse[30 : 30 + more] = True
    table = described(has[:, None].astype(float), died, worse=~worse if turned else worse)
    shown = {name: found.rate for name, found in table.phenotypes[0].outcomes.items()}
    assert shown == {"died": 0.3, "worse": rate if rate == "hidden" else 0.6 if turned else 0.4}


def test_site_usage_shows_norms_and_what_is_off():
    first, second = patients(3, 50), patients(3, 70, seed=1)
    second[:, 1] = 0
    first[:, 2] = 1e-200  # its norm underflows, but the phenotype is not off
    usage = site_usage([first, second], ["north", "south"])
    expected = [[np.sqrt((A[:, r] ** 2).sum()) for r in range(3)] for A in (first, second)]
    np.testing.assert_allclose(usage.norms, expected)
    assert usage.off == ((False, False, False), (False, True, False))
    assert json.loads(json.dumps(asdict(usage)))["off"][1] == [False, True, False]
