"""Small but complete targets for the audits in these tests."""

import numpy as np
import pytest

from dpfact_flower.audit.likelihood import audit_likelihood
from dpfact_flower.audit.noise import audit_noise
from dpfact_flower.audit.run import guarded
from dpfact_flower.audit.sensitivity import audit_sensitivity
from dpfact_flower.audit.target import AuditTarget
from dpfact_flower.settings import PrivacySettings, SolverSettings

SOLVER = SolverSettings(rank=4, relative_l21=0.3)
PRIVACY = PrivacySettings(start_share=0.8, refine_rounds=1)
QUICK = {
    "sensitivity": (audit_sensitivity, {"trials": 16}),
    "noise": (audit_noise, {"values": 6000}),
    "noise, 40000 values": (audit_noise, {}),
    "likelihood": (audit_likelihood, {"runs": 150}),
    "likelihood, 1000 runs": (audit_likelihood, {}),
}
"""The audits, with fewer trials than for a user."""


@pytest.fixture(scope="session")
def target(cohort) -> AuditTarget:
    """A site with 9 x 12 codes and 4 phenotypes, with a start and one refinement of each mode."""
    return AuditTarget.of(cohort.sites[0], SOLVER, PRIVACY)


@pytest.fixture(scope="session")
def counting_target(cohort) -> AuditTarget:
    """The same site with a count of codes before the start, and another bound."""
    privacy = PrivacySettings(start_share=0.6, refine_rounds=2, codes="6x8", bound=1.0, epsilon=1.0)
    return AuditTarget.of(cohort.sites[0], SOLVER, privacy)


@pytest.fixture(scope="session")
def run():
    """Run one of the audits as `audit` does: an error becomes a finding."""

    def run(name, target, **more):
        audit, given = QUICK[name]
        return guarded(name, lambda: audit(target, np.random.default_rng(7), **given | more))

    return run
