"""Sparse count tensors in coordinate form; mode 0 is the patients.

`SparseTensor` is the only tensor type inside the package. It is validated once, here, so that
solvers and mechanisms may rely on what it promises: sorted, unique, in range, finite, non-negative.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import re
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfact_flower.errors import DataError

_MAX_MODE = np.iinfo(np.int32).max
_PATIENT_MODE = 0


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class SparseTensor:
    """A validated sparse tensor of counts.

    Build one with `from_coo`, `load` or `read_tns`; the constructor itself trusts its arguments.

    Attributes
    ----------
    indices : ndarray of int32, shape (nnz, N)
        C-contiguous, unique, sorted lexicographically (by patient first).
    values : ndarray of float32, shape (nnz,)
        Positive and finite. Counts above 2**24 lose their last digits.
    shape : tuple of int, length N >= 2
        (patients, features of mode 1, ...); every size is at least 1.
    """

    indices: NDArray[np.int32]
    values: NDArray[np.float32]
    shape: tuple[int, ...]

    @classmethod
    def from_coo(cls, indices: ArrayLike, values: ArrayLike, shape: Sequence[int]) -> SparseTensor:
        """Validate coordinates; duplicates are summed, explicit zeros dropped.

        Parameters
        ----------
        indices : array_like of integers, shape (entries, N)
            Zero-based.
        values : array_like of numbers, shape (entries,)
            Finite, non-negative.
        shape : sequence of int, length N

        Raises
        ------
        DataError
            Naming what is wrong, and the first place where it is.
        """
        size = _checked_shape(shape)
        index = _checked_indices(indices, size)
        value = _checked_values(values, len(index))
        keep = value > 0
        if not keep.all():
            index, value = index[keep], value[keep]
        return cls(*_sorted_and_summed(index, value), size)

    def __repr__(self) -> str:
        # Shape and size alone: a repr ends up in logs, a patient's cells must not.
        return f"SparseTensor(shape={self.shape}, nnz={self.nnz})"

    @property
    def ndim(self) -> int:
        """Number of modes N."""
        return len(self.shape)

    @property
    def nnz(self) -> int:
        """Number of non-zero cells."""
        return len(self.values)

    @property
    def n_patients(self) -> int:
        """Size of mode 0."""
        return self.shape[_PATIENT_MODE]

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """Sizes of the modes that sites share, that is all but the patients'."""
        return self.shape[1:]

    @property
    def cells(self) -> int:
        """Number of cells, zeros included."""
        return math.prod(self.shape)

    @property
    def density(self) -> float:
        """Share of cells that are not zero."""
        return self.nnz / self.cells

    def norm_squared(self) -> float:
        """Squared Frobenius norm, summed in float64."""
        return float(np.dot(self.values.astype(np.float64), self.values))

    def to_dense(self) -> NDArray[np.float64]:
        """Dense copy, for tests and small examples.

        Raises
        ------
        DataError
            Above ten million cells: nothing in this package needs a dense tensor that large.
        """
        if self.cells > 10_000_000:
            raise DataError(f"refusing to densify {self.cells:,} cells (limit 10,000,000)")
        dense = np.zeros(self.shape)
        dense[tuple(self.indices.T)] = self.values
        return dense

    def select_patients(self, patients: ArrayLike) -> SparseTensor:
        """Tensor of the given patients only, renumbered in the order given.

        Parameters
        ----------
        patients : array_like of int, shape (m,)
            Distinct rows of mode 0.
        """
        rows = np.asarray(patients)
        if rows.ndim != 1 or rows.size == 0 or not np.issubdtype(rows.dtype, np.integer):
            raise DataError("patients: need a non-empty one-dimensional array of integers")
        if rows.min() < 0 or rows.max() >= self.n_patients:
            raise DataError(f"patients: rows must lie in [0, {self.n_patients})")
        position = np.full(self.n_patients, -1, np.int32)
        position[rows] = np.arange(len(rows), dtype=np.int32)
        if np.count_nonzero(position >= 0) != len(rows):
            raise DataError("patients: a row is listed twice")
        row = position[self.indices[:, 0]]
        keep = row >= 0
        indices = self.indices[keep]
        indices[:, 0] = row[keep]
        order = np.argsort(indices[:, 0], kind="stable")
        return SparseTensor(
            np.ascontiguousarray(indices[order]),
            self.values[keep][order],
            (len(rows), *self.feature_shape),
        )

    def fingerprint(self) -> str:
        """SHA-256 over shape, indices and values: the identity of this data."""
        digest = hashlib.sha256(repr(self.shape).encode())
        digest.update(self.indices.astype("<i4").tobytes())
        digest.update(self.values.astype("<f4").tobytes())
        return digest.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write `indices`, `values` and `shape` to a compressed .npz file."""
        with Path(path).open("wb") as file:
            np.savez_compressed(
                file, indices=self.indices, values=self.values, shape=np.array(self.shape)
            )

    @classmethod
    def load(cls, path: str | Path) -> SparseTensor:
        """Read what `save` wrote, validating it again.

        Raises
        ------
        DataError
            If the file is missing, is not an .npz, lacks an array or holds an invalid tensor.
        """
        arrays = load_npz(path, ("indices", "values", "shape"))
        return cls.from_coo(arrays["indices"], arrays["values"], arrays["shape"].tolist())

    def write_tns(self, path: str | Path, *, one_based: bool = True) -> None:
        """Write FROSTT text, gzipped when the name ends in .gz; the shape goes in a comment."""
        offset = int(one_based)
        columns = np.column_stack([self.indices.astype(np.float64) + offset, self.values])
        with _open_text(Path(path), "wt") as file:
            file.write(f"# shape: {' '.join(map(str, self.shape))}\n")
            np.savetxt(file, columns, fmt=["%d"] * self.ndim + ["%.9g"])

    @classmethod
    def read_tns(
        cls, path: str | Path, *, shape: Sequence[int] | None = None, one_based: bool | None = None
    ) -> SparseTensor:
        """Read FROSTT text: one non-zero a line, its indices, then its value.

        Parameters
        ----------
        path : path
            May end in .gz. Lines that begin with ``#`` and empty lines are skipped, but for a
            ``# shape:`` line as `write_tns` leaves.
        shape : sequence of int, optional
            Sizes of the modes. Default: the file's ``# shape:`` line, else the largest indices.
        one_based : bool, optional
            Whether the indices begin at 1. Default: yes, as FROSTT has it, unless a 0 occurs.

        Raises
        ------
        DataError
            Naming the file and the line where one can be named.
        """
        table, declared = _parse_tns(Path(path))
        index = table[:, :-1]
        lowest = index.min()
        first = int(lowest >= 1) if one_based is None else int(one_based)
        if lowest < first:
            raise DataError(f"{path}: index {int(lowest)} in a file whose indices begin at {first}")
        zero_based = index - first
        size = shape or declared or (zero_based.max(axis=0) + 1).astype(int).tolist()
        return cls.from_coo(zero_based, table[:, -1], size)


def load_npz(path: str | Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Arrays of an .npz file, without pickles; `names` must be among them.

    Raises
    ------
    DataError
        If the file is missing, unreadable or lacks one of `names`.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except Exception as error:  # zipfile, zlib and NumPy each raise their own on damaged input
        raise DataError(f"{path}: not a readable .npz file ({type(error).__name__})") from None
    missing = [name for name in names if name not in arrays]
    if missing:
        raise DataError(f"{path}: lacks the array(s) {', '.join(missing)}; it has {sorted(arrays)}")
    return arrays


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        size = tuple(int(n) for n in shape)
        exact = all(float(n) == m for n, m in zip(shape, size, strict=True))
    except (TypeError, ValueError):
        raise DataError(f"shape: need a sequence of integers, got {shape!r}") from None
    if len(size) < 2:
        raise DataError(f"shape: need at least 2 modes (patients and one feature), got {len(size)}")
    if not exact or any(n < 1 or n > _MAX_MODE for n in size):
        raise DataError(f"shape: every size must be an integer in [1, {_MAX_MODE}], got {shape!r}")
    return size


def _checked_indices(indices: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.int32]:
    index = np.asarray(indices)
    if index.size == 0:
        return np.empty((0, len(shape)), np.int32)
    if index.ndim != 2 or index.shape[1] != len(shape):
        raise DataError(f"indices: need shape (entries, {len(shape)}), got {index.shape}")
    if not np.issubdtype(index.dtype, np.integer):
        if not np.issubdtype(index.dtype, np.floating):
            raise DataError(f"indices: need integers, got dtype {index.dtype}")
        if not np.isfinite(index).all() or (index != np.floor(index)).any():
            raise DataError("indices: not all are integers")
    for mode, size in enumerate(shape):
        outside = (index[:, mode] < 0) | (index[:, mode] >= size)
        if outside.any():
            raise DataError(
                f"indices: mode {mode} must lie in [0, {size}); {np.count_nonzero(outside)} "
                f"entries do not, the first at position {int(outside.argmax())}"
            )
    return np.ascontiguousarray(index, dtype=np.int32)


def _checked_values(values: ArrayLike, entries: int) -> NDArray[np.float32]:
    try:
        given = np.asarray(values)
        if given.dtype.kind not in "biuf":
            raise TypeError
        value = given.astype(np.float32)
    except (TypeError, ValueError):
        raise DataError("values: need numbers") from None
    if value.shape != (entries,):
        raise DataError(f"values: need shape ({entries},) to match indices, got {value.shape}")
    for wrong, what in ((~np.isfinite(value), "finite (float32)"), (value < 0, "non-negative")):
        if wrong.any():
            raise DataError(
                f"values: must be {what}; {np.count_nonzero(wrong)} are not, "
                f"the first at position {int(wrong.argmax())}"
            )
    return value


def _sorted_and_summed(
    index: NDArray[np.int32], value: NDArray[np.float32]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    if len(index) == 0:
        return index, value
    order = np.lexsort(index.T[::-1])
    index, value = index[order], value[order]
    first = np.empty(len(index), bool)
    first[0] = True
    np.any(index[1:] != index[:-1], axis=1, out=first[1:])
    if first.all():
        return index, value
    starts = np.flatnonzero(first)
    summed = np.add.reduceat(value, starts, dtype=np.float64).astype(np.float32)
    if not np.isfinite(summed).all():
        raise DataError("values: a sum of duplicate entries is too large for float32")
    return np.ascontiguousarray(index[starts]), summed


def _open_text(path: Path, mode: str) -> TextIO:
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, mode, encoding="utf-8"))
    return cast(TextIO, path.open(mode, encoding="utf-8"))


def _parse_tns(path: Path) -> tuple[NDArray[np.float64], list[int] | None]:
    """Table of the numbers in a .tns file, and its ``# shape:`` line if it has one."""
    try:
        with _open_text(path, "rt") as file:
            declared = _declared_shape(file)
            file.seek(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # "no data" is our error below
                table = np.loadtxt(file, comments="#", ndmin=2)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except ValueError as error:  # NumPy's text quotes the cell: keep only where it is
        where = re.search(r"at row \d+", str(error))
        raise DataError(
            f"{path}: {where[0] if where else 'somewhere'} (comments not counted), "
            "not as many numbers as in the first row, or not a number"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({type(error).__name__})") from None
    if table.size == 0:
        raise DataError(f"{path}: holds no entries")
    if table.shape[1] < 3:
        raise DataError(f"{path}: need at least 2 indices and a value a line")
    return table, declared


def _declared_shape(file: TextIO) -> list[int] | None:
    for line in file:
        if not line.startswith("#"):
            return None
        if line.startswith("# shape:"):
            return [int(n) for n in line.removeprefix("# shape:").split()]
    return None
