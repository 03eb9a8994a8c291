"""Assign phenotypes to patients by a fixed rule.

A patient's scores are the coefficients of a least-squares fit of the phenotypes to the patient's
record. Records and phenotypes are scaled to norm 1, so patients with many codes do not have larger
scores. A score of 1 means that the record consists of the phenotype alone.
"""

from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from dpfact_flower.solver.exact import fitted_patients
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.arrays import distinct
from dpfact_flower.tensor.cp import column_weights

LEAST_SCORE = 0.15
"""A patient with a score above this threshold has the phenotype."""
LEADING = 1 / 3
"""A leading code has at least this share of the largest weight in its mode."""


def scores(
    tensor: SparseTensor, features: Factors, *, nonnegative: bool = True
) -> NDArray[np.float64]:
    """Return patients' scores, of shape (patients, phenotypes). Scores must not leave the site."""
    fitted = fitted_patients(tensor.scaled_to_unit_patients(), features, nonnegative=nonnegative)
    norms = column_weights(tuple(factor.astype(np.float64) for factor in features))
    return np.asarray(fitted * norms)


def column_shares(factor: NDArray[Any]) -> NDArray[Any]:
    """Divide each entry of a factor by the sum of the absolute values in the entry's column."""
    sums = np.abs(factor).sum(axis=0)
    return np.asarray(factor / np.where(sums > 0, sums, 1.0))


def has_phenotype(scores: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Return a mask of the phenotypes that each patient has."""
    return np.asarray(np.abs(scores) > LEAST_SCORE)


def leading_codes(factor: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Return a mask (codes, phenotypes) of each phenotype's leading codes in one mode."""
    weights = np.abs(factor)
    return np.asarray((weights > 0) & (weights >= LEADING * weights.max(axis=0)))


def mode_presence(tensor: SparseTensor, mode: int) -> Any:
    """Return a sparse array of shape (patients, codes), with a 1 for each code of each patient."""
    size = tensor.shape[mode]
    pairs = distinct(tensor.indices[:, 0].astype(np.int64) * size + tensor.indices[:, mode])
    shape, ones = (tensor.n_patients, size), np.ones(len(pairs))
    return scipy.sparse.csr_array((ones, (pairs // size, pairs % size)), shape=shape)
