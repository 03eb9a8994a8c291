"""Coherence of a phenotype: whether its leading codes occur in the same patients.

Coherence is computed from patients' data. A site's own value stays at the site. A simulation's
value is in its summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from dpfact_flower.evaluation.clinical import DRAWS, dealt, leading_five
from dpfact_flower.evaluation.membership import leading_codes, mode_presence
from dpfact_flower.evaluation.summary import Coherence
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.cp import unit_columns


def coherence(features: Sequence[NDArray[Any]], tensors: Iterable[SparseTensor]) -> Coherence:
    """Return the mean coherence of the phenotypes in these patients, and that of dealt models.

    A phenotype's coherence is the mean of the normalised pointwise mutual information (NPMI) of all
    pairs of its leading codes: 1 if two codes always occur together, 0 as by chance, -1 if they
    never do. At most five codes of each mode lead, each with at least a third of the mode's largest
    weight. Smaller weights are mostly noise.
    """
    patients, together = _counts(tensors)
    model = tuple(unit_columns(factor.astype(np.float64)) for factor in features)
    rng = np.random.default_rng(0)
    chance = [_mean(dealt(model, rng), patients, together) for _ in range(DRAWS)]
    return Coherence(_mean(model, patients, together), float(np.mean(chance)))


def npmi(together: NDArray[np.float64], patients: int) -> NDArray[np.float64]:
    """Return the NPMI of each pair of codes.

    `together` counts the patients with both codes, and on its diagonal those with one code. The
    NPMI of two codes that no patient has together is -1, even if one of the codes never occurs.
    """
    both = together / patients
    alone = np.diag(both)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(both / np.outer(alone, alone)) / -np.log(both)
    found[both == 0] = -1.0
    found[both == 1] = 1.0
    return np.asarray(found)


def _counts(tensors: Iterable[SparseTensor]) -> tuple[int, Any]:
    """Count all patients, and the patients with each pair of codes (sparse, over all modes)."""
    patients, products = 0, []
    for tensor in tensors:
        modes = [mode_presence(tensor, mode) for mode in range(1, tensor.ndim)]
        present = scipy.sparse.hstack(modes, format="csr")
        patients += tensor.n_patients
        products.append(present.T @ present)
    return patients, reduce(add, products).tocsr()


def _mean(model: Sequence[NDArray[Any]], patients: int, together: Any) -> float:
    """Return the mean coherence of the phenotypes with two leading codes or more."""
    leading = np.concatenate([leading_five(factor) & leading_codes(factor) for factor in model])
    found = []
    for codes in map(np.flatnonzero, leading.T):
        if len(codes) > 1:
            square = npmi(together[codes][:, codes].toarray(), patients)
            found.append(square[np.triu_indices(len(codes), k=1)].mean())
    return float(np.mean(found)) if found else 0.0
