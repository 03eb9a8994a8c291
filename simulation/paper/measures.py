"""Measures of a fit: errors, the AUC of each split, column norms, phenotype tables.

Death is predicted by logistic regression on 60 % of the patients and scored on the others. The
splits depend only on the data set, so two systems can be compared split by split. No factorisation
sees a label. The training patients determine how predictors are scaled.
"""

from collections.abc import Sequence
from dataclasses import asdict
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from dpfact_flower.data.site_data import DIED, Cohort, SiteData
from dpfact_flower.evaluation.membership import scores
from dpfact_flower.evaluation.prediction import (
    plain_regression,
    scaled_regression,
    split_scores,
    training_masks,
)
from dpfact_flower.evaluation.prevalence import phenotype_table
from dpfact_flower.settings import SolverSettings
from dpfact_flower.site.local_fit import scaled
from dpfact_flower.solver.exact import update_patients
from dpfact_flower.solver.mttkrp import mttkrp
from dpfact_flower.tensor import Factors, SparseTensor, SquaredError
from dpfact_flower.tensor.cp import CPModel, gram, hadamard
from simulation.baselines import Snapshot
from simulation.baselines.trip import least_squares_patients

TRAIN = 0.6
_SWEEPS = 30


def description(cohort: Cohort) -> dict[str, Any]:
    """Return a cohort's sizes. Deaths are None if a site has no labels."""
    sites = cohort.summary()
    deaths = [site.labelled.get(DIED) for site in sites]
    return {
        "sites": len(sites),
        "patients": sum(site.patients for site in sites),
        "codes": {vocabulary.name: len(vocabulary) for vocabulary in cohort.vocabularies},
        "cells": sum(site.nonzeros for site in sites),
        "deaths": None if None in deaths else sum(count or 0 for count in deaths),
    }


def trace(snapshot: Snapshot) -> dict[str, float]:
    """Return a point of the convergence figure."""
    rmse = snapshot.error.rmse
    return {"round": snapshot.round, **rmse._asdict(), "fit": snapshot.error.fit}


def projected(tensor: SparseTensor, features: Factors) -> NDArray[np.float32]:
    """Fit the patient factor by least squares. If no feature is negative, no result is either."""
    if any((factor < 0).any() for factor in features):
        return least_squares_patients(tensor, features)
    A = np.zeros((tensor.n_patients, features[0].shape[1]), np.float32)
    product = mttkrp(tensor, [A, *features], 0)
    weights = hadamard([gram(factor) for factor in features])
    for _ in range(_SWEEPS):
        A = update_patients(A, product, weights, 0.0, 0.0)
    return A


def shared_error(cohort: Cohort, features: Factors) -> SquaredError:
    """Return the error of the shared features alone, with every patient refitted."""
    errors = []
    for site in cohort.sites:
        tensor = scaled(site.tensor, SolverSettings())
        errors.append(CPModel.of(projected(tensor, features), *features).squared_error(tensor))
    return reduce(add, errors)


def memberships(model: Factors) -> NDArray[np.float64]:
    """Return a site's patient factor, rescaled so that feature columns have norm 1."""
    return CPModel.of(*model).with_unit_features().factors[0]


def death_scores(
    predictors: Sequence[Any],
    cohort: Cohort,
    splits: int,
    *,
    codes: bool = False,
    each_site: bool = True,
) -> dict[str, list[float]]:
    """Return the AUC of each split, for all patients (``overall``) and, if wanted, for each site.

    `predictors` has one array per site, of shape (patients, predictors). If `codes` is true, the
    predictors are sparse zeros and ones, which are not scaled.
    """
    sites = [site for site in cohort.sites if "died" in site.labels]
    if not predictors or len(sites) < len(cohort.sites) or splits == 0:
        return {}
    design: Any = (
        scipy.sparse.vstack(list(predictors), format="csr")
        if codes
        else np.concatenate(list(predictors))
    )
    died = np.concatenate([site.labels["died"] for site in sites])
    home = np.repeat(np.arange(len(sites)), [site.tensor.n_patients for site in sites])
    apart = len(sites) if each_site else 0
    names = ["overall", *(site.name for site in sites[:apart])]
    rows = [np.ones(len(died), bool), *(home == t for t in range(apart))]
    scores = split_scores(
        plain_regression if codes else scaled_regression, design, died, dict(enumerate(rows)),
        training_masks(2 * home + died, TRAIN, splits, seed=0),
    )  # fmt: skip
    return {names[key]: found for key, found in scores.items()}


def norms(models: Sequence[Factors]) -> list[list[float]]:
    """Return the column norms of every site's patient factor, (sites, phenotypes)."""
    return [np.linalg.norm(memberships(model), axis=0).tolist() for model in models]


def tables(models: Sequence[Factors], shared: Factors, cohort: Cohort) -> dict[str, Any]:
    """Return phenotype tables of all patients (shared features) and of each site (own features)."""
    everybody = phenotype_table(_scores(cohort.sites, shared), shared, cohort.sites)
    own = {
        site.name: phenotype_table(_scores([site], model[1:]), model[1:], [site])
        for site, model in zip(cohort.sites, models, strict=True)
    }
    return {
        "global": list(asdict(everybody)["phenotypes"]),
        "sites": {name: list(asdict(table)["phenotypes"]) for name, table in own.items()},
    }


def _scores(sites: Sequence[SiteData], features: Factors) -> list[NDArray[np.float64]]:
    nonnegative = not any((factor < 0).any() for factor in features)
    return [scores(site.tensor, features, nonnegative=nonnegative) for site in sites]


def codes_of(features: Factors, cohort: Cohort) -> list[dict[str, list[str]]]:
    """Return the five leading codes of every column by mode, as descriptions or codes."""
    found: list[dict[str, list[str]]] = [{} for _ in range(features[0].shape[1])]
    for vocabulary, factor in zip(cohort.vocabularies, features, strict=True):
        for own, column in zip(found, factor.T, strict=True):
            own[vocabulary.name] = [
                vocabulary.descriptions[at] or vocabulary.codes[at]
                for at in np.argsort(-np.abs(column), kind="stable")[:5].tolist()
                if column[at] != 0
            ]
    return found
