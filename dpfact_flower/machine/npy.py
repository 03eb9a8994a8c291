"""Arrays in NumPy's formats, from files and messages with untrusted content."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import DataError

_START = np.lib.format.MAGIC_LEN + 2
"""Number of bytes before the header: format, version, and the header's length."""
_PART = 2**20
_LEVEL = 2
"""Compression level. A tensor takes a quarter of the time of zlib's default level, and an eighth
more bytes."""


def read_npy(file: IO[bytes]) -> NDArray[Any]:
    """Read an array that `numpy.save` wrote; raise a DataError for any other content.

    `numpy.load` allocates the size that a header claims. This function allocates memory only for
    bytes that are present, so a damaged or hostile file cannot exhaust the memory. The array is
    writable.
    """
    try:
        start = file.read(_START)
        header = file.read(int.from_bytes(start[-2:], "little"))
        shape, by_columns, kind = _described(start + header)
        content = bytearray()
        while part := file.read(_PART):
            content += part
        if kind.names is not None or min(shape, default=0) < 0:
            raise ValueError("records, or a size below zero")
        numbers = np.frombuffer(content, kind, math.prod(shape))
        return numbers.reshape(shape, order="F" if by_columns else "C")
    except Exception as error:  # NumPy, its tokeniser and zlib raise different errors
        raise DataError(f"not an array in .npy format ({type(error).__name__})") from None


@lru_cache(maxsize=64)  # a run has few array types and shapes, and NumPy's parser is slow
def _described(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return an array's shape, order and type from the start of a file.

    The file must have version 1.0 of the format, which covers arrays of numbers.
    """
    file = BytesIO(head)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("version")
    return np.lib.format.read_array_header_1_0(file)


def save_npz(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a compressed .npz file like `numpy.savez_compressed`, but faster."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def load_npz(
    path: str | Path, names: Sequence[str], *, others: bool = True
) -> dict[str, NDArray[Any]]:
    """Read all arrays in `names` from an .npz file, in memory bounded by the file's size.

    With `others`, the file's other arrays are read too.
    """
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                name = member.removesuffix(".npy")
                if others or name in names:
                    with archive.open(member) as file:
                        arrays[name] = read_npy(file)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder; name one of its .npz files") from None
    except Exception as error:  # zipfile and zlib raise different errors for damaged files
        raise DataError(
            f"{path}: not a readable .npz file ({type(error).__name__}); restore it from a copy, "
            "or make it again"
        ) from None
    if missing := [name for name in names if name not in arrays]:
        raise DataError(f"{path}: lacks the array(s) {', '.join(missing)}; it has {sorted(arrays)}")
    return arrays
