"""A run from Python: sites in, values, tables, plots and a report out."""

import os
import pickle
import re
import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas
import pytest

mpl.use("agg")
from matplotlib import pyplot
from matplotlib.figure import Figure

from dpfact_flower import Run, SiteSettings, federate
from dpfact_flower.client_app import simulated_settings
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.errors import DataError, PrivacyRefusedError, QuorumError, SettingsError
from dpfact_flower.evaluation.prose import NOT_FOUND
from dpfact_flower.evaluation.run_folder import BESIDE, Names, Review, write_json, write_names
from dpfact_flower.evaluation.tables import Replication
from dpfact_flower.notebook.federated import _own_settings
from dpfact_flower.runtime.config import RunConfig
from dpfact_flower.site.rules import site_rules

pytestmark = pytest.mark.slow

SETTINGS = {"privacy": "none", "rank": 3, "rounds": 3}


@pytest.fixture(scope="module")
def run(cohort):
    labelled = (replace(site, labels=np.arange(len(site)) % 2, row_unit="discharge")
                for site in cohort.sites)  # fmt: skip
    return federate(sites=Cohort("small", tuple(labelled)), **SETTINGS)


@pytest.fixture(scope="module")
def private(cohort):
    return federate(sites=list(cohort.sites), rank=2, epsilon=8.0, measure=False)


