"""Factors in a file: whole, for NumPy too, or refused."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

from dpfact_flower.errors import DataError
from dpfact_flower.site.factor_file import read_factors, write_factors

SIZES = (9, 5, 4)
META = {"round": 3, "eta": 0.1 / 3, "name": "M\u00fcnchen"}


def make_factors(*, order="C"):
    rng = np.random.default_rng(0)
    return tuple(np.array(rng.random((n, 3)), np.float32, order=order) for n in SIZES)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "factors.npy"
    with path.open("wb") as file:
        write_factors(file, make_factors(), META)
    return path


@pytest.mark.parametrize("order", ["C", "F"])
def test_round_trip(tmp_path, order):
    path = tmp_path / "factors.npy"
    with path.open("wb") as file:
        write_factors(file, make_factors(order=order), META)
    factors, meta = read_factors(path)
    assert meta == META
    for found, expected in zip(factors, make_factors(), strict=True):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)


def test_numpy_reads_the_rows_of_all_modes(path):
    np.testing.assert_array_equal(np.load(path), np.concatenate(make_factors()))


def test_every_byte_counts(path):
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DataError, match="damaged factors"):
            read_factors(path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match="damaged factors"):
            read_factors(path)


def refit(path, told=None, dtype="<f4"):
    """The file with another tail or type, and a right checksum."""
    np.save(path, np.concatenate(make_factors()).astype(dtype))
    content = path.read_bytes() + json.dumps(told).encode()
    path.write_bytes(content + f"{zlib.crc32(content):08x}".encode())


TAILS = {
    "nothing": None, "no sizes": {"meta": META}, "no meta": {"sizes": SIZES}, "a list": [1],
    "too few rows": {"sizes": [9, 5], "meta": META}, "no modes": {"sizes": [], "meta": META},
    "sizes of text": {"sizes": ["a"], "meta": META},
}  # fmt: skip


@pytest.mark.parametrize("told", TAILS.values(), ids=TAILS)
def test_a_tail_that_makes_no_sense_is_damage(path, told):
    refit(path, told)
    with pytest.raises(DataError, match="damaged factors"):
        read_factors(path)


def test_another_type_is_damage(path):
    told = {"sizes": SIZES, "meta": META}
    refit(path, told)
    read_factors(path)  # the rewriting itself is right
    refit(path, told, dtype="<f8")
    with pytest.raises(DataError, match="damaged factors"):
        read_factors(path)
