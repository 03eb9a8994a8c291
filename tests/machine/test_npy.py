"""Arrays in NumPy's format, with headers that are made once: what NumPy writes and reads itself."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpfact_flower.machine import npy

plain = st.sampled_from(["float32", "int32", "uint8"]).flatmap(
    lambda name: hnp.arrays(name, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)


def saved(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


@given(plain)
def test_bytes_are_those_that_numpy_writes(array):
    assert npy.written(array) == saved(array)


@given(plain)
def test_every_bit_comes_back_in_an_array_of_its_own(array):
    content = npy.written(array)
    found = npy.read(content, str(array.dtype), array.shape)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert found.flags.writeable
    assert found.flags.c_contiguous


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float64).reshape(2, 3),
        np.arange(6, dtype=">f4"),
        np.array([True, False]),
        np.array(["a", "bc"]),
    ],
    ids=lambda array: str(array.dtype),
)
def test_other_types_are_left_to_numpy(array):
    content = npy.written(array)
    assert content == saved(array)
    assert npy.read(content, str(array.dtype), array.shape) is None


def test_objects_are_refused():
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        npy.written(np.array([object()]))


@pytest.mark.parametrize("order", ["F", "every other"])
def test_numbers_in_any_order_of_memory(order):
    whole = np.arange(24, dtype=np.float32).reshape(6, 4)
    array = np.asfortranarray(whole) if order == "F" else whole[::2, 1:]
    content = npy.written(array)
    np.testing.assert_array_equal(np.load(io.BytesIO(content)), array)
    np.testing.assert_array_equal(npy.read(content, "float32", array.shape), array)


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
CONTENT = saved(ARRAY)


@pytest.mark.parametrize(
    ("content", "name", "shape"),
    [
        (CONTENT, "int32", (2, 3)),
        (CONTENT, "float32", (3, 2)),
        (CONTENT, "float32", (6,)),
        (CONTENT, "float32", (-2, -3)),
        (CONTENT, "object", (2, 3)),
        (CONTENT[:-4], "float32", (2, 3)),
        (CONTENT + bytes(4), "float32", (2, 3)),
        (CONTENT[:20], "float32", (2, 3)),
        (b"", "float32", (0,)),
        (saved(np.asfortranarray(ARRAY)), "float32", (2, 3)),
    ],
)
def test_what_is_not_as_it_was_told_is_left_to_numpy(content, name, shape):
    assert npy.read(content, name, shape) is None


def test_a_stranger_does_not_choose_the_headers_of_others():
    """Sizes that are equal to others, and print otherwise, come first."""
    npy.header.cache_clear()
    npy.read(b"", "float32", (True, 7))
    npy.read(b"", "float32", (1.0, 7.0))
    assert npy.header("float32", (1, 7)) == saved(np.zeros((1, 7), np.float32))[:128]
