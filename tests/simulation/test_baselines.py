"""The systems compared with DPFact, tested with references, a library and closed forms."""

import itertools

import numpy as np
import pytest
import pyttb
import scipy.sparse

from dpfact_flower.data.synthetic import synthetic
from dpfact_flower.errors import QuorumError, SettingsError
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.site.elastic import initial_state
from dpfact_flower.site.round import stream
from dpfact_flower.tensor.cp import CPModel, factor_match_score
from simulation.baselines import by_site, joined, pooled, site_tensors, start, topics
from simulation.baselines.centralised import centralised
from simulation.baselines.cp_als import cp_als, to_pyttb, weighted
from simulation.baselines.topics import Topics, lda, nmf, private_spectral_lda
from simulation.baselines.trip import TripState, consensus_of, least_squares_patients, site_round
from simulation.baselines.trip_flower import Trip, TripClient, trip, trip_app
from simulation.systems import NO_NOISE
from tests.bits import assert_bits
from tests.problems import assert_near, dense_model, mttkrp_by_entries

pytestmark = pytest.mark.nightly

COUNTS = SolverSettings(rank=4, scale="counts")


def last(snapshots):
    *_, final = snapshots
    return final


def test_every_system_starts_where_dpfact_starts(cohort):
    coordinator = Coordinator(
        cohort.sites[0].tensor.feature_shape, solver=COUNTS,
        privacy=PrivacySettings(privacy="none"), run=RunSettings(rounds=3, seed=7, start="random"),
    )  # fmt: skip
    request = coordinator.request(1)
    for site, own in zip(cohort.sites, start(cohort, COUNTS, seed=7), strict=True):
        rng = np.random.default_rng(stream(request, site.name))
        assert_bits(own, initial_state(site.tensor, request, rng).factors)


def test_pooled_patients_are_the_sites_patients_one_below_the_other(cohort):
    dense = np.concatenate([site.tensor.to_dense() for site in cohort.sites])
    np.testing.assert_array_equal(pooled(cohort).to_dense(), dense)
    model = joined(start(cohort, COUNTS, 0))
    parts = list(by_site(model, cohort))
    assert [len(part[0]) for part in parts] == [s.tensor.n_patients for s in cohort.sites]
    np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), model[0])


def test_cp_als_one_iteration_a_round_is_one_call_of_pyttb(cohort):
    begin = pyttb.ktensor([f.astype(float) for f in joined(start(cohort, COUNTS, 3))])
    whole, _, info = pyttb.cp_als(
        to_pyttb(pooled(cohort)), 4, init=begin, maxiters=6, stoptol=0, printitn=0, fixsigns=False
    )
    stepwise = last(cp_als(cohort, COUNTS, rounds=6, seed=3))
    found, expected = dense_model(joined(stepwise.models)), dense_model(weighted(whole))
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)
    # pyttb's fit is 1 - ||X - M|| / ||X||, and ours squares the norms.
    assert 1 - stepwise.error.fit == pytest.approx((1 - info["fit"]) ** 2, rel=1e-8)


def test_centralised_sgd_is_one_run_of_the_solver(cohort):
    solver = SolverSettings(rank=4, solver="psgd", tau=1, eta=0.01, gamma=5.0, mu=1.0)
    steps = last(centralised(cohort, solver, rounds=3, seed=1))
    once = SolverSettings(rank=4, solver="psgd", tau=3, eta=0.01)
    once = last(centralised(cohort, once, rounds=1, seed=1))
    np.testing.assert_array_equal(joined(steps.models)[0], joined(once.models)[0])
    assert steps.error == once.error


def test_trip_ends_at_a_stationary_point_of_the_centralised_problem(cohort):
    """For counts that no model of this rank explains, a centralised iteration gains nothing."""
    agreed = last(trip(cohort, COUNTS, rounds=250, seed=0, share=1.0))
    tensor = pooled(cohort)
    patients = [least_squares_patients(t, agreed.shared) for t in site_tensors(cohort, COUNTS)]
    model = pyttb.ktensor([f.astype(float) for f in (np.concatenate(patients), *agreed.shared)])
    before = CPModel(weighted(model)).squared_error(tensor)
    further, _, _ = pyttb.cp_als(
        to_pyttb(tensor), 4, init=model, maxiters=1, stoptol=0, printitn=0, fixsigns=False
    )
    after = CPModel(weighted(further)).squared_error(tensor)
    assert after.all_cells == pytest.approx(before.all_cells, rel=1e-4)
    assert before.fit == pytest.approx(agreed.error.fit, abs=1e-3)


