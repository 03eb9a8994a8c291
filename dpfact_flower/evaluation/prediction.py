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
    by site and label, so that all figures of a split share their test patients. The regression
    takes `evened` memberships. These and volume are scaled by mean and
    standard deviation of the training patients; the regressions are scikit-learn's, with its
    default L2 penalty.

    For the overall figure, the columns of `patient_factors` must mean the same at every site, in
    the same unit. Sites without the label are left out.
    """
    labelled = [t for t, site in enumerate(sites) if label in site.labels]
    found = _areas(labelled, patient_factors, sites, label) if labelled else {}

    def group(key: int, name: str, of: Sequence[int]) -> GroupAUC:
        patients = sum(len(sites[t]) for t in of)
        if not patients:
            return GroupAUC(name, 0, reason="no labels")
        reason = None if found[key] else f"fewer than {FEWEST} patients with or without it"
        return GroupAUC(name, patients, **found[key], reason=reason)

    return OutcomePrediction(
        group(_OVERALL, "overall", labelled),
        tuple(group(t, site.name, [t] if t in labelled else []) for t, site in enumerate(sites)),
        SPLITS,
        TRAIN,
    )


def _areas(
    labelled: Sequence[int],
    memberships: Sequence[ArrayLike],
    sites: Sequence[SiteData],
    label: str,
) -> dict[int, dict[str, AUC]]:
    """Of each group of patients, by its key, each kind of predictor's AUC; none of a small one."""
    tensors = [sites[t].tensor for t in labelled]
    own = [np.asarray(memberships[t], np.float64) for t in labelled]
    kinds: dict[str, tuple[Callable[[], Any], Any]] = {
        "memberships": (scaled_regression, evened(np.concatenate(own))),
        "raw_codes": (
            plain_regression,
            scipy.sparse.vstack([code_presence(tensor) for tensor in tensors], format="csr"),
        ),
        "volume": (scaled_regression, np.concatenate([code_volume(tensor) for tensor in tensors])),
    }
    labels = np.concatenate([sites[t].labels[label] for t in labelled])
    home = np.repeat(labelled, [tensor.n_patients for tensor in tensors])
    groups = {_OVERALL: np.ones(len(labels), bool), **{t: home == t for t in labelled}}
    areas: dict[int, dict[str, AUC]] = {key: {} for key in groups}
    for kind, (model, predictors) in kinds.items():
        masks = training_masks(2 * home + labels, TRAIN, SPLITS, seed=0)
        for key, of_splits in split_scores(
            model, predictors, labels, groups, masks, FEWEST
        ).items():
            areas[key][kind] = AUC(float(np.mean(of_splits)), float(np.std(of_splits, ddof=1)))
    return areas


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
        return [tested(groups[key] & training, groups[key] & ~training) for key in scores]

    def tested(training: NDArray[np.bool_], testing: NDArray[np.bool_]) -> float:
        train, test = np.flatnonzero(training), np.flatnonzero(testing)
        fitted = model().fit(predictors[train], labels[train])
        return float(roc_auc_score(labels[test], fitted.decision_function(predictors[test])))

    with one_blas_thread:  # the many small regressions take twice as long on two
        for of_split in in_order(split, masks, threads=thread_count()):
            for key, score in zip(scores, of_split, strict=True):
                scores[key].append(score)
    return scores


def evened(memberships: NDArray[Any]) -> NDArray[Any]:
    """Fourth roots of memberships, which are skewed; the power was chosen on tuning halves."""
    return np.asarray(np.abs(memberships) ** 0.25)


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
