"""A run in a few lines: nothing is promised that was not, nothing shown that is not known."""

import pytest

from dpfact_flower.evaluation.headline import headline
from dpfact_flower.privacy import NO_CLAIM, PATIENT_CLAIM

DEPLOYED = {
    "name": "job-1", "sites": 3, "rounds": 4, "rank": 12, "epsilon": None, "delta": None,
    "accountant": None, "claim": NO_CLAIM, "rmse": None, "fit": None, "fms": None, "auc": None,
    "bytes_up": 1_234_567, "bytes_down": 999, "bytes_paper": 2e9, "bytes_trip": 3e9,
    "seconds": 7500.0, "failures": 0,
}  # fmt: skip
AUC = {"mean": 0.7881, "spread": 0.012}
SIMULATED = DEPLOYED | {
    "epsilon": 3.99996, "delta": 1e-5, "accountant": "Gaussian DP", "claim": PATIENT_CLAIM,
    "rmse": 0.00514489, "rmse_nonzeros": 0.124, "fit": -0.0125, "fms": 0.97384, "auc": 0.7881,
    "solver_seconds": 0.5, "sites_without_a_round": [],
    "prediction": {"overall": {"memberships": AUC, "raw_codes": AUC, "volume": AUC}},
}  # fmt: skip


def test_a_deployment_shows_what_the_server_knows():
    assert headline(DEPLOYED) == [
        ("run", "job-1: 3 sites, 4 rounds, 12 phenotypes"),
        ("privacy", NO_CLAIM),
        (
            "sent",
            "1.23 MB up, 999 B down (so many rounds of the paper's scheme 2 GB, of TRIP 3 GB)",
        ),
        ("time", "2 h 5 min"),
    ]


def test_a_simulation_shows_what_was_measured():
    shown = dict(headline(SIMULATED))
    assert shown["privacy"] == (
        f"epsilon 4.000 at delta 1e-05 (Gaussian DP) [{PATIENT_CLAIM}]"  # rounded up
    )
    assert shown["fit"] == "−1.2 % of the data, RMSE 0.005145 over all cells, 0.124 over non-zeros"
    assert shown["factor match"] == "0.974 with the planted phenotypes, of 1"
    assert shown["deaths"].startswith("AUC 0.788 ± 0.012 by phenotypes, 0.788 by raw codes")
    assert shown["time"] == "2 h 5 min of rounds, 0.5 s of them solver"
    assert "failures" not in shown


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"failures": 2}, "2 failed replies"),
        ({"sites_without_a_round": ["north"]}, "0 failed replies; no round of north"),
    ],
)
def test_failures_are_named(changes, says):
    assert dict(headline(SIMULATED | changes))["failures"] == says
