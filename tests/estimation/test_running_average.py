"""Averages of refinements over rounds."""

import math

import numpy as np
import pytest

from dpfact_flower.estimation.running_average import RunningAverage

RNG = np.random.default_rng(0)
FIRST, SECOND = (RNG.normal(size=(2, 5)).astype(np.float32) for _ in range(2))


def test_the_second_is_averaged_and_its_noise_is_that_of_the_average():
    memory = RunningAverage(0.25)
    memory.averaged(0, "ab", FIRST, 3.0)
    average = memory.averaged(0, "ab", SECOND, 4.0)
    # float32: each product and the sum are rounded once, 2^-24 of at most |FIRST| + |SECOND| each.
    most = 3 * 2.0**-24 * (np.abs(FIRST) + np.abs(SECOND)).max()
    np.testing.assert_allclose(average.values, 0.25 * FIRST + 0.75 * SECOND, rtol=0, atol=most)
    assert average.sigma == pytest.approx(math.sqrt(0.75**2 + 3.0**2), rel=1e-15)


def test_what_was_remembered_is_restored():
    memory, again = RunningAverage(0.5), RunningAverage(0.5)
    memory.averaged(1, ["north", "south"], FIRST, 3.0)
    again.restore({**memory.arrays(), "other": np.zeros(3)}, 2)
    one, other = (m.averaged(1, ["north", "south"], SECOND, 3.0) for m in (memory, again))
    np.testing.assert_array_equal(one.values, other.values)
    assert one.sites == other.sites
    assert one.sigma == other.sigma


@pytest.mark.parametrize(
    ("share", "mode", "sites"),
    [(0.5, 1, "ab"), (0.5, 0, "ac"), (0.0, 0, "ab")],
    ids=["another mode", "other sites", "no share"],
)
def test_what_is_not_averaged_is_taken_as_it_is(share, mode, sites):
    memory = RunningAverage(share)
    memory.averaged(0, "ab", FIRST, 3.0)
    average = memory.averaged(mode, sites, SECOND, 4.0)
    np.testing.assert_array_equal(average.values, SECOND)
    assert average.sigma == 4.0
    assert bool(memory.arrays()) == bool(share)
