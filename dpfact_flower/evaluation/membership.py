"""The rule that assigns phenotypes to patients, and counts of patients.

A patient's record is scaled to norm 1 and fitted to the shared phenotypes, whose columns have norm
1. Therefore a score does not depend on the number of a patient's codes. With a score of 1 the
record consists of the phenotype alone. The rule was chosen on tuning halves
(``simulation.studies.who_has``).
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.solver.exact import fitted_patients
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.arrays import distinct

LEAST_SCORE = 0.15
"""A patient with a score above this threshold has the phenotype."""
LEADING = 1 / 3
"""A leading code of a phenotype has at least this share of the largest weight in its mode."""
SMALL = 10
"""Counts of patients below this are hidden."""


def scores(
    tensor: SparseTensor,
    features: Factors,
    *,
    nonnegative: bool = True,
    norms: NDArray[np.floating[Any]] | None = None,
) -> NDArray[np.float64]:
    """Return each patient's score for each phenotype, (patients, R). Scores stay at the site.

    `norms` are the `column_norms` of the whole model, if `features` has only some of its rows.
    """
    fitted = fitted_patients(tensor.scaled_to_unit_patients(), features, nonnegative=nonnegative)
    return np.asarray(fitted * (column_norms(features) if norms is None else norms))


def column_norms(features: Factors) -> NDArray[np.float64]:
    """Return the product over the modes of each component's column norms, shape (R,)."""
    return np.asarray(
        np.prod([np.linalg.norm(factor.astype(np.float64), axis=0) for factor in features], axis=0)
    )


def column_shares(factor: NDArray[Any]) -> NDArray[Any]:
    """Return a factor's entries as shares of their columns' absolute sums."""
    sums = np.abs(factor).sum(axis=0)
    return np.asarray(factor / np.where(sums > 0, sums, 1.0))


def has_phenotype(scores: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Return whether each patient has each phenotype."""
    return np.asarray(np.abs(scores) > LEAST_SCORE)


def leading_codes(factor: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Return which codes of a mode lead each phenotype, shape (I_n, R)."""
    weights = np.abs(factor)
    return np.asarray((weights > 0) & (weights >= LEADING * weights.max(axis=0)))


# --- Counts of patients ---------------------------------------------------------------------------


@dataclass(frozen=True)
class PatientCounts:
    """Counts of one or more sites' patients who have each phenotype or carry its codes.

    `carriers` counts all patients who carry a leading code of every mode of a phenotype, `has`
    those who have the phenotype, and `led` both. For each mode, `codes` (R, I_n) counts the
    patients who have a phenotype and carry a code, and `everybody` (I_n,) all who carry a code.
    """

    patients: int
    has: NDArray[np.int64]
    led: NDArray[np.int64]
    carriers: NDArray[np.int64]
    codes: tuple[NDArray[np.int64], ...]
    everybody: tuple[NDArray[np.int64], ...]

    @classmethod
    def of(cls, site: SiteData, has: NDArray[np.bool_], features: Factors) -> PatientCounts:
        """Count one site's patients. `has` comes from `has_phenotype`, shape (patients, R)."""
        carrying = np.ones_like(has)
        codes, everybody = [], []
        for mode, factor in enumerate(features, start=1):
            present = mode_presence(site.tensor, mode)
            carrying &= present @ leading_codes(factor).astype(np.float64) > 0
            codes.append(np.asarray(has.T.astype(np.float64) @ present).astype(np.int64))
            everybody.append(np.asarray(present.sum(axis=0)).astype(np.int64))
        return cls(
            len(has), has.sum(axis=0), (has & carrying).sum(axis=0), carrying.sum(axis=0),
            tuple(codes), tuple(everybody),
        )  # fmt: skip

    def __add__(self, other: PatientCounts) -> PatientCounts:
        return PatientCounts(
            self.patients + other.patients,
            self.has + other.has,
            self.led + other.led,
            self.carriers + other.carriers,
            tuple(map(add, self.codes, other.codes)),
            tuple(map(add, self.everybody, other.everybody)),
        )


def mode_presence(tensor: SparseTensor, mode: int) -> Any:
    """Return a sparse array of ones that marks each patient's codes of a mode, (patients, I_n)."""
    size = tensor.shape[mode]
    pairs = distinct(tensor.indices[:, 0].astype(np.int64) * size + tensor.indices[:, mode])
    shape, ones = (tensor.n_patients, size), np.ones(len(pairs))
    return scipy.sparse.csr_array((ones, (pairs // size, pairs % size)), shape=shape)


Count = int | np.integer[Any]


def share(count: Count, patients: Count) -> float | str:
    """Return a share of patients, or a text such as ``<10`` for a small count."""
    return f"<{SMALL}" if count < SMALL else float(count / patients)


def guarded(count: Count, patients: Count) -> float | str | None:
    """Return `share`, ``all`` if few patients are left over, or None if there are no patients."""
    if not patients:
        return None
    return "all" if patients - count < SMALL <= count else share(count, patients)
