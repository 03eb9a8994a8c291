"""SparseTensor, compared with dense NumPy, and refused input."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpfact_flower.tensor.sparse as tensor_module
from dpfact_flower.errors import DataError
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.arrays import distinct
from tests.problems import make_problem

SECRET = 987654
"""A patient's value, which no message may contain."""
GOOD = ([[0, 0], [1, 1], [2, 1]], [1, 2, 3], (3, 2))


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    # A NumPy warning does not replace our own error, and may quote a value.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@st.composite
def coordinates(draw):
    """Draw indices, values and a shape, in any order, with duplicates and explicit zeros."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=2, max_size=5)))
    cell = st.tuples(*(st.integers(0, size - 1) for size in shape))
    # For multiples of 1/4 up to 250, sums are exact in float32, whatever their order.
    value = st.integers(0, 1000).map(lambda quarter: quarter / 4)
    entries = draw(st.lists(st.tuples(cell, value), max_size=30))
    index = np.array([cell for cell, _ in entries], int).reshape(len(entries), len(shape))
    return index, np.array([value for _, value in entries], float), shape


def dense_of(index, value, shape):
    dense = np.zeros(shape)
    for cell, x in zip(index, value, strict=True):
        dense[tuple(cell)] += x
    return dense


def assert_same(found, expected):
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.values, expected.values)


def assert_promised(tensor):
    """Check all documented properties of the attributes."""
    assert tensor.indices.dtype == np.int32
    assert tensor.values.dtype == np.float32
    assert tensor.indices.flags.c_contiguous
    assert tensor.values.flags.c_contiguous
    assert tensor.indices.shape == (tensor.nnz, tensor.ndim)
    assert tensor.values.shape == (tensor.nnz,)
    cells = [tuple(cell) for cell in tensor.indices.tolist()]
    assert cells == sorted(set(cells))
    assert (tensor.values > 0).all()
    assert all(type(size) is int for size in tensor.shape)


def refused(call, *arguments, **keywords) -> str:
    with pytest.raises(DataError) as caught:
        call(*arguments, **keywords)
    assert str(SECRET) not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)


@given(coordinates())
def test_from_coo_is_a_dense_accumulation(coo):
    index, value, shape = coo
    tensor = SparseTensor.from_coo(index, value, shape)
    assert_promised(tensor)
    np.testing.assert_array_equal(tensor.to_dense(), dense_of(*coo))
    assert tensor.nnz == np.count_nonzero(dense_of(*coo))
    assert tensor.cells == math.prod(shape)
    assert tensor.n_patients == shape[0]
    assert tensor.feature_shape == shape[1:]
    assert tensor.norm_squared() == pytest.approx((tensor.to_dense() ** 2).sum(), rel=1e-14)


@given(coordinates(), st.integers(1, 7))
def test_the_size_of_the_parts_does_not_matter(coo, size):
    tensor = SparseTensor.from_coo(*coo)
    scaled, norm = tensor.scaled_to_unit_patients(), tensor.norm_squared()
    printed = tensor.fingerprint()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_module, "_PART", size)
        assert tensor.fingerprint() == printed
        assert tensor.norm_squared() == pytest.approx(norm, rel=1e-14)
        found = tensor.scaled_to_unit_patients()
    np.testing.assert_allclose(found.values, scaled.values, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.float32, np.longdouble])
def test_indices_and_values_may_have_any_numeric_type(dtype):
    index, value, shape = (np.array(given, dtype) for given in GOOD)
    assert_same(SparseTensor.from_coo(index, value, shape), SparseTensor.from_coo(*GOOD))


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_tensor_owns_its_arrays(order):
    index = np.array(GOOD[0], np.int32, order=order)
    value = np.array(GOOD[1], np.float32)
    tensor = SparseTensor.from_coo(index, value, GOOD[2])
    assert not np.shares_memory(tensor.indices, index)
    assert not np.shares_memory(tensor.values, value)
    assert_promised(tensor)


@pytest.mark.parametrize("index", [[], np.empty((0, 2)), np.empty((0, 2), int)])
def test_a_tensor_without_entries(index):
    tensor = SparseTensor.from_coo(index, [], (3, 2))
    assert_promised(tensor)
    assert (tensor.nnz, tensor.norm_squared()) == (0, 0)


def test_the_largest_float32_is_still_a_value():
    largest = float(np.finfo(np.float32).max)
    assert SparseTensor.from_coo([[0, 0]], [largest], (1, 1)).values[0] == np.float32(largest)


def test_duplicates_are_summed_in_float64():
    # In float32, 2**24 + 1 is 2**24, however often the 1 is added.
    assert SparseTensor.from_coo([[0, 0]] * 5, [1, 2**24, 1, 1, 1], (1, 1)).values[0] == 2**24 + 4


def test_repr_holds_sizes_alone():
    tensor = SparseTensor.from_coo([[0, 0]], [SECRET], (1, 1))
    assert repr(tensor) == str(tensor) == "SparseTensor(shape=(1, 1), nnz=1)"


BAD_COO = {
    "index NaN": ("indices: must be integers", {"indices": [[0, 0], [1, math.nan], [2, 1]]}),
    "index inf": ("indices: must be integers", {"indices": [[0, 0], [1, 1], [math.inf, 1]]}),
    "index fraction": ("position 1", {"indices": [[0, 0], [SECRET + 0.5, 1], [2, 1]]}),
    "index bool": ("indices: need integers", {"indices": np.ones((3, 2), bool)}),
    "index above int64": ("indices: ", {"indices": [[0, SECRET * 2**70]] * 3}),
    "index ragged": ("indices: need numbers in rows of equal length", {"indices": [[0, 0], [1]]}),
    "index too large": (
        "mode 1 must lie in [0, 2); 2 entries break this, the first at position 1",
        {"indices": [[0, 0], [1, SECRET], [2, 9]]},
    ),
    "index negative": ("position 2", {"indices": [[0, 0], [1, 1], [-SECRET, 1]]}),
    "index 1-D": ("need shape (entries, 2), got (3,)", {"indices": [0, 1, 2]}),
    "index of other modes": ("got (3, 3)", {"indices": np.zeros((3, 3), int)}),
    "value NaN": ("values: must be finite (float32); 1 entries", {"values": [1, math.nan, SECRET]}),
    "value inf": ("position 0", {"values": [math.inf, 2, SECRET]}),
    "value negative": ("values: must be non-negative", {"values": [1, 2, -SECRET]}),
    "value negative and tiny": ("position 1", {"values": [1, -1e-60, 3]}),
    "value beyond float32": ("values: must be finite (float32)", {"values": [1, 2, SECRET * 1e40]}),
    "sum beyond float32": (
        "sum of duplicate entries",
        {"indices": [[0, 0]] * 3, "values": [2e38, 2e38, SECRET]},
    ),
    "value string": ("values: need numbers", {"values": ["1", "2", str(SECRET)]}),
    "values too few": ("need shape (3,) to match indices, got (2,)", {"values": [SECRET, 2]}),
    "values 2-D": ("got (3, 1)", {"values": [[1], [2], [SECRET]]}),
    "shape one mode": ("at least 2 modes", {"shape": (SECRET,)}),
    "shape zero": ("shape: ", {"shape": (SECRET, 0)}),
    "shape beyond int64": ("shape: ", {"shape": (SECRET * 2**70, 2)}),
    "shape fraction": ("shape: ", {"shape": (3, SECRET + 0.5)}),
    "shape text": ("shape: ", {"shape": str(SECRET)}),
    "shape None": ("shape: ", {"shape": None}),
    "shape and values swapped": ("shape: ", {"shape": [SECRET, 0.5], "values": (3, 2)}),
}


@pytest.mark.parametrize(("says", "changes"), BAD_COO.values(), ids=BAD_COO)
def test_bad_coordinates_are_refused_by_name_and_place(says, changes):
    given = dict(zip(("indices", "values", "shape"), GOOD, strict=True)) | changes
    assert says in refused(SparseTensor.from_coo, **given)


def test_a_large_tensor_is_not_densified():
    tensor = SparseTensor.from_coo([[0, 0]], [SECRET], (10_000, 1001))
    assert "refusing to densify" in refused(tensor.to_dense)


@given(st.data())
def test_select_patients_is_dense_indexing(data):
    tensor = SparseTensor.from_coo(*data.draw(coordinates()))
    rows = data.draw(
        st.lists(st.integers(0, tensor.n_patients - 1), min_size=1, max_size=4, unique=True)
    )
    chosen = tensor.select_patients(rows)
    assert_promised(chosen)
    np.testing.assert_array_equal(chosen.to_dense(), tensor.to_dense()[rows])


BAD_ROWS = {
    "none": [], "twice": [0, 1, 0], "negative": [-SECRET], "mask": np.ones(6, bool),
    "fractions": [0.5], "2-D": [[0, 1]], "ragged": [[0], [1, SECRET]], "text": [str(SECRET)],
}  # fmt: skip


@pytest.mark.parametrize("rows", BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows_are_refused(rows):
    assert refused(make_problem((6, 4, 3)).tensor.select_patients, rows).startswith("patients: ")


@given(st.data())
def test_select_features_is_dense_indexing(data):
    tensor = SparseTensor.from_coo(*data.draw(coordinates()))
    kept = [
        sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
        for size in tensor.feature_shape
    ]
    chosen = tensor.select_features(kept)
    assert_promised(chosen)
    everybody = range(tensor.n_patients)
    np.testing.assert_array_equal(chosen.to_dense(), tensor.to_dense()[np.ix_(everybody, *kept)])


BAD_FEATURES = {
    "too few modes": [[0]], "too many modes": [[0], [0], [0]], "none": [[0], []],
    "twice": [[0, 0], [0]], "descending": [[1, 0], [0]], "one too large": [[0, 4], [0]],
    "too large": [[0], [SECRET]], "mask": [[0], np.ones(3, bool)],
}  # fmt: skip


@pytest.mark.parametrize("kept", BAD_FEATURES.values(), ids=BAD_FEATURES)
def test_bad_features_are_refused(kept):
    assert refused(make_problem((6, 4, 3)).tensor.select_features, kept).startswith("features: ")


def test_fingerprint_changes_with_every_part():
    index, value, shape = GOOD
    variants = [
        GOOD,
        (index, value, (4, 2)), (index, value, (3, 3)),
        (index, [1, 2, 4], shape), (index, [2, 1, 3], shape),
        (index, [1, 2, np.nextafter(np.float32(3), np.float32(4))], shape),
        ([[0, 0], [1, 0], [2, 1]], value, shape), (index[:2], value[:2], shape),
        ([[0, 0, 0], [1, 1, 0], [2, 1, 0]], value, (3, 2, 1)),
    ]  # fmt: skip
    prints = [SparseTensor.from_coo(*variant).fingerprint() for variant in variants]
    assert len(set(prints)) == len(variants)


@pytest.mark.parametrize("size", [0, 1, 2, 1000])
@pytest.mark.parametrize("low", [-5, 0, np.iinfo(np.int64).max - 7])
def test_distinct_is_unique(size, low):
    numbers = low + np.random.default_rng(size).integers(0, 7, size)
    np.testing.assert_array_equal(distinct(numbers), np.unique(numbers))
