"""A deployment's and a simulation's summary, which tests change with `dataclasses.replace`."""

from dataclasses import replace

from dpfact_flower.evaluation.prose import NOT_COVERED
from dpfact_flower.evaluation.summary import (
    AUC,
    Coherence,
    Errors,
    Exchange,
    GroupAUC,
    Measured,
    OutcomePrediction,
    RoundErrors,
    RunSpending,
    SiteFit,
    SiteSpending,
    Summary,
)
from dpfact_flower.privacy import NO_CLAIM, PATIENT_CLAIM, ReleaseEvent

DEPLOYED = Summary(
    name="job-1", sites=3, rounds=4, rank=12, solver="exact", scale="patient", privacy="none",
    row_unit="patient", claim=NO_CLAIM, spent=None, measured=None,
    exchange=Exchange(
        bytes_up=1_234_567, bytes_down=999, seconds=7500.0, bytes_paper=2_000_000_000,
        bytes_trip=3_000_000_000, failures=0,
    ),
)  # fmt: skip

_COST = {
    "epsilon": 3.99996, "delta": 1e-5, "accountant": "Gaussian DP", "claim": PATIENT_CLAIM,
    "unit": "patient", "neighbours": "add-remove", "releases": 1, "rho": 0.43, "mu": 0.93,
    "epsilons": {"Gaussian DP": 3.99996, "zCDP, tight": 4.32}, "replacing": 9.0851, "alone": None,
}  # fmt: skip
_RELEASE = ReleaseEvent(
    name="round 1, start", sensitivity=1.0, sigma=1.29, count=51040, unit="patient",
    neighbours="add-remove", claim=PATIENT_CLAIM, seeded=False,
)  # fmt: skip
SPENT = RunSpending(
    **_COST, unit_in_words="everything", neighbours_in_words="is there or is not",
    not_covered=NOT_COVERED,
    per_site={
        "north": SiteSpending(**_COST, ledger=(_RELEASE, _RELEASE)),
        "south": SiteSpending(**_COST | {"epsilon": 1.0}, ledger=()),
    },
)  # fmt: skip
OVERALL = GroupAUC("overall", 50, AUC(0.7881, 0.012), AUC(0.8124, 0.01), AUC(0.6, 0.02))
NOBODY = GroupAUC("south", 5, reason="fewer than 10 patients with it, or without it")
ERRORS = Errors(
    rmse=0.00514489, fit=-0.0125, rmse_nonzeros=0.124, solver_seconds=0.5,
    error_by_round=(
        RoundErrors(1, 0.1, 0.2, -0.5), RoundErrors(2, 0.00514489, 0.124, -0.0125),
    ),
    per_site_data=(SiteFit("north", 45, 1200, 0.1), SiteFit("south", 1005, 34, -0.2)),
)  # fmt: skip
MEASURED = Measured(
    fms=0.97384, auc=0.7881, sites_without_a_round=(), errors=ERRORS, fit_shared=0.031,
    fit_frequencies=0.012, coherence=Coherence(0.1374, -0.2513),
    predictions={
        "died": OutcomePrediction(OVERALL, (NOBODY,), 10, 0.6),
        "readmitted": OutcomePrediction(GroupAUC("overall", 50, reason="few"), (NOBODY,), 10, 0.6),
    },
)  # fmt: skip
SIMULATED = replace(
    DEPLOYED, name="demo", sites=2, privacy="patient", claim=PATIENT_CLAIM, spent=SPENT,
    measured=MEASURED,
)  # fmt: skip
