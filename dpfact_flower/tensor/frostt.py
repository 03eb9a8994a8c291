"""FROSTT text (``.tns``, http://frostt.io): one non-zero per line, its indices, then its value.

Numbers in rows and back, gzipped where the name ends in ``.gz``. What makes rows a tensor is
`SparseTensor`'s to check.
"""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TextIO, cast

import numpy as np

from dpfact_flower.errors import DataError
from dpfact_flower.machine.files import replacing
from dpfact_flower.tensor.arrays import Floats


def read_table(path: Path) -> tuple[Floats, list[int] | None]:
    """Table of the numbers in a .tns file, and its ``# shape:`` line if it has one.

    Returns
    -------
    table : ndarray of float64, shape (entries, N + 1)
    shape : list of int or None

    Raises
    ------
    DataError
        Naming the line where that is possible, never its content.
    """
    try:
        with _open_text(path) as file:
            declared = _declared_shape(file)
            file.seek(0)
            table = _table(file)
    except FileNotFoundError:
        raise DataError("no such file") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read ({type(error).__name__})") from None
    if table.size > 0 and table.shape[1] < 3:
        raise DataError("need at least 2 indices and a value per line")
    return table, declared


def write_table(path: Path, shape: Sequence[int], tables: Iterable[Floats]) -> None:
    """Write a ``# shape:`` line and then rows of indices and a value, whole or not at all.

    Parameters
    ----------
    path : Path
    shape : sequence of int, length N
    tables : iterable of ndarray of float64, each (entries, N + 1)
    """
    with replacing(path) as raw:
        zipped = gzip.GzipFile(fileobj=raw, mode="wb") if path.suffix == ".gz" else None
        with zipped or nullcontext(raw) as file:
            file.write(f"# shape: {' '.join(map(str, shape))}\n".encode())
            for table in tables:
                np.savetxt(file, table, fmt=["%d"] * len(shape) + ["%.9g"])


def _open_text(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8"))
    return path.open(encoding="utf-8")


def _table(file: TextIO) -> Floats:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "no data": `read_tns` sees to it
            return np.loadtxt(file, comments="#", ndmin=2)
    except UnicodeDecodeError:
        raise
    except ValueError:  # NumPy's text quotes the cell, and counts rows now from 0, now from 1
        file.seek(0)
        raise DataError(_first_bad_line(file)) from None


def _declared_shape(file: TextIO) -> list[int] | None:
    for line in file:
        if not line.startswith("#"):
            return None
        if line.startswith("# shape:"):
            try:
                return [int(n) for n in line.removeprefix("# shape:").split()]
            except ValueError:
                raise DataError("the '# shape:' line needs integers") from None
    return None


def _first_bad_line(file: TextIO) -> str:
    """Say where a table that NumPy refuses goes wrong, without the cell."""
    columns = 0
    for number, line in enumerate(file, start=1):
        cells = line.partition("#")[0].split()
        columns = columns or len(cells)
        if cells and len(cells) != columns:
            return f"line {number} has {len(cells)} numbers, those before it {columns}"
        try:
            list(map(float, cells))
        except ValueError:
            return f"line {number} holds something that is not a number"
    return "holds something that is not a number"
