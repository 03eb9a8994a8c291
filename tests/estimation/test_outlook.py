"""The forecast of a run, from public facts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfact_flower.estimation.outlook import needs_of, outlook_of
from dpfact_flower.privacy.patient.sharing import Sharing
from dpfact_flower.privacy.patient.strength import GOOD_STRENGTH, Facts, chance_of
from tests.privacy.patient.test_plan import plan

SAYS = {
    "hopeless": "don't spend the budget on this", "weak": "all but clear-cut",
    "good": "times as strong as the noise",
}  # fmt: skip
VERDICTS = [*SAYS]
epsilons = st.floats(math.log(0.1), math.log(100)).map(math.exp)


def test_what_is_not_known_is_not_planned_for():
    for unknown in ({"patients": 0}, {"sites": 0}):
        made = plan(epsilon=1000.0, **unknown)
        assert made.settings.refine_rounds == 1
        verdict, sentence, signal, *_ = outlook_of(made)
        assert (verdict, math.isnan(signal)) == ("unknown", True)
        assert "patients and sites" in sentence
    asked = {(0, 1): False, (1, 0): False, (1, 1): True}
    assert {pair: Facts((3,), 2, *pair).known for pair in asked} == asked


@given(epsilons, epsilons, st.integers(1, 10**6))
def test_more_epsilon_is_never_a_worse_outlook(one, other, patients):
    low, high = (outlook_of(plan(epsilon=e, patients=patients)) for e in sorted((one, other)))
    assert VERDICTS.index(low.verdict) <= VERDICTS.index(high.verdict)
    assert low.signal <= high.signal


def test_the_signal_falls_with_codes_sites_and_phenotypes_and_is_over_the_noise():
    signal = outlook_of(plan()).signal
    assert outlook_of(plan(sizes=(404, 632))).signal == pytest.approx(signal / math.sqrt(2))
    assert outlook_of(plan(sites=24)).signal == pytest.approx(signal / 2)
    assert outlook_of(plan(rank=100)).signal == pytest.approx(signal / 2)
    # The release contains sqrt(2) P, and the noise of T sites on P is symmetric.
    made = plan(sizes=(60, 90), sites=3, patients=5000, rank=10)
    rng = np.random.default_rng(0)
    noise = np.triu(rng.normal(0, made.start.sigma * math.sqrt(3 / 2), (150, 150)), 1)
    largest = np.linalg.eigvalsh(noise + noise.T)[-1]
    assert outlook_of(made).signal == pytest.approx(500 / largest, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        *(({"patients": 500}, "hopeless"), ({"patients": 20_000}, "weak")),
        ({"patients": 5_000_000}, "good"),
        # Cohorts that were measured.
        *(({"epsilon": 8.0}, "good"), ({}, "good"), ({"epsilon": 1.0}, "weak")),
        ({"patients": 1385, "epsilon": 1.0}, "hopeless"),
        ({"patients": 1000, "rank": 10, "epsilon": 2.0}, "hopeless"),
        ({"sizes": (100, 100), "rank": 20, "patients": 30_744, "epsilon": 0.5}, "weak"),
    ],
)
def test_the_verdict_on_a_cohort_and_the_sentence_that_says_it(changes, verdict):
    found = outlook_of(plan(**changes))
    assert found.verdict == verdict
    assert SAYS[verdict] in found.sentence
    assert [*map(chance_of, (22, 44, GOOD_STRENGTH))] == pytest.approx([0.5, 16 / 17, 0.9])


def test_the_noise_in_a_secure_sum_is_that_of_all_slots_over_the_honest_sites():
    asked = (None, Sharing(20, 2, 2, 2))
    assert [Facts((3,), 2, 20, 100, each).noises for each in asked] == [20, 2 * 20 / 16]


def test_the_rank_that_is_suggested_has_a_good_outlook():
    weak = outlook_of(plan(epsilon=2.0))
    (rank,) = (int(lever.good) for lever in weak.levers if lever.name == "rank")
    assert f"rank = {rank}" in weak.sentence
    assert outlook_of(plan(epsilon=2.0, rank=rank)).verdict == "good"
    assert outlook_of(plan(epsilon=2.0, rank=rank + 1)).verdict == "weak"
    one, two = (outlook_of(plan(epsilon=0.1, rank=rank)).sentence for rank in (1, 2))
    assert ("fewer phenotypes" in one, "fewer phenotypes" in two) == (False, True)


@pytest.mark.parametrize("name", ["patients", "epsilon", "sites"])
def test_a_lever_is_good_from_where_it_says(name):
    (enough,) = (lever.good for lever in outlook_of(plan(epsilon=2.0)).levers if lever.name == name)

    def at(value):
        # More sites bring patients of their own.
        own = {"patients": round(40_662 * value / 6)} if name == "sites" else {}
        return outlook_of(plan(**{"epsilon": 2.0, **own, name: value})).verdict

    whole = name != "epsilon"
    assert at(int(enough) if whole else 1.001 * enough) == "good"
    assert at(int(enough) - 1 if whole else 0.999 * enough) == "weak"


def test_fewer_codes_are_proposed_only_if_a_mode_keeps_as_many_as_there_are_phenotypes():
    for patients, enough in ((9_000, True), (8_800, False)):
        found = outlook_of(plan(epsilon=2.0, rank=20, patients=patients))
        (codes,) = (lever.good for lever in found.levers if lever.name == "codes")
        assert (codes >= 2 * 20) == ("codes = " in found.sentence) == enough
    # A lever is not rounded to what a run has.
    made = plan(sizes=(202, 316), patients=56_240, rank=20, epsilon=1.0)
    shown = {lever.name: lever.text for lever in outlook_of(made).levers}
    assert (shown["patients"], shown["epsilon"], shown["sites"]) == ("60,000", "1.1", "7")
    assert "60,000 patients; or epsilon 1.1, rank = 17" in outlook_of(made).sentence


def test_the_most_helpful_lever_comes_first_and_its_chance_is_that_of_a_plan():
    found = outlook_of(plan(epsilon=2.0))
    by_name = {lever.name: lever.chance for lever in found.levers}
    chances = list(by_name.values())
    assert chances == sorted(chances, reverse=True)
    assert chances[-1] > found.chance
    twice = outlook_of(plan(epsilon=2.0, patients=2 * 40_662)).chance
    assert by_name["patients"] == chances[0] == pytest.approx(twice)
    assert by_name["rank"] == pytest.approx(outlook_of(plan(epsilon=2.0, rank=25)).chance)
    # The power law between mu and epsilon is exact between epsilon and the epsilon of twice the mu.
    assert by_name["epsilon"] == pytest.approx(outlook_of(plan(epsilon=4.0)).chance, abs=0.05)
    assert "What helps most: " in found.sentence


def test_memory_is_foreseen_and_fewer_codes_are_proposed():
    made = plan(sizes=(5000, 5000), rank=20, patients=100_000)
    assert needs_of(made).memory == 48 * made.start.count > 2e9
    assert needs_of(made).sent > 70e6
    assert needs_of(made).codes == "1000x1000"
    smaller = needs_of(plan(sizes=(5000, 5000), rank=20, patients=100_000, codes="1000x1000"))
    assert smaller.codes == ""
    assert smaller.memory < needs_of(made).memory / 20
    assert needs_of(plan(sizes=(5000, 30), rank=20)).codes == "1970x30"
    assert needs_of(plan()).codes == ""
    # For many sites, the server needs no more than for their replies.
    some, many = (plan(sizes=(1500, 1500), sites=sites) for sites in (20, 200))
    assert needs_of(many).server - needs_of(some).server == 180 * 4 * some.start.count
    assert needs_of(plan(sizes=(50, 50))).server == 80e6  # surrogates need this for any lists
