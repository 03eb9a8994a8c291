"""Count the phenotypes that could be named.

The count replaces a clinician who reads a phenotype's leading codes. A code of the first mode and
one of the second are *tied* if at least twice as many patients have both as expected by chance. A
phenotype's *ties* are the weighted share of tied pairs among the phenotype's leading codes (five
per mode). A phenotype could be *named* if its ties are at least a half, and its cosine to every
other named phenotype is below a half.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.settings import SolverSettings
from dpfact_flower.site.local_fit import scaled
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.arrays import distinct
from simulation.paper.measures import death_scores, projected
from simulation.systems import unit_columns

_LEADING = 5
_LIFT, _HALF = 2.0, 0.5
_FEWEST, _SHARE = 3, 1 / 3_000
"""Number and share of patients below which a pair's frequency counts as chance."""
_SPLITS = 5


def tied(tensor: SparseTensor) -> NDArray[np.bool_]:
    """Return a mask of the tied pairs of codes, with a row per code of the first feature mode."""
    first, second = tensor.feature_shape[:2]
    patients, rows, columns = tensor.indices[:, :3].astype(np.int64).T
    pair = distinct((patients * first + rows) * second + columns) % (first * second)
    together = np.bincount(pair, minlength=first * second).reshape(first, second)
    alone = [
        np.bincount(distinct(patients * size + codes) % size, minlength=size)
        for size, codes in ((first, rows), (second, columns))
    ]
    chance = np.outer(*alone) / tensor.n_patients
    enough = together >= max(_FEWEST, _SHARE * tensor.n_patients)
    return np.asarray(enough & (together >= _LIFT * chance))


def ties(model: Factors, pairs: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the share of tied pairs among each phenotype's leading codes, shape (phenotypes,)."""
    shares = []
    for factor in model[:2]:
        leading = np.sort(factor, axis=0)[-_LEADING:][0]
        kept = np.where(factor >= leading, factor, 0).astype(np.float64)
        shares.append(kept / kept.sum(axis=0))
    return np.asarray(np.einsum("jr,jk,kr->r", shares[0], pairs.astype(np.float64), shares[1]))


def likeness(model: Factors) -> NDArray[np.float64]:
    """Return the cosines between phenotypes, shape (phenotypes, phenotypes)."""
    grams = [factor.T.astype(np.float64) @ factor for factor in unit_columns(model)]
    return np.asarray(np.multiply.reduce(grams))


def named(model: Factors, pairs: NDArray[np.bool_]) -> int:
    """Return the number of phenotypes that could be named."""
    strength, alike = ties(model, pairs), likeness(model)
    counted: list[int] = []
    for r in np.argsort(-strength, kind="stable").tolist():
        if strength[r] >= _HALF and (alike[r, counted] < _HALF).all():
            counted.append(r)
    return len(counted)


def auc(cohort: Cohort, model: Factors) -> float:
    """Return the AUC of predicting death from a model's memberships, or NaN without labels."""
    sites: list[Any] = [
        projected(scaled(site.tensor, SolverSettings()), model) for site in cohort.sites
    ]
    found = death_scores(sites, cohort, _SPLITS).get("overall")
    return float(np.mean(found)) if found else float("nan")