def test_a_site_of_trip_does_what_the_paper_writes(cohort):
    """Follow the docstring with plain inverses: each factor is computed from the previous ones."""
    tensor = cohort.sites[1].tensor
    rng = np.random.default_rng(2)

    def draw():
        return tuple(rng.random((size, 4)).astype(np.float32) for size in tensor.feature_shape)

    state, consensus, omega = TripState(draw(), draw()), draw(), 3.5
    after = site_round(tensor, state, consensus, omega)
    for found, old, own, mean in zip(
        after.multipliers, state.multipliers, state.features, consensus, strict=True
    ):
        assert_near(found, old + omega * (own.astype(np.float64) - mean))

    A = least_squares_patients(tensor, state.features)
    B, C = after.features
    gram_a, old_b, old_c, new_b = (
        f.astype(np.float64).T @ f.astype(np.float64) for f in (A, *state.features, B)
    )
    product = mttkrp_by_entries(tensor, (A, *state.features), 0)
    assert_near(A, product @ np.linalg.inv(old_b * old_c), 1e-4)
    pulls = [
        omega * mean.astype(np.float64) - dual
        for mean, dual in zip(consensus, after.multipliers, strict=True)
    ]
    for n, (mine, others, gram) in enumerate(
        [(B, (A, B, state.features[1]), old_c), (C, (A, B, C), new_b)], start=1
    ):
        target = mttkrp_by_entries(tensor, others, n) + pulls[n - 1]
        assert_near(mine, target @ np.linalg.inv(gram_a * gram + omega * np.eye(4)), 1e-4)


def test_the_consensus_is_the_mean_with_the_multipliers(cohort):
    rng = np.random.default_rng(3)
    sites = [tuple(rng.random((size, 2), np.float32) for size in (4, 3)) for _ in range(4)]
    got = consensus_of(sites[:2], sites[2:], omega=2.0)
    for mode in range(2):
        wanted = (sites[0][mode] + sites[1][mode] + (sites[2][mode] + sites[3][mode]) / 2) / 2
        np.testing.assert_allclose(got[mode], wanted, rtol=1e-6)


def test_multipliers_need_not_be_sent(cohort):
    """Their sum over the sites is zero, so the server's mean does not need them."""
    sent = last(trip(cohort, COUNTS, rounds=12, seed=0))
    kept = last(trip(cohort, COUNTS, rounds=12, seed=0, multipliers=False))
    assert factor_match_score(sent.shared, kept.shared) > 1 - 1e-4
    assert sent.error.fit == pytest.approx(kept.error.fit, abs=1e-4)


def test_trip_needs_every_site(cohort):
    def fails_at_one(context):
        if context.node_config["partition-id"] == 1:
            raise ValueError("no")
        site = cohort.sites[int(context.node_config["partition-id"])]
        return TripClient(site.tensor, context, lambda state, seconds: None)

    grid = InProcessGrid(trip_app(fails_at_one), [{"partition-id": n} for n in range(3)])
    strategy = Trip(start(cohort, COUNTS, 0)[0][1:], 1.0)
    with pytest.raises(QuorumError, match="needs all 3 sites in round 1"):
        strategy.start(grid, strategy.arrays, num_rounds=2)


def test_trip_refuses_a_penalty_of_zero(cohort):
    with pytest.raises(SettingsError, match="omega: must be above 0"):
        Trip(start(cohort, COUNTS, 0)[0][1:], 0.0)


def test_topic_models_find_what_was_planted_and_noise_hides_it() -> None:
    cohort = synthetic("demo")

    def match(topics: Topics) -> float:
        return factor_match_score(topics.factors, cohort.truth.factors)

    clear = match(private_spectral_lda(cohort, 12, NO_NOISE))
    assert clear > 0.6
    assert match(nmf(cohort, 12)) > 0.6
    assert match(lda(cohort, 12)) > 0.6
    assert match(private_spectral_lda(cohort, 12, 0.1)) < 0.5 * clear


def test_a_patient_moves_the_releases_of_spectral_lda_by_no_more_than_its_noise_is_for() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((40, 9)) * (rng.random((40, 9)) < 0.4)
    x[0] = 1  # a patient with every code
    x = scipy.sparse.csr_array(x / np.maximum(np.linalg.norm(x, axis=1), 1e-9)[:, None])
    moved = topics._pairs(x) - topics._pairs(x[1:])
    assert 0.6 < np.linalg.norm(moved) <= topics._PAIRS
    whiten, clip, rows = rng.normal(size=(9, 3)), 2.0, 40
    all_of_them = topics._triples(x, whiten, clip, rows)
    for patient in range(rows):
        others = np.delete(np.arange(rows), patient)
        moved = all_of_them - topics._triples(x[others], whiten, clip, rows)
        assert np.linalg.norm(moved) <= clip * (1 + 1e-9)


def test_third_moments_are_of_distinct_codes() -> None:
    rng = np.random.default_rng(1)
    x = scipy.sparse.csr_array(rng.random((1, 5)))
    values = x.toarray()[0]
    expected = np.zeros((5, 5, 5))
    for i, j, k in itertools.permutations(range(5), 3):
        expected[i, j, k] = values[i] * values[j] * values[k]
    np.testing.assert_allclose(topics._triples(x, np.eye(5), 1e9, 1), expected, atol=1e-12)
