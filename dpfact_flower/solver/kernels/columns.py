"""Block coordinate descent over the columns of a factor, exact for one column at a time.

The loops minimise ``1/2 tr(F Q F^T) - tr(F P^T) + mu * sum_r ||F_r||`` over ``F >= floor``. A
column's gradient needs all other columns, so a plain sweep over R columns would read the factor R
times. Instead, one matrix product gives the gradients of a *panel* of columns. Within the panel,
gradients are corrected for the columns that have changed.

The factor is transposed here, so a column is contiguous in memory.
"""

from __future__ import annotations

import numpy as np

from dpfact_flower.machine.compiled import compiled
from dpfact_flower.tensor.arrays import Array

PANEL = 8  # columns whose gradients come from one matrix product
LEAST_CURVATURE = float(np.finfo(np.float32).tiny)
"""Curvature below which a column has no effect on the model."""


def descend(columns: Array, target: Array, q: Array, mu: float, floor: float) -> None:
    """Sweep once over all columns, in place.

    A column without curvature has no effect on the model. Such a column becomes zero if there is an
    l2,1 weight, and stays unchanged otherwise. `columns` and `target` are the transposes of F and
    P. F, P and Q are all float32 or all float64. `floor` is 0 for non-negative factors and minus
    infinity otherwise.
    """
    for first in range(0, len(columns), PANEL):
        panel = slice(first, first + PANEL)
        gradient = q[panel] @ columns
        np.subtract(target[panel], gradient, out=gradient)
        _descend_panel(columns, gradient, q, first, mu, floor)


@compiled(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def _descend_panel(
    columns: Array, gradient: Array, q: Array, first: int, mu: float, floor: float
) -> None:
    """Minimise over the columns of a panel in turn; `first` is the panel's first column.

    `gradient` is ``target - q @ columns`` for the panel. Its values are overwritten.
    """
    real = columns.dtype.type
    rows = columns.shape[1]
    least = real(floor)
    for here in range(len(gradient)):
        r = first + here
        step = real(0)
        if q[r, r] > LEAST_CURVATURE:
            step = real(1 / q[r, r])
        elif mu <= 0:
            continue
        squares = 0.0
        for p in range(rows):
            best = columns[r, p] + step * gradient[here, p]
            best = least if best < least else best  # this form keeps NaN
            gradient[here, p] = best  # the gradient is no longer needed; keep the column here
            squares += np.float64(best * best)
        keep = real(1)
        if mu > 0:  # eq. (an2)
            norm = np.sqrt(squares)
            keep = real(max(norm - mu / q[r, r], 0.0) / norm) if step > 0 and norm > 0 else real(0)
        for p in range(rows):
            new = keep * gradient[here, p]
            gradient[here, p] = new - columns[r, p]
            columns[r, p] = new
        for later in range(here + 1, len(gradient)):
            pull = q[first + later, r]
            for p in range(rows):
                gradient[later, p] -= pull * gradient[here, p]
