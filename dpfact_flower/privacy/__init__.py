"""Compute the values that leave a site, add noise to the values, and record the privacy cost.

No module of this package imports `opacus_accountant`, because that module imports torch.
"""

from dpfact_flower.privacy.conversions import mu_for_epsilon as mu_for_epsilon
from dpfact_flower.privacy.conversions import sigma_of as sigma_of
from dpfact_flower.privacy.guarantee import Guarantee as Guarantee
from dpfact_flower.privacy.guarantee import account as account
from dpfact_flower.privacy.guarantee import price_of_replacing as price_of_replacing
from dpfact_flower.privacy.guarantee import rounded_up as rounded_up
from dpfact_flower.privacy.noise_source import Noise as Noise
from dpfact_flower.privacy.release import NO_CLAIM as NO_CLAIM
from dpfact_flower.privacy.release import PAPER_CLAIM as PAPER_CLAIM
from dpfact_flower.privacy.release import PATIENT_CLAIM as PATIENT_CLAIM
from dpfact_flower.privacy.release import SEEDED_CLAIM as SEEDED_CLAIM
from dpfact_flower.privacy.release import Release as Release
from dpfact_flower.privacy.release import ReleaseEvent as ReleaseEvent
from dpfact_flower.privacy.release import Share as Share
from dpfact_flower.privacy.release import release_masked as release_masked
from dpfact_flower.privacy.release import release_nothing as release_nothing
from dpfact_flower.privacy.release import release_unprotected as release_unprotected
from dpfact_flower.privacy.release import replay as replay
