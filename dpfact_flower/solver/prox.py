"""The proximal operator of the l2,1 norm, which switches phenotypes off; eqs. (an2), (prox)."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_Float = TypeVar("_Float", bound=np.floating[Any])


def shrink_columns(
    A: NDArray[_Float], threshold: float, out: NDArray[_Float] | None = None
) -> NDArray[_Float]:
    """Shorten every column by `threshold`; columns no longer than that become zero.

    This is the proximal operator of ``threshold * ||A^T||_{2,1}``: the minimiser over Theta of
    ``1/2 ||Theta - A||_F^2 + threshold * sum_r ||Theta_r||``. After a gradient step of size eta on
    eq. (norm) the threshold is eta * mu. (The paper's eq. (prox) has mu, which is the operator for
    another weight, mu / eta.) With non-negativity, project first: projecting, then shrinking, is
    the operator of the sum of both.

    Parameters
    ----------
    A : ndarray of float, shape (patients, R)
    threshold : float, at least 0
    out : ndarray of A's shape and dtype, optional
        Where the result goes; may be A.

    Returns
    -------
    ndarray of A's dtype, shape (patients, R)
        `out`, or a new array.
    """
    norms = np.sqrt(np.einsum("ir,ir->r", A, A, dtype=np.float64))
    kept = np.maximum(norms - threshold, 0) / np.where(norms > 0, norms, 1)
    shrunk: NDArray[_Float] = np.multiply(A, kept.astype(A.dtype), out=out)
    return shrunk
