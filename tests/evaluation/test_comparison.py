"""Several runs side by side, with the claim next to each epsilon."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.comparison import comparison, replications, write_comparison
from dpfact_flower.evaluation.model import GlobalModel
from dpfact_flower.evaluation.prose import titles
from dpfact_flower.evaluation.report import write_report
from dpfact_flower.evaluation.run_folder import (
    BESIDE,
    read_model,
    read_replications,
    write_json,
    write_model,
    write_summary,
)
from dpfact_flower.notebook.run import Run
from dpfact_flower.privacy import PAPER_CLAIM, PATIENT_CLAIM, SEEDED_CLAIM
from tests.commands import dpfact
from tests.evaluation.folders import lines_of, refusal, run_folder
from tests.evaluation.summaries import DEPLOYED, SIMULATED, SPENT

pytestmark = pytest.mark.slow

EPSILON = "epsilon (replacing a record)"


def rows_of(folder, **summaries):
    """Return the table's rows for runs with these summaries, by column."""
    for name, summary in summaries.items():
        run_folder(folder / name, summary)
    lines = comparison([folder / name for name in summaries]).splitlines()
    header, _, *rows = [line.strip("| ").split(" | ") for line in lines]
    return [dict(zip(header, row, strict=True)) for row in rows]


@pytest.mark.parametrize(
    ("privacy", "claim", "shown"),
    [
        ("patient", PATIENT_CLAIM, "patient"),
        ("patient", f"{SEEDED_CLAIM} ({PATIENT_CLAIM})", "patient (seeded: not private)"),
        ("paper", PAPER_CLAIM, f"paper ({PAPER_CLAIM})"),
    ],
)
def test_a_row_has_its_promise(tmp_path, privacy, claim, shown):
    spent = replace(SPENT, claim=claim)
    (row,) = rows_of(tmp_path, run=replace(SIMULATED, privacy=privacy, claim=claim, spent=spent))
    assert row["privacy"] == shown


def test_what_was_measured_stands_in_its_column(tmp_path):
    simulated, deployed = rows_of(tmp_path, simulated=SIMULATED, deployed=DEPLOYED)
    assert simulated == {
        "run": "simulated", "data": "demo", "sites": "2", "patients": "1,050",
        "phenotypes": "5", "privacy": "patient", EPSILON: "4.000 (9.086)", "fit": "-0.013",
        "AUC": "0.788 ± 0.012", "AUC raw codes": "0.812 ± 0.010", "AUC volume": "0.600 ± 0.020",
        "match with planted": "0.97", "about one body system": "-",
        "about one disease group (CCS)": "0 of 5", "coherence of leading codes (NPMI)": "0.14",
        "seconds": "7500",
    }  # fmt: skip
    assert {name for name, text in deployed.items() if text == "-"} == {
        "patients", EPSILON, "fit", "AUC", "AUC raw codes", "AUC volume", "match with planted",
        "about one body system", "coherence of leading codes (NPMI)",
    }  # fmt: skip


def test_runs_of_one_name_keep_their_own_figures(tmp_path):
    for name in "ab":
        (tmp_path / name / "x").mkdir(parents=True)
    first, second = rows_of(tmp_path, **{"a/x/run": SIMULATED, "b/x/run": DEPLOYED})
    assert [row["run"] for row in (first, second)] == [str(tmp_path / f"{n}/x/run") for n in "ab"]


def test_a_page_has_every_run_its_claim_and_the_matched_phenotypes(tmp_path):
    names = ("first", "second", "other-codes", "nothing")
    runs = [run_folder(tmp_path / name, noise=0.1 * (name == "second")) for name in names]
    factors, lists = read_model(runs[2])
    write_model(runs[2], factors, [Vocabulary("drugs", lists[0].codes), lists[1]])
    measured = replace(SIMULATED.measured, fit_shared=0.0)
    write_summary(runs[3], replace(SIMULATED, rank=5, measured=measured))
    readmitted = {"readmitted": SIMULATED.predictions["died"]}
    measured = replace(SIMULATED.measured, predictions=readmitted)
    write_summary(runs[2], replace(SIMULATED, rank=5, measured=measured))
    out = tmp_path / "compare.html"
    printed = dpfact("compare", *runs, "--out", out)
    assert printed.count("| demo |") == 4
    assert re.findall(r"\| (\S+) \|.* which explain nothing \|", printed) == ["nothing"]
    page = " ".join(re.sub("<[^>]+>", " ", out.read_text("utf-8")).split())
    assert page.count("epsilon 4.000, proven: patient-level") == 4
    heads = "run protection shared fit match with planted phenotypes AUC, death AUC, readmission"
    assert heads in page
    assert "other-codes is left out: its kinds of codes are drugs, diagnoses" in page
    assert "nothing is left out: its phenotypes explain nothing" in page
    for number, title in titles(GlobalModel.read(runs[0])).items():
        assert f" {number} {title} " in page
    for pair in replications(runs[0], [runs[1]])[0].pairs:
        assert f"{pair.match:.2f} " in page
    for same in (["--beside", runs[0]], ["--beside", runs[1]] * 2):
        assert "two of these runs have the same model" in refusal("report", runs[0], *same)
    assert "learned nothing" in refusal("report", runs[0], "--beside", runs[3])
    said = dpfact("export", runs[3], "--phenotypes", tmp_path / "noise.csv")
    assert "warning: the shared phenotypes explain 0.0 %" in said
    assert not any(row["certainty"] for row in lines_of(tmp_path / "noise.csv"))
    with pytest.raises(DataError, match="modes are drugs, diagnoses; need procedures, diagnoses"):
        replications(runs[0], [runs[2]])
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        write_comparison(runs, tmp_path / "none" / "page.html")
    text = write_comparison(runs[::3], out).read_text("utf-8")
    assert "No other run has usable phenotypes of the same kinds of codes" in text


