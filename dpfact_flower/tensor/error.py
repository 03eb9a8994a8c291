"""A model's errors on a tensor: sums of squared errors, and measures computed from the sums."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpfact_flower.errors import DataError
from dpfact_flower.tensor.sparse import SparseTensor


@dataclass(frozen=True)
class RMSE:
    """Two root mean square errors that must not be confused."""

    all_cells: float
    """Error over all cells, zeros included: ||X - M|| / sqrt(cells)."""
    nonzeros: float | None
    """Error over the non-zero cells only, whatever the model's values elsewhere, or None if this
    error was not measured."""


@dataclass(frozen=True)
class SquaredError:
    """The sums that determine every error measure. Use ``+`` to add the sums of several sites.

    `all_cells` is ||X - M||^2 and `data` is ||X||^2. `nonzeros` is the contribution of the non-zero
    cells to `all_cells`, or None if it was not measured.
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
        """Return errors on a tensor. Rounding cannot make `all_cells` smaller than `nonzeros`."""
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
        return RMSE(
            all_cells=math.sqrt(self.all_cells / self.cells),
            nonzeros=None if self.nonzeros is None else math.sqrt(self.nonzeros / self.nnz),
        )

    @property
    def fit(self) -> float:
        """Fraction of the data that the model explains, ``1 - ||X - M||^2 / ||X||^2``.

        The fit can be negative. Tensor Toolbox and pyttb define it as ``1 - ||X - M|| / ||X||``.
        """
        self._need_nonzeros()
        return 1.0 - self.all_cells / self.data

    def _need_nonzeros(self) -> None:
        if self.nnz == 0:
            raise DataError("error: not defined for a tensor without non-zeros")
