"""The code as it is passes its audits, on several kinds of sites and settings."""

import numpy as np
import pytest

from dpfact_flower.audit import AUDITS, Subject, audit, audit_noise
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.settings import PrivacySettings, SolverSettings
from dpfact_flower.tensor import SparseTensor


@pytest.mark.parametrize("name", AUDITS)
def test_the_code_passes(name, subject, run):
    findings = run(name, subject)
    assert all(finding.passed for finding in findings), "\n".join(map(str, findings))


@pytest.mark.parametrize("name", AUDITS)
def test_a_run_that_counts_codes_and_refines_twice_passes(name, counting_subject, run):
    findings = run(name, counting_subject)
    assert all(finding.passed for finding in findings), "\n".join(map(str, findings))


@pytest.mark.parametrize("name", AUDITS)
def test_three_feature_modes_a_small_epsilon_and_the_smallest_bound_pass(name, run):
    rng = np.random.default_rng(3)
    sizes = {"procedures": 4, "diagnoses": 5, "drugs": 3}
    cells = np.column_stack([rng.integers(0, n, 120) for n in (15, *sizes.values())])
    site = SiteData(
        "three",
        SparseTensor.from_coo(cells, rng.integers(1, 4, 120), (15, *sizes.values())),
        tuple(
            Vocabulary(mode, tuple(f"{mode}{n}" for n in range(size)), ("",) * size)
            for mode, size in sizes.items()
        ),
    )
    privacy = PrivacySettings(epsilon=0.2, delta=1e-3, bound=1e-3)
    findings = run(name, Subject.of(site, SolverSettings(rank=2), privacy))
    assert all(finding.passed for finding in findings), "\n".join(map(str, findings))


def test_settings_that_seed_the_noise_fail(subject):
    findings = audit_noise(subject, np.random.default_rng(0), coordinates=1500, seeded=True)
    failed = [finding for finding in findings if not finding.passed]
    assert [finding.name for finding in failed] == ["noise source"]
    assert "noise-seed" in failed[0].detail


@pytest.mark.slow
def test_all_audits_of_a_cohort_at_full_length(cohort):
    told = []
    findings = audit(
        cohort,
        SolverSettings(rank=4, off=0.3),
        PrivacySettings(),
        site="site-2",
        watch=lambda name, share: told.append((name, share)),
    )
    assert all(finding.passed for finding in findings), "\n".join(map(str, findings))
    assert {name for name, share in told if share == 1.0} == set(AUDITS)
