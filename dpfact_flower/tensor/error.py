"""The distance of a model from a tensor: sums of squared errors, and measures made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpfact_flower.errors import DataError
from dpfact_flower.tensor.sparse import SparseTensor


@dataclass(frozen=True)
class RMSE:
    """Three root mean square errors that must not be confused."""

    all_cells: float
    """Over every cell, zeros included: ||X - M|| / sqrt(cells)."""
    nonzeros: float | None
    """Over the non-zero cells alone; ignores the model's values elsewhere. None: not measured."""
    authors: float
    """||X - M|| / sqrt(nnz), as in the authors' published code; not a mean, only for
    reproduction."""


@dataclass(frozen=True)
class SquaredError:
    """Sums that determine every error measure; add the sums of several sites with ``+``.

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
        """Errors of a model; `all_cells` is at least `nonzeros`, whatever the rounding."""
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
        self._need_nonzeros("rmse")
        return RMSE(
            all_cells=math.sqrt(self.all_cells / self.cells),
            nonzeros=None if self.nonzeros is None else math.sqrt(self.nonzeros / self.nnz),
            authors=math.sqrt(self.all_cells / self.nnz),
        )

    @property
    def fit(self) -> float:
        """Fraction of the data explained, ``1 - ||X - M||^2 / ||X||^2``; may be negative.

        Norms are squared, as everywhere in this project. The Tensor Toolbox and pyttb use the same
        name for ``1 - ||X - M|| / ||X||``, which is smaller.
        """
        self._need_nonzeros("fit")
        return 1.0 - self.all_cells / self.data

    def _need_nonzeros(self, what: str) -> None:
        if self.nnz == 0:
            raise DataError(f"{what}: not defined for a tensor without non-zeros")
