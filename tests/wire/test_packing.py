"""Packed values: exact float32 values in few bits, and checks of untrusted bytes."""

import math
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpfact_flower.errors import MessageError
from dpfact_flower.wire.packing import pack, unpack
from tests.bits import assert_bits

INTEGERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(-4000, 4000), st.sampled_from([0, 1, -1])
)
STEPS = st.floats(1e-30, 1e30)


def on_grid(steps, step: float) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        return (np.asarray(steps, np.int64) * np.float64(step)).astype(np.float32)


def noise(count: int, spread: float = 256, seed: int = 0) -> np.ndarray:
    return np.rint(spread * np.random.default_rng(seed).standard_normal(count)).astype(np.int64)


@settings(deadline=None)
@given(steps=arrays(np.int64, st.integers(0, 600), elements=INTEGERS), step=STEPS)
def test_whatever_is_packed_comes_back_bit_for_bit(steps, step):
    values = on_grid(steps, step)
    packed = pack(values, step)
    if packed is not values:
        assert packed.dtype == np.uint8
        assert packed.nbytes < values.nbytes
        assert_bits([unpack(packed, len(values), "x")], [values])


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32), count=st.integers(200, 2000), step=STEPS,
    spread=st.sampled_from([0, 1, 256, 5000]), signal=st.sampled_from([0, 1000, 10**6]),
)  # fmt: skip
def test_noise_on_a_grid_is_packed(seed, count, step, spread, signal):
    steps = noise(count, spread, seed)
    steps[: count // 50] += signal
    values = on_grid(steps, step)
    assert_bits([unpack(pack(values, step), count, "x")], [values])


@pytest.mark.parametrize(
    "values",
    [
        [], [0.5] * 200 + [0.3], [-0.0] * 300, [math.nan] * 300, [math.inf] * 300,
        [1e38] * 300,  # 1e38 steps: beyond the range of integers
        [1, -1, 2],  # packing would not save bytes
    ],
)  # fmt: skip
def test_what_cannot_or_need_not_be_packed_stays_as_it_is(values):
    values = np.array(values, np.float32)
    assert pack(values, 0.5) is values


def test_noise_takes_little_more_than_the_bits_it_has():
    """Gaussian values with sd 256 in steps of 1 contain 10 bits, but take 32 bits as float32."""
    values = on_grid(noise(50_000), 0.1)
    packed = pack(values, 0.1)
    assert 10.5 < 8 * len(packed) / len(values) < 12
    entropy = 0.5 * math.log2(2 * math.pi * math.e * 256**2)  # the lower limit for any code: 10.05
    assert 8 * len(packed) / len(values) > entropy


def test_the_layout_is_what_the_module_says():
    """Compare with an encoder that writes value by value."""
    steps, step = noise(1000), 0.25
    signless = [2 * n if n >= 0 else -2 * n - 1 for n in steps.tolist()]
    assert 255 < max(signless) < 2**16
    planes = bytes(n & 255 for n in signless) + bytes(n >> 8 for n in signless)
    packed = pack(on_grid(steps, step), step).tobytes()
    assert packed[:8] == np.array([step], "<f8").tobytes()
    assert zlib.decompress(packed[8:]) == planes


PACKED = pack(on_grid(noise(1000), 0.5), 0.5)


def with_step(step: float) -> np.ndarray:
    return np.concatenate([np.array([step], "<f8").view(np.uint8), PACKED[8:]])


PLANES = np.frombuffer(np.ones(1).tobytes() + zlib.compress(bytes(9 * 1000)), np.uint8)


@pytest.mark.parametrize(
    ("packed", "count", "says"),
    [(PACKED[:length], 1000, "bytes") for length in (0, 1, 7, 8, 79, 80, -1)]
    + [(PACKED, count, "") for count in (1, 128, 896, 1025, 10**6, 10**15)]
    + [(with_step(step), 1000, "step") for step in (0.0, -1.0, math.nan, math.inf, -0.0)]
    + [(np.append(PACKED, np.uint8(0)), 1000, "not those of 1000"), (PLANES, 1000, "of 1000")],
)
def test_bytes_that_are_not_those_of_so_many_values_are_refused(packed, count, says):
    with pytest.raises(MessageError, match=f"reply of site 'north'.*{says}"):
        unpack(packed, count, "reply of site 'north'")


@settings(deadline=None, max_examples=300)
@given(data=st.binary(max_size=400), count=st.integers(0, 10**12))
def test_any_bytes_are_values_or_a_message_error(data, count):
    try:
        values = unpack(np.frombuffer(data, np.uint8), count, "x")
    except MessageError:
        return
    assert values.shape == (count,)
    assert values.dtype == np.float32


BOMB = np.frombuffer(np.ones(1).tobytes() + zlib.compress(bytes(10**8), 9), np.uint8)


@pytest.mark.parametrize(("packed", "count"), [(np.zeros(1000, np.uint8), 10**12), (BOMB, 1000)],
                         ids=["a number alone", "a bomb"])  # fmt: skip
def test_no_more_is_allocated_than_is_there_and_was_asked_for(packed, count):
    tracemalloc.start()
    with pytest.raises(MessageError):
        unpack(packed, count, "x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**6
