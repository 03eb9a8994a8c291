"""Predict an outcome from phenotype scores and, for comparison, from codes alone.

Outcomes can be predicted well from the number of a patient's codes, and to some degree even from
random factors. Results therefore include two baselines: each patient's set of codes, and each
patient's sum of counts. Scores stay at the sites, so only simulations have an AUC over all sites.
"""

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
from dpfact_flower.evaluation.tables import SMALL
from dpfact_flower.machine.threads import in_order, one_blas_thread
from dpfact_flower.tensor import SparseTensor

MOST_PREDICTED = 100_000
"""Maximum number of patients in a simulation's regressions. More patients would hardly change the
AUCs, and the matrix of their codes would need more memory than the data."""
SPLITS = 10
TRAIN = 0.6  # share of the patients
_OVERALL = -1
"""Key of the group of all patients. The other keys are site numbers."""


def predict_outcome(
    patient_factors: Sequence[ArrayLike], sites: Sequence[SiteData], label: str = DIED
) -> OutcomePrediction:
    """Predict a label by logistic regression on repeated 60/40 splits, as in the DPFact paper.

    Sites without the label get no AUC. All predictors use the same splits, stratified by site and
    label. If no site has two patients with label 1, or none has two with label 0, splits ignore the
    sites. Each column of `patient_factors` must belong to the same phenotype at all sites.
    """
    labelled = [t for t, site in enumerate(sites) if label in site.labels]
    found = _areas(labelled, patient_factors, sites, label) if labelled else {}

    def group(key: int, name: str, of: Sequence[int]) -> GroupAUC:
        patients = sum(len(sites[t]) for t in of)
        if not patients:
            return GroupAUC(name, 0, reason="no labels")
        reason = None if found[key] else f"fewer than {SMALL} patients with it, or without it"
        return GroupAUC(name, patients, **found[key], reason=reason)

    return OutcomePrediction(
        group(_OVERALL, "overall", labelled),
        tuple(group(t, site.name, [t] if t in labelled else []) for t, site in enumerate(sites)),
        SPLITS,
        TRAIN,
    )


def _areas(
    labelled: Sequence[int], memberships: Sequence[ArrayLike], sites: Sequence[SiteData], label: str
) -> dict[int, dict[str, AUC]]:
    """Return each predictor's AUC for each group of patients. Small groups have no AUC."""
    tensors = [sites[t].tensor for t in labelled]
    own = [np.asarray(memberships[t], np.float64) for t in labelled]
    kinds: dict[str, tuple[Callable[[], Any], Any]] = {
        "memberships": (scaled_regression, evened(np.concatenate(own))),
        "raw_codes": (plain_regression, scipy.sparse.vstack([*map(code_presence, tensors)], "csr")),
        "volume": (scaled_regression, np.concatenate([*map(code_volume, tensors)])),
    }
    labels = np.concatenate([sites[t].labels[label] for t in labelled])
    home = np.repeat(labelled, [tensor.n_patients for tensor in tensors])
    groups = {_OVERALL: np.ones(len(labels), bool), **{t: home == t for t in labelled}}
    areas: dict[int, dict[str, AUC]] = {key: {} for key in groups}
    strata = 2 * home + labels
    sizes = np.bincount(strata, minlength=2)
    if 1 in (sizes[::2].max(), sizes[1::2].max()):  # else, no test patient has (or lacks) it
        strata = labels
    for kind, (model, predictors) in kinds.items():
        masks = training_masks(strata, TRAIN, SPLITS, seed=0)
        for key, of_splits in split_scores(model, predictors, labels, groups, masks).items():
            areas[key][kind] = AUC(float(np.mean(of_splits)), float(np.std(of_splits, ddof=1)))
    return areas


def split_scores(
    model: Callable[[], Any],
    predictors: Any,
    labels: NDArray[np.int8],
    groups: Mapping[int, NDArray[np.bool_]],
    masks: Iterable[NDArray[np.bool_]],
) -> dict[int, list[float]]:
    """For each group of patients, return one AUC per split, computed on the test patients.

    `model` creates an unfitted scikit-learn classifier. The result omits a group if fewer than
    `SMALL` of its patients have the outcome, or if fewer than `SMALL` lack the outcome.
    """
    fewest = {key: np.bincount(labels[rows], minlength=2).min() for key, rows in groups.items()}
    scores: dict[int, list[float]] = {key: [] for key in groups if fewest[key] >= SMALL}

    def split(training: NDArray[np.bool_]) -> list[float]:
        return [tested(groups[key] & training, groups[key] & ~training) for key in scores]

    def tested(training: NDArray[np.bool_], testing: NDArray[np.bool_]) -> float:
        train, test = np.flatnonzero(training), np.flatnonzero(testing)
        fitted = model().fit(predictors[train], labels[train])
        return float(roc_auc_score(labels[test], fitted.decision_function(predictors[test])))

    with one_blas_thread:  # many small regressions take twice as long on two threads
        for of_split in in_order(split, masks):
            for key, score in zip(scores, of_split, strict=True):
                scores[key].append(score)
    return scores


def evened(memberships: NDArray[Any]) -> NDArray[Any]:
    """Reduce the skew of the scores by taking the fourth roots of their absolute values."""
    return np.asarray(np.abs(memberships) ** 0.25)


def code_presence(tensor: SparseTensor) -> scipy.sparse.csr_array:
    """Return a 0/1 matrix with one row per patient and one column per code."""
    modes = [mode_presence(tensor, mode) for mode in range(1, tensor.ndim)]
    return scipy.sparse.csr_array(scipy.sparse.hstack(modes))


def code_volume(tensor: SparseTensor) -> NDArray[np.float64]:
    """Return log(1 + each patient's sum of counts), as an array of shape (patients, 1)."""
    return np.log1p(np.bincount(tensor.indices[:, 0], tensor.values, tensor.n_patients))[:, None]


def scaled_regression() -> Any:
    """Return a logistic regression on standardised predictors."""
    return make_pipeline(StandardScaler(), plain_regression())


def plain_regression() -> Any:
    """Return a logistic regression that does not scale its predictors, which are 0 or 1."""
    return LogisticRegression(max_iter=2000)


def training_masks(
    strata: NDArray[np.int64], train: float, splits: int, seed: int
) -> Iterator[NDArray[np.bool_]]:
    """Yield `splits` masks, each of which selects a random fraction `train` of every stratum.

    scikit-learn's stratified splits are unsuitable, because a stratum may have a single patient.
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
