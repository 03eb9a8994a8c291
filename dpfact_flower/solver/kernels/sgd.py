"""Stochastic gradient steps: one visit of a cell moves one row of every factor; and their fit.

Two sets of kernels compute the same, in `vector` and in `plain`: see `choice`.
"""

from __future__ import annotations

from dpfact_flower.solver.kernels.choice import sgd_kernels
from dpfact_flower.solver.kernels.step import Step
from dpfact_flower.tensor.arrays import Array


def visit(stack: Array, anchors: Array, rows: Array, counts: Array, step: Step) -> None:
    """One stochastic gradient step per visit, in the order given; eqs. (ai), (bj).

    Parameters
    ----------
    stack : ndarray of float32, shape (sum of I_n, R padded)
        As of `dpfact_flower.tensor.stack.stack_factors`; updated in place.
    anchors : ndarray of float32, shape (sum of I_n but I_0, R padded)
        The stack of the global feature factors: row q belongs to row I_0 + q of `stack`.
    rows, counts : ndarrays (visits, N) of int32 and (visits,) of float32, C-contiguous
        Rows of `stack`, and the cell's count; of a sampled zero cell its weight, negative. That of
        an entry is 1, and a count of 0 moves nothing.
    step : Step

    Raises
    ------
    SettingsError
        If the environment asks for kernels that there are not.
    """
    sgd_kernels().visit(stack, anchors, rows, counts, step)


def squares(stack: Array, indices: Array, values: Array, offsets: Array) -> tuple[float, float]:
    """Squared error over the entries of a tensor, and their inner product <X, M> with the model.

    Parameters
    ----------
    stack : ndarray of float32, shape (sum of I_n, R padded)
        As of `dpfact_flower.tensor.stack.stack_factors`.
    indices, values : ndarrays (nnz, N) of int32 and (nnz,) of float32, C-contiguous
    offsets : ndarray of int64, shape (N + 1,)
        As of `dpfact_flower.tensor.stack.row_offsets`.

    Returns
    -------
    squares, inner : float
        The model's values are formed in float32, the sums in float64.

    Raises
    ------
    SettingsError
        As `visit`.
    """
    return sgd_kernels().squares(stack, indices, values, offsets)
