"""Arrays in NumPy's format, with headers that are made once: what NumPy writes and reads itself."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpfact_flower.errors import DataError
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


# --- whatever a stranger, or a damaged file, holds


ANY = st.sampled_from(["<f4", ">i8", "|u1", "?", "<c16", "<U3", "|S2", "<M8[ns]", "<f2"]).flatmap(
    lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)


@given(ANY, st.booleans(), st.binary(max_size=5))
def test_an_array_that_numpy_wrote_is_parsed_with_what_follows_it_left_alone(array, turned, rest):
    array = array.T if turned else array
    content = saved(array)
    found, end = npy.parse(content + rest)
    assert end == len(content)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert found.flags.writeable
    assert found.flags.owndata or found.base.flags.owndata


def with_header(text: str, numbers: bytes = bytes(64), version: bytes = b"\1\0") -> bytes:
    size = len(text).to_bytes(2 if version == b"\1\0" else 4, "little")
    return b"\x93NUMPY" + version + size + text.encode() + numbers


def described(descr: str = "'<f4'", order: str = "False", shape: str = "(4, 4)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


ODD_HEADERS = {
    "terabytes": described(shape="(1000000000000, 4)"),
    "more than there is": described(shape="(17,)"),
    "a product beyond 64 bits": described(shape="(9999999999999999999, 9999999999999999999)"),
    "below zero": described(shape="(-4, 4)"), "long texts": described("'<U1000000000'"),
    "objects": described("'|O'"), "records": described("[('a', '<f4')]"),
    "no bytes": described("'|V0'"),
    "no type": described("'<x9'"), "code": described("__import__('os')"), "empty": "",
    "an open bracket": "{'descr': (", "deep": "(" * 9000,
    "an integer of Python 2": described(shape="(4L,)"),
}  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("text", ODD_HEADERS.values(), ids=ODD_HEADERS)
@pytest.mark.parametrize("version", [b"\1\0", b"\2\0", b"\3\0"], ids=repr)
def test_any_other_header_is_our_own_error_and_takes_no_memory(text, version, tmp_path):
    content = with_header(text, version=version)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", content)
    npy.parse(with_header(described()))  # the rest of it is right
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"not an array in \.npy format"):
            npy.parse(content)
        with pytest.raises(DataError, match=r"not a readable \.npz file"):
            npy.load_npz(tmp_path / "x.npz", ["a"])
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_member_that_says_it_unpacks_to_more_than_it_can_is_refused(tmp_path):
    """Its directory and its header agree on a size that so few bytes cannot have."""
    path = tmp_path / "x.npz"
    head = with_header(described(shape="(900000000,)"), b"")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", head + bytes(1000))
    claimed = len(head) + 3_600_000_000
    content = bytearray(path.read_bytes())
    for mark, place in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        where = content.index(mark) + place
        content[where : where + 4] = claimed.to_bytes(4, "little")
    path.write_bytes(content)
    assert zipfile.ZipFile(path).getinfo("a.npy").file_size == claimed
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"not a readable \.npz file"):
            npy.load_npz(path, ["a"])
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_member_packed_otherwise_or_of_no_array_is_refused(tmp_path):
    path = tmp_path / "x.npz"
    for how, name, content in (
        (zipfile.ZIP_LZMA, "a.npy", saved(np.zeros(3))), (zipfile.ZIP_STORED, "a.npy", b"text"),
        (zipfile.ZIP_STORED, "a", saved(np.zeros(3))),
    ):  # fmt: skip
        with zipfile.ZipFile(path, "w", how) as archive:
            archive.writestr(name, content)
        with pytest.raises(DataError, match=r"not a readable \.npz file"):
            npy.load_npz(path, ["a"])


def test_what_is_saved_is_what_numpy_saves_and_reads(tmp_path):
    arrays = {
        "indices": np.arange(300_000, dtype=np.int32).reshape(-1, 3) // 7,
        "texts": np.array(["zero", "ä"]), "name": np.array("north"), "none": np.zeros((0, 2)),
    }  # fmt: skip
    for name in ("one.npz", "two.npz"):
        with (tmp_path / name).open("wb") as file:
            npy.save_npz(file, arrays)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    with np.load(tmp_path / "one.npz") as read:
        assert read.files == [*arrays]
        for name, array in npy.load_npz(tmp_path / "one.npz", [*arrays]).items():
            np.testing.assert_array_equal(array, arrays[name], strict=True)
            np.testing.assert_array_equal(read[name], array, strict=True)
    with zipfile.ZipFile(tmp_path / "one.npz") as archive:
        packed = archive.getinfo("indices.npy")
        assert packed.compress_size < packed.file_size / 4
    with pytest.raises(ValueError, match="allow_pickle"), (tmp_path / "x").open("wb") as file:
        npy.save_npz(file, {"objects": np.array([None])})
