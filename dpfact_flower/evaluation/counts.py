"""How many patients have a phenotype, and how many of these carry its codes."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.evaluation.membership import leading_codes
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.arrays import distinct

SMALL = 10
"""Fewer patients than this are not told."""


@dataclass(frozen=True)
class PatientCounts:
    """Patients of one site, or of several: who has a phenotype, and who carries its codes.

    Attributes
    ----------
    patients : int
    has, led, carriers : ndarray of int, shape (R,)
        Who has it; of these, who carries a leading code of every mode; of all, who does.
    codes : tuple of ndarray of int, each (R, I_n)
        Who has it and carries a code.
    everybody : tuple of ndarray of int, each (I_n,)
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


def share(count: Count, patients: Count, least: int = SMALL) -> float | str:
    """A share of patients, unless it is of fewer than `least`."""
    return f"<{SMALL}" if count < least else float(count / patients)


def guarded(count: Count, patients: Count, least: int = SMALL) -> float | str | None:
    """As `share`, and ``all`` where fewer than `least` are left over; None of no patients."""
    if not patients:
        return None
    return "all" if patients - count < least <= count else share(count, patients, least)
