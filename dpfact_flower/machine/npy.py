"""NumPy's `.npy` format for arrays of the same kind again and again, as rounds send and keep them.

`numpy.save` and `numpy.load` write and parse the header every time, which takes longer than the
numbers after it. Here NumPy makes a header once for all arrays of one type and shape. Whatever does
not begin with the expected header is left to NumPy.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import DataError

_PLAIN = {name: np.dtype(name).newbyteorder("<") for name in ("float32", "int32", "uint8")}
"""Types that travel between server and sites; little-endian on the wire."""


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


def load_npz(
    path: str | Path, names: Sequence[str], *, others: bool = True
) -> dict[str, NDArray[Any]]:
    """Arrays of an .npz file, without pickles; `names` must be among them.

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
            arrays = {name: archive[name] for name in wanted}
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except Exception as error:  # zipfile, zlib and NumPy each raise their own on damaged input
        raise DataError(f"{path}: not a readable .npz file ({type(error).__name__})") from None
    missing = [name for name in names if name not in arrays]
    if missing:
        raise DataError(f"{path}: lacks the array(s) {', '.join(missing)}; it has {sorted(arrays)}")
    return arrays
