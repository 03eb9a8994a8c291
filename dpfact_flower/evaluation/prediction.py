"""How well patient factors predict an outcome, beside what predicts it without them.

An area under the curve (AUC) alone says nothing about phenotypes: the sheer number of a patient's
codes predicts much too, and random sparse factors do so a little. Every AUC here therefore appears
beside two others from the same splits: logistic regression on the raw codes, and on code volume.

Patient factors never leave a site, and no privacy guarantee covers a model trained on them. The
overall figure, which pools all sites' patients, is for simulations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpfact_flower.data.site_data import DIED, SiteData
from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.counts import mode_presence
from dpfact_flower.evaluation.summary import AUC, GroupAUC, OutcomePrediction
from dpfact_flower.machine.threads import in_order, one_blas_thread, thread_count
from dpfact_flower.tensor import SparseTensor

MOST_PREDICTED = 100_000
"""Patients that a simulation's regressions take at most: more hardly change a figure, and their
codes would take more memory than the data."""
_ITERATIONS = 2000
_OVERALL = -1
"""Key of the group of all patients, beside the sites' numbers."""


def predict_outcome(
    patient_factors: Sequence[ArrayLike],
    sites: Sequence[SiteData],
    label: str = DIED,
    *,
    splits: int = 10,
    train: float = 0.6,
    least: int = 5,
    seed: int = 0,
) -> OutcomePrediction:
    """Predict a label by logistic regression, repeatedly split 60 to 40.

    The paper's section Utility. Each split is drawn once over the patients of all sites, stratified
    by site and label, so that all figures of a split share their test patients. Memberships are
    skewed, so the regression takes their square roots. These and volume are scaled by mean and
    standard deviation of the training patients; the regressions are scikit-learn's, with its
    default L2 penalty.

    Parameters
    ----------
    patient_factors : sequence of (I_t, R) arrays
        One per site, in the sites' order. For the overall figure their columns must mean the same
        at every site, in the same unit.
    sites : sequence of SiteData
        Sites without the label are left out.
    label : str
        Its name.
    splits : int
        Repetitions, at least 2 for a spread.
    train : float
        Share of the patients that train, in (0, 1).
    least : int
        A group with fewer patients of either label gets no figures; at least 2.
    seed : int
        Of the splits.

    Raises
    ------
    DataError
        If the factors do not fit the sites, or an argument is out of range.
    """
    whole = type(splits) is int and type(least) is int
    if not whole or splits < 2 or least < 2 or not 0 < train < 1:
        raise DataError(
            "prediction: need splits >= 2 and least >= 2, whole numbers, and train in (0, 1); "
            f"got {splits}, {least}, {train}"
        )
    memberships = _checked(patient_factors, sites)
    labelled = [t for t, site in enumerate(sites) if label in site.labels]
    if not labelled:
        nobody = GroupAUC("overall", 0, reason="no labels")
        return OutcomePrediction(nobody, tuple(map(_unlabelled, sites)), splits, train)
    labels = np.concatenate([sites[t].labels[label] for t in labelled])
    home = np.repeat(labelled, [sites[t].tensor.n_patients for t in labelled])
    rows = {_OVERALL: np.ones(len(labels), bool), **{t: home == t for t in labelled}}
    strata = 2 * home + labels
    scores = {
        name: split_scores(
            _MODELS[name], predictors, labels, rows,
            training_masks(strata, train, splits, seed), least,
        )
        for name, predictors in _predictors(labelled, memberships, sites).items()
    }  # fmt: skip

    def group(key: int, name: str) -> GroupAUC:
        patients = int(rows[key].sum())
        if key not in scores["memberships"]:
            return GroupAUC(
                name, patients, reason=f"fewer than {least} patients with or without it"
            )
        aucs = {kind: _area(found[key]) for kind, found in scores.items()}
        return GroupAUC(name, patients, aucs["memberships"], aucs["raw_codes"], aucs["volume"])

    return OutcomePrediction(
        group(_OVERALL, "overall"),
        tuple(
            group(t, site.name) if t in rows else _unlabelled(site) for t, site in enumerate(sites)
        ),
        splits,
        train,
    )


def split_scores(
    model: Callable[[], Any],
    predictors: Any,
    labels: NDArray[np.int8],
    groups: Mapping[int, NDArray[np.bool_]],
    masks: Iterable[NDArray[np.bool_]],
    least: int,
) -> dict[int, list[float]]:
    """AUC on the test patients of each split, for each group of patients by itself.

    Parameters
    ----------
    model : callable
        Makes a new scikit-learn classifier, such as `scaled_regression`.
    predictors : array or sparse array, shape (patients, p)
    labels : ndarray of 0 and 1, shape (patients,)
    groups : mapping of key to ndarray of bool, shape (patients,)
        Which patients are in a group; it is trained and tested on these alone.
    masks : iterable of ndarray of bool, shape (patients,)
        The training patients of each split, as `training_masks` gives them.
    least : int
        A group with fewer patients of either label is left out.

    Returns
    -------
    dict of key to list of float
        One AUC per split.
    """
    fewest = {key: np.bincount(labels[rows], minlength=2).min() for key, rows in groups.items()}
    scores: dict[int, list[float]] = {key: [] for key in groups if fewest[key] >= least}

    def split(training: NDArray[np.bool_]) -> list[float]:
        return [_score(model(), predictors, labels, groups[key], training) for key in scores]

    with one_blas_thread:  # the many small regressions take twice as long on two
        for found in in_order(split, masks, threads=thread_count()):
            for key, score in zip(scores, found, strict=True):
                scores[key].append(score)
    return scores


