from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpfact_flower.errors import DataError
from dpfact_flower.evaluation import plots
from dpfact_flower.evaluation.summary import AUC, GroupAUC, OutcomePrediction, RoundErrors
from dpfact_flower.evaluation.tables import SiteUsage
from dpfact_flower.server.history import Failure, RoundRecord
from tests.evaluation.summaries import DEPLOYED, ERRORS, MEASURED, SIMULATED

NORMS = [[4.0, 0.0, 1.0], [0.0, 30.0, 0.3], [0.0, 0.0, 0.0]]


@pytest.fixture
def axes():
    return Figure(figsize=(9.6, 3), layout="constrained").subplots()


def group(name, *means):
    return GroupAUC(name, 50, *(AUC(mean, 0.02) for mean in means))


def record(number, *failures, down=1000, up=900):
    return RoundRecord(number, ("a",), failures, True, down, up, 1.0)


def marks(axes, label):
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return line.get_xydata().tolist()


def measured_in(*rounds):
    """Return a summary with errors after these rounds. Round 2 has no error over non-zeros."""
    errors = (RoundErrors(n, 1 / n, None if n == 2 else 2 / n, 1 - 1 / n) for n in rounds)
    measured = replace(MEASURED, errors=replace(ERRORS, error_by_round=tuple(errors)))
    return replace(SIMULATED, measured=measured)


def test_usage_crosses_what_is_off_and_leaves_it_blank(axes):
    off = np.array(NORMS) == 0
    plots.usage(axes, SiteUsage(("large", "sma$ll$", "x" * 60), NORMS, off.tolist()), {})
    crosses = {(row, column - 1) for column, row in marks(axes, "switched off")}
    assert crosses == set(map(tuple, np.argwhere(off)))
    (mesh,) = axes.collections
    shown = mesh.get_array().reshape(off.shape)
    np.testing.assert_array_equal(np.ma.getmaskarray(shown), off)
    assert shown.compressed().tolist() == [100, 25, 100, 1]
    axes.figure.draw_without_rendering()
    names = axes.get_yticklabels()
    assert [name.get_text() for name in names] == ["large", "sma$ll$", "x" * 23 + "…"]
    assert not any(name.get_parse_math() for name in names)  # "$" is a plain character here


@pytest.mark.parametrize(("sites", "rank"), [(3, 3), (1, 4), (4, 1)])
def test_usage_without_crosses_explains_none(axes, sites, rank):
    off = np.zeros((sites, rank), bool).tolist()
    plots.usage(axes, SiteUsage("abcd"[:sites], np.ones((sites, rank)), off), {})
    assert axes.get_legend() is None
    assert axes.dataLim.size.tolist() == [rank, sites]  # each cell has width and height 1


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ("all_cells", [[1, 1], [2, 1 / 2], [3, 1 / 3]]),
        ("nonzeros", [[1, 2], [3, 2 / 3]]),
        ("fit", [[1, 0], [2, 1 / 2], [3, 2 / 3]]),
    ],
)
def test_an_error_is_drawn_by_round_where_it_was_measured(axes, measure, expected):
    plots.errors(axes, measured_in(1, 2, 3), measure)
    np.testing.assert_allclose(axes.lines[0].get_xydata(), expected)


@pytest.mark.parametrize("summary", [DEPLOYED, measured_in()], ids=["deployed", "no round"])
def test_without_errors_it_is_said_where_they_are_measured(axes, summary):
    with pytest.raises(DataError, match="only where the data is"):
        plots.errors(axes, summary)


def test_traffic_tells_the_directions_apart_and_marks_failures(axes):
    plots.traffic(axes, [record(1), record(2, Failure("b", "late")), record(4, down=3000, up=2000)])
    assert marks(axes, "down: server to sites") == [[1, 1.0], [2, 1.0], [4, 3.0]]
    assert marks(axes, "up: sites to server") == [[1, 0.9], [2, 0.9], [4, 2.0]]
    assert marks(axes, "a site failed") == [[2, 0]]
    assert axes.get_ylabel().startswith("kB")


def test_the_names_of_runs_with_equal_figures_stand_apart(axes):
    spent = SIMULATED.spent
    values = [(None, 0.3), (None, 0.3), (spent, 0.3), (spent, 0.3), (spent, 0.1)]
    plots.tradeoff(axes, "fit", dict(zip("abcde", values, strict=True)))
    places = [text.get_position() for text in axes.texts]
    assert places == [(0.3, 0.3), (0.5, 0.3), (4, -9), (4, -18), (4, -9)]


def test_auc_sets_every_group_beside_its_baselines(axes):
    sites = (group("few"), group("many", 0.71, 0.82, 0.63))
    plots.auc(axes, OutcomePrediction(group("overall", 0.7, 0.8, 0.6), sites, 10, 0.6))
    assert [t.get_text() for t in axes.get_yticklabels()] == ["overall", "many"]
    means = [container[0].get_xdata().tolist() for container in axes.containers]
    assert means == [[0.7, 0.71], [0.8, 0.82], [0.6, 0.63]]
    for container in axes.containers:
        (bars,) = container[2]
        widths = [segment[1, 0] - segment[0, 0] for segment in bars.get_segments()]
        np.testing.assert_allclose(widths, 0.04)
