"""FROSTT text (``.tns``, http://frostt.io): each line has the indices and value of a non-zero."""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO, cast

import numpy as np

from dpfact_flower.errors import DataError
from dpfact_flower.tensor.arrays import Floats
from dpfact_flower.tensor.sparse import SparseTensor, check_whole, refuse


def read_tns(
    path: str | Path, *, shape: Sequence[int] | None = None, one_based: bool | None = None
) -> SparseTensor:
    """Read a tensor of counts from FROSTT text, which may be compressed (.gz).

    Empty lines and lines that begin with ``#`` are skipped. The sizes come from `shape`, or else
    from a line such as ``# shape: 3 4 5`` at the start of the file, or else from the largest
    indices. Without `one_based`, indices begin at 1, as in FROSTT, unless an index is 0.
    """
    try:
        table, declared = _read_table(Path(path))
        return _tensor(table, declared if shape is None else shape, one_based)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _tensor(table: Floats, shape: Sequence[int] | None, one_based: bool | None) -> SparseTensor:
    if table.size == 0:
        if shape is None:
            raise DataError("holds no entries, and its shape is not known")
        return SparseTensor.from_coo([], [], shape)
    if table.shape[1] < 3:
        raise DataError("need at least 2 indices and a value per line")
    index = table[:, :-1]
    check_whole(index)
    first = int((index >= 1).all()) if one_based is None else int(one_based)
    refuse(
        len(index),
        lambda part: np.any(index[part] < first, axis=1),
        f"indices: must be at least {first}",
    )
    if shape is None:
        shape = (index.max(axis=0) - first + 1).tolist()
    return SparseTensor.from_coo(index - first, table[:, -1], shape)


def _read_table(path: Path) -> tuple[Floats, list[int] | None]:
    """Return the file's numbers, as (entries, N + 1), and the shape in its ``# shape:`` line."""
    try:
        with _open_text(path) as file:
            declared = _declared_shape(file)
            file.seek(0)
            return _table(file), declared
    except FileNotFoundError:
        raise DataError("no such file") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read ({type(error).__name__})") from None


def _open_text(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8"))
    return path.open(encoding="utf-8")


def _table(file: TextIO) -> Floats:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "no data": `read_tns` handles this case
            return np.loadtxt(file, comments="#", ndmin=2)
    except UnicodeDecodeError:
        raise
    except ValueError:  # NumPy's message quotes the cell and counts rows from 0 or 1
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
    """Describe the first bad line of a table that NumPy refuses, without the line's content."""
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
