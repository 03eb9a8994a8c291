"""The two studies of the cost of privacy: their comparisons, and continuation."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpfact_flower.data.synthetic import SyntheticSettings, synthetic
from dpfact_flower.estimation.outlook import outlook_of
from dpfact_flower.privacy.patient.plan import plan_patient
from dpfact_flower.settings import PrivacySettings
from dpfact_flower.tensor.cp import factor_match_score
from simulation.studies import (
    certainty,
    clinical,
    needed,
    one_patient_time,
    peers,
    real_data,
    secure,
    shared_fit,
    slow_site,
)
from simulation.studies.real_data import Study
from simulation.systems import NO_NOISE
from tests.simulation.test_halves import CLEAR

pytestmark = pytest.mark.nightly


def test_a_study_puts_private_models_between_null_and_ceiling() -> None:
    rows = list(Study(synthetic(CLEAR), rank=4, references=2).rows([NO_NOISE, 0.01], seeds=1))
    found = {row["model"].split(":")[0] + str(row["epsilon"] or ""): row for row in rows}
    assert found["ceiling"]["fms"] > 0.9  # planted, so all fits find the same phenotypes
    assert found["ceiling"]["share_of_fit"] == pytest.approx(1, abs=0.01)
    assert found["null"]["share_of_fit"] < 0.9
    assert found["patient modeinf"]["beats_null"]
    assert not found["patient mode0.01"]["beats_null"]
    assert found["patient mode0.01"]["fms"] < found["null"]["fms"]


def test_the_ceiling_is_of_fits_to_each_other() -> None:
    study = Study(synthetic(CLEAR), rank=6, references=3)  # with two columns too many, fits differ
    one, two, three = study._references
    pairs = [factor_match_score(*pair) for pair in ((one, two), (one, three), (two, three))]
    row = next(study.rows([], seeds=1))
    assert row["fms"] == pytest.approx(np.mean(pairs))
    assert row["models"] == 3


def test_the_study_of_real_data_goes_on_where_it_was(cohort_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "real"
    asked = [str(cohort_folder), "--out", str(out), "--seeds", "1", "--references", "2",
             "--epsilons", "8", "--ranks", "2"]  # fmt: skip
    real_data.main(asked)
    first = json.loads((out / "table.json").read_text())
    real_data.main([*asked, "3"])
    both = json.loads((out / "table.json").read_text())
    assert both[: len(first)] == first  # with fresh noise, a new measurement would differ
    assert [row["rank"] for row in both] == [2, 2, 2, 3, 3, 3]
    assert (out / "table.md").read_text().count("\n") == 4
    assert (out / "table.csv").read_text().startswith("data,sites,patients")


def test_where_the_ceiling_does_not_beat_the_null_nothing_is_judged(monkeypatch) -> None:
    monkeypatch.setattr(real_data, "shuffled", lambda tensor, seed: tensor)  # relations stay intact
    rows = list(Study(synthetic(CLEAR), rank=4, references=2).rows([NO_NOISE], seeds=1))
    assert rows[-1]["beats_null"] == "no tie to learn"
    assert "no tie to learn" in real_data.table(rows)


def test_a_study_finds_its_models_again(tmp_path: Path) -> None:
    cohort = synthetic(replace(CLEAR, patients=120))
    first = list(Study(cohort, 3, 2, tmp_path).rows([1.0], seeds=1))
    again = list(Study(cohort, 3, 2, tmp_path).rows([1.0], seeds=1))
    assert again == first  # with fresh noise, a new draw would differ
    named = real_data.named(Study(cohort, 3, 2, tmp_path), 1.0)
    assert named.startswith("## clear, 3 phenotypes, epsilon 1")
    assert named.count("\n") == 5


def test_peers_are_measured_alike_and_go_on_where_they_were(cohort_folder, tmp_path) -> None:
    asked = [str(cohort_folder), "--out", str(tmp_path), "--rank", "2", "--epsilon", "8"]
    peers.main(asked)
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [row["method"] for row in rows] == ["all codes", "code volume", *peers.SYSTEMS]
    found = {row["method"]: row for row in rows}
    assert found["sparse CP without noise"]["share"] > found["NMF"]["share"]
    promised = [row["method"] for row in rows if row.get("epsilon")]
    assert promised == [name for name, (_, claim, _) in peers.SYSTEMS.items() if claim != "none"]
    peers.main(asked)  # with fresh noise, a new measurement would differ
    assert json.loads((tmp_path / "table.json").read_text()) == rows
    assert (tmp_path / "table.md").read_text().count("\n") == 2 + len(rows)


def test_patients_needed_are_those_from_which_a_plan_is_good() -> None:
    enough = needed.patients_needed((100, 100), 20, 6, 2.0)
    for patients, verdict in ((round(1.01 * enough), "good"), (round(0.99 * enough), "weak")):
        settings = PrivacySettings(epsilon=2.0, delta=1e-5, patients=patients)
        made = plan_patient(settings, sizes=(100, 100), rank=20, sites=6)
        assert outlook_of(made).verdict == verdict


def test_the_study_of_secure_sums_has_a_row_for_each_system(cohort_folder, tmp_path) -> None:
    asked = [str(cohort_folder), "synthetic:demo-icu", "--out", str(tmp_path / "out"),
             "--ranks", "2", "--sites", "4", "--seeds", "1", "--references", "2",
             "--epsilons", "4", "--half", "both", "--slots", "0"]  # fmt: skip
    secure.main(asked)
    rows = json.loads((tmp_path / "out" / "table.json").read_text())
    systems = [row["system"] for row in rows if "system" in row and row["epsilon"]]
    assert systems == ["own noise", "planned slots", "one noise"]
    planted = [row for row in rows if "match" in row]
    assert [row["slots"] for row in planted] == [-1, 0]
    assert all(row["match"] > 0.8 for row in planted)


def test_the_study_of_one_patients_time_measures_every_kind_of_charged_round(capsys) -> None:
    one_patient_time.main(["--patients", "50", "--runs", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "start", "refine procedures", "refine diagnoses", "refine procedures, hostile factors",
    ]  # fmt: skip
    assert all("one with every code" in line for line in lines)


def test_the_shared_fit_of_every_system_is_printed(tmp_path: Path, capsys, monkeypatch) -> None:
    small = replace(CLEAR, patients=120)
    synthetic(small).save(tmp_path)
    monkeypatch.setattr(shared_fit, "_ROUNDS", 4)
    monkeypatch.setattr(shared_fit, "_ITERATIONS", 2)
    shared_fit.main([str(tmp_path), "--rank", "3"])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [row[1] for row in rows] == ["code frequencies", *shared_fit.systems(3, 0)]
    fits = {row[1]: float(row[2]) for row in rows}
    assert fits["exact"] > fits["code frequencies"] > 0
    shared_fit.main([str(tmp_path), "--rank", "3", "--half", "report"])
    whole, others = rows[0], capsys.readouterr().out.splitlines()[0].split(" | ")
    assert whole[:2] == others[:2]
    assert float(whole[2]) != float(others[2])  # measured in other patients


def test_a_slow_site_makes_the_seconds_of_a_run_in_step_alone(cohort_folder: Path, capsys) -> None:
    """Ten rounds take 100 s each, or one takes 100 s and nine 10 s, until the slow site ends."""
    slow_site.main(
        [str(cohort_folder), "--rank", "2", "--rounds", "10", "--seconds", "10", "--seeds", "1",
         "--start", "random", "--slow", "site-2"]
    )  # fmt: skip
    rows = capsys.readouterr().out.splitlines()[2:]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    assert [(name, way, total) for name, way, _, _, total, _ in cells] == [
        ("site-2", "in step", "1,000"), ("site-2", "in step, grace", "190"),
        ("site-2", "on arrival", "200"), ("site-2", "on arrival, each alone", "200"),
    ]  # fmt: skip
    assert 0 < float(cells[0][-1].split()[0]) < 1


def test_what_the_study_of_certainty_calls_real_is_in_other_patients(tmp_path, capsys) -> None:
    synthetic(SyntheticSettings(patients=8000, local=0.0)).save(tmp_path / "data")
    asked = [str(tmp_path / "data"), "--rank", "12", "--references", "2", "--out", str(tmp_path),
             "--epsilons", "50"]  # fmt: skip
    certainty.main(asked)
    (row,) = json.loads((tmp_path / "table.json").read_text())
    assert row["phenotypes"] == 24
    assert row["called"] >= 6
    assert row["missing"] / row["called"] < row["all_missing"] / row["phenotypes"]
    shown = capsys.readouterr().out
    certainty.main(asked)
    assert capsys.readouterr().out == shown  # models are stored


def test_a_phenotype_that_other_patients_lack_is_missing_there() -> None:
    rng = np.random.default_rng(0)
    own = tuple(rng.random((30, 6)) ** 8 for _ in range(2))
    other = tuple(np.hstack([rng.random((30, 2)), factor[:, 2:]]) for factor in own)
    alike, strict = certainty.found_in(own, other)
    assert alike.tolist() == [False, False, True, True, True, True]
    assert strict.tolist() == alike.tolist()
    common = tuple(np.repeat(factor[:, :1], 6, axis=1) for factor in own)
    alike, strict = certainty.found_in(common, common)
    assert alike.all()
    assert not strict.any()


def test_every_kind_of_model_is_measured(tmp_path, capsys):
    synthetic(CLEAR).save(tmp_path / "data")
    out = tmp_path / "out"
    asked = [str(tmp_path / "data"), "--out", str(out), "--rank", "4", "--models", "2",
             "--epsilons", "inf"]  # fmt: skip
    clinical.main(asked)
    lines = capsys.readouterr().out.splitlines()
    kinds = [line.split(" | ")[2] for line in lines[2:]]
    assert kinds == ["ceiling", "null", "null: shuffled codes", "patient mode, epsilon inf"]
    found = json.loads((out / "clinical.json").read_text())
    npmi = {kind: [row["npmi"] for row in found if row["model"] == kind] for kind in kinds}
    assert all(len(values) == 2 for values in npmi.values())
    assert min(npmi["ceiling"]) > max(npmi["null"]) > min(npmi["null: shuffled codes"])
    assert min(npmi["patient mode, epsilon inf"]) > max(npmi["null"])
