"""A run in a few lines: nothing is promised that was not, nothing shown that is not known."""

from dataclasses import replace

import pytest

from dpfact_flower.evaluation.headline import headline, uninformative_message
from dpfact_flower.privacy import NO_CLAIM, PATIENT_CLAIM
from tests.evaluation.summaries import DEPLOYED, MEASURED, SIMULATED


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
        "epsilon 4.000 at delta 1e-05 (Gaussian DP; replacing a patient's record: 9.086) "
        f"[{PATIENT_CLAIM}]"  # rounded up
    )
    assert shown["fit"] == "−1.2 % of the data, RMSE 0.005145 over all cells, 0.124 over non-zeros"
    assert shown["factor match"] == "0.974 with the planted phenotypes, of 1"
    assert shown["death in hospital"] == (
        "AUC 0.788 ± 0.012 by phenotypes, 0.812 by raw codes, 0.600 by volume"
    )
    assert shown["time"] == "2 h 5 min of rounds, 0.5 s of them solver"
    assert "failures" not in shown
    assert "readmission" not in shown


def test_what_secure_sums_promise_if_all_others_collude_stands_beside():
    shared = replace(SIMULATED, spent=replace(SIMULATED.spent, alone=9.0003))
    assert dict(headline(shared))["privacy"].endswith("; if all others collude: 9.001")


def test_phenotypes_that_are_likely_real_are_counted_unless_the_model_is_noise():
    known = replace(SIMULATED, false_discovery=(0.02, 0.1, 0.11))
    says = "2 of 3 phenotypes are likely real, by this run's own noise"
    assert dict(headline(known))["certainty"] == says
    noise = replace(MEASURED, fit_shared=1e-6, fit_frequencies=1e-3)
    assert "certainty" not in dict(headline(replace(known, measured=noise)))
    assert "certainty" not in dict(headline(SIMULATED))


@pytest.mark.parametrize(
    ("failures", "never", "says"),
    [
        (2, (), "2 failed replies"),
        (0, ("north",), "0 failed replies; no round of north"),
        (1, ("north", "south"), "1 failed replies; no round of north, south"),
    ],
)
def test_failures_are_named(failures, never, says):
    summary = replace(
        SIMULATED,
        exchange=replace(SIMULATED.exchange, failures=failures),
        measured=replace(MEASURED, sites_without_a_round=never),
    )
    assert dict(headline(summary))["failures"] == says


@pytest.mark.parametrize("mode", ["none", "paper", "patient"])
def test_every_mode_names_its_ways_out_of_noise(mode):
    measured = replace(MEASURED, fit_shared=1e-6, fit_frequencies=1e-3)
    text = uninformative_message(replace(SIMULATED, privacy=mode, measured=measured))
    assert "What can help: " in text
    assert "0.1" in text
    assert uninformative_message(DEPLOYED) == uninformative_message(SIMULATED) == ""
