"""Numbers on docs/evaluation.md and docs/results.md that follow from the CSV files beside them."""

import csv

from dpfact_flower.estimation.outlook import outlook_of
from dpfact_flower.privacy.patient.plan import plan_patient
from dpfact_flower.settings import PrivacySettings
from simulation.paper import convergence
from tests.docs.pages import ROOT

SHAPES = {
    "Diabetes-130, two modes": (6, 100, 100), "Diabetes-130, three modes": (6, 100, 100, 12),
    "SynPUF, 18 samples": (6, 202, 316), "SynPUF, samples 1 to 5": (5, 202, 316),
    "eICU demo, five regions": (5, 414, 425), "NHDS": (8, 202, 316),
    "principal x secondary diagnoses, 200 x 300": (4, 200, 300),
    "and changes of drugs, 60 x 150 x 20": (4, 60, 150, 20),
    "and who admitted, 80 x 120 x 40": (4, 80, 120, 40),
}  # fmt: skip
"""Numbers of sites (Diabetes-130's even groups are four) and of each mode's codes."""


def read(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def rows(name):
    return csv.DictReader(read(f"{name}.csv").splitlines())


def test_the_evaluation_says_what_the_shared_model_explains():
    known = ("RMSE", "RMSE shared", "fit", "FMS planted")
    stored = [
        row | {key: float(row[key]) if row[key] else None for key in known}
        for row in rows("evaluation/convergence")
    ]
    lead, table = convergence.at_a_glance(stored)
    assert "0.152/0.00 |" in table.markdown()  # eICU's sites fit their own patients
    for part in (lead, table.markdown(), convergence.shared_against_rivals(stored)):
        assert part in read("evaluation.md")


def test_the_results_count_todays_forecasts():
    found = {"good": [], "weak": [], "hopeless": []}
    for row in (r for n in ("real-cohorts", "nhds", "untuned-codes") for r in rows(f"results/{n}")):
        if row["models"] == "private" and row["epsilon"] != "inf":
            sites, *sizes = SHAPES[row["cohort"]]
            patients = int(row.get("patients") or row["discharges"])
            settings = PrivacySettings(epsilon=float(row["epsilon"]), patients=patients)
            made = plan_patient(settings, sizes=sizes, rank=int(row["rank"]), sites=sites)
            verdict, _, _, chance, _ = outlook_of(made)
            found[verdict].append((int(row["of"]), int(row["passed"]), chance, row["cohort"]))
    (good, passed), (weak, some), (bad, none) = (
        [sum(column) for column in [*zip(*cells, strict=True)][:2]] for cells in found.values()
    )
    beat = sum(of == passed for of, passed, *_ in found["weak"])
    expected = sum(chance for *_, chance, _ in found["weak"])
    assert (passed, none, {row[-1][:4] for row in found["hopeless"]}) == (good, 0, {"eICU"})
    text = " ".join(read("results.md").split())
    assert f"all {good} models with a *good* [forecast]" in text
    assert f"Of {weak} models with a *weak* forecast, {some} passed" in text
    assert f"in {beat} of {len(found['weak'])} such settings, where {expected:.1f} were" in text
    assert f"None of the {bad} models with a *hopeless* forecast passed" in text
