"""Who has a phenotype: the one rule behind every table, page and file.

A patient's record is scaled to norm 1 and fitted to the shared phenotypes, whose columns have norm
1. So a score does not depend on how many codes a patient has: 0 is nothing of the phenotype, 1 a
record that is nothing else. The rule was found on tuning halves (``simulation.studies.who_has``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.solver.exact import fitted_patients
from dpfact_flower.tensor import Factors, SparseTensor

LEAST_SCORE = 0.15
"""A patient has a phenotype if their score is above this."""
LEADING = 1 / 3
"""A phenotype's leading codes weigh at least so much of the largest code of their mode."""


def scores(
    tensor: SparseTensor,
    features: Factors,
    *,
    nonnegative: bool = True,
    norms: NDArray[np.floating[Any]] | None = None,
) -> NDArray[np.float64]:
    """How much of each phenotype each patient has; a patient's row must not leave the site.

    Parameters
    ----------
    tensor : SparseTensor
    features : tuple of N - 1 ndarrays of float32, each (I_n, R)
    nonnegative : bool
    norms : ndarray, shape (R,), optional
        Product of the columns' norms in the whole model, where `features` holds some of its rows.

    Returns
    -------
    ndarray of float64, shape (patients, R)
    """
    found = fitted_patients(tensor.scaled_to_unit_patients(), features, nonnegative=nonnegative)
    return np.asarray(found * (column_norms(features) if norms is None else norms))


def column_norms(features: Factors) -> NDArray[np.float64]:
    """Product over the modes of each component's column norms, shape (R,)."""
    return np.asarray(
        np.prod([np.linalg.norm(factor.astype(np.float64), axis=0) for factor in features], axis=0)
    )


def has_phenotype(found: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Whether each patient has each phenotype, from their `scores`."""
    return np.asarray(np.abs(found) > LEAST_SCORE)


def leading_codes(factor: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Which codes of a mode lead each phenotype, shape (I_n, R)."""
    weights = np.abs(factor)
    return np.asarray((weights > 0) & (weights >= LEADING * weights.max(axis=0)))
