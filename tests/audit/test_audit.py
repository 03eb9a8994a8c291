"""Audits: the code passes them, their statistics have known answers, their input is hostile."""

import math
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats

from dpfact_flower.audit import Finding, audit
from dpfact_flower.audit.finding import count_of
from dpfact_flower.audit.hostile import (
    CANARIES,
    FACTORS,
    STARTS,
    empty,
    hostile_transcript,
    joined,
    patient_of,
    random_patients,
    with_only,
)
from dpfact_flower.audit.likelihood import estimate
from dpfact_flower.audit.noise import _correlation, _lagged
from dpfact_flower.audit.run import audit_state, guarded
from dpfact_flower.audit.target import AuditTarget, SimulatedSite, noise_of, subsample
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError, StateError
from dpfact_flower.machine.files import private_folder
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.settings import PrivacySettings, SolverSettings
from dpfact_flower.tensor import SparseTensor


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def test_a_finding_passes_within_its_range_and_no_number_never_does():
    assert Finding("x", 1.0, (0.0, 1.0)).passed
    assert not Finding("x", math.nextafter(1, 2), (0.0, 1.0)).passed
    assert not Finding("x", math.nan, (-math.inf, math.inf)).passed
    assert not Finding("x", math.nan, (0.0, 0.0)).passed
    assert count_of("x", 0).passed
    assert not count_of("x", 1).passed


def test_an_audit_that_breaks_off_fails_and_keeps_others_texts_to_itself():
    (other,) = guarded("noise", Mock(side_effect=ValueError("could not convert 'patient 17'")))
    assert not other.passed
    assert other.detail == "ValueError"
    ours = Mock(side_effect=DataError("factors: do not match the tensor's feature modes"))
    (own,) = guarded("noise", ours)
    assert "do not match the tensor's feature modes" in own.detail


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
    np.testing.assert_allclose(products, expected, atol=1e-12)
    np.testing.assert_array_equal(overlaps, np.correlate(np.ones(7), np.ones(5), "full"))


def test_noise_that_comes_again_later_is_found_and_independent_noise_is_not(rng):
    one, two = rng.normal(size=(2, 4000)), rng.normal(size=(2, 4000))
    assert _correlation("x", [(one, two)]).passed
    again = two.copy()
    again[:, 1500:] = one[:, : 4000 - 1500]
    assert not _correlation("x", [(one, again)]).passed
    assert _correlation("x", [(one, one)]).passed


def test_sites_are_joined_patient_by_patient(target, rng):
    tensor = target.site.tensor
    extra = random_patients(tensor.feature_shape, 2, rng)
    both = joined(target.site, extra, at=5).tensor.to_dense()
    mine = tensor.to_dense()
    np.testing.assert_array_equal(np.delete(both, [5, 6], axis=0), mine)
    np.testing.assert_array_equal(both[5:7], with_only(target.site, extra).tensor.to_dense())
    assert with_only(target.site, [empty(target.site.tensor.feature_shape)]).tensor.nnz == 0
    again = with_only(target.site, [patient_of(target.site, 3)]).tensor.to_dense()
    np.testing.assert_array_equal(again, mine[3:4])


@pytest.mark.parametrize("name", CANARIES)
def test_every_canary_is_a_patient_that_the_door_lets_in(name, counting_target, rng):
    transcript = hostile_transcript(counting_target, 0, rng)
    site = subsample(counting_target.site, 4, rng)
    together = joined(site, [CANARIES[name](site, transcript, rng)])
    assert together.tensor.n_patients == 5
    assert (together.tensor.nnz == site.tensor.nnz) == (name == "no cell")


def test_transcripts_go_through_all_kinds_and_pass_the_protocols_door(counting_target, rng):
    """Every second transcript has a ridge, even if the settings have none."""
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
    one, two = (SimulatedSite(transcript, target.site) for _ in range(2))
    for planned in target.plan.releases:
        (first, sent), (second, other) = one.play(planned), two.play(planned)
        np.testing.assert_array_equal(first, second)
        assert not np.array_equal(sent.arrays[0], other.arrays[0])
        assert stats.kstest(noise_of(planned, first, sent.arrays[0]), "norm").pvalue > 1e-6
    assert one.kept.state is None
    start = target.plan.start.round
    assert one.kept.release(start) is two.kept.release(start) is transcript.releases[start]


def test_a_target_is_planned_as_a_server_would_and_its_noise_has_no_seed(cohort):
    asked = PrivacySettings(noise_seed=5, patients=95)
    target = AuditTarget.of(cohort.sites[0], SolverSettings(rank=4), asked, sites=3)
    assert target.privacy.noise_seed == -1
    assert target.privacy.start_share > 0
    assert target.plan.rounds == len(target.plan.releases) + 1


@pytest.mark.parametrize(
    ("privacy", "site", "says"),
    [({"privacy": "none"}, "", "audits are for 'patient'"),
     ({"secure_sums": True}, "", "secure-sums: .* set it to false"),
     ({}, "nowhere", "must be one of site-1, site-2, site-3")],
)  # fmt: skip
def test_a_mode_without_audit_and_a_site_that_is_not_there_are_refused(cohort, privacy, site, says):
    with pytest.raises(SettingsError, match=says):
        audit(cohort, SolverSettings(), PrivacySettings(**privacy), site=site)


