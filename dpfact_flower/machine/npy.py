"""NumPy's `.npy` format for arrays of the same kind again and again, as rounds send and keep them.

`numpy.save` and `numpy.load` write and parse the header every time, which takes longer than the
numbers after it. Here NumPy makes a header once for all arrays of one type and shape. Whatever does
not begin with the expected header is left to NumPy.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import DataError

_PLAIN = {name: np.dtype(name).newbyteorder("<") for name in ("float32", "int32", "uint8")}
"""Types that travel between server and sites; little-endian on the wire."""
_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000
_HEADER = re.compile(
    rb"\{'descr': '([<>|=][biufcSUmM]\d{0,18}(?:\[\w{1,9}\])?)', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,19}, ?)*(?:\d{1,19})?)\), \} *\n?"
)
"""What NumPy writes of an array of plain values."""
_LEVEL = 2
"""Of compression: a tensor is an eighth larger than at zlib's own choice, 6."""
_DEFLATED = 1032
"""Deflate makes nothing smaller than by this factor."""


@lru_cache(maxsize=64)
def header(name: str, shape: tuple[int, ...]) -> bytes:
    """What `numpy.save` writes before the numbers of a C-contiguous array.

    Parameters
    ----------
    name : str
        "float32", "int32" or "uint8".
    shape : tuple of int
    """
    head = io.BytesIO()
    described = {"descr": _PLAIN[name].str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, described)
    return head.getvalue()


def written(array: NDArray[Any]) -> bytes:
    """An array as `numpy.save` writes it, in C order."""
    name = str(array.dtype)
    if name not in _PLAIN:
        file = io.BytesIO()
        np.save(file, array, allow_pickle=False)
        return file.getvalue()
    numbers = np.asarray(array, _PLAIN[name], order="C")
    return b"".join((header(name, array.shape), numbers.data))


def read(content: bytes, name: str, shape: tuple[int, ...]) -> NDArray[Any] | None:
    """The array whose content `written` made; None where NumPy has to look for itself.

    Parameters
    ----------
    content : bytes
        From a stranger, like the type and the shape.
    name : str
        The type that the content should be of.
    shape : tuple of int
    """
    shape = tuple(map(int, shape))  # True is 1, and would be kept as a header's key like it
    if name not in _PLAIN or not content.startswith(head := header(name, shape)):
        return None
    if len(content) != len(head) + _PLAIN[name].itemsize * math.prod(shape):
        return None
    numbers = np.frombuffer(content, _PLAIN[name], offset=len(head))
    # In memory of its own: to compiled kernels, read-only arrays are another type.
    return numbers.reshape(shape).astype(name)


def parse(content: bytes) -> tuple[NDArray[Any], int]:
    """The array that bytes in `.npy` format begin with, whatever they hold.

    Parameters
    ----------
    content : bytes
        From a stranger, or from a file that may be damaged.

    Returns
    -------
    array : ndarray
        In memory of its own, never more than `content` is long.
    end : int
        Where in `content` the array ends.

    Raises
    ------
    DataError
        If they are no array of plain values, or too few.
    """
    try:
        file = io.BytesIO(content)
        shape, by_columns, kind = _head(file)
        start, count = file.tell(), math.prod(shape)
        flat = np.frombuffer(content, kind, count, start)
        array = flat.reshape(shape, order="F" if by_columns else "C").copy()
    except Exception as error:  # NumPy's tokeniser and evaluator each raise their own
        raise DataError(f"not an array in .npy format ({type(error).__name__})") from None
    return array, start + flat.nbytes


def _head(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type of an array in `.npy` format; an error where NumPy would not write it.

    NumPy itself evaluates a header as Python, with the warnings and errors of that. Arrays of
    records and of Python objects are refused: this package writes none.
    """
    magic = file.read(len(_MAGIC) + 2)
    bytes_of_length = {_MAGIC + b"\x01\x00": 2, _MAGIC + b"\x02\x00": 4}[magic]
    length = int.from_bytes(file.read(bytes_of_length), "little")
    found = _HEADER.fullmatch(file.read(length)) if length <= _LONGEST_HEADER else None
    if found is None:
        raise ValueError("header")
    kind = np.dtype(found[1].decode())
    if kind.hasobject:
        raise ValueError("objects")
    shape = tuple(int(size) for size in found[3].split(b",") if size.strip())
    return shape, found[2] == b"True", kind


def save_npz(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a compressed .npz file, as `numpy.savez_compressed` does, in an eighth of its time.

    Parameters
    ----------
    file : file opened for writing bytes
    arrays : mapping of str to ndarray
        None holds objects. Equal arrays give equal bytes.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def load_npz(
    path: str | Path, names: Sequence[str], *, others: bool = True
) -> dict[str, NDArray[Any]]:
    """Arrays of an .npz file, without pickles; `names` must be among them.

    However damaged the file is, the memory that this takes is bounded by its size.

    Parameters
    ----------
    path : path
    names : sequence of str
    others : bool
        Whether the file's other arrays are read too.

    Raises
    ------
    DataError
        If the file is missing, unreadable or lacks one of `names`.
    """
    try:
        # Opened here, because NumPy leaves a damaged file open.
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            wanted = archive.files if others else [n for n in archive.files if n in names]
            _check_claims(archive.zip, wanted, Path(path).stat().st_size)
            arrays = {name: archive[name] for name in wanted}
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except Exception as error:  # zipfile, zlib and NumPy each raise their own on damaged input
        raise DataError(
            f"{path}: not a readable .npz file ({type(error).__name__}); restore it from a copy, "
            "or make it again"
        ) from None
    missing = [name for name in names if name not in arrays]
    if missing:
        raise DataError(f"{path}: lacks the array(s) {', '.join(missing)}; it has {sorted(arrays)}")
    return arrays


def _check_claims(archive: zipfile.ZipFile, names: Sequence[str], size: int) -> None:
    """Refuse members that are no arrays, or claim to hold more than a file of `size` bytes can.

    NumPy allocates what a header claims before it reads the first number.
    """
    for name in names:
        member = archive.getinfo(f"{name}.npy")
        stored = min(member.compress_size, size)
        most = {zipfile.ZIP_STORED: stored, zipfile.ZIP_DEFLATED: _DEFLATED * stored}
        with archive.open(member) as file:
            shape, _, kind = _head(file)
        if math.prod(shape) * kind.itemsize > min(member.file_size, most[member.compress_type]):
            raise ValueError("claims more than there is")
