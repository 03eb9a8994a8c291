from dataclasses import replace
from itertools import pairwise

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
USAGE = SiteUsage(
    ("large", "sma$ll$", "x" * 60),
    tuple(map(tuple, NORMS)),
    tuple(tuple(norm == 0 for norm in row) for row in NORMS),
)


def group(name, *means):
    return GroupAUC(name, 50, *(AUC(mean, 0.02) for mean in means))


def record(number, *failures, down=1000, up=900):
    return RoundRecord(number, ("a",), failures, True, down, up, 1.0)


def marks(axes, label):
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return line.get_xydata().tolist()


def texts(axes):
    return {(t.get_position()[0] - 0.5, t.get_position()[1] - 0.5): t for t in axes.texts}


def off_marks(axes):
    (line,) = [line for line in axes.lines if line.get_gid() == "off"]
    return {(row - 0.5, column - 0.5) for column, row in line.get_xydata()}


def test_usage_crosses_what_is_off_and_leaves_it_blank():
    axes = Figure().subplots()
    figure = plots.usage(USAGE, axes, {})
    off = np.array(USAGE.off)
    assert off_marks(axes) == set(map(tuple, np.argwhere(off)))
    (mesh,) = axes.collections
    np.testing.assert_array_equal(np.ma.getmaskarray(mesh.get_array()), off)
    assert {place: t.get_text() for place, t in texts(axes).items()} == {
        (0, 0): "100", (2, 0): "25", (1, 1): "100", (2, 1): "1"
    }  # fmt: skip
    figure.draw_without_rendering()
    names = axes.get_yticklabels()
    assert [name.get_text() for name in names] == ["large", "sma$ll$", "x" * 23 + "…"]
    assert not any(name.get_parse_math() for name in names)  # "$" is a character here


@pytest.mark.parametrize(("rank", "sites"), [(1, 1), (60, 10), (400, 20), (1000, 6)])
def test_usage_stays_readable_at_any_rank(rank, sites):
    norms = np.random.default_rng(0).gamma(0.3, 1.0, (sites, rank))
    usage = SiteUsage(
        tuple(f"s-{n}" for n in range(sites)), norms.tolist(), (norms < 0.01).tolist()
    )
    axes = Figure(figsize=(9.6, 3), layout="constrained").subplots()
    figure = plots.usage(usage, axes, {})
    figure.draw_without_rendering()
    labels = figure.axes[0].get_xticklabels()
    assert len(labels) == {1: 1, 60: 60, 400: 40, 1000: 30}[rank]
    boxes = [label.get_window_extent() for label in labels]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def measured_in(*rounds):
    errors = tuple(RoundErrors(n, 1 / n, 2 / n, 9.0, 1 - 1 / n) for n in rounds)
    measured = replace(MEASURED, errors=replace(ERRORS, error_by_round=errors))
    return replace(SIMULATED, measured=measured)


def test_convergence_draws_each_error_by_round():
    summary = measured_in(1, 2, 3)
    figure = plots.convergence(summary)
    for axes, name in zip(figure.axes, ("all_cells", "nonzeros", "fit"), strict=True):
        drawn = axes.lines[0].get_xydata().tolist()
        errors = summary.errors.error_by_round
        assert drawn == [[error.round, getattr(error, name)] for error in errors]


def test_rounds_in_which_an_error_was_not_measured_are_left_out():
    summary = measured_in(1, 2, 3)
    first, unknown, last = summary.measured.errors.error_by_round
    errors = (first, replace(unknown, nonzeros=None), last)
    measured = replace(
        summary.measured, errors=replace(summary.measured.errors, error_by_round=errors)
    )
    axes = plots.errors(replace(summary, measured=measured), "nonzeros").axes[0]
    assert axes.lines[0].get_xdata().tolist() == [1, 3]


@pytest.mark.parametrize("summary", [DEPLOYED, measured_in()], ids=["deployed", "no round"])
def test_convergence_says_where_errors_are_measured(summary):
    with pytest.raises(DataError, match="only where the data is"):
        plots.convergence(summary)


def test_traffic_tells_the_directions_apart_and_marks_failures():
    records = [record(1), record(2, Failure("b", "late")), record(4, down=3000, up=2000)]
    axes = plots.traffic(records).axes[0]
    assert marks(axes, "down: server to sites") == [[1, 1.0], [2, 1.0], [4, 3.0]]
    assert marks(axes, "up: sites to server") == [[1, 0.9], [2, 0.9], [4, 2.0]]
    assert marks(axes, "a site failed") == [[2, 0]]
    assert axes.get_ylabel().startswith("kB")


def test_auc_sets_every_group_beside_its_baselines():
    sites = (group("few"), group("many", 0.71, 0.82, 0.63))
    prediction = OutcomePrediction(group("overall", 0.7, 0.8, 0.6), sites, 10, 0.6)
    axes = plots.auc(prediction).axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["overall", "many"]
    means = [container[0].get_xdata().tolist() for container in axes.containers]
    assert means == [[0.7, 0.71], [0.8, 0.82], [0.6, 0.63]]
    for container in axes.containers:
        (bars,) = container[2]
        widths = [segment[1, 0] - segment[0, 0] for segment in bars.get_segments()]
        np.testing.assert_allclose(widths, 0.04)


def test_no_colour_of_the_theme_is_another_ones_or_a_default():
    assert len(set(plots.THEME)) == len(plots.THEME) == len(set(plots.THEME.values()))
    assert all(colour == colour.lower() and len(colour) == 7 for colour in plots.THEME)
