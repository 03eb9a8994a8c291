"""FROSTT text as people write it, and what is refused."""

import gzip

import numpy as np
import pytest

from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.frostt import read_tns
from tests.tensor.test_sparse import GOOD, assert_same, refused


def read(tmp_path, text, name="t.tns", **options):
    data = text.encode() if isinstance(text, str) else text
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    return read_tns(tmp_path / name, **options)


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
    whole = gzip.compress("".join(f"{n} {n % 9 + 1} {n}\n" for n in range(1, 2000)).encode())
    for length in (0, 5, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert str(path) in refused(read_tns, path)
    path.write_bytes(b"1 1 987654\n")
    assert "cannot be read (BadGzipFile)" in refused(read_tns, path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    assert refused(read_tns, tmp_path / "none") == f"{tmp_path / 'none'}: no such file"
    assert refused(read_tns, tmp_path).startswith(f"{tmp_path}: ")
