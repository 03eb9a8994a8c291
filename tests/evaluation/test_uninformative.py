"""A model that has learned nothing is called that, and nothing that would describe it is shown."""

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from dpfact_flower.cli.main import app
from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.evaluation.headline import headline, uninformative_message
from dpfact_flower.evaluation.measured import code_frequencies, shared_error
from dpfact_flower.evaluation.run_folder import read_phenotypes, read_summary
from dpfact_flower.evaluation.tables import GlobalCodes
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.tensor.cp import CPModel
from tests.evaluation.summaries import DEPLOYED, SIMULATED


@pytest.fixture(scope="module")
def planted():
    return synthetic(
        preset("demo", patients=300, phenotypes=3, shares="0.6,0.4", local=0.0,
               modes="procedures:20:3,diagnoses:25:3")
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(planted, tmp_path_factory):
    """A run that learns, and one whose noise leaves nothing; the exit code of each."""
    folder = tmp_path_factory.mktemp("runs")
    planted.save(folder / "data")
    found = {}
    for name, options in {
        "learned": ["privacy=none", "rounds=6", "rank=3"],
        "noise": ["epsilon=0.01", "noise-seed=1", "rank=3", "refine-rounds=1", "start-share=0.8"],
    }.items():
        given = [part for option in options for part in ("-s", option)]
        out = folder / name
        arguments = ["run", "--data", str(folder / "data"), "--out", str(out), *given]
        found[name] = (CliRunner().invoke(app, arguments), out)
    return found


def test_exit_code_and_headline_say_that_nothing_was_learned(runs):
    done, out = runs["noise"]
    assert done.exit_code == 3
    lines = dict(headline(read_summary(out)))
    assert lines["nothing"].startswith("the shared phenotypes explain")
    assert "a larger epsilon" in lines["nothing"]
    learned, out = runs["learned"]
    assert learned.exit_code == 0
    assert "nothing" not in dict(headline(read_summary(out)))


def test_no_figure_describes_noise(runs):
    _, out = runs["noise"]
    summary = read_summary(out)
    assert summary.measured.auc is None
    assert summary.measured.prediction.overall.memberships is None
    assert isinstance(read_phenotypes(out), GlobalCodes)
    page = (out / "report.html").read_text()
    assert "Nothing was learned" in page
    assert not [
        section
        for section in ("phenotypes", "usage", "details", "prediction")
        if f'id="{section}"' in page
    ]
    assert "odds of" not in page
    assert "A simulation" in page
    learned = (runs["learned"][1] / "report.html").read_text()
    assert "Three patterns" in learned
    assert "Nothing was learned" not in learned


def test_the_shared_fit_is_that_of_patients_refitted_to_the_shared_factors(planted):
    tensors = [site.tensor.scaled_to_unit_patients() for site in planted.sites]
    truth = tuple(factor.astype(np.float32) for factor in planted.truth.factors)
    error = shared_error(tensors, truth)
    for tensor in tensors:  # no other patients do better: here, none and those of a random draw
        zero = np.zeros((tensor.n_patients, 3), np.float32)
        assert CPModel((zero, *truth)).squared_error(tensor).fit == pytest.approx(0)
    random = shared_error(tensors, initial_factors(tensors[0].feature_shape, 3, 0))
    frequencies = shared_error(tensors, code_frequencies(tensors))
    assert error.fit > 2 * frequencies.fit > 0
    assert error.data == pytest.approx(sum(t.norm_squared() for t in tensors))
    assert random.fit < error.fit


def test_code_frequencies_are_one_component_of_norm_1(planted):
    tensors = [site.tensor for site in planted.sites]
    for mode, factor in enumerate(code_frequencies(tensors), start=1):
        sums = sum(t.to_dense().sum(axis=tuple(set(range(3)) - {mode})) for t in tensors)
        np.testing.assert_allclose(factor[:, 0], sums / np.linalg.norm(sums), rtol=1e-5)


@pytest.mark.parametrize("mode", ["none", "paper", "patient"])
def test_every_mode_names_its_ways_out(mode):
    measured = replace(SIMULATED.measured, fit_shared=1e-6, fit_frequencies=1e-3)
    text = uninformative_message(replace(SIMULATED, privacy=mode, measured=measured))
    assert "What can help: " in text
    assert "0.1" in text


def test_where_nothing_was_measured_nothing_is_said():
    assert uninformative_message(DEPLOYED) == ""
    assert uninformative_message(SIMULATED) == ""