def test_a_config_gives_a_run_that_stands_for_its_folder_with_the_numbers_of_memory(
    run, cohort_folder, tmp_path
):
    found = federate({**SETTINGS, "data": str(cohort_folder), "out": str(tmp_path / "run")})
    assert os.fspath(found) == str(tmp_path / "run")
    assert (tmp_path / "run" / "report.html").exists()
    for ours, theirs in zip(run.model.factors, found.model.factors, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_a_run_knows_is_in_frames(run, private):
    assert (run.summary.row_unit, private.summary.row_unit) == ("discharge", "patient")
    assert list(run.phenotypes(top=1)["place"].unique()) == [1]
    history = run.history()
    assert list(history.index) == [1, 2, 3]
    assert list(history["sites"]) == [3, 3, 3]
    assert history["fit"].iloc[-1] == run.summary.errors.fit
    assert run.ledger().empty
    ledger = private.ledger()
    spent = ledger[ledger["site"] == "site-1"]["rho"].sum()
    assert spent == pytest.approx(private.summary.spent.per_site["site-1"].rho)


def test_an_epsilon_comes_with_its_claim(run, private):
    assert run.epsilon is None
    assert "epsilon 8.000" in private.guarantee
    assert "proven: patient-level" in private.guarantee
    assert re.search(r"epsilon 8\.000.*proven", repr(private))
    assert "no noise" in repr(run)
    assert "proven: patient-level" in private._repr_html_()


def test_a_run_is_saved_read_and_pickled(run, tmp_path):
    for again in (Run.read(run.save(tmp_path / "kept")), pickle.loads(pickle.dumps(run))):
        assert again.summary == run.summary
        assert again.records == run.records
        assert again.tables == run.tables
        np.testing.assert_array_equal(again.model.factors[1], run.model.factors[1])
    with pytest.raises(DataError, match="is not empty"):
        run.save(tmp_path / "kept")
    with pytest.raises(DataError, match="has no folder"):
        os.fspath(run)


def test_chart_reviews_and_matches_in_other_runs_outlast_the_folder(run, tmp_path):
    folder = run.save(tmp_path / "kept").folder
    write_names(folder, Names(reviewed={2: Review("keep")}))
    write_json(folder / BESIDE, [Replication("other", "", 3, ())])
    read = Run.read(folder)
    shutil.rmtree(folder)
    assert {*read.phenotypes()["certainty"]} == {NOT_FOUND}
    again = Run.read(read.save(tmp_path / "copy"))
    assert again.reviewed == {2: Review("keep")}
    assert again.replications == (Replication("other", "", 3, ()),)


def test_a_sites_own_reason_is_raised_where_all_sites_are_here(cohort, cohort_folder, tmp_path):
    config = {"data": str(cohort_folder), "out": str(tmp_path / "run")}
    for given in ({"sites": cohort}, {"config": config}):
        with pytest.raises(QuorumError, match=r"job: 'ledger\.sqlite' is reserved"):
            federate(**given, job="ledger.sqlite")


def test_a_private_run_after_an_open_one_says_why_it_is_refused(cohort, tmp_path):
    known = {"sites": cohort, "rank": 2, "measure": False, "state_dir": tmp_path}
    federate(**known, privacy="none", rounds=1)
    with pytest.raises(PrivacyRefusedError, match="holds releases without noise, so no epsilon"):
        federate(**known, patients=100, max_epsilon=9.0)
    with pytest.raises(SettingsError, match="with a state_dir, give the epsilon that each"):
        federate(**known, patients=100)


def test_sites_in_memory_allow_a_run_of_any_size_and_a_rule_of_ones_own(cohort, monkeypatch):
    large = {"privacy": "none", "rank": 201, "tau": 51, "rounds": 1}
    assert federate(sites=cohort, **large).model.rank == 201
    monkeypatch.setitem(site_rules._more, "own", None)
    config = RunConfig.read({"privacy": "none"})
    for settings in (simulated_settings(Path("sites")), _own_settings(config, 0.0)):
        assert settings.allow_rules == "elastic,patient,own"


def test_public_objects_show_what_they_are(cohort, run, tmp_path):
    settings = SiteSettings(state_dir=str(tmp_path), allow_privacy="none")
    for thing in (run, run.model, cohort, cohort.sites[0], cohort.vocabularies[0], settings):
        assert " object at 0x" not in repr(thing)


def test_names_show_everywhere(run, tmp_path):
    again = Run.read(run.label(2, "renal failure").save(tmp_path / "named"))
    assert again.model.headings[1] == "renal failure"
    found = again.phenotypes()
    assert found.columns[1] == "title"
    assert set(found["name"]) == {"", "renal failure"} < {*found["title"], ""}
    assert set(found["certainty"]) == {""}  # without noise, there is no start to judge by
    noisy = replace(again, model=replace(again.model, false_discovery=(0.01, 0.2, 0.9)))
    words = noisy.phenotypes().groupby("phenotype")["certainty"].first()
    assert words.tolist() == ["likely real", "uncertain", "doubtful"]
    assert "renal failure" in again._repr_html_()
    assert again.plot_phenotype(2).get_title() == "renal failure"
    labels = [text.get_text() for text in again.plot_usage().get_xticklabels()]
    assert labels == ["1", "renal failure", "3"]
    with pytest.raises(DataError, match="need one line of at most 120 printable characters"):
        again.label(1, 5)
    assert again.report().read_text().count("renal failure") > 1
    assert Run.read(again.label(2, "")).model.names == {}
    again.label(3, "sepsis")  # `again` still holds the removed name, which does not come back
    assert Run.read(again.folder).model.names == {3: "sepsis"}
    pyplot.close("all")


def test_plots_are_drawn_where_the_caller_wants(run):
    figure = Figure()
    axes = figure.subplots(3, 2).ravel()
    plots = (run.plot_errors, run.plot_traffic, run.plot_usage, run.plot_auc)
    for ax, draw in zip(axes, plots, strict=False):
        assert draw(ax) is ax
        assert ax.has_data()
    assert run.plot_phenotype(1, axes[4], top=4) is axes[4]
    assert len(axes[4].patches) <= 8
    figure.canvas.draw()
    assert not pyplot.get_fignums()  # nothing else was opened
    with pytest.raises(DataError, match="measure: must be one of"):
        run.plot_errors(axes[5], measure="rsme")
    with pytest.raises(DataError, match="the model has no number 4"):
        run.plot_phenotype(4, axes[5])


def test_what_was_not_measured_is_said(private, tmp_path):
    for draw in (private.plot_usage, private.plot_auc):
        with pytest.raises(DataError, match="known only for a simulation"):
            draw()
    assert "proven: patient-level" in private.report(tmp_path / "page.html").read_text()
    with pytest.raises(SettingsError, match="give a path"):
        private.report()
    with pytest.raises(FileNotFoundError, match=r"there is no folder: .*none'$"):
        private.report(tmp_path / "none" / "page.html")
    with pytest.raises(IsADirectoryError, match="need a file, but this is a folder"):
        private.report(tmp_path)


def test_a_model_with_patients_is_a_cp_model(run, cohort):
    site = cohort.sites[0]
    found = run.model.with_patients(site)
    assert found.shape == site.tensor.shape
    assert found.squared_error(site.tensor.scaled_to_unit_patients()).fit > 0
    np.testing.assert_array_equal(run.model.memberships(site).scores, found.factors[0])


def test_sites_or_a_config_and_not_both(cohort):
    for given in ({}, {"config": {}, "sites": cohort}, {"data": "x", "sites": cohort}):
        with pytest.raises(SettingsError, match="give either sites or a run config"):
            federate(**given)
    with pytest.raises(SettingsError, match="with a state_dir"):
        federate(sites=cohort, **{"state-dir": "kept"})  # as in a DPFactPhenotyper's settings
    for ignored in ({"max_epsilon": 1.0}, {"measure": False}, {"window_days": None}):
        with pytest.raises(SettingsError, match="window_days, max_epsilon, measure: need sites="):
            federate({"data": "synthetic:demo"}, **ignored)
    with pytest.raises(SettingsError, match="vocabularies: differ from the sites' own"):
        federate(sites=cohort, vocabularies=cohort.vocabularies[::-1])
    with pytest.raises(SettingsError, match=r"federate\(sites=read_events\(frame\)\)"):
        federate(pandas.DataFrame({"patient": ["1"], "code": ["a"]}))
    with pytest.raises(SettingsError, match="epsilom: no such setting; did you mean 'epsilon'"):
        federate(sites=cohort, epsilom=4)


def test_sites_without_any_value_are_called_that_before_a_run_begins():
    with pytest.raises(DataError, match="nothing to learn from"):
        federate(sites=[np.zeros((3, 4))], **SETTINGS)
