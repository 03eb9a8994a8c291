"""Float32 factor matrices in one file that is written fast and whole, or found to be damaged.

A site writes tens of megabytes after every round. The file is a NumPy array, the rows of all modes
below each other, which `numpy.load` reads; then a line of JSON; then a CRC-32 of all before it.
A zip as of `numpy.savez` takes longer, and its checksums leave out the directory.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from dpfact_flower.errors import DataError
from dpfact_flower.machine.parsed import from_json
from dpfact_flower.tensor import Factors

_CHECK = 8  # hexadecimal digits of a CRC-32


def write_factors(file: IO[bytes], factors: Factors, meta: dict[str, Any]) -> None:
    """Write factors and what is to be known about them.

    Parameters
    ----------
    file : binary file
    factors : tuple of ndarray of float32, each (I_n, R)
    meta : dict
        Anything that JSON can hold.
    """
    sizes = [len(factor) for factor in factors]
    head = BytesIO()
    shape = (sum(sizes), factors[0].shape[1])
    np.lib.format.write_array_header_1_0(
        head, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    rows = (np.ascontiguousarray(factor, "<f4").data.cast("B") for factor in factors)
    tail = json.dumps({"sizes": sizes, "meta": meta}).encode()
    parts: Iterator[Any] = chain([head.getvalue()], rows, [tail])
    check = 0
    for part in parts:
        file.write(part)
        check = zlib.crc32(part, check)
    file.write(f"{check:0{_CHECK}x}".encode())


def read_factors(path: Path) -> tuple[Factors, Any]:
    """Factors and what is known about them, as `write_factors` wrote them.

    Raises
    ------
    DataError
        If the file cannot be read, or any byte of it has changed.
    """
    try:
        content = path.read_bytes()
        if zlib.crc32(memoryview(content)[:-_CHECK]) != int(content[-_CHECK:], 16):
            raise ValueError("checksum")
        file = BytesIO(content[:-_CHECK])
        stack = np.load(file, allow_pickle=False)
        told = from_json(file.read())
        sizes = told["sizes"]
        if not sizes or any(type(size) is not int or size < 0 for size in sizes):
            raise ValueError("sizes")
        if stack.dtype != np.float32 or stack.ndim != 2 or sum(sizes) != len(stack):
            raise ValueError("shape")
        return tuple(np.split(stack, np.cumsum(sizes[:-1]))), told["meta"]
    except (OSError, KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged factors ({type(error).__name__})") from None
