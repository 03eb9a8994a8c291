"""Define sparse count tensors in coordinate form, and a model's squared errors on them.

Mode 0 represents the patients. `SparseTensor` is the only tensor type inside the package.
`from_coo` validates indices and values, so other functions need not validate tensors. `as_tensor`
converts other libraries' tensors without importing those libraries.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfact_flower.errors import DataError

_MAX_MODE = np.iinfo(np.int32).max
_PART = 1 << 20
"""Number of entries converted to wider types at a time."""


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class SparseTensor:
    """A validated sparse tensor of counts with two or more modes.

    Use `from_coo` to build a tensor, because the constructor checks nothing. `indices` has one row
    per non-zero cell, with the patient in the first column. Rows are unique and in lexicographic
    order. `values` are positive and finite. Large counts are rounded to float32.
    """

    indices: NDArray[np.int32]
    values: NDArray[np.float32]
    shape: tuple[int, ...]

    @classmethod
    def from_coo(cls, indices: ArrayLike, values: ArrayLike, shape: Sequence[int]) -> SparseTensor:
        """Build a tensor from zero-based coordinates in any order and of any integer type.

        Duplicates are summed, and explicit zeros are dropped. If the input is invalid, the error
        states the violated rule and the first invalid position.
        """
        size = checked_shape(shape)
        index = _checked_indices(indices, size)
        return cls(*_sorted_and_summed(index, _checked_values(values, len(index))), size)

    def __repr__(self) -> str:
        # Show only the shape and the number of non-zeros, because a repr may end up in logs.
        return f"SparseTensor(shape={self.shape}, nnz={self.nnz})"

    def __len__(self) -> int:
        return self.n_patients

    def __getitem__(self, rows: Any) -> SparseTensor:
        # scikit-learn splits data by indexing rows, so patients are indexed like an array's rows.
        return self.select_patients(patient_rows(rows, self.n_patients))

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
        """Number of patients, the size of mode 0."""
        return self.shape[0]

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """Sizes of all modes except mode 0, which are the same at all sites."""
        return self.shape[1:]

    @property
    def cells(self) -> int:
        """Number of cells, including zeros."""
        return math.prod(self.shape)

    def norm_squared(self) -> float:
        """Return the squared Frobenius norm, summed in float64."""
        # BLAS is not used, because a BLAS sum depends on the number of threads.
        return math.fsum(
            float(np.square(self.values[part], dtype=np.float64).sum()) for part in self.parts()
        )

    def parts(self) -> Iterator[slice]:
        """Return slices of the non-zero cells, short enough that temporary arrays stay small."""
        return (slice(first, first + _PART) for first in range(0, self.nnz, _PART))

    def to_dense(self) -> NDArray[np.float64]:
        """Return a dense copy, for tests and small examples of up to ten million cells."""
        if self.cells > 10_000_000:
            raise DataError(f"refusing to densify {self.cells:,} cells (limit 10,000,000)")
        dense = np.zeros(self.shape)
        dense[tuple(self.indices.T)] = self.values
        return dense

    def select_patients(self, patients: ArrayLike) -> SparseTensor:
        """Return a tensor with only the given patients, in the given order."""
        rows = _positions("patients", patients, self.n_patients)
        renumbered = _renumbered(rows, self.n_patients)
        if np.count_nonzero(renumbered >= 0) != len(rows):
            raise DataError("patients: a row is listed twice")
        row = renumbered[self.indices[:, 0]]
        keep = row >= 0
        indices = self.indices[keep]
        indices[:, 0] = row[keep]
        order = np.argsort(indices[:, 0], kind="stable")
        shape = (len(rows), *self.feature_shape)
        return SparseTensor(indices[order], self.values[keep][order], shape)

    def select_features(self, positions: Sequence[ArrayLike]) -> SparseTensor:
        """Return a tensor with only the features at the given ascending positions of each mode."""
        if len(positions) != self.ndim - 1:
            raise DataError(
                f"features: need indices for {self.ndim - 1} modes, got {len(positions)}"
            )
        indices = self.indices.copy()
        inside = np.ones(self.nnz, np.bool_)
        for mode, chosen in enumerate(positions, start=1):
            rows = _positions(f"features: mode {mode}", chosen, self.shape[mode])
            if (np.diff(rows.astype(np.int64)) <= 0).any():
                raise DataError(f"features: mode {mode} needs ascending indices")
            indices[:, mode] = _renumbered(rows, self.shape[mode])[indices[:, mode]]
            inside &= indices[:, mode] >= 0
        # Ascending indices keep the order of the non-zeros.
        shape = (self.n_patients, *(len(np.asarray(chosen)) for chosen in positions))
        return SparseTensor(indices[inside], self.values[inside], shape)

    def scaled_to_unit_patients(self) -> SparseTensor:
        """Divide each patient's slice by its norm, so that all patients have equal influence."""
        norms, values = np.zeros(self.n_patients), np.empty_like(self.values)
        for part in self.parts():
            squares = np.square(self.values[part], dtype=np.float64)
            norms += np.bincount(self.indices[part, 0], squares, minlength=self.n_patients)
        np.sqrt(norms, out=norms)
        for part in self.parts():
            values[part] = self.values[part] / norms[self.indices[part, 0]]
        return SparseTensor(self.indices, values, self.shape)

    def fingerprint(self) -> str:
        """Return a SHA-256 hash that identifies the tensor: its shape, indices and values."""
        digest = hashlib.sha256(repr(self.shape).encode())
        for part in self.parts():
            digest.update(np.ascontiguousarray(self.indices[part], "<i4").data)
        for part in self.parts():
            digest.update(np.ascontiguousarray(self.values[part], "<f4").data)
        return digest.hexdigest()


