"""The typed summary: it can be read again, and errors name values that do not fit."""

import json
from dataclasses import asdict, replace
from functools import reduce
from operator import getitem

import pytest

from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.run_folder import (
    PHENOTYPES,
    SUMMARY,
    read_phenotypes,
    read_summary,
    write_json,
    write_summary,
)
from dpfact_flower.evaluation.summary import Summary
from dpfact_flower.evaluation.tables import (
    Association,
    CodeWeight,
    Phenotype,
    PhenotypeTable,
    SharedPhenotypes,
    SiteUsage,
)
from tests.evaluation.summaries import DEPLOYED, MEASURED, SIMULATED, SPENT

SUMMARIES = {
    "deployed": DEPLOYED,
    "deployed with noise": replace(
        DEPLOYED, privacy="patient", claim=SPENT.claim, spent=SPENT, false_discovery=(0.02, 0.5)
    ),
    "simulated": SIMULATED,
    "simulated without noise": replace(DEPLOYED, measured=MEASURED),
    "no round common to all sites": replace(SIMULATED, measured=replace(MEASURED, errors=None)),
    "no truth and no outcomes": replace(SIMULATED, measured=replace(MEASURED, fms=None, auc=None)),
}


@pytest.mark.parametrize("summary", SUMMARIES.values(), ids=SUMMARIES)
def test_a_summary_is_read_as_it_was_written(summary, tmp_path):
    write_summary(tmp_path, summary)
    assert read_summary(tmp_path) == summary


def test_what_is_unknown_is_null_in_the_file():
    assert {key for key, value in DEPLOYED.to_dict().items() if value is None} == {
        "epsilon", "delta", "accountant", "rmse", "fit", "fms", "auc",
    }  # fmt: skip


def plain(summary):
    return json.loads(json.dumps(summary.to_dict()))


@pytest.mark.parametrize(
    "path",
    [
        ("predictions", "died", "overall", "patients"), ("error_by_round", 1, "fit"),
        ("per_site", "north", "rho"), ("per_site", "north", "ledger", 1, "sigma"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_missing_inside_is_named_with_its_place(path):
    content = plain(SIMULATED)
    *place, key = path
    del reduce(getitem, place, content)[key]
    with pytest.raises(DataError, match=rf"^lacks {'.'.join(map(str, path))}$"):
        Summary.from_dict(content)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sites", "3"), ("sites", 3.5), ("sites", True), ("epsilon", None), ("unit", "cell"),
        ("rmse", None),
    ],
)  # fmt: skip
def test_nothing_is_taken_for_another_type(key, value):
    with pytest.raises(DataError, match=rf"^{key} must be "):
        Summary.from_dict(plain(SIMULATED) | {key: value})


def test_a_summary_is_an_object_of_finite_numbers(tmp_path):
    (tmp_path / SUMMARY).write_text("[]")
    with pytest.raises(DataError, match=rf"{SUMMARY}: must be an object$"):
        read_summary(tmp_path)
    with pytest.raises(DataError, match="has a number that is not finite"):
        Summary.from_dict(plain(SIMULATED) | {"seconds": float("inf")})


CODES = (CodeWeight("E11", "diabetes", 0.75), CodeWeight("I10", "", 0.25))
SHARED = SharedPhenotypes(
    PhenotypeTable(
        40,
        (
            Phenotype(1, 2.5, 0.25, {"diagnoses": CODES}, {"died": Association(0.5, 0.01)}),
            Phenotype(2, 1.5, "<10", {"diagnoses": ()}, {}),
        ),
    ),
    SiteUsage(("a", "b"), ((1.0, 0.0), (0.5, 2.0)), ((False, True), (False, False))),
)
UNKNOWN = SharedPhenotypes(None, None)


@pytest.mark.parametrize("phenotypes", [SHARED, UNKNOWN], ids=["simulated", "deployed"])
def test_phenotypes_are_read_as_they_were_written(phenotypes, tmp_path):
    write_json(tmp_path / PHENOTYPES, phenotypes)
    assert read_phenotypes(tmp_path) == phenotypes


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"usage": None}, r"lacks table$"),
        ({"table": asdict(SHARED.table)}, r"lacks usage$"),
        ([], r"must be an object$"),
        ({"table": {"patients": "1", "phenotypes": []}, "usage": None},
         r"table\.patients must be a valid integer$"),
    ],
)  # fmt: skip
def test_damaged_phenotypes_are_named(tmp_path, content, says):
    (tmp_path / PHENOTYPES).write_text(json.dumps(content))
    with pytest.raises(DataError, match=rf"{PHENOTYPES}: {says}"):
        read_phenotypes(tmp_path)
