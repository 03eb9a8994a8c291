"""Bound, perturb and charge everything that leaves a site.

`events` records releases, and `conversions` and `guarantee` compute their cost. `patient` makes a
`release` in patient mode, and `paper` in paper mode, with noise from `noise` and `noise_source`.
`ledger` keeps the releases of a site. The accountant for Opacus is in
`dpfact_flower.privacy.opacus_accountant`. No other module of `privacy` imports the accountant,
because the accountant imports torch.
"""

from dpfact_flower.privacy.conversions import (
    compose_parallel,
    compose_serial,
    delta_gaussian,
    epsilon_gaussian,
    epsilon_gaussian_discrete,
    epsilon_proposition_2_8,
    epsilon_zcdp_tight,
    mu_for_epsilon,
    rho_for_epsilon,
    rho_of,
    sigma_of,
)
from dpfact_flower.privacy.events import (
    NO_CLAIM,
    PAPER_CLAIM,
    PATIENT_CLAIM,
    SEEDED_CLAIM,
    ReleaseEvent,
)
from dpfact_flower.privacy.guarantee import (
    Figure,
    Guarantee,
    account,
    epsilons_of_replacing,
    price_of_replacing,
    rounded_up,
)
from dpfact_flower.privacy.noise_source import Noise
from dpfact_flower.privacy.paper import (
    PaperPlan,
    paper_rho,
    perturb,
    plan_paper,
    planned_events,
    psgd_sensitivity,
)
from dpfact_flower.privacy.release import (
    Release,
    Share,
    release_masked,
    release_nothing,
    release_unprotected,
    release_unprotected_sum,
    replay,
)

__all__ = [
    "NO_CLAIM",
    "PAPER_CLAIM",
    "PATIENT_CLAIM",
    "SEEDED_CLAIM",
    "Figure",
    "Guarantee",
    "Noise",
    "PaperPlan",
    "Release",
    "ReleaseEvent",
    "Share",
    "account",
    "compose_parallel",
    "compose_serial",
    "delta_gaussian",
    "epsilon_gaussian",
    "epsilon_gaussian_discrete",
    "epsilon_proposition_2_8",
    "epsilon_zcdp_tight",
    "epsilons_of_replacing",
    "mu_for_epsilon",
    "paper_rho",
    "perturb",
    "plan_paper",
    "planned_events",
    "price_of_replacing",
    "psgd_sensitivity",
    "release_masked",
    "release_nothing",
    "release_unprotected",
    "release_unprotected_sum",
    "replay",
    "rho_for_epsilon",
    "rho_of",
    "rounded_up",
    "sigma_of",
]