AUDITS = ("sensitivity", "noise", "likelihood")


def three_modes() -> AuditTarget:
    """A target with three feature modes, a small epsilon and the smallest bound."""
    rng, sizes = np.random.default_rng(3), {"procedures": 4, "diagnoses": 5, "drugs": 3}
    cells = np.column_stack([rng.integers(0, n, 120) for n in (15, *sizes.values())])
    site = SiteData(
        "three",
        SparseTensor.from_coo(cells, rng.integers(1, 4, 120), (15, *sizes.values())),
        tuple(Vocabulary(m, tuple(f"{m}{n}" for n in range(k))) for m, k in sizes.items()),
    )
    privacy = PrivacySettings(epsilon=0.2, delta=1e-3, bound=1e-3)
    return AuditTarget.of(site, SolverSettings(rank=2), privacy)


OTHERS = ("counting_target", "three_modes")
PASSING = [
    *((name, "target") for name in AUDITS), *((AUDITS[0], kind) for kind in OTHERS),
    *(pytest.param(name, kind, marks=pytest.mark.nightly)
      for name in AUDITS[1:] for kind in OTHERS),
]  # fmt: skip
"""For targets with other settings, the normal tests audit only the sensitivity."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), PASSING)
def test_the_code_passes(name, kind, run, request):
    audited = three_modes() if kind == "three_modes" else request.getfixturevalue(kind)
    findings = run(name, audited)
    assert all(finding.passed for finding in findings), "\n".join(map(str, findings))


def test_small_releases_that_coincide_by_chance_pass(run):
    lists = tuple(Vocabulary(name, ("A",)) for name in ("procedures", "diagnoses"))
    data = SiteData("north", SparseTensor.from_coo([[0, 0, 0]], [1], (1, 1, 1)), lists)
    tiny = AuditTarget.of(data, SolverSettings(rank=1), PrivacySettings(patients=1))
    assert all(finding.passed for finding in run("noise", tiny, values=300))


def test_settings_that_seed_the_noise_fail(target, run):
    findings = run("noise", target, values=1500, seeded=True)
    failed = [finding for finding in findings if not finding.passed]
    assert [finding.name for finding in failed] == ["noise source"]
    assert "noise-seed" in failed[0].detail


def test_a_sites_own_folder_is_open_to_nobody_else_and_its_ledger_whole(tmp_path, monkeypatch):
    (tmp_path / "state").mkdir(mode=0o700)
    folder = tmp_path / "state" / "north"
    with Ledger(folder, create=True):
        pass
    with monkeypatch.context() as patch:  # temporary files of a site that is answering
        patch.setattr(Path, "rglob", lambda folder, _: [folder / ".gone", folder / LEDGER])
        assert [finding.measured for finding in audit_state(folder)] == [0, 0]
    (folder / "job").mkdir(mode=0o755)
    rights, ledger = audit_state(folder)
    assert rights.measured == 1
    assert "chmod 700" in rights.detail
    tmp_path.chmod(0o777)  # one fault, although it concerns every file below
    assert audit_state(folder)[0].measured == 2
    assert ledger.passed
    content = bytearray((folder / LEDGER).read_bytes())
    content[100:200] = bytes(100)
    (folder / LEDGER).write_bytes(content)
    with pytest.raises(StateError, match="malformed"):  # `audit` turns this into a finding
        audit_state(folder)


@pytest.mark.parametrize("own", ["", "site-1", "north"])
def test_a_state_dir_is_whole_before_the_first_run(cohort, tmp_path, monkeypatch, own):
    only_state = lambda name, check: check() if name == "state" else ()  # noqa: E731
    monkeypatch.setattr("dpfact_flower.audit.run.guarded", only_state)
    private_folder(place := tmp_path / own)
    if own == "north":  # as `site` in the node config, but not in the data file
        Ledger(place, create=True).close()
        for wrong in (tmp_path, tmp_path.parent):
            with pytest.raises(StateError, match=r"site-1: no such folder; give the state-dir"):
                audit(cohort, SolverSettings(rank=4), PrivacySettings(), state_dir=wrong)
    where = place if own == "north" else tmp_path
    findings = audit(cohort, SolverSettings(rank=4), PrivacySettings(), state_dir=where)
    assert [finding.measured for finding in findings] == [0, 0]
    assert ("no ledger" in findings[1].name) == (own != "north")


@pytest.mark.nightly
def test_all_audits_of_a_cohort_at_full_length(cohort, tmp_path):
    told = []
    (tmp_path / "site-2" / "job").mkdir(parents=True)
    findings = audit(
        cohort, SolverSettings(rank=4, relative_l21=0.3), PrivacySettings(), site="site-2",
        state_dir=tmp_path, watch=lambda name, share: told.append((name, share)),
    )  # fmt: skip
    wrong = [finding for finding in findings if not finding.passed]
    assert [finding.name for finding in wrong] == ["state: broke off"]  # there is no ledger
    assert {name for name, share in told if share == 1.0} == {*AUDITS, "state"}
