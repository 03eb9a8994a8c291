"""What the audits of these tests are run on: small, but with everything."""

import numpy as np
import pytest

from dpfact_flower.audit import (
    Subject,
    audit_folders,
    audit_ledger,
    audit_likelihood,
    audit_noise,
    audit_replies,
    audit_sensitivity,
)
from dpfact_flower.audit.run import _guarded
from dpfact_flower.settings import PrivacySettings, SolverSettings

SOLVER = SolverSettings(rank=4, off=0.3)
PRIVACY = PrivacySettings(start_share=0.8, refine_rounds=1)


@pytest.fixture(scope="session")
def subject(cohort) -> Subject:
    """A site of 9 x 12 codes, 4 phenotypes; start and one refinement of each mode."""
    return Subject.of(cohort.sites[0], SOLVER, PRIVACY)


@pytest.fixture(scope="session")
def counting_subject(cohort) -> Subject:
    """The same with a count of codes before the start, at another bound."""
    privacy = PrivacySettings(start_share=0.6, refine_rounds=2, codes="6x8", bound=1.0, epsilon=1.0)
    return Subject.of(cohort.sites[0], SOLVER, privacy)


QUICK = {
    "sensitivity": lambda subject, rng, tell: audit_sensitivity(subject, rng, trials=16, tell=tell),
    "noise": lambda subject, rng, tell: audit_noise(subject, rng, coordinates=6000, tell=tell),
    "noise, 40000 values": lambda subject, rng, tell: audit_noise(subject, rng, tell=tell),
    "likelihood": lambda subject, rng, tell: audit_likelihood(subject, rng, runs=150, tell=tell),
    "likelihood, 1000 runs": lambda subject, rng, tell: audit_likelihood(subject, rng, tell=tell),
    "ledger": lambda subject, rng, tell: audit_ledger(subject, rng, tell=tell),
    "replies": lambda subject, rng, tell: audit_replies(subject, rng, tell=tell),
    "folders": lambda subject, rng, tell: audit_folders(subject, rng, trials=40, tell=tell),
}
"""The audits, with fewer trials than on a user's behalf."""


@pytest.fixture(scope="session")
def run():
    """Run one of the audits, as `audit` does: what breaks off is a finding."""

    def run(name, subject):
        rng = np.random.default_rng(7)
        return _guarded(name, lambda tell: QUICK[name](subject, rng, tell), None)

    return run
