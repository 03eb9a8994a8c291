"""Bound and perturb all data that leaves a site, and charge the privacy cost.

No other module of `privacy` imports `opacus_accountant`, which loads torch.
"""

from dpfact_flower.privacy.conversions import mu_for_epsilon, sigma_of
from dpfact_flower.privacy.guarantee import (
    Guarantee,
    account,
    price_of_replacing,
    rounded_up,
)
from dpfact_flower.privacy.noise_source import Noise
from dpfact_flower.privacy.release import (
    NO_CLAIM,
    PAPER_CLAIM,
    PATIENT_CLAIM,
    SEEDED_CLAIM,
    Release,
    ReleaseEvent,
    Share,
    release_masked,
    release_nothing,
    release_unprotected,
    replay,
)

__all__ = [
    "NO_CLAIM",
    "PAPER_CLAIM",
    "PATIENT_CLAIM",
    "SEEDED_CLAIM",
    "Guarantee",
    "Noise",
    "Release",
    "ReleaseEvent",
    "Share",
    "account",
    "mu_for_epsilon",
    "price_of_replacing",
    "release_masked",
    "release_nothing",
    "release_unprotected",
    "replay",
    "rounded_up",
    "sigma_of",
]
