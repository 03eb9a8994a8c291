"""Patients fitted to feature factors that stay as they are, as by a hospital that joins later."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.machine.threads import one_blas_thread
from dpfact_flower.solver.exact import update_patients
from dpfact_flower.solver.mttkrp import mttkrp
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.cp import gram, hadamard

_SWEEPS = 30


def fitted_patients(
    tensor: SparseTensor, features: Factors, *, nonnegative: bool = True
) -> NDArray[np.float32]:
    """Least squares of every patient on given feature factors, by coordinate descent.

    Parameters
    ----------
    tensor : SparseTensor
    features : tuple of N - 1 ndarrays of float32, each (I_n, R)
    nonnegative : bool

    Returns
    -------
    ndarray of float32, shape (patients, R)
    """
    patients = np.zeros((tensor.n_patients, features[0].shape[1]), np.float32)
    floor = 0.0 if nonnegative else -np.inf
    with one_blas_thread:
        product = mttkrp(tensor, (patients, *features), 0)
        weights = hadamard([gram(factor) for factor in features])
        return update_patients(patients, product, weights, 0.0, floor, sweeps=_SWEEPS)
