"""The door of the solvers: what goes in is checked once, whichever of them computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver.objective import LocalResult, elastic_weight
from dpfact_flower.solver.solvers import solvers
from dpfact_flower.tensor import Factors, SparseTensor


def solve(
    tensor: SparseTensor,
    factors: Factors,
    anchors: Factors,
    settings: SolverSettings,
    rng: np.random.Generator,
    *,
    eta: float | None = None,
) -> LocalResult:
    """One round's local work at a site: `settings.tau` passes on eq. (norm).

    Parameters
    ----------
    tensor : SparseTensor
        The site's counts; must not be empty.
    factors : tuple of N ndarrays, each (I_n, R)
        Where to start, patients first.
    anchors : tuple of N - 1 ndarrays, each (I_n, R)
        Global feature factors.
    settings : SolverSettings
    rng : numpy.random.Generator
        Order of the visits and sampled zero cells of psgd; exact draws nothing.
    eta : float, optional
        Step size to start from, carried from the previous round; capped at `settings.eta`.

    Raises
    ------
    DataError
        If the tensor is empty, or a factor or anchor is not finite or of the wrong shape.
    SettingsError
        If `eta` is not a positive number, or there is no solver of that name.
    DivergenceError
        If no step size makes the objective fall.
    """
    if tensor.nnz == 0:
        raise DataError("tensor: holds no non-zero cells, so there is nothing to fit")
    if eta is not None and not (math.isfinite(eta) and eta > 0):
        raise SettingsError(f"eta: the carried step size must be positive, got {eta!r}")
    start = _checked("factors", factors, tensor.shape, settings.rank)
    pulled_to = _checked("anchors", anchors, tensor.feature_shape, settings.rank)
    solver = solvers.find(settings.solver)
    settings = replace(settings, gamma=elastic_weight(tensor, start, settings))
    return solver(tensor, start, pulled_to, settings, rng, eta=eta)


def _checked(
    name: str, matrices: Sequence[NDArray[np.float32]], sizes: tuple[int, ...], rank: int
) -> Factors:
    if len(matrices) != len(sizes):
        raise DataError(f"{name}: need {len(sizes)} matrices, got {len(matrices)}")
    checked = []
    for n, (matrix, size) in enumerate(zip(matrices, sizes, strict=True)):
        if np.shape(matrix) != (size, rank):
            raise DataError(f"{name}[{n}]: need shape {(size, rank)}, got {np.shape(matrix)}")
        with np.errstate(over="ignore"):
            values = np.asarray(matrix, np.float32)
        if not np.isfinite(values).all():
            raise DataError(f"{name}[{n}]: not all values are finite (float32)")
        checked.append(values)
    return tuple(checked)
