"""Block coordinate descent over the columns of a factor: one column after the other, exactly.

Minimises ``1/2 tr(F Q F^T) - tr(F P^T) + mu * sum_r ||F_r||`` over ``F >= floor``. A column's
gradient needs all the others, so a sweep over R columns would read the factor R times. Instead the
gradients of a *panel* of columns are made at once, by one matrix product, and corrected within the
panel for the columns that have changed since.

Everything here has the factor transposed, so that a column is one run of memory.
"""

from __future__ import annotations

import numpy as np

from dpfact_flower.machine.compiled import compiled
from dpfact_flower.tensor.arrays import Array

PANEL = 8
"""Columns whose gradients are made by one matrix product."""

LEAST_CURVATURE = float(np.finfo(np.float32).tiny)
"""Curvature under which a column has no say in the model."""


def descend(columns: Array, target: Array, q: Array, mu: float, floor: float) -> None:
    """One sweep over all columns, in place.

    A column without curvature has no say in the model: it stays as it is, but for an l2,1 weight,
    which makes it zero. `columns` and `target` are F and P, transposed; they and Q are all float32
    or all float64. `floor` is 0 for non-negativity or minus infinity.
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
    """Minimise over the columns of a panel from `first` on, one after the other.

    `gradient` is ``target - q @ columns`` for the panel, and is overwritten.
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
            best = least if best < least else best  # in this form a NaN stays one
            gradient[here, p] = best  # no longer needed: room for the new column
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
