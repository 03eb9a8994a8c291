"""Numbers on docs/evaluation.md and docs/results.md that follow from the CSV files beside them."""

import csv
import re

from dpfact_flower.estimation.outlook import outlook_of
from dpfact_flower.privacy.patient.plan import plan_patient
from dpfact_flower.settings import PrivacySettings
from simulation.paper import convergence
from tests.docs.pages import ROOT

SHAPES = {
    "Diabetes-130, two modes": (6, 100, 100), "Diabetes-130, three modes": (6, 100, 100, 12),
    "SynPUF, 18 samples": (6, 202, 316), "SynPUF, samples 1 to 5": (5, 202, 316),
    "eICU demo, five regions": (5, 414, 425), "NHDS": (8, 202, 316),
}  # fmt: skip
"""Numbers of sites and of each mode's codes. Other cohorts have four sites and name their codes."""


def read(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def rows(*names):
    return [row for name in names for row in csv.DictReader(read(f"{name}.csv").splitlines())]


def test_the_evaluation_says_what_the_shared_model_explains():
    known = ("RMSE", "RMSE shared", "fit", "FMS planted")
    stored = [
        row | {key: float(row[key]) if row[key] else None for key in known}
        for row in rows("evaluation/convergence")
    ]
    lead, table = convergence.at_a_glance(stored)
    for part in (lead, table.markdown(), convergence.shared_against_rivals(stored)):
        assert part in read("evaluation.md")


def test_the_results_count_todays_forecasts():
    found = {"good": [], "weak": [], "hopeless": []}
    for row in rows("results/real-cohorts", "results/nhds", "results/untuned-codes"):
        if row["models"] == "private" and row["epsilon"] != "inf":
            name, patients = row["cohort"], int(row.get("patients") or row["discharges"])
            sites, *sizes = SHAPES.get(name) or (4, *map(int, re.findall(r"\d+", name)))
            settings = PrivacySettings(epsilon=float(row["epsilon"]), patients=patients)
            made = plan_patient(settings, sizes=sizes, rank=int(row["rank"]), sites=sites)
            verdict, _, _, chance, _ = outlook_of(made)
            of, passed = int(row["of"]), int(row["passed"])
            found[verdict].append((of, passed, of == passed, chance, of * ("eICU" in name)))
    good, weak, bad = ([*map(sum, zip(*own, strict=True))] for own in found.values())
    assert (good[1], bad[1], bad[4]) == (good[0], 0, bad[0])
    text = " ".join(read("results.md").split())
    assert f"all {good[0]} models with a *good* [forecast]" in text
    assert f"Of {weak[0]} models with a *weak* forecast, {weak[1]} passed" in text
    assert f"in {weak[2]} of {len(found['weak'])} such settings, where {weak[3]:.1f} were" in text
    assert f"None of the {bad[0]} models with a *hopeless* forecast passed" in text
