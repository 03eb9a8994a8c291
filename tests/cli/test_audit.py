"""`dpfact audit`: exit codes, what it prints, and that it leaves nothing behind."""

import logging

import pytest

from dpfact_flower.audit import Finding
from dpfact_flower.data.site_data import Cohort
from tests.commands import dpfact


def audit(*arguments, code=0):
    settings = ("--set", "privacy=patient", "--set", "rank=3")
    return dpfact("audit", *arguments, *settings, width=200, code=code)


def files_below(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.slow
def test_a_cohort_passes_and_nothing_is_left_behind(cohort_folder, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    before = files_below(tmp_path)
    said = audit("--data", cohort_folder, "--site", "site-2", "--quick")
    assert "checks passed" in said
    assert "likelihood ratio: whole run" in said
    assert files_below(tmp_path) == before
    assert "new ledger in" not in caplog.text  # an alarm to whoever reads the site's log
    assert not logging.getLogger("dpfact_flower.client_app").filters


def fake(monkeypatch, *findings):
    """Audits that find something; the rest of the command is real."""
    asked = {}

    def found(data, solver, privacy, **given):
        asked.update(given, data=data, solver=solver, privacy=privacy)
        return findings

    monkeypatch.setattr("dpfact_flower.audit.audit", found)
    return asked


def test_one_failure_is_exit_code_one(monkeypatch):
    fake(monkeypatch, Finding("good", 1, (0, 2)), Finding("bad", 3, (0, 2), "too much"))
    said = audit("--data", "synthetic:demo", code=1)
    assert "1 of 2 checks failed" in said
    assert "FAILED" in said


def test_settings_data_and_site_are_the_users(monkeypatch, cohort_folder):
    asked = fake(monkeypatch, Finding("good", 1, (0, 2)))
    file = cohort_folder / "site-3.npz"
    audit("--data", file, "--set", "epsilon=0.7", "--seed", 4)
    assert asked["data"].name == "site-3"
    assert asked["privacy"].epsilon == 0.7
    assert asked["solver"].rank == 3
    assert asked["seed"] == 4
    audit("--data", cohort_folder)
    assert isinstance(asked["data"], Cohort)
