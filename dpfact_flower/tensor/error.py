"""Errors of a model on a tensor: sums of squared errors, and measures computed from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpfact_flower.errors import DataError
from dpfact_flower.tensor.sparse import SparseTensor


@dataclass(frozen=True)
class RMSE:
    """Three root mean square errors that must not be confused."""

    all_cells: float
    """Error over all cells, zeros included: ||X - M|| / sqrt(cells)."""
    nonzeros: float | None
    """Error over the non-zero cells only, without the model's values elsewhere; None if not
    measured."""
    authors: float
    """||X - M|| / sqrt(nnz), as in the authors' published code. This number is not a mean, and
    serves only to reproduce their results."""


@dataclass(frozen=True)
class SquaredError:
    """The sums that determine every error measure. Add the sums of several sites with ``+``.

    `all_cells` is ||X - M||^2 and `data` is ||X||^2. `nonzeros` is the part of `all_cells` from the
    non-zero cells, or None if that part was not measured.
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
        """Return the errors of a model on a tensor. The total is at least the non-zeros' error."""
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
        """The three root mean square errors."""
        self._need_nonzeros()
        return RMSE(
            all_cells=math.sqrt(self.all_cells / self.cells),
            nonzeros=None if self.nonzeros is None else math.sqrt(self.nonzeros / self.nnz),
            authors=math.sqrt(self.all_cells / self.nnz),
        )

    @property
    def fit(self) -> float:
        """Fraction of the data explained, ``1 - ||X - M||^2 / ||X||^2``, possibly negative.

        The Tensor Toolbox and pyttb call ``1 - ||X - M|| / ||X||`` the fit, which is smaller.
        """
        self._need_nonzeros()
        return 1.0 - self.all_cells / self.data

    def _need_nonzeros(self) -> None:
        if self.nnz == 0:
            raise DataError("error: not defined for a tensor without non-zeros")
