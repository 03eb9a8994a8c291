"""Several runs side by side: what was promised stands beside each epsilon."""

import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from dpfact_flower import cli
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.evaluation.comparison import comparison, write_comparison
from dpfact_flower.evaluation.model import GlobalModel
from dpfact_flower.evaluation.prose import titles
from dpfact_flower.evaluation.replication import replications
from dpfact_flower.evaluation.run_folder import read_model, write_model, write_summary
from dpfact_flower.runtime.federate import federate
from tests.evaluation.folders import run_folder
from tests.evaluation.summaries import DEPLOYED, SIMULATED

EPSILON = "epsilon (replacing a record)"
RUNS = {
    "open": ({"privacy": "none", "rounds": 2}, "none", "-"),
    "patient": ({"epsilon": 2.0}, "patient", "2.000 (4.393)"),
    "seeded": ({"epsilon": 2.0, "noise-seed": 1}, "patient (seeded: not private)", "2.000 (4.393)"),
    "paper": (
        {"privacy": "paper", "epsilon": 1.0, "rounds": 2, "solver": "psgd", "clip": 1.0},
        "paper (claimed by DPFact, Theorem 4.1; entry-level; not proven)",
        "1.000",
    ),
}


@pytest.mark.slow
def test_a_row_a_run_with_its_promise(cohort_folder, tmp_path):
    for name, (settings, _, _) in RUNS.items():
        own = {"data": str(cohort_folder), "out": str(tmp_path / name), "rank": 2}
        federate({**own, **settings})
    lines = comparison([tmp_path / name for name in RUNS]).splitlines()
    header = lines[0].split(" | ")
    assert len({line.count("|") for line in lines}) == 1
    for line, (name, (_, mode, epsilon)) in zip(lines[2:], RUNS.items(), strict=True):
        row = dict(zip(header, line.split(" | "), strict=True))
        assert (row["| run"], row["privacy"], row[EPSILON]) == (f"| {name}", mode, epsilon)


@pytest.mark.parametrize(
    ("content", "says"), [("{}", "lacks .*sites, rounds"), ("[]", "must be an object")]
)
def test_a_summary_that_is_none_is_refused(tmp_path, content, says):
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(DataError, match=rf"summary\.json: {says}"):
        comparison([tmp_path])


def test_what_was_measured_stands_in_its_column(tmp_path):
    for name, summary in (("simulated", SIMULATED), ("deployed", DEPLOYED)):
        (tmp_path / name).mkdir()
        write_summary(tmp_path / name, summary)
    header, _, *lines = comparison([tmp_path / "simulated", tmp_path / "deployed"]).splitlines()
    names = header.strip("| ").split(" | ")
    simulated, deployed = (
        dict(zip(names, line.strip("| ").split(" | "), strict=True)) for line in lines
    )
    assert simulated == {
        "run": "simulated", "data": "demo", "sites": "2", "patients": "1,050",
        "non-zeros": "1,234", "R": "12", "rounds": "4", "privacy": "patient",
        EPSILON: "4.000 (9.086)",
        "fit": "-0.013", "RMSE all cells": "0.00514", "RMSE non-zeros": "0.1240",
        "AUC": "0.788 ± 0.012", "AUC raw codes": "0.812 ± 0.010", "AUC volume": "0.600 ± 0.020",
        "FMS": "0.97", "MB down": "0.0", "MB up": "1.2", "seconds": "7500",
        "of them solver": "0.5",
    }  # fmt: skip
    unknown = {name for name, text in deployed.items() if text == "-"}
    assert unknown == {
        "patients", "non-zeros", EPSILON, "fit", "RMSE all cells", "RMSE non-zeros", "AUC",
        "AUC raw codes", "AUC volume", "FMS", "of them solver",
    }  # fmt: skip


def test_a_page_has_every_run_its_claim_and_the_matched_phenotypes(tmp_path):
    names = ("first", "second", "other-codes", "nothing")
    runs = [run_folder(tmp_path / name, noise=0.1 * (name == "second")) for name in names]
    factors, lists = read_model(runs[2])
    write_model(runs[2], factors, [Vocabulary("drugs", lists[0].codes), lists[1]])
    measured = replace(SIMULATED.measured, fit_shared=0.0)
    write_summary(runs[3], replace(SIMULATED, rank=5, measured=measured))
    out = tmp_path / "compare.html"
    done = CliRunner().invoke(cli.app, ["compare", *map(str, runs), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert done.output.count("| demo |") == 4  # the table is printed as ever
    page = " ".join(re.sub("<[^>]+>", " ", out.read_text("utf-8")).split())
    assert page.count("epsilon 4.000, proven: patient-level") == 4
    assert "other-codes is left out: its codes are drugs, diagnoses" in page
    assert "nothing is left out: its phenotypes explain nothing" in page
    for number, title in titles(GlobalModel.read(runs[0])).items():
        assert f" {number} {title} " in page
    for pair in replications(runs[0], [runs[1]])[0].pairs:
        assert f"{pair.match:.2f} " in page


def test_a_page_is_refused_where_it_cannot_be(tmp_path):
    run = run_folder(tmp_path / "run")
    with pytest.raises(SettingsError, match="--out: there is no folder"):
        write_comparison([run], tmp_path / "none" / "page.html")
