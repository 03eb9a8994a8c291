"""What audits are made of: statistics with known answers, and input that is as hostile as said."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpfact_flower.audit import AuditTarget, Finding, audit
from dpfact_flower.audit.finding import count_of
from dpfact_flower.audit.hostile import (
    CANARIES,
    FACTORS,
    STARTS,
    alone,
    empty,
    hostile_transcript,
    joined,
    patient_of,
    random_patients,
)
from dpfact_flower.audit.likelihood import estimate
from dpfact_flower.audit.noise import _correlation, _lagged
from dpfact_flower.audit.run import guarded
from dpfact_flower.audit.target import SimulatedSite, noise_of, subsample
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.settings import PrivacySettings, SolverSettings


@pytest.fixture
def rng():
    return np.random.default_rng(11)


# --- Findings -------------------------------------------------------------------------------------


def test_a_finding_passes_within_its_range_and_no_number_never_does():
    assert Finding("x", 1.0, (0.0, 1.0)).passed
    assert not Finding("x", math.nextafter(1, 2), (0.0, 1.0)).passed
    assert not Finding("x", math.nan, (-math.inf, math.inf)).passed
    assert not Finding("x", math.nan, (0.0, 0.0)).passed
    assert count_of("x", 0).passed
    assert not count_of("x", 1).passed


def test_an_audit_that_breaks_off_fails_and_keeps_others_texts_to_itself():
    def quoting(tell):
        raise ValueError("could not convert 'patient 17'")

    def ours(tell):
        raise DataError("factors: not of the tensor's feature modes")

    (other,) = guarded("noise", quoting, None)
    assert not other.passed
    assert other.detail == "ValueError"
    (own,) = guarded("noise", ours, None)
    assert "not of the tensor's feature modes" in own.detail


# --- Statistics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.3, 2.0, 9.0])
def test_the_estimate_finds_the_mu_of_a_gaussian_mechanism_within_its_own_error(mu, rng):
    """Its log likelihood ratios are N(-mu^2/2, mu^2) and N(mu^2/2, mu^2)."""
    off = []
    for _ in range(400):
        without, with_him = (rng.normal(sign * mu**2 / 2, mu, 300) for sign in (-1, 1))
        found = estimate(without, with_him)
        off.append((found.mu - mu) / found.error)
    assert abs(np.mean(off)) < 5 / math.sqrt(400) + 0.05  # the estimate has a bias of order 1/runs
    assert np.std(off) == pytest.approx(1, abs=5 / math.sqrt(2 * 400))


def test_sums_at_every_offset_are_numpys_correlate(rng):
    one, two = rng.normal(size=(3, 7)), rng.normal(size=(3, 5))
    products, overlaps = _lagged(one, two)
    expected = sum(np.correlate(a, b, "full") for a, b in zip(one, two, strict=True))
    counts = np.correlate(np.ones(7), np.ones(5), "full")
    np.testing.assert_allclose(products, expected, atol=1e-12)
    np.testing.assert_array_equal(overlaps, counts)


def test_noise_that_comes_again_later_is_found_and_independent_noise_is_not(rng):
    one, two = rng.normal(size=(2, 4000)), rng.normal(size=(2, 4000))
    assert _correlation("x", [(one, two)]).passed
    again = two.copy()
    again[:, 1500:] = one[:, : 4000 - 1500]
    assert not _correlation("x", [(one, again)]).passed
    assert _correlation("x", [(one, one)]).passed


# --- Hostile input --------------------------------------------------------------------------------


def test_sites_are_joined_patient_by_patient(target, rng):
    tensor = target.site.tensor
    extra = random_patients(tensor.feature_shape, 2, rng)
    both = joined(target.site, extra, at=5).tensor.to_dense()
    mine = tensor.to_dense()
    np.testing.assert_array_equal(np.delete(both, [5, 6], axis=0), mine)
    np.testing.assert_array_equal(both[5:7], alone(target.site, extra).tensor.to_dense())
    assert alone(target.site, [empty(target.site.tensor.feature_shape)]).tensor.nnz == 0
    row = patient_of(target.site, 3)
    np.testing.assert_array_equal(
        alone(target.site, [row]).tensor.to_dense()[0].astype(float), mine[3]
    )


@pytest.mark.parametrize("name", CANARIES)
def test_every_canary_is_a_patient_that_the_door_lets_in(name, counting_target, rng):
    transcript = hostile_transcript(counting_target, 0, rng)
    site = subsample(counting_target.site, 4, rng)
    patient = CANARIES[name](site, transcript, rng)
    together = joined(site, [patient])
    assert together.tensor.n_patients == 5
    assert (together.tensor.nnz == site.tensor.nnz) == (name == "no cell")


def test_transcripts_go_through_all_kinds_and_pass_the_protocols_door(counting_target, rng):
    """Every second one has a ridge, also where the settings have none."""
    solver = replace(counting_target.solver, relative_l21=0.0)
    asked, seen = replace(counting_target, solver=solver), set()
    for trial in range(2 * len(FACTORS) * len(STARTS)):
        transcript = hostile_transcript(asked, trial, rng)
        request = transcript.requests[asked.plan.rounds]
        assert request.solver.relative_l21 == (1.0 if trial % 2 else 0.0)
        largest = max(float(np.abs(factor).max()) for factor in transcript.anchors)
        negative = any(float(factor.min()) < 0 for factor in transcript.anchors)
        seen.add((largest > 9e5, largest == 0, negative))
    assert {(True, False, False), (False, True, False)} <= seen
    assert any(negative for _, _, negative in seen)


def test_two_sites_hear_the_same_and_keep_their_own(target, rng):
    transcript = hostile_transcript(target, 0, rng)
    one, two = (SimulatedSite(target, transcript) for _ in range(2))
    for planned in target.plan.releases:
        (first, sent), (second, other) = one.play(planned), two.play(planned)
        np.testing.assert_array_equal(first, second)
        assert not np.array_equal(sent.arrays[0], other.arrays[0])
        noise = noise_of(planned, first, sent.arrays[0])
        assert stats.kstest(noise, "norm").pvalue > 1e-6
    assert one.state() is None
    start = target.plan.start.round
    assert one.release(start) is two.release(start) is transcript.releases[start]


# --- The target ----------------------------------------------------------------------------------


def test_a_target_is_planned_as_a_server_would_and_its_noise_has_no_seed(cohort):
    asked = PrivacySettings(noise_seed=5, patients=95)
    target = AuditTarget.of(cohort.sites[0], SolverSettings(rank=4), asked, sites=3)
    assert target.privacy.noise_seed == -1
    assert target.privacy.start_share > 0
    assert target.plan.rounds == len(target.plan.releases) + 1


def test_other_modes_have_no_audit(cohort):
    with pytest.raises(SettingsError, match="audits are for 'patient'"):
        audit(cohort, SolverSettings(), PrivacySettings(privacy="none"))


def test_a_site_that_is_not_there_is_named(cohort):
    with pytest.raises(SettingsError, match="must be one of site-1, site-2, site-3"):
        audit(cohort, SolverSettings(), PrivacySettings(), site="nowhere")