def _score(
    model: Any,
    predictors: Any,
    labels: NDArray[np.int8],
    group: NDArray[np.bool_],
    training: NDArray[np.bool_],
) -> float:
    """AUC on the patients of a group who do not train."""
    train, test = np.flatnonzero(group & training), np.flatnonzero(group & ~training)
    fitted = model.fit(predictors[train], labels[train])
    return float(roc_auc_score(labels[test], fitted.decision_function(predictors[test])))


def code_presence(tensor: SparseTensor) -> scipy.sparse.csr_array:
    """Which codes a patient has, all feature modes side by side.

    Returns
    -------
    csr_array of float64, shape (patients, sum of the feature modes' sizes)
        1 where any cell of the patient has the code, else empty.
    """
    modes = [mode_presence(tensor, mode) for mode in range(1, tensor.ndim)]
    return scipy.sparse.csr_array(scipy.sparse.hstack(modes))


def code_volume(tensor: SparseTensor) -> NDArray[np.float64]:
    """Logarithm of one plus the sum of each patient's counts; shape (patients, 1)."""
    total = np.bincount(tensor.indices[:, 0], tensor.values, tensor.n_patients)
    return np.log1p(total)[:, None]


def scaled_regression() -> Any:
    """Logistic regression of predictors scaled by mean and deviation of the training patients."""
    return make_pipeline(StandardScaler(), plain_regression())


def plain_regression() -> Any:
    """Logistic regression of predictors as they are, for those that are 0 or 1."""
    return LogisticRegression(max_iter=_ITERATIONS)


_MODELS: dict[str, Callable[[], Any]] = {
    "memberships": scaled_regression,
    "raw_codes": plain_regression,
    "volume": scaled_regression,
}


def _checked(
    patient_factors: Sequence[ArrayLike], sites: Sequence[SiteData]
) -> list[NDArray[np.float64]]:
    if not sites or len(patient_factors) != len(sites):
        raise DataError(
            f"patient factors: need one for each of {len(sites)} sites, got {len(patient_factors)}"
        )
    factors = [np.asarray(factor, np.float64) for factor in patient_factors]
    for site, factor in zip(sites, factors, strict=True):
        if factor.ndim != 2 or len(factor) != site.tensor.n_patients:
            raise DataError(
                f"patient factors: site {site.name} needs {site.tensor.n_patients} rows, "
                f"got shape {factor.shape}"
            )
        if factor.shape[1] != factors[0].shape[1] or not np.isfinite(factor).all():
            raise DataError(f"patient factors: site {site.name}'s rank differs, or not all finite")
    return factors


def _predictors(
    labelled: Sequence[int], memberships: Sequence[NDArray[np.float64]], sites: Sequence[SiteData]
) -> dict[str, Any]:
    """Predictors of all patients of labelled sites, site after site, by name."""
    tensors = [sites[t].tensor for t in labelled]
    return {
        "memberships": np.concatenate([np.sqrt(np.abs(memberships[t])) for t in labelled]),
        "raw_codes": scipy.sparse.vstack(list(map(code_presence, tensors)), format="csr"),
        "volume": np.concatenate(list(map(code_volume, tensors))),
    }


def training_masks(
    strata: NDArray[np.int64], train: float, splits: int, seed: int
) -> Iterator[NDArray[np.bool_]]:
    """Masks of the training patients, one per repetition.

    Parameters
    ----------
    strata : ndarray of int, shape (patients,)
        Each is split alike.
    train : float
        Share of the patients that train.
    splits, seed : int
        Repetitions, and what they are drawn from: equal arguments give equal masks.

    Notes
    -----
    scikit-learn's stratified splits refuse a stratum of one patient; here it trains or tests.
    A stratum of two patients or more has some on either side.
    """
    rng = np.random.default_rng(seed)
    for _ in range(splits):
        training = np.zeros(len(strata), bool)
        for stratum in np.unique(strata):
            rows = rng.permutation(np.flatnonzero(strata == stratum))
            count = round(train * len(rows))
            if len(rows) > 1:
                count = min(max(count, 1), len(rows) - 1)
            training[rows[:count]] = True
        yield training


def _area(scores: Sequence[float]) -> AUC:
    """Mean and spread of one AUC per split, two or more."""
    return AUC(float(np.mean(scores)), float(np.std(scores, ddof=1)))


def _unlabelled(site: SiteData) -> GroupAUC:
    return GroupAUC(site.name, 0, reason="no labels")