def turned(folder, order, keep=slice(None)):
    """Write the run's phenotypes and codes in another order, without some codes."""
    factors, lists = read_model(folder)
    rows = [np.arange(len(v))[::-1][keep] for v in lists]
    write_model(
        folder,
        [f[own][:, order] for f, own in zip(factors, rows, strict=True)],
        [Vocabulary(v.name, [v.codes[i] for i in own], [v.descriptions[i] for i in own])
         for v, own in zip(lists, rows, strict=True)],
    )  # fmt: skip


def test_phenotypes_are_found_under_other_numbers_and_in_other_lists(tmp_path):
    run, other = run_folder(tmp_path / "run"), run_folder(tmp_path / "other")
    turned(other, [2, 0, 1, 4, 3])
    (found,) = replications(run, [other])
    assert [(p.number, p.other) for p in found.pairs] == [(1, 2), (2, 3), (3, 1), (4, 5), (5, 4)]
    np.testing.assert_allclose([p.match for p in found.pairs], 1.0, rtol=1e-6)
    assert found.count == 5
    assert all(p.fair == 0.7225 > p.chance for p in found.pairs)
    assert "epsilon 4.000, proven" in found.how
    turned(other, range(5), keep=slice(3, None))
    (less,) = replications(run, [other])
    assert all(p.match < 1 - 1e-6 for p in less.pairs)


def test_a_phenotype_of_codes_that_belong_to_everything_is_not_found_again(tmp_path):
    """All have the same first list, so each has an equally good partner."""
    run, other = run_folder(tmp_path / "run"), run_folder(tmp_path / "other")
    factors, lists = read_model(run)
    factors[0][:] = factors[0][:, [0]]
    for folder in (run, other):
        write_model(folder, factors, lists)
    (found,) = replications(run, [other])
    assert [p.match for p in found.pairs] == pytest.approx([1.0] * 5)
    assert found.count == 0
    assert (
        write_comparison([run, other], run / "page.html").read_text().count(", unconfirmed ") == 5
    )
    write_json(run / BESIDE, (found,))
    page = write_report(run).read_text()
    assert page.count("1.00†") == page.count(" Unconfirmed: ") == 5
    says = "It must be above 0.72 (0.85 for each kind of code), and above 95 % of the similarities"
    assert says in page
    for folder in (run, other):  # nothing to recombine
        write_model(folder, factors[:1], lists[:1])
    assert (
        "It must be above 0.85 (0.85 for each kind of code).</li>" in write_report(run).read_text()
    )
    dpfact("compare", run, other, "--out", run / "page.html")
    assert "recombined" not in (run / "page.html").read_text()


def test_what_was_found_is_kept_for_the_next_report(tmp_path):
    run, other = run_folder(tmp_path / "run"), run_folder(tmp_path / "other", noise=0.05)
    dpfact("report", run, "--beside", other)
    first = (run / "report.html").read_bytes()
    assert b"The patterns in other runs" in first
    assert write_report(run).read_bytes() == first
    assert Run.read(run).report(tmp_path / "elsewhere.html").read_bytes() == first
    assert read_replications(run, 5) == replications(run, [other])
    with pytest.raises(DataError, match="belongs to another model"):
        read_replications(run, 6)
    content = json.loads((run / "beside.json").read_text())
    del content[0]["pairs"][0]["chance"]
    (run / "beside.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"beside\.json: lacks 0\.pairs\.0\.chance"):
        write_report(run)
    write_json(run / BESIDE, ())
    assert b"The patterns in other runs" not in write_report(run).read_bytes()
