"""The start of mode none from exact co-occurrences, and the resulting mean."""

import numpy as np
import pytest

from dpfact_flower.errors import QuorumError, SettingsError
from dpfact_flower.estimation import codes
from dpfact_flower.estimation.start import start_factors
from dpfact_flower.estimation.surrogate_fit import fitted_to_surrogates
from dpfact_flower.server import elastic
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.server.elastic import ElasticRule, starts_from_cooccurrences
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.site.elastic import ElasticRound
from dpfact_flower.site.round import JobState
from dpfact_flower.tensor.cp import factor_match_score
from dpfact_flower.tensor.triangle import strict_size
from dpfact_flower.wire.protocol import SiteReply
from tests.bits import assert_bits

NONE, PAPER = PrivacySettings(privacy="none"), PrivacySettings(privacy="paper")
SIZES, NAMES = (20, 30), ["site-1", "site-2"]


def make(rounds=3, **solver) -> Coordinator:
    run = RunSettings(rounds=rounds, seed=1, job="job")
    return Coordinator(SIZES, solver=SolverSettings(rank=4, **solver), privacy=NONE, run=run)


def begun(cohort, server: Coordinator, number=1):
    """Play a round without factors, which requests only counts or co-occurrences."""
    request, found = server.request(number), {}
    for site in cohort.sites:
        work = ElasticRound(site.vocabularies, request, site=site.name, simulation=True)
        found[site.name] = work.run(site, JobState())
    replies = [SiteReply(name, outcome.release.arrays) for name, outcome in found.items()]
    server.close_round(number, replies, [])
    return request, list(found.values())


def test_round_1_asks_for_pairs_of_codes_and_leaves_planted_phenotypes(planted):
    server = make()
    request, outcomes = begun(planted, server)
    assert request.anchors == ()
    for outcome in outcomes:
        assert [array.shape for array in outcome.release.arrays] == [(strict_size(50),)]
        assert (outcome.release.events, outcome.state, outcome.measures) == ((), None, None)
    released, rng = [o.release.arrays[0] for o in outcomes], np.random.default_rng([1, 4, *SIZES])
    start = start_factors(released, SIZES, 4, 0.0, rng)  # without noise
    assert_bits(server.factors, fitted_to_surrogates(start, released, 0.0, rng))
    assert factor_match_score(server.factors, planted.truth.factors) > 0.9
    assert factor_match_score(initial_factors(SIZES, 4, 1), planted.truth.factors) < 0.5
    assert len(server.request(2).anchors) == 2


def test_more_sites_than_groups_of_a_start_without_surrogates():
    sites, names = 21, [f"site-{number:02}" for number in range(21)]
    server = ElasticRule((5,), SolverSettings(rank=2), NONE, RunSettings(rounds=3, seed=1))
    np.testing.assert_array_equal(server._weights(names), np.full((sites, 2), 1 / 21))
    pairs = np.ones(server.reply_shapes(1)[0], np.float32)
    server.update(1, [SiteReply(n, (pairs * (1 + i),)) for i, n in enumerate(names)])
    weights = server._weights(names)
    assert weights.shape == (sites, 2)
    assert (np.diff(weights, axis=0) > 0).all()


def test_larger_sites_count_for_more_afterwards(planted):
    server = make()
    begun(planted, server)
    own = [tuple(np.full(f.shape, v, np.float32) for f in server.factors) for v in (0.0, 1.0)]
    replies = [SiteReply(site.name, f) for site, f in zip(planted.sites, own, strict=True)]
    server.close_round(2, replies, [])
    # Site 1, whose factors are 0, has 70 % of the patients. Equal weights would give 1 / 2.
    assert 0.2 < np.mean([factor.mean() for factor in server.factors]) < 0.4


def test_sites_count_by_the_weight_that_their_solver_applies(planted):
    """psgd applies three tenths of `relative_elastic`, and the server weights sites accordingly."""
    same = make(solver="psgd", relative_l21=0.0), make(relative_elastic=0.3), make()
    for server in same:
        begun(planted, server)
    psgd, exact, other = (server.rule._weights(NAMES) for server in same)
    np.testing.assert_allclose(psgd, exact)
    usage = np.array([same[0].rule._usage[name] for name in NAMES])
    divisors = usage + 0.3 * usage.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(psgd, divisors / divisors.sum(axis=0))
    assert np.abs(psgd - other).max() > 0.01


def test_a_site_that_joins_after_the_start_counts_as_an_average_one(planted):
    server = make()
    begun(planted, server)
    weights = server.rule._weights([*NAMES, "late"])
    np.testing.assert_allclose(weights.sum(axis=0), 1)
    np.testing.assert_allclose(weights[2], weights[:2].mean(axis=0))
    server.rule._usage = {"a": np.zeros(4), "b": np.ones(4)}
    assert (server.rule._weights("ab") > 0).all()


def test_sites_count_as_they_use_what_surrogates_made_of_the_start(planted, monkeypatch):
    server, other = make(), make()
    begun(planted, server)
    monkeypatch.setattr(
        elastic, "fitted_to_surrogates",
        lambda start, _, noise, *__: tuple(f[:, ::-1].copy() + noise for f in start.factors),
    )  # fmt: skip
    begun(planted, other)
    expected, found = (each.rule._weights(NAMES) for each in (server, other))
    assert np.ptp(expected, axis=1).max() > 0.05
    np.testing.assert_allclose(found, expected[:, ::-1], atol=0.01)


