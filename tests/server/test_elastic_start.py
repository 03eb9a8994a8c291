"""The start of mode none from un-noised co-occurrences, and the mean that follows from it."""

import numpy as np
import pytest

from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.errors import DataError, QuorumError, SettingsError
from dpfact_flower.server import elastic
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.elastic import ElasticRule, starts_from_cooccurrences, weighted_mean
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.site.elastic import run_round
from dpfact_flower.tensor.match import factor_match_score
from dpfact_flower.tensor.triangle import strict_size
from dpfact_flower.wire.protocol import SiteReply

NONE = PrivacySettings(privacy="none")
PAPER = PrivacySettings(privacy="paper")
SIZES = (20, 30)
NO_BYTES = {"bytes_down": 0, "bytes_up": 0, "seconds": 0.0}


@pytest.fixture(scope="module")
def planted():
    return synthetic(
        preset("demo", patients=400, phenotypes=4, shares="0.7,0.3", local=0.0,
               modes="procedures:20:3,diagnoses:30:3")
    )  # fmt: skip


def make(rounds=3, **solver) -> Coordinator:
    return Coordinator(
        SIZES, solver=SolverSettings(rank=4, **solver), privacy=NONE,
        run=RunSettings(rounds=rounds, seed=1, job="job"),
    )  # fmt: skip


def begun(cohort, server: Coordinator):
    """Round 1, in which nothing but co-occurrences is asked for."""
    request = server.request(1)
    outcomes = [
        run_round(site.tensor, None, request, site=site.name, modes="pd", simulation=True)
        for site in cohort.sites
    ]
    replies = [
        SiteReply(site.name, outcome.release.arrays)
        for site, outcome in zip(cohort.sites, outcomes, strict=True)
    ]
    server.close_round(1, replies, [], **NO_BYTES)
    return request, outcomes


def test_round_1_asks_for_pairs_of_codes_and_leaves_planted_phenotypes(planted):
    server = make()
    request, outcomes = begun(planted, server)
    assert request.anchors == ()
    for outcome in outcomes:
        assert [array.shape for array in outcome.release.arrays] == [(strict_size(50),)]
        assert (outcome.release.events, outcome.state, outcome.measures) == ((), None, None)
        assert "no privacy guarantee" in outcome.release.label
    assert factor_match_score(server.factors, planted.truth.factors) > 0.9
    seed = initial_factors(SIZES, 4, 1)
    assert factor_match_score(seed, planted.truth.factors) < 0.5
    assert len(server.request(2).anchors) == 2


def test_larger_sites_count_for_more_afterwards(planted):
    server = make()
    begun(planted, server)
    own = [tuple(np.full(f.shape, v, np.float32) for f in server.factors) for v in (0.0, 1.0)]
    replies = [SiteReply(site.name, f) for site, f in zip(planted.sites, own, strict=True)]
    server.close_round(2, replies, [], **NO_BYTES)
    # Site 1, whose factors are 0, has 70 % of the patients; equal sites would give 1 / 2.
    assert 0.2 < np.mean([factor.mean() for factor in server.factors]) < 0.4


def test_a_site_that_joins_after_the_start_counts_as_an_average_one(planted):
    server = make()
    begun(planted, server)
    names = [*(site.name for site in planted.sites), "late"]
    weights = server.rule._weights(names)
    np.testing.assert_allclose(weights.sum(axis=0), 1)
    np.testing.assert_allclose(weights[2], weights[:2].mean(axis=0))


def test_sites_count_as_they_use_what_surrogates_made_of_the_start(planted, monkeypatch):
    server, other = make(), make()
    begun(planted, server)
    monkeypatch.setattr(
        elastic, "fitted_to_surrogates",
        lambda start, *_: tuple(np.ascontiguousarray(f[:, ::-1]) for f in start.factors),
    )  # fmt: skip
    begun(planted, other)
    names = [site.name for site in planted.sites]
    expected, found = (rule._weights(names) for rule in (server.rule, other.rule))
    assert np.ptp(expected, axis=1).max() > 0.05
    np.testing.assert_allclose(found, expected[:, ::-1], atol=0.01)


