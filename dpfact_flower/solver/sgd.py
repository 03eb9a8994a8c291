"""Stochastic gradient steps: one visit of a cell moves one row of every factor; and their fit.

Two sets of kernels compute the same, `sgd_vector` and `sgd_plain`: see
`dpfact_flower.solver.choice`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpfact_flower.solver.choice import kernels
from dpfact_flower.solver.kernels import Array


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
    kernels("sgd").visit(stack, anchors, rows, counts, step)


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
    found: tuple[float, float] = kernels("sgd").fit(stack, indices, values, offsets)
    return found
