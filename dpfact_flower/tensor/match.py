"""Similarity of two CP models: a one-to-one matching of their components, and a score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfact_flower.errors import DataError
from dpfact_flower.tensor.arrays import Floats
from dpfact_flower.tensor.cp import (
    CPModel,
    Matrices,
    checked_matrices,
    column_weights,
    unit_columns,
)

Factorised = CPModel | Sequence[ArrayLike]
"""A model, or factors in the same order."""


@dataclass(frozen=True)
class Match:
    """A one-to-one matching of the components of two models, with min(R) pairs.

    Pair p consists of component ``estimate[p]`` of the first model and ``truth[p]`` of the second,
    ordered by `truth`. `cosines` is the product, over the modes, of the matched columns' cosines.
    """

    estimate: NDArray[np.intp]
    truth: NDArray[np.intp]
    cosines: NDArray[np.float64]


def match_columns(estimate: Factorised, truth: Factorised) -> Match:
    """Match components so that the sum of their cosine products is largest (Hungarian method).

    The greedy scores of pyttb and the Tensor Toolbox give the same sum or a smaller one. A column
    of zeros has cosine 0 with every column. Signs count, as in the paper, so a model that is
    compared without one of its modes should be non-negative.

    Both arguments are models, or sequences of factors such as the feature factors alone. The sizes
    must agree, but the ranks may differ.
    """
    similarity = reduce(np.multiply, map(column_cosines, *_comparable(estimate, truth)))
    # Importing scipy.optimize takes 0.1 s or more, and a site never matches models.
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415

    rows, columns = linear_sum_assignment(similarity, maximize=True)
    order = np.argsort(columns)
    rows, columns = rows[order], columns[order]
    return Match(rows, columns, similarity[rows, columns])


def factor_match_score(estimate: Factorised, truth: Factorised) -> float:
    """Return the factor match score (FMS) of two models: 1 means equal, and 0 means unrelated.

    The formula is from the paper's section Privacy. After `match_columns`, the score is the mean
    over components of ``(1 - |xi - xi'| / max(xi, xi'))`` times the product of the columns'
    cosines. Here xi is the product of a component's column norms. The factor with xi is included
    for two models and left out for sequences of factors, because a component's scale is arbitrary
    without the patients' factor. When ranks differ, the sum is divided by the larger rank, so a
    missing or spurious component counts 0. (pyttb divides by the smaller rank.)
    """
    ours, theirs = _comparable(estimate, truth)
    match = match_columns(ours, theirs)
    scores = match.cosines
    if isinstance(estimate, CPModel) and isinstance(truth, CPModel):
        xi = column_weights(ours)[match.estimate]
        xi_truth = column_weights(theirs)[match.truth]
        largest = np.maximum(xi, xi_truth)
        scores = scores * (1.0 - np.abs(xi - xi_truth) / np.where(largest > 0, largest, 1.0))
    return float(scores.sum() / max(ours[0].shape[1], theirs[0].shape[1]))


def column_cosines(estimate: Floats, truth: Floats) -> Floats:
    """Return the (R, R') cosines between the columns of an (I, R) and an (I, R') array."""
    return np.asarray(unit_columns(estimate).T @ unit_columns(truth))


def _comparable(estimate: Factorised, truth: Factorised) -> tuple[Matrices, Matrices]:
    ours, theirs = (
        model.factors if isinstance(model, CPModel) else checked_matrices(model)
        for model in (estimate, truth)
    )
    sizes = [len(factor) for factor in ours], [len(factor) for factor in theirs]
    if sizes[0] != sizes[1]:
        raise DataError(f"factors: cannot compare modes of {sizes[0]} and of {sizes[1]} rows")
    return ours, theirs