class RMSE(NamedTuple):
    """Root mean square errors over all cells, and over non-zero cells (None: not measured)."""

    all_cells: float
    nonzeros: float | None


@dataclass(frozen=True)
class SquaredError:
    """Sums of squares that determine the error measures. Use ``+`` to add several sites' sums.

    For data X and a model M, `all_cells` is ||X - M||^2 and `data` is ||X||^2. `nonzeros` is the
    non-zero cells' part of `all_cells`, or None if this part was not measured.
    """

    all_cells: float
    nonzeros: float | None
    data: float
    cells: int
    nnz: int

    @classmethod
    def on(
        cls, tensor: SparseTensor, all_cells: float, nonzeros: float | None, data: float
    ) -> SquaredError:
        """Return the errors on a tensor, with `all_cells` increased to at least `nonzeros`."""
        least = nonzeros or 0.0
        return cls(max(all_cells, least), nonzeros, data, tensor.cells, tensor.nnz)

    def __add__(self, other: SquaredError) -> SquaredError:
        ours, theirs = self.nonzeros, other.nonzeros
        return SquaredError(
            self.all_cells + other.all_cells,
            None if ours is None or theirs is None else ours + theirs,
            self.data + other.data,
            self.cells + other.cells,
            self.nnz + other.nnz,
        )

    @property
    def rmse(self) -> RMSE:
        """The root mean square errors."""
        self._need_nonzeros()
        of_nonzeros = None if self.nonzeros is None else math.sqrt(self.nonzeros / self.nnz)
        return RMSE(math.sqrt(self.all_cells / self.cells), of_nonzeros)

    @property
    def fit(self) -> float:
        """Fraction of the data X that a model M explains, ``1 - ||X - M||^2 / ||X||^2``.

        The fit can be negative. Tensor Toolbox and pyttb use norms instead of squared norms.
        """
        self._need_nonzeros()
        return 1.0 - self.all_cells / self.data

    def _need_nonzeros(self) -> None:
        if self.nnz == 0:
            raise DataError("error: not defined for a tensor without non-zeros")


def as_tensor(value: Any) -> SparseTensor:
    """Convert another library's tensor of counts. The first mode must represent the patients.

    The input is a NumPy array, a scipy.sparse array, a pyttb tensor or a `sparse.COO` array.
    """
    if isinstance(value, SparseTensor):  # whose constructor checks nothing
        return SparseTensor.from_coo(value.indices, value.values, value.shape)
    if hasattr(value, "subs") and hasattr(value, "vals"):  # pyttb.sptensor
        return _of_coordinates(value.subs, value.vals, value.shape)
    if hasattr(value, "tocoo"):  # scipy.sparse
        value = value.tocoo()
    if hasattr(value, "coords") and hasattr(value, "data"):  # scipy.sparse, and sparse.COO
        if np.any(getattr(value, "fill_value", 0)):  # NaN counts as True
            raise DataError("tensor: the fill value must be 0")
        return _of_coordinates(np.transpose(np.asarray(value.coords)), value.data, value.shape)
    is_pyttb = type(value).__module__.partition(".")[0] == "pyttb"
    cells = np.asarray(value.data if is_pyttb else value)
    if np.ma.is_masked(value):
        raise DataError("tensor: need a number in every cell, but some are masked")
    if cells.dtype.kind not in "biuf":
        raise DataError(f"tensor: need numbers, got dtype {cells.dtype}")
    places = np.nonzero(cells)
    return SparseTensor.from_coo(np.transpose(places), cells[places], cells.shape)


def _of_coordinates(indices: Any, values: Any, shape: Any) -> SparseTensor:
    numbers = np.asarray(values).reshape(-1)
    places = np.asarray(indices).reshape(len(numbers), len(shape))
    return SparseTensor.from_coo(places, numbers, shape)


