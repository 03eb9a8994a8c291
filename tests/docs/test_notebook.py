"""docs/notebooks/own-data.ipynb, run as it stands: every cell, in order, in an empty folder."""

import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("agg")
from matplotlib import pyplot

from dpfact_flower.tensor.cp import factor_match_score

PAGE = Path(__file__).parents[2] / "docs" / "notebooks" / "own-data.ipynb"
pytestmark = pytest.mark.slow
CELLS = json.loads(PAGE.read_text(encoding="utf-8"))["cells"]


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What the notebook's names stand for in the end."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("notebook"))
        for cell in CELLS:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), PAGE.name, "exec"), found)
        found["page"] = Path("report.html").read_text(encoding="utf-8")
        yield found
    pyplot.close("all")


def test_the_events_are_what_they_were_made_from(names):
    made_up, cohort = names["made_up"], names["cohort"]
    assert len(cohort.sites) == len(made_up.sites) == 3
    # A cell is an encounter: patients without a cell are no rows of the events.
    assert [s.tensor.nnz for s in cohort.sites] == [s.tensor.nnz for s in made_up.sites]


def test_private_phenotypes_are_those_that_were_planted(names):
    """Codes are found by their names: the reader lists them in an order of its own."""
    made_up, model = names["made_up"], names["run"].model
    planted = {
        vocabulary.name: factor[[vocabulary.index[code] for code in found.codes]]
        for vocabulary, factor, found in zip(
            made_up.vocabularies, made_up.truth.factors, model.vocabularies, strict=True
        )
    }
    assert list(planted) == [vocabulary.name for vocabulary in model.vocabularies]
    score = factor_match_score(model.factors, list(planted.values()))
    # Of six phenotypes at random the score is below 0.3 (`test_random_phenotypes_are_far_below`).
    assert score > 0.5


def test_random_phenotypes_are_far_below(names):
    rng = np.random.default_rng(0)
    made_up = names["made_up"].truth.factors
    drawn = [[rng.dirichlet(np.full(len(f), 0.3), 6).T for f in made_up] for _ in range(100)]
    assert max(factor_match_score(factors, made_up) for factors in drawn) < 0.3


def test_patients_are_predicted_from_phenotypes_private_or_not(names):
    # Chance is 0.5; over 1,000 test patients of whom a tenth died its deviation is below 0.03.
    for scores in names["auc"].values():
        assert scores.mean() > 0.5 + 3 * 0.03


def test_what_it_ends_with(names):
    assert names["scores"].shape[1] == 6
    assert set(names["scores"].index) <= set(names["made_up"].sites[1].patients)
    assert names["run"].model.headings[0] in names["page"]
    assert set(names["run"].ledger()["site"]) == {"site-1", "site-2", "site-3"}
