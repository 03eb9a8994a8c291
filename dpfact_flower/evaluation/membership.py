"""Who has a phenotype: the one rule behind every table, page and file; and counts of patients.

A patient's record is scaled to norm 1 and fitted to the shared phenotypes, whose columns have norm
1. So a score does not depend on how many codes a patient has: 0 is nothing of the phenotype, 1 a
record that is nothing else. The rule was found on tuning halves (``simulation.studies.who_has``).
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
"""A patient has a phenotype if their score is above this."""
LEADING = 1 / 3
"""A phenotype's leading codes weigh at least so much of the largest code of their mode."""
SMALL = 10
"""Counts of patients below this are hidden."""


def scores(
    tensor: SparseTensor,
    features: Factors,
    *,
    nonnegative: bool = True,
    norms: NDArray[np.floating[Any]] | None = None,
) -> NDArray[np.float64]:
    """How much of each phenotype each patient has, (patients, R); it must not leave the site.

    `norms` are the `column_norms` of the whole model, where `features` holds some of its rows.
    """
    fitted = fitted_patients(tensor.scaled_to_unit_patients(), features, nonnegative=nonnegative)
    return np.asarray(fitted * (column_norms(features) if norms is None else norms))


def column_norms(features: Factors) -> NDArray[np.float64]:
    """Product over the modes of each component's column norms, shape (R,)."""
    return np.asarray(
        np.prod([np.linalg.norm(factor.astype(np.float64), axis=0) for factor in features], axis=0)
    )


def column_shares(factor: NDArray[Any]) -> NDArray[Any]:
    """A factor's entries as shares of their columns' absolute sums."""
    sums = np.abs(factor).sum(axis=0)
    return np.asarray(factor / np.where(sums > 0, sums, 1.0))


def has_phenotype(scores: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Whether each patient has each phenotype, from their `scores`."""
    return np.asarray(np.abs(scores) > LEAST_SCORE)


def leading_codes(factor: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Which codes of a mode lead each phenotype, shape (I_n, R)."""
    weights = np.abs(factor)
    return np.asarray((weights > 0) & (weights >= LEADING * weights.max(axis=0)))


# --- Counts of patients ---------------------------------------------------------------------------


@dataclass(frozen=True)
class PatientCounts:
    """Patients of one site, or of several: who has a phenotype, and who carries its codes.

    Of each phenotype, so many patients have it (`has`), so many of these carry a leading code of
    every mode (`led`), and so many of all patients do (`carriers`). By mode, `codes` (R, I_n)
    counts patients who have the phenotype and carry a code, `everybody` (I_n,) all who carry it.
    """

    patients: int
    has: NDArray[np.int64]
    led: NDArray[np.int64]
    carriers: NDArray[np.int64]
    codes: tuple[NDArray[np.int64], ...]
    everybody: tuple[NDArray[np.int64], ...]

    @classmethod
    def of(cls, site: SiteData, has: NDArray[np.bool_], features: Factors) -> PatientCounts:
        """Count one site's patients; `has` is of `has_phenotype`, shape (patients, R)."""
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
    """Which patient has which code of a mode: a sparse array of ones, (patients, I_n)."""
    size = tensor.shape[mode]
    pairs = distinct(tensor.indices[:, 0].astype(np.int64) * size + tensor.indices[:, mode])
    shape, ones = (tensor.n_patients, size), np.ones(len(pairs))
    return scipy.sparse.csr_array((ones, (pairs // size, pairs % size)), shape=shape)


Count = int | np.integer[Any]


def share(count: Count, patients: Count) -> float | str:
    """A share of patients, unless it is of few."""
    return f"<{SMALL}" if count < SMALL else float(count / patients)


def guarded(count: Count, patients: Count) -> float | str | None:
    """As `share`, and ``all`` where few are left over; None of no patients."""
    if not patients:
        return None
    return "all" if patients - count < SMALL <= count else share(count, patients)