def test_a_checkpoint_keeps_what_the_start_said(planted):
    server = make()
    begun(planted, server)
    again = ElasticRule(SIZES, server.solver, NONE, server.run)
    again.restore(server.rule.state())
    assert_bits(again.factors, server.factors)
    assert len(again.anchors(2)) == 2
    np.testing.assert_array_equal(again._weights(NAMES), server.rule._weights(NAMES))


class OwnUpdate(ElasticRule):
    """A user's own rule, which updates factors."""

    def update(self, round_number, replies):
        self.factors = replies[0].arrays


def test_a_rule_with_an_update_of_its_own_is_given_factors_alone():
    solver = SolverSettings(rank=4)
    rule = OwnUpdate(SIZES, solver, NONE, RunSettings())
    assert rule.reply_shapes(1) == [(20, 4), (30, 4)]
    assert len(rule.anchors(1)) == 2
    with pytest.raises(SettingsError, match="needs start 'random'"):
        OwnUpdate(SIZES, solver, NONE, RunSettings(start="cooccurrence"))
    with pytest.raises(SettingsError, match="'patient', which has its own rule"):
        ElasticRule(SIZES, solver, PrivacySettings(), RunSettings())


@pytest.mark.parametrize(
    ("sizes", "privacy", "run", "wanted"),
    [(SIZES, NONE, {}, True), (SIZES, NONE, {"start": "random"}, False),
     (SIZES, NONE, {"rounds": 1}, False), (SIZES, PAPER, {}, False),
     (SIZES, NONE, {"start": "cooccurrence"}, True), (SIZES, NONE, {"start": "auto"}, True),
     ((2000, 2000), NONE, {}, True), ((2000, 2001), NONE, {}, True),
     ((2000, 2001), NONE, {"rounds": 1}, False),
     ((2000, 2001), NONE, {"rounds": 2}, False), ((2000, 2001), NONE, {"rounds": 3}, True)],
)  # fmt: skip
def test_co_occurrences_are_where_a_run_starts(sizes, privacy, run, wanted):
    assert starts_from_cooccurrences(sizes, privacy, RunSettings(**run)) is wanted


@pytest.mark.parametrize(
    ("sizes", "privacy", "run", "says"),
    [(SIZES, PAPER, {}, "'paper' does not cover pairs"),
     (SIZES, NONE, {"rounds": 1}, "needs 2 or more rounds"),
     *(((2000, 2001), NONE, {"rounds": n}, "needs 3 or more rounds") for n in (1, 2))],
)  # fmt: skip
def test_co_occurrences_are_refused_where_they_cannot_be(sizes, privacy, run, says):
    with pytest.raises(SettingsError, match=says):
        starts_from_cooccurrences(sizes, privacy, RunSettings(start="cooccurrence", **run))


@pytest.fixture
def long_lists(monkeypatch):
    """Lists of 50 codes count as long, and 40 codes are paired."""
    monkeypatch.setattr(codes, "_MOST_PAIRED", 49)
    monkeypatch.setattr(codes, "_FREQUENT", 40)


def most_frequent(cohort, kept) -> list[np.ndarray]:
    """Find each mode's most frequent codes patient by patient, each weighted by 1 / sqrt(codes)."""
    totals = [np.zeros(size) for size in SIZES]
    for site in cohort.sites:
        rows = site.tensor.indices
        for patient in range(site.tensor.n_patients):
            own = [set(rows[rows[:, 0] == patient, mode].tolist()) for mode in (1, 2)]
            for total, seen in zip(totals, own, strict=True):
                total[list(seen)] += 1 / np.sqrt(sum(map(len, own)))
    return [np.sort(np.argsort(-total)[:most]) for total, most in zip(totals, kept, strict=True)]


def test_long_lists_are_counted_and_their_most_frequent_codes_paired(planted, long_lists):
    server = make()
    request, counts = begun(planted, server)
    assert (request.anchors, request.selection) == ((), ())
    assert [o.release.arrays[0].shape for o in counts] == [(50,), (50,)]
    request, pairs = begun(planted, server, 2)
    assert request.anchors == ()
    for found, expected in zip(request.selection, most_frequent(planted, (20, 20)), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert [o.release.arrays[0].shape for o in pairs] == [(strict_size(40),)] * 2
    assert all(o.release.events == () for o in (*counts, *pairs))
    assert server.rule.selection == ()
    assert factor_match_score(server.factors, planted.truth.factors) > 0.9
    others = np.setdiff1d(np.arange(30), request.selection[1])
    assert 0 < server.factors[1][others].max() < 1e-5
    assert [len(factor) for factor in server.request(3).anchors] == [20, 30]


def test_a_start_on_long_lists_needs_its_quorum_and_a_checkpoint_keeps_it(planted, long_lists):
    server = make()
    assert server.rule.needs_quorum(1)
    begun(planted, server)
    with pytest.raises(QuorumError, match="later rounds build on this one"):
        server.close_round(2, [], [])
    again = make()
    again.rule.restore(server.rule.state())
    assert again.rule.reply_shapes(2) == [(strict_size(40),)]
    assert_bits(again.rule.selection, server.rule.selection)
    begun(planted, server, 2)
    assert not server.rule.needs_quorum(3)
    again.rule.restore(server.rule.state())
    assert again.rule.selection == ()
    assert len(again.request(3).anchors) == 2
