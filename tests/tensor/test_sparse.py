"""SparseTensor against dense NumPy, files against what was written, and input that is refused."""

import gzip
import math
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dpfact_flower.tensor.sparse as tensor_module
from dpfact_flower.errors import DataError
from dpfact_flower.machine.npy import load_npz
from dpfact_flower.tensor import SparseTensor

SECRET = 987654
"""Stands for a patient's value: no message may hold it."""

GOOD = ([[0, 0], [1, 1], [2, 1]], [1, 2, 3], (3, 2))


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    # A warning of NumPy's is no substitute for an error of ours, and may quote a value.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@st.composite
def coordinates(draw, min_entries=0):
    """Indices, values and shape: any order, with duplicates and explicit zeros."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=2, max_size=5)))
    cell = st.tuples(*(st.integers(0, size - 1) for size in shape))
    # Multiples of 1/4 up to 250: sums are exact in float32, whatever their order.
    value = st.integers(0, 1000).map(lambda quarter: quarter / 4)
    entries = draw(st.lists(st.tuples(cell, value), min_size=min_entries, max_size=30))
    index = np.array([cell for cell, _ in entries], int).reshape(len(entries), len(shape))
    return index, np.array([value for _, value in entries], float), shape


def dense_of(index, value, shape):
    dense = np.zeros(shape)
    for cell, x in zip(index, value, strict=True):
        dense[tuple(cell)] += x
    return dense


def make(seed=0, shape=(6, 4, 3)):
    dense = np.random.default_rng(seed).poisson(0.7, shape)
    index = np.argwhere(dense)
    return SparseTensor.from_coo(index, dense[dense > 0], shape)


def assert_same(found, expected):
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.values, expected.values)


def assert_promised(tensor):
    """Everything the class promises of its attributes."""
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


# --- from_coo


@given(coordinates())
def test_from_coo_is_a_dense_accumulation(coo):
    index, value, shape = coo
    tensor = SparseTensor.from_coo(index, value, shape)
    assert_promised(tensor)
    np.testing.assert_array_equal(tensor.to_dense(), dense_of(*coo))
    assert tensor.nnz == np.count_nonzero(dense_of(*coo))
    assert tensor.cells == math.prod(shape)
    assert tensor.density == tensor.nnz / tensor.cells
    assert tensor.n_patients == shape[0]
    assert tensor.feature_shape == shape[1:]
    assert tensor.norm_squared() == pytest.approx((tensor.to_dense() ** 2).sum(), rel=1e-14)


@given(coordinates(), st.randoms(use_true_random=False))
def test_order_of_entries_does_not_matter(coo, random):
    index, value, shape = coo
    order = list(range(len(index)))
    random.shuffle(order)
    first = SparseTensor.from_coo(index, value, shape)
    second = SparseTensor.from_coo(index[order], value[order], shape)
    assert_same(second, first)
    assert second.fingerprint() == first.fingerprint()


@given(coordinates(), st.integers(1, 7))
def test_the_size_of_the_parts_does_not_matter(coo, size):
    expected = SparseTensor.from_coo(*coo)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_module, "_PART", size)
        found = SparseTensor.from_coo(*coo)
        assert_promised(found)
        assert_same(found, expected)
        assert found.fingerprint() == expected.fingerprint()
        assert found.norm_squared() == pytest.approx(expected.norm_squared(), rel=1e-14)
        assert_same(SparseTensor.from_coo(found.indices, found.values, found.shape), expected)
        scaled = found.scaled_to_unit_patients()
    np.testing.assert_allclose(
        scaled.values, expected.scaled_to_unit_patients().values, rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_positions_in_messages_count_over_parts(monkeypatch, size):
    monkeypatch.setattr(tensor_module, "_PART", size)
    index = [[0, 0], [1, 1], [2, 7], [2, 1], [2, 9]]
    message = refused(SparseTensor.from_coo, index, [1] * 5, (3, 2))
    assert "mode 1 must lie in [0, 2); 2 entries break this, the first at position 2" in message


def peak_of(call) -> int:
    """Bytes that NumPy held at most during a call, beside what it held before."""
    tracemalloc.start()
    try:
        kept = call()
        return tracemalloc.get_traced_memory()[1] + 0 * len(kept)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("arranged", ["sorted", "shuffled", "shuffled int64 and float64"])
def test_building_takes_little_more_than_the_tensor(monkeypatch, arranged):
    monkeypatch.setattr(tensor_module, "_PART", 1 << 13)
    entries = 400_000
    rng = np.random.default_rng(0)
    cells = np.sort(rng.choice(2000 * 50 * 60, entries, replace=False))
    index = np.stack(np.unravel_index(cells, (2000, 50, 60)), axis=1).astype(np.int32)
    value = rng.integers(1, 9, entries).astype(np.float32)
    if arranged != "sorted":
        order = rng.permutation(entries)
        index, value = index[order], value[order]
    if "64" in arranged:
        index, value = index.astype(np.int64), value.astype(np.float64)
    peak = peak_of(lambda: (SparseTensor.from_coo(index, value, (2000, 50, 60)),))
    assert peak < 1.3 * 16 * entries


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.uint64, np.float32, np.float64])
def test_whole_numbers_of_any_type_are_indices(dtype):
    index, value, shape = GOOD
    assert_same(
        SparseTensor.from_coo(np.array(index, dtype), value, shape), SparseTensor.from_coo(*GOOD)
    )


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint64, np.float16, np.longdouble])
def test_values_of_any_numeric_type(dtype):
    tensor = SparseTensor.from_coo(GOOD[0], np.ones(3, dtype), GOOD[2])
    np.testing.assert_array_equal(tensor.values, np.ones(3, np.float32))


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
    assert (tensor.nnz, tensor.density, tensor.norm_squared()) == (0, 0, 0)


def test_zeros_alone_leave_nothing():
    assert SparseTensor.from_coo([[0, 0], [1, 1]], [0, -0.0], (2, 2)).nnz == 0


def test_the_largest_float32_is_still_a_value():
    largest = float(np.finfo(np.float32).max)
    assert SparseTensor.from_coo([[0, 0]], [largest], (1, 1)).values[0] == np.float32(largest)


def test_duplicates_are_summed_in_float64():
    # In float32 2**24 + 1 is 2**24, however often the 1 is added.
    tensor = SparseTensor.from_coo([[0, 0]] * 5, [1, 2**24, 1, 1, 1], (1, 1))
    assert tensor.values[0] == 2**24 + 4


def test_repr_holds_sizes_alone():
    tensor = SparseTensor.from_coo([[0, 0]], [SECRET], (1, 1))
    assert repr(tensor) == str(tensor) == "SparseTensor(shape=(1, 1), nnz=1)"


def ragged():
    return [[0, 0], [1]]


BAD_COO = {
    "index NaN": ("indices: must be integers", {"indices": [[0, 0], [1, math.nan], [2, 1]]}),
    "index inf": ("indices: must be integers", {"indices": [[0, 0], [1, 1], [math.inf, 1]]}),
    "index fraction": ("position 1", {"indices": [[0, 0], [SECRET + 0.5, 1], [2, 1]]}),
    "index bool": ("indices: need integers", {"indices": np.ones((3, 2), bool)}),
    "index string": ("indices: need integers", {"indices": [["0", str(SECRET)]] * 3}),
    "index object": ("indices: need integers", {"indices": np.full((3, 2), SECRET, object)}),
    "index complex": ("indices: need integers", {"indices": np.full((3, 2), SECRET, complex)}),
    "index duration": ("indices: need integers", {"indices": np.zeros((3, 2), "m8[s]")}),
    "index above int64": ("indices: ", {"indices": [[0, SECRET * 2**70]] * 3}),
    "index ragged": ("indices: need numbers in rows of equal length", {"indices": ragged()}),
    "index too large": ("mode 1 must lie in [0, 2)", {"indices": [[0, 0], [1, SECRET], [2, 1]]}),
    "index one too large": ("mode 0 must lie in [0, 3)", {"indices": [[0, 0], [3, 1], [2, 1]]}),
    "index beyond int32": ("mode 0", {"indices": [[0, 0], [SECRET * 2**32, 1], [2, 1]]}),
    "index negative": ("position 2", {"indices": [[0, 0], [1, 1], [-SECRET, 1]]}),
    "index one too small": ("mode 0", {"indices": [[0, 0], [-1, 1], [2, 1]]}),
    "index 1-D": ("need shape (entries, 2), got (3,)", {"indices": [0, 1, 2]}),
    "index 3-D": ("got (3, 2, 1)", {"indices": np.zeros((3, 2, 1), int)}),
    "index of other modes": ("got (3, 3)", {"indices": np.zeros((3, 3), int)}),
    "index of no modes": ("got (3, 0)", {"indices": np.zeros((3, 0), int)}),
    "index scalar": ("got ()", {"indices": 7}),
    "index None": ("indices: need", {"indices": None}),
    "value NaN": ("values: must be finite (float32); 1 entries", {"values": [1, math.nan, SECRET]}),
    "value inf": ("position 0", {"values": [math.inf, 2, SECRET]}),
    "value negative": ("values: must be non-negative", {"values": [1, 2, -SECRET]}),
    "value negative and tiny": ("position 1", {"values": [1, -1e-60, 3]}),
    "value beyond float32": ("values: must be finite (float32)", {"values": [1, 2, SECRET * 1e40]}),
    "value string": ("values: need numbers", {"values": ["1", "2", str(SECRET)]}),
    "value object": ("values: need numbers", {"values": np.full(3, SECRET, object)}),
    "value complex": ("values: need numbers", {"values": np.full(3, SECRET + 1j)}),
    "value None": ("values: need numbers", {"values": [1, None, SECRET]}),
    "value ragged": ("values: need numbers", {"values": [1, [SECRET], 3]}),
    "values too few": ("need shape (3,) to match indices, got (2,)", {"values": [SECRET, 2]}),
    "values 2-D": ("got (3, 1)", {"values": [[1], [2], [SECRET]]}),
    "values scalar": ("got ()", {"values": SECRET}),
    "shape one mode": ("at least 2 modes", {"shape": (SECRET,)}),
    "shape no mode": ("at least 2 modes", {"shape": ()}),
    "shape zero": ("that of mode 1 is not", {"shape": (SECRET, 0)}),
    "shape negative": ("that of mode 0 is not", {"shape": (-SECRET, 2)}),
    "shape huge": ("that of mode 0 is not", {"shape": (SECRET * 10_000, 2)}),
    "shape beyond int64": ("shape: need", {"shape": (SECRET * 2**70, 2)}),
    "shape fraction": ("that of mode 1 is not", {"shape": (3, SECRET + 0.5)}),
    "shape NaN": ("that of mode 1 is not", {"shape": (SECRET, math.nan)}),
    "shape inf": ("that of mode 1 is not", {"shape": (SECRET, math.inf)}),
    "shape text": ("shape: need a sequence of integers", {"shape": str(SECRET)}),
    "shape of texts": ("shape: need a sequence of integers", {"shape": ("3", str(SECRET))}),
    "shape None": ("shape: need a sequence of integers", {"shape": None}),
    "shape scalar": ("shape: need a sequence of integers", {"shape": SECRET}),
    "shape nested": ("shape: need", {"shape": [[3, SECRET]]}),
    "shape and values swapped": ("shape: ", {"shape": [SECRET, 0.5], "values": (3, 2)}),
}


@pytest.mark.parametrize(("says", "changes"), BAD_COO.values(), ids=BAD_COO)
def test_bad_coordinates_are_refused_by_name_and_place(says, changes):
    given = dict(zip(("indices", "values", "shape"), GOOD, strict=True)) | changes
    assert says in refused(SparseTensor.from_coo, **given)


def test_duplicates_that_overflow_are_refused():
    half = float(np.finfo(np.float32).max) * 0.6
    message = refused(SparseTensor.from_coo, [[0, 0], [0, 0]], [half, half], (1, 1))
    assert "sum of duplicate entries" in message


def test_a_message_counts_the_wrong_entries():
    message = refused(SparseTensor.from_coo, [[0, 0], [1, 5], [0, 6]], [1, 1, 1], (2, 2))
    assert message.endswith("2 entries break this, the first at position 1")


def test_a_large_tensor_is_not_densified():
    tensor = SparseTensor.from_coo([[0, 0]], [SECRET], (10_000, 1001))
    assert "refusing to densify" in refused(tensor.to_dense)


# --- select_patients


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
    "none": [],
    "twice": [0, 1, 0],
    "negative": [-SECRET],
    "too large": [SECRET],
    "one too large": [6],
    "mask": np.ones(6, bool),
    "fractions": [0.5],
    "whole floats": [1.0],
    "2-D": [[0, 1]],
    "ragged": [[0], [1, SECRET]],
    "text": [str(SECRET)],
}


@pytest.mark.parametrize("rows", BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows_are_refused(rows):
    assert refused(make().select_patients, rows).startswith("patients: ")


# --- select_features


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


def test_cells_of_features_that_are_left_out_go_with_them():
    """None may slip to the first feature that stays, nor to the last."""
    tensor = SparseTensor.from_coo([[0, 0], [0, 1], [1, 2], [2, 3]], [1, 2, 4, 8], (3, 4))
    chosen = tensor.select_features([[1, 2]])
    np.testing.assert_array_equal(chosen.to_dense(), [[2, 0], [0, 4], [0, 0]])


BAD_FEATURES = {
    "too few modes": [[0]],
    "too many modes": [[0], [0], [0]],
    "none": [[0], []],
    "twice": [[0, 0], [0]],
    "descending": [[1, 0], [0]],
    "negative": [[-SECRET, 0], [0]],
    "one too large": [[0, 4], [0]],
    "too large": [[0], [SECRET]],
    "mask": [[0], np.ones(3, bool)],
    "fractions": [[0.5], [0]],
    "2-D": [[[0, 1]], [0]],
    "text": [[str(SECRET)], [0]],
}


@pytest.mark.parametrize("kept", BAD_FEATURES.values(), ids=BAD_FEATURES)
def test_bad_features_are_refused(kept):
    assert refused(make().select_features, kept).startswith("features: ")


# --- fingerprint


def test_weights_multiply_cells_as_dense_arrays_would():
    rng = np.random.default_rng(1)
    dense = rng.poisson(0.5, (6, 4, 5, 3)).astype(np.float32)
    at = np.nonzero(dense)
    tensor = SparseTensor.from_coo(np.column_stack(at), dense[at], dense.shape)
    weights = tuple(rng.uniform(0.1, 1, size).astype(np.float32) for size in (4, 5, 3))
    expected = np.einsum("ijkl,j,k,l->ijkl", dense.astype(np.float64), *weights)
    np.testing.assert_allclose(tensor.weighted(weights).to_dense(), expected, rtol=1e-6)
    assert tensor.weighted(()) is tensor


def test_no_weight_makes_a_cell_come_or_go():
    limits = np.finfo(np.float32)
    values = [limits.tiny, 1.0, limits.max]
    tensor = SparseTensor.from_coo([[0, 0], [1, 0], [2, 0]], values, (3, 1))
    small = tensor.weighted((np.array([2.0**-20], np.float32),)).values
    assert small.tolist() == [limits.tiny, 2.0**-20, np.float32(limits.max * 2.0**-20)]
    large = tensor.weighted((np.array([4.0], np.float32),)).values
    assert large.tolist() == [4 * limits.tiny, 4.0, limits.max]


def test_fingerprint_changes_with_every_part():
    index, value, shape = GOOD
    variants = [
        GOOD,
        (index, value, (4, 2)),
        (index, value, (3, 3)),
        (index, [1, 2, 4], shape),
        (index, [1, 2, np.nextafter(np.float32(3), np.float32(4))], shape),
        ([[0, 0], [1, 0], [2, 1]], value, shape),
        (index[:2], value[:2], shape),
        (index, [2, 1, 3], shape),
        ([[0, 0, 0], [1, 1, 0], [2, 1, 0]], value, (3, 2, 1)),
    ]
    prints = [SparseTensor.from_coo(*variant).fingerprint() for variant in variants]
    assert len(set(prints)) == len(variants)


# --- .npz


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(coordinates())
def test_npz_round_trip(tmp_path, coo):
    tensor = SparseTensor.from_coo(*coo)
    tensor.save(tmp_path / "t.npz")
    found = SparseTensor.load(tmp_path / "t.npz")
    assert_same(found, tensor)
    assert found.fingerprint() == tensor.fingerprint()


def test_files_are_the_owners_alone(tmp_path):
    make().save(tmp_path / "t.npz")
    make().write_tns(tmp_path / "t.tns.gz")
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def write_npz(path, **changes):
    arrays = dict(zip(("indices", "values", "shape"), map(np.array, GOOD), strict=True)) | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


BAD_ARRAYS = {
    "no indices": ("lacks the array(s) indices", {"indices": None}),
    "no values, no shape": ("lacks the array(s) values, shape", {"values": None, "shape": None}),
    "pickled values": ("not a readable .npz", {"values": np.array([{SECRET}] * 3, object)}),
    "indices out of range": ("mode 0 must lie in", {"indices": np.array([[SECRET, 0]] * 3)}),
    "NaN": ("values: must be finite", {"values": np.array([1, math.nan, SECRET])}),
    "text": ("values: need numbers", {"values": np.array(["1", "2", str(SECRET)])}),
    "shape scalar": ("shape: need a sequence", {"shape": np.array(SECRET)}),
    "shape 2-D": ("shape: need a sequence", {"shape": np.array([[3, 2]])}),
    "shape one mode": ("at least 2 modes", {"shape": np.array([SECRET])}),
    "other tensor's values": ("values: need shape (3,)", {"values": np.ones(4)}),
}


@pytest.mark.parametrize(("says", "changes"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_a_bad_npz_is_refused_by_its_name(tmp_path, says, changes):
    path = tmp_path / "t.npz"
    write_npz(path, **changes)
    message = refused(SparseTensor.load, path)
    assert message.startswith(f"{path}: ")
    assert says in message


def test_a_truncated_npz_is_refused_wherever_it_ends(tmp_path):
    path = tmp_path / "t.npz"
    make().save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert "not a readable .npz" in refused(SparseTensor.load, path)


NOT_NPZ = {"empty": b"", "text": b"1 2 987654\n", "zip magic": b"PK\x03\x04" + bytes(50)}


@pytest.mark.parametrize("content", NOT_NPZ.values(), ids=NOT_NPZ)
def test_what_is_not_an_npz_is_refused(tmp_path, content):
    path = tmp_path / "t.npz"
    path.write_bytes(content)
    assert "not a readable .npz" in refused(SparseTensor.load, path)


def test_a_single_array_is_not_an_npz(tmp_path):
    np.save(tmp_path / "t.npy", np.full(3, SECRET))
    assert "not a readable .npz" in refused(SparseTensor.load, tmp_path / "t.npy")


@pytest.mark.parametrize("read", [SparseTensor.load, SparseTensor.read_tns])
def test_a_missing_file_and_a_folder_are_refused(tmp_path, read):
    assert refused(read, tmp_path / "none.npz") == f"{tmp_path / 'none.npz'}: no such file"
    assert refused(read, tmp_path).startswith(f"{tmp_path}: ")


def test_load_npz_gives_the_arrays_that_were_not_asked_for_too(tmp_path):
    write_npz(tmp_path / "t.npz", more=np.arange(2))
    arrays = load_npz(tmp_path / "t.npz", ["values"])
    assert set(arrays) == {"indices", "values", "shape", "more"}


# --- FROSTT text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(coordinates(), st.booleans(), st.sampled_from(["t.tns", "t.tns.gz"]))
def test_tns_round_trip(tmp_path, coo, one_based, name):
    tensor = SparseTensor.from_coo(*coo)
    tensor.write_tns(tmp_path / name, one_based=one_based)
    assert_same(SparseTensor.read_tns(tmp_path / name, one_based=one_based), tensor)


def test_tns_keeps_every_bit_of_a_float32(tmp_path):
    infinity = np.float32(np.inf).view(np.uint32)
    bits = np.random.default_rng(0).integers(1, infinity, 5000, dtype=np.uint32)
    values = np.concatenate([bits, [1, infinity - 1]]).astype(np.uint32).view(np.float32)
    index = [[0, position] for position in range(len(values))]
    tensor = SparseTensor.from_coo(index, values, (1, len(values)))
    assert tensor.nnz == len(values)
    tensor.write_tns(tmp_path / "t.tns")
    assert_same(SparseTensor.read_tns(tmp_path / "t.tns"), tensor)


def test_gz_is_gzip(tmp_path):
    make().write_tns(tmp_path / "t.tns.gz")
    make().write_tns(tmp_path / "t.tns")
    text = gzip.decompress((tmp_path / "t.tns.gz").read_bytes())
    assert text == (tmp_path / "t.tns").read_bytes()
    assert text.startswith(b"# shape: 6 4 3\n")


def read(tmp_path, text, name="t.tns", **options):
    data = text.encode() if isinstance(text, str) else text
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    return SparseTensor.read_tns(tmp_path / name, **options)


PLAIN = "1 1 1\n2 2 2\n3 2 3\n"
SAME_AS_PLAIN = {
    "plain": (PLAIN, {}),
    "comments and empty lines": ("# from somewhere\n\n1 1 1\n# so\n\n2 2 2\n3 2 3 # yes\n\n", {}),
    "scientific": ("1 1 1e0\n2e0 2 20e-1\n3 2 0.3E+1\n", {}),
    "zero-based": ("0 0 1\n1 1 2\n2 1 3\n", {}),
    "tabs, blanks and no last newline": ("  1\t1   1 \n2 2\t2\r\n3 2 3", {}),
    "duplicates and zeros": ("1 1 1\n3 2 1\n2 2 2\n3 2 2\n1 2 0\n", {}),
    "shape line that agrees": ("# shape: 3 2\n" + PLAIN, {}),
    "shape line below another comment": ("# from somewhere\n# shape: 3 2\n" + PLAIN, {}),
    "shape that overrules the line": ("# shape: 9 9\n" + PLAIN, {"shape": (3, 2)}),
    "shape as an array": (PLAIN, {"shape": np.array([3, 2])}),
}


@pytest.mark.parametrize(("text", "options"), SAME_AS_PLAIN.values(), ids=SAME_AS_PLAIN)
@pytest.mark.parametrize("name", ["t.tns", "t.tns.gz"])
def test_tns_as_people_write_it(tmp_path, text, options, name):
    assert_same(read(tmp_path, text, name, **options), SparseTensor.from_coo(*GOOD))


def test_tns_base_and_shape_can_be_said(tmp_path):
    zero_based = read(tmp_path, PLAIN, one_based=False)
    assert zero_based.shape == (4, 3)
    np.testing.assert_array_equal(zero_based.indices, np.array(GOOD[0]) + 1)
    assert read(tmp_path, "# shape: 7 8\n" + PLAIN).shape == (7, 8)
    assert read(tmp_path, PLAIN, shape=(7, 8)).shape == (7, 8)
    # One 0 in any mode makes the whole file zero-based.
    assert read(tmp_path, "1 0 5\n2 1 5\n").shape == (3, 2)


BAD_TNS = {
    "empty": ("holds no entries", "", {}),
    "comments alone": ("holds no entries", "# a\n# b\n", {}),
    "ragged": ("line 3 has 2 numbers, those before it 3", "# c\n1 1 1\n2 987654\n", {}),
    "text": ("line 2 holds something that is not a number", "1 1 1\n2 987654x 2\n", {}),
    "text at first": ("line 1 holds something", "p987654 1 1\n2 2 2\n", {}),
    "commas": ("line 1 holds something", "1,1,987654\n", {}),
    "underscores": ("holds something", "1 1 1\n987_654 1 1\n", {}),
    "two columns": ("at least 2 indices and a value", "1 987654\n", {}),
    "index NaN": ("indices: must be integers", "1 1 1\nnan 1 987654\n", {}),
    "index inf": ("indices: must be integers", "1 1 1\ninf 1 987654\n", {}),
    "index fraction": ("position 1", "1 1 1\n987654.5 1 2\n", {}),
    "index beyond int32": ("shape: ", "1 1 1\n9876540000 1 2\n", {}),
    "index beyond int64": ("shape: ", "1 1 1\n987654e300 1 2\n", {}),
    "index negative": ("indices: must be at least 0", "1 1 1\n-987654 1 2\n", {}),
    "index 0 in a one-based file": (
        "indices: must be at least 1; 1 entries break this, the first at position 1",
        "1 1 1\n0 987654 2\n",
        {"one_based": True},
    ),
    "index beyond the shape": ("mode 0 must lie in [0, 3)", "987654 1 1\n", {"shape": (3, 2)}),
    "index beyond the shape line": ("mode 1", "# shape: 3 2\n1 987654 1\n", {}),
    "shape of other modes": ("indices: need shape", "1 1 1\n", {"shape": (3, 2, 987654)}),
    "shape empty": ("at least 2 modes", "1 1 1\n", {"shape": ()}),
    "shape line of text": ("'# shape:' line", "# shape: 3 p987654\n1 1 1\n", {}),
    "shape line empty": ("at least 2 modes", "# shape:\n1 1 1\n", {}),
    "shape line zero": ("mode 1", "# shape: 987654 0\n1 1 1\n", {}),
    "value NaN": ("values: must be finite", "1 1 nan\n1 2 987654\n", {}),
    "value negative": ("values: must be non-negative", "1 1 1\n1 2 -987654\n", {}),
    "value beyond float32": ("values: must be finite", "1 1 987654e40\n", {}),
    "binary": ("cannot be read (UnicodeDecodeError)", bytes(range(256)), {}),
    "zeros": ("holds something that is not a number", bytes(100), {}),
}


@pytest.mark.parametrize(("says", "text", "options"), BAD_TNS.values(), ids=BAD_TNS)
def test_a_bad_tns_is_refused_by_its_name_and_place(tmp_path, says, text, options):
    message = refused(read, tmp_path, text, **options)
    assert message.startswith(f"{tmp_path / 't.tns'}: ")
    assert says in message


def test_a_damaged_gz_is_refused(tmp_path):
    path = tmp_path / "t.tns.gz"
    make(shape=(50, 9, 9)).write_tns(path)
    whole = path.read_bytes()
    for length in (0, 1, 5, 10, len(whole) // 2, len(whole) - 4, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert str(path) in refused(SparseTensor.read_tns, path)
    path.write_bytes(b"1 1 987654\n")
    assert "cannot be read (BadGzipFile)" in refused(SparseTensor.read_tns, path)
    path.write_bytes(whole[:40] + bytes(20) + whole[60:])
    assert "cannot be read" in refused(SparseTensor.read_tns, path)
