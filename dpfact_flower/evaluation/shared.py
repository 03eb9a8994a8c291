"""What the shared factors explain by themselves, and what it is no feat to explain.

A site's own model has feature factors of its own, so its fit can't be compared with that of a
system whose sites share theirs; and where sites hold few patients, it is mostly chance. Here every
patient is refitted to the shared factors alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add

import numpy as np

from dpfact_flower.solver.error import squared_error
from dpfact_flower.solver.exact import fitted_patients
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.error import SquaredError


def shared_error(
    tensors: Iterable[SparseTensor], features: Factors, *, nonnegative: bool = True
) -> SquaredError:
    """Squared error over all patients, each refitted to the features.

    Parameters
    ----------
    tensors : iterable of SparseTensor
        Of the sites, scaled as the run scales them.
    features : tuple of ndarray of float32, each (I_n, R)
    nonnegative : bool
    """
    errors = []
    for tensor in tensors:
        patients = fitted_patients(tensor, features, nonnegative=nonnegative)
        errors.append(squared_error(tensor, (patients, *features)))
    return reduce(add, errors)


def code_frequencies(tensors: Iterable[SparseTensor]) -> Factors:
    """One component with every code's share in the data: what is known before any learning.

    Returns
    -------
    tuple of ndarray of float32, each (I_n, 1)
        Of norm 1.
    """
    counts = (
        [
            np.bincount(tensor.indices[:, mode], tensor.values, minlength=size)
            for mode, size in enumerate(tensor.feature_shape, start=1)
        ]
        for tensor in tensors
    )
    sums = [reduce(add, of_mode) for of_mode in zip(*counts, strict=True)]
    tiny = np.finfo(float).tiny
    return tuple(
        (total / max(float(np.linalg.norm(total)), tiny)).astype(np.float32)[:, None]
        for total in sums
    )