def patient_rows(rows: Any, patients: int) -> NDArray[np.int64]:
    """Return the row numbers of the patients that a NumPy index selects.

    `rows` is an array of row numbers, a mask, a slice, or a tuple ``(rows, ...)``.
    """
    try:
        if isinstance(rows, tuple) and len(rows) == 2 and rows[1] in (Ellipsis, slice(None)):
            rows = rows[0]
        selected: NDArray[np.int64] = np.asarray(np.arange(patients)[rows])
    except (IndexError, TypeError, ValueError):
        raise DataError(f"patients: need an index that fits {patients} patients") from None
    if selected.ndim != 1 or not len(selected):
        raise DataError("patients: need a slice, list or mask that selects at least one patient")
    return selected


def _as_array(field: str, value: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{field}: need numbers in rows of equal length") from None


def _positions(field: str, positions: ArrayLike, size: int) -> NDArray[Any]:
    """Convert positions to an array. Refuse an empty list, and positions outside [0, size)."""
    rows = _as_array(field, positions)
    if rows.ndim != 1 or rows.size == 0 or rows.dtype.kind not in "iu":
        raise DataError(f"{field}: need a one-dimensional list of integers that is not empty")
    if rows.min() < 0 or rows.max() >= size:
        raise DataError(f"{field}: must lie in [0, {size})")
    return rows


def _renumbered(positions: NDArray[Any], size: int) -> NDArray[np.int32]:
    """Return the new number of each row, or -1 for rows that are dropped."""
    numbers = np.full(size, -1, np.int32)
    numbers[positions] = np.arange(len(positions), dtype=np.int32)
    return numbers


def _refuse(wrong: NDArray[np.bool_], rule: str) -> None:
    """If entries are wrong, raise an error with their number and the first wrong position."""
    if wrong.any():
        raise DataError(
            f"{rule}; {np.count_nonzero(wrong)} entries break this, "
            f"the first at position {wrong.argmax()}"
        )


def checked_shape(shape: ArrayLike) -> tuple[int, ...]:
    """Return a tensor's shape as integers. Refuse a shape that no tensor can have."""
    size = _as_array("shape", shape)
    if (
        size.ndim != 1
        or len(size) < 2
        or size.dtype.kind not in "iuf"
        or not ((size >= 1) & (size <= _MAX_MODE) & (size == np.floor(size))).all()
    ):
        raise DataError(
            "shape: need at least 2 modes (patients and one feature), each of an integer size in "
            f"[1, {_MAX_MODE}]"
        )
    return tuple(int(n) for n in size)


def _checked_indices(indices: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.int32]:
    index = _as_array("indices", indices)
    if index.shape == (0,):
        return np.empty((0, len(shape)), np.int32)
    if index.ndim != 2 or index.shape[1] != len(shape):
        raise DataError(f"indices: need shape (entries, {len(shape)}), got {index.shape}")
    if index.dtype.kind not in "iuf":
        raise DataError(f"indices: need integers, got dtype {index.dtype}")
    if index.dtype.kind == "f":
        whole = np.isfinite(index) & (index == np.floor(index))
        _refuse(~whole.all(axis=1), "indices: must be integers")
    for mode, size in enumerate(shape):
        outside = (index[:, mode] < 0) | (index[:, mode] >= size)
        _refuse(outside, f"indices: mode {mode} must lie in [0, {size})")
    return index.astype(np.int32, order="C")


def _checked_values(values: ArrayLike, entries: int) -> NDArray[np.float32]:
    array = _as_array("values", values)
    if array.dtype.kind not in "biuf":
        raise DataError(f"values: need numbers, got dtype {array.dtype}")
    if array.shape != (entries,):
        raise DataError(f"values: need shape ({entries},) to match indices, got {array.shape}")
    single = _single(array)
    _refuse(~np.isfinite(single), "values: must be finite (float32)")
    # The original array is compared, because a tiny negative number becomes zero in float32.
    _refuse(array < 0, "values: must be non-negative")
    return single


def _single(value: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return value.astype(np.float32)


def _sorted_and_summed(
    index: NDArray[np.int32], value: NDArray[np.float32]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    if (value > 0).all() and _is_sorted(index):
        return index, value
    index, value = index[value > 0], value[value > 0]
    order = np.lexsort(index.T[::-1])
    index, value = index[order], value[order]
    first = np.ones(len(index), np.bool_)
    np.any(index[1:] != index[:-1], axis=1, out=first[1:])
    if first.all():
        return index, value
    starts = np.flatnonzero(first)
    summed = _single(np.add.reduceat(value, starts, dtype=np.float64))
    if not np.isfinite(summed).all():
        raise DataError("values: a sum of duplicate entries is too large for float32")
    return index[starts], summed


def _is_sorted(index: NDArray[np.int32]) -> bool:
    """Return whether the entries are unique and in lexicographic order."""
    rises = np.zeros(max(len(index) - 1, 0), np.bool_)
    for column in index.T[::-1]:
        rises = (column[:-1] < column[1:]) | ((column[:-1] == column[1:]) & rises)
    return bool(rises.all())
