"""Untrusted JSON and arrays: valid content is read, and anything else gives our own error."""

import io
import resource
import zipfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpfact_flower.errors import DataError
from dpfact_flower.machine.parsed import from_json, load_npz, read_npy

ANY = st.sampled_from(["<f4", ">i8", "|u1", "?", "<c16", "<U3", "|S2", "<M8[ns]", "<f2"]).flatmap(
    lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)


def saved(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


@pytest.mark.slow
@given(ANY, st.booleans())
def test_every_bit_comes_back_in_an_array_of_its_own(array, turned):
    array = array.T if turned else array
    found = read_npy(io.BytesIO(saved(array)))
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert found.flags.writeable  # read-only arrays have another type in compiled kernels


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
    "an open bracket": "{'descr': (", "deep": "(" * 900,
    "an integer of Python 2": described(shape="(4L,)"),
}  # fmt: skip


def refused_in_little_memory(content: bytes | None, path: Path) -> None:
    """Check that the array, if given, and its file are refused in little memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if content is not None:
        with pytest.raises(DataError, match=r"not an array in \.npy format"):
            read_npy(io.BytesIO(content))
    with pytest.raises(DataError, match=r"not a readable \.npz file"):
        load_npz(path, ["a"])
    # Memory that is allocated but not touched does not count.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("text", ODD_HEADERS.values(), ids=ODD_HEADERS)
@pytest.mark.parametrize("version", [b"\1\0", b"\2\0", b"\3\0"], ids=repr)
def test_any_other_header_is_our_own_error_and_takes_no_memory(text, version, tmp_path):
    content = with_header(text, version=version)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", content)
    read_npy(io.BytesIO(with_header(described())))  # the rest is valid
    refused_in_little_memory(content, tmp_path / "x.npz")


def test_a_member_that_says_it_unpacks_to_more_than_it_can_is_refused(tmp_path):
    """Its directory and its header agree on a size that its few bytes cannot have."""
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
    refused_in_little_memory(None, path)


@pytest.mark.parametrize(
    "content", [b"text", b"", saved(np.zeros(3))[:-1], saved(np.zeros(3)) + b"x"], ids=repr
)
def test_a_member_of_no_array_is_refused(content, tmp_path):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", content)
    with pytest.raises(DataError, match=r"not a readable \.npz file"):
        load_npz(path, ["a"])


def test_arrays_of_a_file_are_read_by_name(tmp_path):
    arrays = {
        "indices": np.arange(900_000, dtype=np.int32).reshape(-1, 3),  # several parts
        "texts": np.array(["zero", "ä"]), "none": np.zeros((0, 2)),
    }  # fmt: skip
    path = tmp_path / "x.npz"
    np.savez_compressed(path, **arrays)
    for name, array in load_npz(path, ["texts"]).items():
        np.testing.assert_array_equal(array, arrays[name], strict=True)
    assert [*load_npz(path, ["texts"])] == [*arrays]
    assert [*load_npz(path, ["texts"], others=False)] == ["texts"]
    with pytest.raises(DataError, match=r"lacks the array\(s\) name; it has \['indices'"):
        load_npz(path, ["texts", "name"])
    with pytest.raises(DataError, match="no such file"):
        load_npz(tmp_path / "y.npz", [])


def test_a_file_of_another_user_is_not_called_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZipFile", Mock(side_effect=PermissionError))
    with pytest.raises(DataError, match=r"x\.npz: this user may not read it"):
        load_npz(tmp_path / "x.npz", [])


def test_json_is_read():
    assert from_json('{"a": [1, null]}') == {"a": [1, None]}
    assert from_json(b"[1.5]") == [1.5]


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"a":' * 100_000, b"\xff", "9" * 5000], ids=lambda t: t[:4]
)
def test_anything_else_is_a_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
        from_json(text)
