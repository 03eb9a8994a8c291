"""The one door: whatever leaves a site is bounded, perturbed and charged here.

`events` says what happened, `accounting` what it cost, `mechanism` makes it happen. The bridge to
Opacus is `dpfact_flower.privacy.opacus_accountant`; it imports torch, so nothing here imports it.
"""

from dpfact_flower.privacy.accounting import (
    Figure,
    Guarantee,
    PaperPlan,
    account,
    compose_parallel,
    compose_serial,
    delta_gaussian,
    epsilon_gaussian,
    epsilon_gaussian_discrete,
    epsilon_proposition_2_8,
    epsilon_zcdp_tight,
    mu_for_epsilon,
    paper_rho,
    plan_paper,
    rho_for_epsilon,
    rho_of,
    rho_theorem_4_1,
    sigma_of,
)
from dpfact_flower.privacy.events import (
    NO_CLAIM,
    PAPER_CLAIM,
    PATIENT_CLAIM,
    SEEDED_CLAIM,
    ReleaseEvent,
)
from dpfact_flower.privacy.mechanism import (
    BoundedFactors,
    Noise,
    Release,
    perturb,
    planned_events,
    psgd_sensitivity,
    release_nothing,
    release_unprotected,
    replay,
)

__all__ = [
    "NO_CLAIM",
    "PAPER_CLAIM",
    "PATIENT_CLAIM",
    "SEEDED_CLAIM",
    "BoundedFactors",
    "Figure",
    "Guarantee",
    "Noise",
    "PaperPlan",
    "Release",
    "ReleaseEvent",
    "account",
    "compose_parallel",
    "compose_serial",
    "delta_gaussian",
    "epsilon_gaussian",
    "epsilon_gaussian_discrete",
    "epsilon_proposition_2_8",
    "epsilon_zcdp_tight",
    "mu_for_epsilon",
    "paper_rho",
    "perturb",
    "plan_paper",
    "planned_events",
    "psgd_sensitivity",
    "release_nothing",
    "release_unprotected",
    "replay",
    "rho_for_epsilon",
    "rho_of",
    "rho_theorem_4_1",
    "sigma_of",
]
