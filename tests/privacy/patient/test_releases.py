"""Patient mode's only output: the sum plus exact noise, in grid units."""

import inspect
import math
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpfact_flower.privacy import PATIENT_CLAIM, Noise, Release, ReleaseEvent, replay
from dpfact_flower.privacy.patient import release, statistics, step_of
from dpfact_flower.privacy.patient.statistics import BoundedSum
from dpfact_flower.privacy.release import release_nothing, release_unprotected
from dpfact_flower.tensor import SparseTensor
from tests.privacy.patient.test_plan import plan

ALPHA = 1e-6
NAME = "round 3, refine diagnoses"


def bounded(count=20_000, *, sensitivity=0.1, sigma=0.75, value=0) -> BoundedSum:
    return BoundedSum(np.full(count, value, np.int64), sensitivity, sigma)


def values_of(sent: Release) -> np.ndarray:
    (vector,) = sent.arrays
    assert (vector.dtype, vector.ndim) == (np.float32, 1)
    return vector.astype(np.float64)


@pytest.mark.parametrize("sigma", [1e-3, 0.75, 40.0, 1e6])
def test_noise_has_the_sigma_that_the_sum_was_made_for(sigma):
    noise = values_of(release(bounded(sigma=sigma), Noise.from_os(), name=NAME))
    assert ALPHA / 2 < stats.chi2.cdf((noise**2).sum() / sigma**2, len(noise)) < 1 - ALPHA / 2
    assert abs(noise.mean()) < 5 * sigma / np.sqrt(len(noise))
    assert stats.kstest(noise, stats.norm(scale=sigma).cdf).pvalue > ALPHA
    assert (noise == 0).mean() < 2 / 256  # of steps of sigma / 256, the one at 0 is 0.4 / 256


def test_what_is_sent_is_total_plus_noise_in_steps_bit_for_bit():
    total = np.random.default_rng(2).integers(-(2**40), 2**40, 500)
    given = BoundedSum(total, 1.0, 3.5)
    integers = Noise.from_seed(7).integers(500)
    (sent,) = release(given, Noise.from_seed(7), name=NAME).arrays
    steps = [math.floor(Fraction(int(n), 2**16) + Fraction(1, 2)) for n in total + integers]
    expected = (np.array(steps, np.float64) * (3.5 / 256)).astype(np.float32)
    assert sent.tobytes() == expected.tobytes()
    assert integers.dtype == np.int64


def test_a_release_knows_its_cost_and_its_steps_even_when_it_was_kept():
    sent = release(bounded(300, sensitivity=0.25, sigma=3.0), Noise.from_os(), name=NAME)
    expected = ReleaseEvent(NAME, 0.25, 3.0, 300, "patient", "add-remove", PATIENT_CLAIM)
    assert sent.events == (expected,)
    assert expected.rho == pytest.approx(0.25**2 / (2 * 3.0**2))
    assert step_of(sent) == step_of(replay(sent.arrays, sent.events)) == 3.0 / 256
    steps = values_of(sent) / step_of(sent)
    np.testing.assert_allclose(steps, np.rint(steps), rtol=1e-6)
    assert step_of(release_unprotected((np.ones((2, 2), np.float32),))) == 0
    assert step_of(release_nothing()) == 0
    assert step_of(replay(sent.arrays, sent.events * 2)) == 0  # two steps are not one
    assert step_of(replay(sent.arrays, [replace(expected, unit="entry")])) == 0


def test_the_cost_does_not_depend_on_the_patients():
    """The event is the same for one patient or a thousand, so the charge reveals nothing."""
    rng = np.random.default_rng(0)
    factors = tuple(rng.random((size, 3), dtype=np.float32) for size in (5, 4))
    events = []
    for patients in (1, 1000):
        cells = rng.integers(0, (patients, 5, 4), (3000, 3))
        tensor = SparseTensor.from_coo(cells, np.ones(3000), (patients, 5, 4))
        sums = (
            statistics.code_counts(tensor, sigma=2.0),
            statistics.cooccurrence(tensor, sigma=3.0),
            statistics.refinement(tensor, factors, 1, ridge=np.zeros(3), bound=0.1, sigma=0.5),
        )
        events.append([release(s, Noise.from_os(), name=NAME).events for s in sums])
    assert events[0] == events[1]
    assert [e.sensitivity for (e,) in events[0]] == [1.0, 1.0, 0.1]
    assert [e.count for (e,) in events[0]] == [9, 36, 4 * 3 + 6]


def test_noise_cannot_be_calibrated_to_another_number():
    numbers = {"sensitivity", "sigma", "bound", "scale", "grid", "epsilon", "rho"}
    assert not numbers & set(inspect.signature(release).parameters)
    for fixed in (bounded(), plan(), plan().start):
        with pytest.raises(FrozenInstanceError):
            fixed.sigma = 1.0


def test_no_repr_shows_a_value():
    given = bounded(9, value=987654)
    assert given != bounded(9, value=987654)  # and no values are compared
    assert "987654" not in repr(given)
    sent = release(given, Noise.from_os(), name=NAME)
    assert str(values_of(sent)[0])[:5] not in repr(sent)
