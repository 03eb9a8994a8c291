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
from dpfact_flower.evaluation.membership import mode_presence
from dpfact_flower.evaluation.summary import AUC, GroupAUC, OutcomePrediction
from dpfact_flower.machine.threads import in_order, one_blas_thread, thread_count
from dpfact_flower.tensor import SparseTensor

MOST_PREDICTED = 100_000
"""Patients that a simulation's regressions take at most: more hardly change a figure, and their
codes would take more memory than the data."""
SPLITS = 10
"""Repetitions."""
TRAIN = 0.6
"""Share of the patients that train."""
FEWEST = 5
"""A group with fewer patients of either label gets no figures."""
_ITERATIONS = 2000
_OVERALL = -1
"""Key of the group of all patients, beside the sites' numbers."""


def predict_outcome(
    patient_factors: Sequence[ArrayLike], sites: Sequence[SiteData], label: str = DIED
) -> OutcomePrediction:
    """Predict a label by logistic regression, repeatedly split 60 to 40.

    The paper's section Utility. Each split is drawn once over the patients of all sites, stratified
    by site and label, so that all figures of a split share their test patients. Memberships are
    skewed, so the regression takes their square roots. These and volume are scaled by mean and
    standard deviation of the training patients; the regressions are scikit-learn's, with its
    default L2 penalty.

    For the overall figure, the columns of `patient_factors` must mean the same at every site, in
    the same unit. Sites without the label are left out.
    """
    memberships = [np.asarray(factor, np.float64) for factor in patient_factors]
    labelled = [t for t, site in enumerate(sites) if label in site.labels]
    if not labelled:
        nobody = GroupAUC("overall", 0, reason="no labels")
        return OutcomePrediction(nobody, tuple(map(_unlabelled, sites)), SPLITS, TRAIN)
    labels = np.concatenate([sites[t].labels[label] for t in labelled])
    home = np.repeat(labelled, [sites[t].tensor.n_patients for t in labelled])
    rows = {_OVERALL: np.ones(len(labels), bool), **{t: home == t for t in labelled}}
    strata = 2 * home + labels
    scores = {
        name: split_scores(
            _MODELS[name], predictors, labels, rows,
            training_masks(strata, TRAIN, SPLITS, seed=0), FEWEST,
        )
        for name, predictors in _predictors(labelled, memberships, sites).items()
    }  # fmt: skip

    def group(key: int, name: str) -> GroupAUC:
        patients = int(rows[key].sum())
        if key not in scores["memberships"]:
            return GroupAUC(
                name, patients, reason=f"fewer than {FEWEST} patients with or without it"
            )
        aucs = {kind: _area(of_groups[key]) for kind, of_groups in scores.items()}
        return GroupAUC(name, patients, aucs["memberships"], aucs["raw_codes"], aucs["volume"])

    return OutcomePrediction(
        group(_OVERALL, "overall"),
        tuple(
            group(t, site.name) if t in rows else _unlabelled(site) for t, site in enumerate(sites)
        ),
        SPLITS,
        TRAIN,
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

    `model` makes a new scikit-learn classifier, and `masks` are those of `training_masks`. Each
    group is trained and tested on its own patients alone; one with fewer than `least` patients of
    either label is left out.
    """
    fewest = {key: np.bincount(labels[rows], minlength=2).min() for key, rows in groups.items()}
    scores: dict[int, list[float]] = {key: [] for key in groups if fewest[key] >= least}

    def split(training: NDArray[np.bool_]) -> list[float]:
        return [_score(model(), predictors, labels, groups[key], training) for key in scores]

    with one_blas_thread:  # the many small regressions take twice as long on two
        for of_split in in_order(split, masks, threads=thread_count()):
            for key, score in zip(scores, of_split, strict=True):
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
    """Which codes a patient has, as ones, all feature modes side by side."""
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
    """Masks of the training patients, one per repetition; each stratum is split alike.

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
