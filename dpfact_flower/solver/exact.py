"""Block updates over all cells: the same objective as psgd's, without sampling or step size.

One iteration updates each factor once, from one sparse MTTKRP and the Gram matrices of the others.
Every update minimises eq. (norm) over a column, or over the whole factor, so the objective never
rises. A phenotype that is switched off (a zero column of A) has no pull on the features, which
then follow their anchors alone; it comes back only if its own gradient at zero, made with those
features, is longer than mu.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dpfact_flower.errors import DivergenceError
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver.kernels import Array, mttkrp
from dpfact_flower.solver.objective import (
    LocalResult,
    elastic,
    gram,
    group_norm,
    hadamard,
    loss,
)
from dpfact_flower.solver.prox import shrink_columns
from dpfact_flower.tensor import Factors, SparseTensor

_SWEEPS = 2
"""Column sweeps over a feature factor per MTTKRP: they cost little beside it."""

_PATIENT_SWEEPS = 4
"""Column sweeps over A per MTTKRP: far from one's best A, features learn to split phenotypes."""

_TINY = float(np.finfo(np.float32).tiny)
"""Curvature under which a column has no say in the model, and is left as it is."""

_RTOL = 1e-6
"""Eigenvalues of a Gram matrix, relative to the largest, that float32 sums can't tell from 0."""


def exact(
    tensor: SparseTensor,
    factors: Factors,
    anchors: Factors,
    settings: SolverSettings,
    rng: np.random.Generator,
    *,
    eta: float | None = None,
) -> LocalResult:
    """`settings.tau` iterations of block coordinate descent on eq. (norm).

    Arguments are those of `dpfact_flower.solver.solve`, which checks them; `rng` is not used.

    Raises
    ------
    DivergenceError
        If the objective leaves the range of float32 factors.
    """
    del rng
    floor = 0.0 if settings.nonnegative else -math.inf
    work = [np.maximum(factor, np.float32(floor)) for factor in factors]
    grams = [gram(factor) for factor in work]
    trace: list[float] = []

    def record(product: Array, factor: Array) -> None:
        inner = float(np.einsum("ir,ir->", product, factor, dtype=np.float64))
        value = loss(tensor, inner, grams) + settings.mu * group_norm(grams[0])
        trace.append(value + settings.gamma * elastic(work, anchors))
        if not math.isfinite(trace[-1]):
            raise DivergenceError(
                f"exact: the objective is not finite after {len(trace) - 1} iterations; "
                "the factors are too large for float32"
            )

    with np.errstate(over="ignore", invalid="ignore"):
        for iteration in range(settings.tau):
            for n in range(tensor.ndim):
                product = mttkrp(tensor, work, n)
                if n == 0 and iteration == 0:
                    record(product, work[0])
                q = hadamard(grams[:n] + grams[n + 1 :])
                if n == 0:
                    for _ in range(_PATIENT_SWEEPS):
                        work[0] = update_patients(work[0], product, q, settings.mu, floor)
                else:
                    work[n] = update_features(
                        work[n], product, q, anchors[n - 1], settings.gamma, floor
                    )
                grams[n] = gram(work[n])
            record(product, work[-1])
    step = settings.eta if eta is None else min(eta, settings.eta)
    return LocalResult(tuple(work), tuple(trace), step, 0)


def update_patients(
    A: NDArray[np.float32], product: Array, q: NDArray[np.float64], mu: float, floor: float
) -> NDArray[np.float32]:
    """Minimise eq. (patnorm) over one column of A after the other.

    Parameters
    ----------
    A : ndarray of float32, shape (patients, R)
    product : ndarray, shape (patients, R)
        MTTKRP of mode 0.
    q : ndarray of float64, shape (R, R)
        Hadamard product of the features' Gram matrices.
    mu, floor : float
        l2,1 weight; 0 for non-negativity or minus infinity.

    Returns
    -------
    ndarray of float32, shape (patients, R)
    """
    columns = np.ascontiguousarray(A.T)  # a column of A is one run of memory
    target = np.ascontiguousarray(product.T, dtype=np.float32)
    weights = q.astype(np.float32)
    for r, curvature in enumerate(np.diag(q)):
        if curvature > _TINY:
            best = columns[r] + (target[r] - weights[r] @ columns) / np.float32(curvature)
            np.maximum(best, np.float32(floor), out=best)
            columns[r] = shrink_columns(best[:, None], mu / curvature)[:, 0] if mu > 0 else best
        elif mu > 0:
            columns[r] = 0
    return np.ascontiguousarray(columns.T)


def update_features(
    factor: NDArray[np.float32],
    product: NDArray[np.float64],
    q: NDArray[np.float64],
    anchor: NDArray[np.float32],
    gamma: float,
    floor: float,
) -> NDArray[np.float32]:
    """Minimise eq. (obj_feature) over one feature factor.

    Without non-negativity this is the ridge solution ``(M + gamma F^)(Q + gamma I)^-1``, taken as
    a correction so that directions in which Q + gamma I is singular are left alone. With it, the
    columns are minimised over one after the other.

    Parameters
    ----------
    factor, anchor : ndarrays of float32, shape (I_n, R)
        Feature factor of the site, and the global one.
    product : ndarray of float64, shape (I_n, R)
        MTTKRP of this mode.
    q : ndarray of float64, shape (R, R)
        Hadamard product of the Gram matrices of the other modes.
    gamma, floor : float
        Elastic weight; 0 for non-negativity or minus infinity.

    Returns
    -------
    ndarray of float32, shape (I_n, R)
    """
    F = factor.astype(np.float64)
    target = product + gamma * anchor
    system = q + gamma * np.eye(len(q))
    if not math.isfinite(floor):
        if np.isfinite(system).all():
            F += (target - F @ system) @ scipy.linalg.pinvh(system, rtol=_RTOL)
        return F.astype(np.float32)
    for _ in range(_SWEEPS):
        for r, curvature in enumerate(np.diag(system)):
            if curvature > _TINY:
                best = F[:, r] + (target[:, r] - F @ system[:, r]) / curvature
                F[:, r] = np.maximum(best, floor)
    return F.astype(np.float32)
