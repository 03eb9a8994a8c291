"""docs/how-to/results.md: its unchanged commands and code, in an empty folder."""

import re
import shlex
from pathlib import Path

import matplotlib as mpl
import pytest

mpl.use("agg")
from matplotlib import pyplot

from dpfact_flower.data.synthetic import synthetic
from tests.commands import dpfact

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "results.md").read_text(encoding="utf-8")


@pytest.mark.nightly
def test_the_page_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    synthetic("demo").sites[0].save(tmp_path / "SITE.npz")
    for line in re.findall(r"^    dpfact (.*)$", PAGE, re.MULTILINE):
        # A small run's phenotypes depend on its noise, and the page reviews the third phenotype.
        seeded = " -s noise-seed=1" if line == "run --out runs/demo" else ""
        dpfact(*shlex.split(line + seeded))
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "results.md", "exec"), names)
    assert "renal failure" in names["scores"].columns
    assert set(names["phenotypes"]["place"]) == set(range(1, 11))
    assert names["model"].shape == synthetic("demo").sites[0].tensor.shape
    pyplot.close("all")
