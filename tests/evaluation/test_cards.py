"""The scale that odds are drawn on."""

import math

import pytest

from dpfact_flower.evaluation.cards import Card, odds_reach
from dpfact_flower.evaluation.tables import Association


def reach(*found):
    """Of phenotypes with an odds ratio and its interval each."""
    logs = [[math.log(value) for value in odds] for odds in found]
    outcomes = [Association(c, 0.01, None, (low, high)) for c, low, high in logs]
    own = [Card(n, "", "", (), None, {"died": each}, ()) for n, each in enumerate(outcomes)]
    return odds_reach([*own, Card(9, "", "", (), None, {}, ())], "died")


SMALL = (0.95, 0.9, 1.2)


@pytest.mark.parametrize(
    ("found", "reached"),
    [
        ([SMALL], 1.5),
        ([SMALL] * 9 + [(2.1, 1.9, 2.3)], 3),  # every estimate has its place on the scale
        ([SMALL] * 9 + [(0.1, 0.01, 1.4)], 1.5),  # but one that would squeeze all others
        ([(0.5, 0.3, 1.4)] * 2, 5),
        ([(0.001, 1e-9, 50.0)], 10),
        ([], 1.5),
    ],
)
def test_the_scale_has_room_for_estimates_and_for_most_intervals(found, reached):
    assert reach(*found) == reached
