"""docs/notebooks: every cell runs unchanged, in order, in an empty folder."""

import json
import re
from pathlib import Path

import matplotlib as mpl
import pytest

mpl.use("agg")
from matplotlib import pyplot

from dpfact_flower.estimation.outlook import outlook_of
from dpfact_flower.tensor.cp import factor_match_score
from tests.bits import assert_bits

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
ALL = sorted(NOTEBOOKS.glob("*.ipynb"))


def cells(notebook: Path) -> list[dict[str, object]]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a notebook, with a given folder in place of the reader's, and return its names."""
    monkeypatch.chdir(tmp_path)

    def go(name: str, **folders: Path) -> dict[str, object]:
        found: dict[str, object] = {}
        for cell in cells(NOTEBOOKS / f"{name}.ipynb"):
            if cell["cell_type"] == "code":
                source = "".join(cell["source"])
                for placeholder, folder in folders.items():
                    source = source.replace(f"PATH/TO/{placeholder}", str(folder))
                exec(compile(source, name, "exec"), found)
        return found

    yield go
    pyplot.close("all")


@pytest.mark.parametrize("notebook", ALL, ids=lambda path: path.stem)
def test_it_is_short_shows_what_came_out_and_is_in_the_docs(notebook):
    found = cells(notebook)
    assert len(found) <= 12
    # Execute the notebooks once from top to bottom: python -m laboratory.notebooks.
    counts = [cell["execution_count"] for cell in found if cell["cell_type"] == "code"]
    assert counts == [*range(1, len(counts) + 1)]
    outputs = [out for cell in found for out in cell.get("outputs", ())]
    kinds = {out["output_type"] for out in outputs}
    assert {"execute_result"} <= kinds <= {"execute_result", "display_data", "stream"}
    text = notebook.read_text(encoding="utf-8")
    assert not re.search(r"/(?:tmp|home|root|work)/", text), "a path of somebody's machine"
    assert len(text) < 400_000
    assert f"notebooks/{notebook.name}" in (NOTEBOOKS.parent / "notebooks.md").read_text()


@pytest.mark.slow
def test_own_data(run):
    names = run("own-data")
    made_up, cohort, model = names["made_up"], names["cohort"], names["run"].model
    assert len(cohort.sites) == len(made_up.sites) == 3
    # A cell needs an encounter, so patients without a cell have no rows in the events.
    assert [s.tensor.nnz for s in cohort.sites] == [s.tensor.nnz for s in made_up.sites]
    # Codes are matched by name, because the reader lists them in its own order.
    order = [vocabulary.name for vocabulary in made_up.vocabularies]
    assert order == [vocabulary.name for vocabulary in model.vocabularies]
    planted = [
        factor[[vocabulary.index[code] for code in found.codes]]
        for vocabulary, factor, found in zip(
            made_up.vocabularies, made_up.truth.factors, model.vocabularies, strict=True
        )
    ]
    # For six random phenotypes, the score was below 0.3 in each of 100 draws.
    assert factor_match_score(model.factors, planted) > 0.5
    # Chance is 0.5. With 1,000 test patients, of whom a tenth died, its deviation is below 0.03.
    assert all(scores.mean() > 0.5 + 3 * 0.03 for scores in names["auc"].values())
    assert names["scores"].shape[1] == 6
    assert set(names["scores"].index) <= set(made_up.sites[1].patients)
    assert model.headings[0] in Path("report.html").read_text(encoding="utf-8")
    assert set(names["run"].ledger()["site"]) == {"site-1", "site-2", "site-3"}


@pytest.mark.slow
def test_eicu_by_region(run, ehr_data):
    names = run("eicu-by-region", eicu=ehr_data / "eicu_demo")
    assert names["sizes"] == [150, 200]
    assert {site.name for site in names["cohort"].sites} > {"South", "West"}
    # As the text says, there is no noise, because there are too few patients.
    assert names["run"].epsilon is None
    measured = names["run"].summary.measured
    assert not measured.is_uninformative
    assert len(names["has"]) == names["site"].tensor.n_patients


@pytest.mark.nightly
def test_choosing_epsilon(run):
    names = run("choosing-epsilon")
    chances = [outlook_of(names["planned"](each)).chance for each in names["EPSILONS"]]
    assert chances == sorted(chances)
    # At epsilon 8, noise is a sixteenth of the noise at 0.5, so the two runs differ clearly.
    assert names["found"][8.0] > names["found"][0.5]


@pytest.mark.nightly
@pytest.mark.deployment
@pytest.mark.usefixtures("all_surrogates")
def test_deployed_here(run):
    names = run("deployed-here")
    assert names["ended"]["status"] == "finished:completed"
    assert_bits(names["here"].model.factors, names["deployed"].model.factors)
    assert names["superlink"].process.poll() is not None
    kept = {path.parent.name for path in names["place"].rglob("ledger.sqlite")}
    assert {"site-1", "site-2"} <= kept
    assert not list((names["place"] / "centre").rglob("ledger.sqlite"))