def test_a_weighted_mean_is_one_of_columns():
    replies = [(np.array([[1.0, 2.0]], np.float32),), (np.array([[3.0, 6.0]], np.float32),)]
    (found,) = weighted_mean(replies, np.array([[0.5, 0.75], [0.5, 0.25]]))
    np.testing.assert_array_equal(found, np.array([[2.0, 3.0]], np.float32))
    assert found.dtype == np.float32


def test_a_checkpoint_keeps_what_the_start_said(planted):
    server = make()
    begun(planted, server)
    again = ElasticRule(SIZES, server.solver, NONE, server.run)
    again.restore(server.rule.state())
    for one, other in zip(again.factors, server.factors, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(again.anchors(2)) == 2
    names = [site.name for site in planted.sites]
    np.testing.assert_array_equal(again._weights(names), server.rule._weights(names))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("started", np.array([True, False])), ("started", np.array(1)),
        ("usage_sites", np.array([1, 2])), ("usage_sites", np.array("north")),
        ("usage_sites", None), ("usage", np.zeros((2, 1))), ("usage", np.full((2, 4), np.nan)),
        ("usage", np.zeros((2, 4), np.float32)),
    ],
)  # fmt: skip
def test_a_damaged_start_of_a_checkpoint_is_refused(planted, name, value):
    server = make()
    begun(planted, server)
    state = server.rule.state()
    assert state["usage"].shape == (2, 4)
    changed = {key: kept for key, kept in {**state, name: value}.items() if kept is not None}
    with pytest.raises(DataError):
        ElasticRule(SIZES, server.solver, NONE, server.run).restore(changed)


def test_without_its_start_a_run_cannot_go_on():
    with pytest.raises(QuorumError, match="later rounds build on this one"):
        make().close_round(1, [], [], **NO_BYTES)


def test_given_factors_take_the_place_of_the_start():
    server, given = make(), initial_factors(SIZES, 4, 9)
    server.start_from(given)
    assert server.request(1).anchors is given
    assert server.reply_shapes(1) == [(20, 4), (30, 4)]


class OwnUpdate(ElasticRule):
    """As somebody outside writes it: made for factors."""

    def update(self, round_number, replies):
        self.factors = replies[0].arrays


def test_a_rule_with_an_update_of_its_own_is_given_factors_alone():
    solver = SolverSettings(rank=4)
    rule = OwnUpdate(SIZES, solver, NONE, RunSettings())
    assert rule.reply_shapes(1) == [(20, 4), (30, 4)]
    assert len(rule.anchors(1)) == 2
    with pytest.raises(SettingsError, match="starts at random"):
        OwnUpdate(SIZES, solver, NONE, RunSettings(start="cooccurrence"))


@pytest.mark.parametrize(
    ("sizes", "privacy", "run", "wanted"),
    [
        (SIZES, NONE, {}, True),
        (SIZES, NONE, {"start": "random"}, False),
        (SIZES, NONE, {"rounds": 1}, False),
        ((2000, 2000), NONE, {}, True),
        ((2000, 2001), NONE, {}, False),
        ((2000, 2001), NONE, {"start": "cooccurrence"}, True),
        (SIZES, PAPER, {}, False),
    ],
)
def test_co_occurrences_are_where_a_run_starts(sizes, privacy, run, wanted):
    assert starts_from_cooccurrences(sizes, privacy, RunSettings(**run)) is wanted


@pytest.mark.parametrize(
    ("privacy", "run", "says"),
    [(PAPER, {}, "the paper's claim"), (NONE, {"rounds": 1}, "2 rounds")],
)
def test_co_occurrences_are_refused_where_they_cannot_be(privacy, run, says):
    with pytest.raises(SettingsError, match=says):
        starts_from_cooccurrences(SIZES, privacy, RunSettings(start="cooccurrence", **run))
