"""The issue "who has a phenotype", held on planted cohorts and on open data of real patients."""

from functools import reduce
from operator import add

import numpy as np
import pytest

from dpfact_flower import federate
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.synthetic import preset, synthetic, true_memberships
from dpfact_flower.evaluation.membership import PatientCounts, leading_codes, mode_presence
from dpfact_flower.tensor.match import match_columns
from simulation.paper import datasets
from tests.evaluation.folders import dpfact

EXPECTED_DEATHS = 30
"""Fewer and a rate says little."""


def found_in(cohort, **settings):
    """The run's model, and who has what at each site."""
    model = federate(sites=cohort, measure=False, **settings).model
    return model, [model.memberships(site).has for site in cohort.sites]


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"privacy": "none"}, {"epsilon": 4.0, "noise_seed": 1}], ids=["none", "epsilon 4"]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_prevalence_is_the_truth_within_a_factor_of_one_and_a_half(seed, how):
    settings = preset("demo", seed=seed)
    cohort = synthetic(settings)
    model, has = found_in(cohort, rank=12, seed=seed, **how)
    match = match_columns(model.factors, cohort.truth.factors)
    planted = np.concatenate(true_memberships(settings)).mean(axis=0)[match.truth]
    ratio = np.concatenate(has).mean(axis=0)[match.estimate] / planted
    assert np.mean((ratio > 1 / 1.5) & (ratio < 1.5)) >= 0.9, ratio


def diabetes(top, folder) -> Cohort:
    modes = [f"--mode={name}={folder / name}.csv.gz" for name in ("principal", "secondary")]
    dpfact(
        "data", "events", "--name", "diabetes", "--out", top, "--window", 0, "--top", "100x100",
        *modes, "--sites", folder / "sites_payer.csv.gz",
        "--labels", folder / "labels_died.csv.gz",
    )  # fmt: skip
    return Cohort.load(top)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("diabetes130", {"rank": 20, "epsilon": 4.0, "noise_seed": 1}),
        ("mimic3", {"rank": 10, "privacy": "none"}),
        ("eicu", {"rank": 20, "privacy": "none"}),
    ],
)
def test_patients_of_a_phenotype_carry_its_codes_and_die_as_often(name, how, ehr_data, tmp_path):
    if name == "diabetes130":
        cohort = diabetes(tmp_path / "cohort", ehr_data / name)
    else:
        cohort = datasets.load(name)
    model, has = found_in(cohort, **how)
    pairs = zip(cohort.sites, has, strict=True)
    counts = reduce(add, (PatientCounts.of(*pair, model.factors) for pair in pairs))
    some = counts.has > 0
    precision = counts.led[some] / counts.has[some]
    assert precision.min() >= 0.5, precision
    assert (counts.has <= 1.5 * counts.carriers).all(), (counts.has, counts.carriers)
    likely = deaths_agree(cohort, model, np.concatenate(has))
    assert not likely or np.mean(likely) >= 19 / 20, likely


def deaths_agree(cohort, model, has):
    """Whether deaths of who has it are, within two standard errors, those of who carries it."""
    died = np.concatenate([site.labels["died"] for site in cohort.sites])
    carries = np.ones_like(has)
    for mode, factor in enumerate(model.factors, start=1):
        present = [mode_presence(site.tensor, mode) for site in cohort.sites]
        carries &= np.concatenate(
            [own @ leading_codes(factor).astype(float) > 0 for own in present]
        )
    agree = []
    for own, codes in zip(has.T, carries.T, strict=True):
        rate, many = died[codes].mean() if codes.any() else 0.0, own.sum()
        if rate * many >= EXPECTED_DEATHS:
            error = np.sqrt(rate * (1 - rate) / many)
            agree.append(bool(abs(died[own].mean() - rate) <= 2 * error))
    return agree
