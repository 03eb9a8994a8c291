"""Define loss functions for single cells, as in generalised CP (Hong, Kolda & Duersch 2020).

Each loss's gradient is compiled into the kernels, so that the kernels need not look up the loss.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfact_flower.errors import SettingsError
from dpfact_flower.machine.registry import Registry
from dpfact_flower.settings import SolverSettings
from dpfact_flower.tensor import SparseTensor

_EPS = 1e-10
"""Constant added to the model's value in logarithms and quotients, as in Hong, Kolda & Duersch."""
CellFunction = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Loss:
    """A loss f(x, m), where x is a cell's value and m is the model's value for this cell."""

    name: str
    value: CellFunction
    """The function f, which takes two numbers or two arrays."""
    gradient: CellFunction
    """The derivative df/dm of two numbers. Numba compiles it. It must not be huge at (0, 0)."""
    nothing: Callable[[float], float]
    """Function that returns the value of a trivial constant model, given the mean of the data."""
    counts: bool = True
    """Whether the loss is a likelihood of counts. If so, counts must not be scaled per patient."""
    binary: bool = False
    """Whether the loss uses only presence or absence, coded as 1 or 0."""
    positive: bool = True
    """Whether the model must be non-negative."""

    @property
    def is_squared(self) -> bool:
        """Whether the loss over all cells can be computed from Gram matrices and non-zero cells."""
        return self is squared

    @property
    def is_own(self) -> bool:
        """Whether this module defines the gradient. If so, numba may cache the kernels."""
        return self.gradient.__module__ == __name__

    def check(self, settings: SolverSettings) -> None:
        """Refuse settings that cannot be used with this loss."""
        if self.positive and not settings.nonnegative:
            raise SettingsError(
                f"loss: {self.name!r} needs a non-negative model: set nonnegative to true"
            )
        if self.counts and settings.scale != "counts":
            raise SettingsError(
                f"loss: {self.name!r} is a likelihood of counts: set scale to 'counts'; "
                f"got {settings.scale!r}"
            )

    def prepared(self, tensor: SparseTensor) -> SparseTensor:
        """Return the tensor, with every count replaced by 1 if the loss is binary."""
        if not self.binary:
            return tensor
        return SparseTensor(tensor.indices, np.ones_like(tensor.values), tensor.shape)

    def of_nothing(self, tensor: SparseTensor) -> float:
        """Return the total loss of a model whose value in every cell is ``nothing(mean)``."""
        values = tensor.values.astype(np.float64)
        model = self.nothing(float(values.sum()) / tensor.cells)
        zeros = (tensor.cells - tensor.nnz) * float(self.value(0.0, model))
        return float(self.value(values, model).sum()) + zeros


squared = Loss(
    "squared",
    value=lambda x, m: 0.5 * (m - x) ** 2,
    gradient=lambda x, m: m - x,
    nothing=lambda mean: 0.0,
    counts=False,
    positive=False,
)
poisson = Loss(
    "poisson",
    value=lambda x, m: m - x * np.log(m + _EPS),
    gradient=lambda x, m: 1 - x / (m + _EPS),
    nothing=lambda mean: mean,
)
bernoulli = Loss(
    "bernoulli",  # m is the odds that the cell is not zero
    value=lambda x, m: np.log1p(m) - x * np.log(m + _EPS),
    gradient=lambda x, m: 1 / (1 + m) - x / (m + _EPS),
    nothing=lambda mean: mean / max(1 - mean, _EPS),
    binary=True,
)

losses: Registry[Loss] = Registry(
    "loss", "dpfact_flower.solver.losses", squared=squared, poisson=poisson, bernoulli=bernoulli
)
"""Losses that a run config can name."""
