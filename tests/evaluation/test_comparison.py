"""Several runs side by side: what was promised stands beside each epsilon."""

import pytest

from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.comparison import comparison
from dpfact_flower.runtime.federate import federate

RUNS = {
    "open": ({"privacy": "none", "rounds": 2}, "none", "-"),
    "patient": ({"epsilon": 2.0}, "patient", "2.000"),
    "seeded": ({"epsilon": 2.0, "noise-seed": 1}, "patient (seeded: not private)", "2.000"),
    "paper": (
        {"privacy": "paper", "epsilon": 1.0, "rounds": 2, "solver": "psgd", "clip": 1.0},
        "paper (claimed by DPFact, Theorem 4.1; entry-level; not proven)",
        "1.000",
    ),
}


def test_a_row_a_run_with_its_promise(cohort_folder, tmp_path):
    for name, (settings, _, _) in RUNS.items():
        own = {"data": str(cohort_folder), "out": str(tmp_path / name), "rank": 2}
        federate({**own, **settings})
    lines = comparison([tmp_path / name for name in RUNS]).splitlines()
    header = lines[0].split(" | ")
    assert len({line.count("|") for line in lines}) == 1
    for line, (name, (_, mode, epsilon)) in zip(lines[2:], RUNS.items(), strict=True):
        row = dict(zip(header, line.split(" | "), strict=True))
        assert (row["| run"], row["privacy"], row["epsilon"]) == (f"| {name}", mode, epsilon)


def test_a_folder_without_a_finished_run_is_named(tmp_path):
    with pytest.raises(DataError, match="nothing"):
        comparison([tmp_path / "nothing"])


@pytest.mark.parametrize("content", ["{}", "[]", '{"name": "x"}'])
def test_a_summary_that_lacks_something_is_refused(tmp_path, content):
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(DataError, match=r"summary\.json: lacks .*sites, rounds"):
        comparison([tmp_path])
