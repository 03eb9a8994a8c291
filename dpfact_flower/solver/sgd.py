"""Stochastic gradient steps: one visit of a cell moves one row of every factor; and their fit.

Two sets of kernels compute the same: `sgd_vector`, which spells out vector instructions, and
`sgd_plain`, which leaves them to numba. They differ in the order of sums and so in rounding. The
first is taken where it compiles and is right; ``DPFACT_KERNELS=plain`` or ``vector`` decides.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from dpfact_flower.errors import SettingsError
from dpfact_flower.solver.kernels import Array

VARIABLE = "DPFACT_KERNELS"
"""Environment variable that chooses the kernels: auto, vector or plain."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """How one visit moves the rows it touches.

    Attributes
    ----------
    eta : float
        Step size.
    gamma : float
        Elastic weight. The pull to the anchors applies at entries, not at sampled zero cells.
    clip : float
        Bound on the 2-norm of a visit's data gradient for each row, weight included; 0 is none.
    zero_weight : float
        Weight of a sampled zero cell's gradient; that of an entry is 1.
    floor : float
        Least value of a factor: 0, or minus infinity for no bound.
    sequential : bool
        Whether each mode sees a residual made with the new rows of the modes before it.
    """

    eta: float
    gamma: float = 0.0
    clip: float = 0.0
    zero_weight: float = 1.0
    floor: float = 0.0
    sequential: bool = False

    def numbers(self) -> tuple[np.float32, ...]:
        """What a kernel takes: eta, gamma, clip, zero_weight and floor."""
        given = (self.eta, self.gamma, self.clip, self.zero_weight, self.floor)
        return tuple(map(np.float32, given))


class Kernels(Protocol):
    """A module of kernels."""

    def visit(self, stack: Array, anchors: Array, rows: Array, counts: Array, step: Step) -> None:
        """See `visit` below."""

    def fit(
        self, stack: Array, indices: Array, values: Array, offsets: Array
    ) -> tuple[float, float]:
        """See `fit` below."""


def visit(stack: Array, anchors: Array, rows: Array, counts: Array, step: Step) -> None:
    """One stochastic gradient step per visit, in the order given; eqs. (ai), (bj).

    Parameters
    ----------
    stack : ndarray of float32, shape (sum of I_n, R padded)
        As of `dpfact_flower.solver.kernels.stack_factors`; updated in place.
    anchors : ndarray of float32, shape (sum of I_n but I_0, R padded)
        The stack of the global feature factors: row q belongs to row I_0 + q of `stack`.
    rows, counts : ndarrays (visits, N) of int32 and (visits,) of float32, C-contiguous
        Rows of `stack`, and the cell's count. A count of 0 marks a sampled zero cell.
    step : Step

    Raises
    ------
    SettingsError
        If the environment asks for kernels that there are not.
    """
    _asked_for().visit(stack, anchors, rows, counts, step)


def fit(stack: Array, indices: Array, values: Array, offsets: Array) -> tuple[float, float]:
    """Squared error over the entries of a tensor, and their inner product <X, M> with the model.

    Parameters
    ----------
    stack : ndarray of float32, shape (sum of I_n, R padded)
        As of `dpfact_flower.solver.kernels.stack_factors`.
    indices, values : ndarrays (nnz, N) of int32 and (nnz,) of float32, C-contiguous
    offsets : ndarray of int64, shape (N + 1,)
        As of `dpfact_flower.solver.kernels.row_offsets`.

    Returns
    -------
    squares, inner : float
        The model's values are formed in float32, the sums in float64.

    Raises
    ------
    SettingsError
        As `visit`.
    """
    return _asked_for().fit(stack, indices, values, offsets)


def _asked_for() -> Kernels:
    return chosen(os.environ.get(VARIABLE, "auto"))


@functools.cache
def chosen(name: str) -> Kernels:
    """Kernels of a name; "auto" takes the vector kernels if they work on this machine.

    Raises
    ------
    SettingsError
        If there are none of that name.
    """
    if name not in {"auto", "vector", "plain"}:
        raise SettingsError(f"{VARIABLE}: must be auto, vector or plain; got {name!r}")
    if name == "auto":
        name = "vector" if _vectors_work() else "plain"
    return cast(Kernels, importlib.import_module(f"dpfact_flower.solver.sgd_{name}"))


def _vectors_work() -> bool:
    """Whether numba compiles vector code here, and it computes what it should."""
    try:
        vector: Any = importlib.import_module("dpfact_flower.solver.vector")
        works = bool(vector.works())
    except Exception as error:  # another numba, LLVM or processor fails in ways of its own
        logger.warning("vector kernels do not compile (%s): taking plain ones", error)
        return False
    if not works:
        logger.warning("vector kernels compute wrongly on this machine: taking plain ones")
    return works
