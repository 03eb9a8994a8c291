"""Define CP models, their exact error on a sparse tensor, and the similarity of two models.

Sums over all cells are computed in float64 from Gram matrices and the non-zero cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfact_flower.errors import DataError, naming
from dpfact_flower.machine.files import replacing
from dpfact_flower.machine.parsed import load_npz
from dpfact_flower.tensor.arrays import Array, Floats
from dpfact_flower.tensor.sparse import SparseTensor, SquaredError
from dpfact_flower.tensor.stack import row_offsets, stack_factors, stacked_values

Matrices = tuple[Floats, ...]
"""Factors in float64, used to compare models and sum errors."""

_BLOCK = 1 << 9  # number of rows multiplied at a time
_MANY = 1 << 12  # with this many rows or more, blocks are multiplied in float32
_SHIFTS = 20  # largest number of artificial models in `chance_cosines`
_CHANCE_LEVEL = 95  # percentile that `chance_cosines` returns
_ALIKE = 0.97  # smallest product of two components' cosines at which `alike` is true


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class CPModel:
    """A CP model with one read-only factor matrix per mode. Mode 0 represents the patients."""

    factors: Matrices

    def __post_init__(self) -> None:
        factors = checked_matrices(self.factors)
        if len(factors) < 2:
            raise DataError(f"factors: need at least 2 modes, got {len(factors)}")
        object.__setattr__(self, "factors", factors)

    @classmethod
    def of(cls, *factors: ArrayLike) -> CPModel:
        """Make a model from factor matrices of any float type, with the patients' factor first."""
        return cls(tuple(np.asarray(factor, np.float64) for factor in factors))

    def __repr__(self) -> str:
        # Show only sizes, because the first factor describes patients.
        return f"CPModel(shape={self.shape}, rank={self.rank})"

    @property
    def rank(self) -> int:
        """Number of components R."""
        return int(self.factors[0].shape[1])

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the modes."""
        return tuple(len(factor) for factor in self.factors)

    @property
    def features(self) -> Matrices:
        """All factors except the patients'."""
        return self.factors[1:]

    @property
    def weights(self) -> NDArray[np.float64]:
        """Weight of each component: the product of the component's column norms."""
        return column_weights(self.factors)

    def with_unit_features(self) -> CPModel:
        """Return the same model with feature columns of norm 1 and a rescaled patients' factor."""
        patients, *features = self.factors
        scale = column_weights(tuple(features))
        return CPModel((patients * scale, *(unit_columns(factor) for factor in features)))

    def save(self, path: str | Path) -> None:
        """Write the factors to an .npz file that only its owner can read."""
        arrays: dict[str, Any] = {f"factor{n}": factor for n, factor in enumerate(self.factors)}
        with replacing(Path(path)) as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> CPModel:
        """Read and validate a file that `save` wrote."""
        arrays = load_npz(path, ("factor0", "factor1"))
        with naming(path):
            try:
                return cls(tuple(arrays[f"factor{n}"] for n in range(len(arrays))))
            except KeyError:
                raise DataError("factors must be named factor0, factor1, ...") from None

    def to_tensorly(self) -> Any:
        """Return a TensorLy `CPTensor` with weights, and with factors whose columns have norm 1."""
        from tensorly.cp_tensor import CPTensor  # noqa: PLC0415 - optional

        return CPTensor((self.weights, [*map(unit_columns, self.factors)]))

    def to_pyttb(self) -> Any:
        """Return a pyttb `ktensor` with weights, and with factors whose columns have norm 1."""
        from pyttb.ktensor import ktensor  # noqa: PLC0415 - optional

        return ktensor([*map(unit_columns, self.factors)], self.weights)

    def squared_error(self, tensor: SparseTensor) -> SquaredError:
        """Return the sums of squared errors in float64, as a slow reference for `solver.mttkrp`.

        The error over zero cells is the model's squared norm minus the sum of the squared model
        values at non-zero cells. Expanding the squared error over all cells would be less accurate.
        """
        if tensor.shape != self.shape:
            raise DataError(f"tensor: shape {tensor.shape} does not fit a model of {self.shape}")
        stack, offsets = stack_factors(self.factors), row_offsets(self.shape)
        errors, masses = [], []
        for part in tensor.parts():
            m = stacked_values(tensor.indices[part], stack, offsets)
            error = tensor.values[part] - m
            errors.append(error @ error)
            masses.append(m @ m)
        nonzeros = math.fsum(errors)
        zeros = norm_squared(self.factors) - math.fsum(masses)
        return SquaredError.on(tensor, nonzeros + zeros, nonzeros, tensor.norm_squared())


def norm_squared(factors: Sequence[NDArray[Any]]) -> float:
    """Return the squared Frobenius norm of a CP model."""
    return float(hadamard([gram(factor) for factor in factors]).sum())


def checked_matrices(matrices: Sequence[ArrayLike] | Any) -> Matrices:
    """Return factors as read-only float64 arrays. Refuse matrices that do not form a model."""
    try:
        factors = tuple(np.asarray(factor, dtype=np.float64).view() for factor in matrices)
    except (TypeError, ValueError):
        raise DataError("factors: need a sequence of arrays of numbers") from None
    if not factors:
        raise DataError("factors: need at least one array, got none")
    for mode, factor in enumerate(factors):
        if factor.ndim != 2 or factor.size == 0:
            raise DataError(f"factors: mode {mode} needs shape (I, R), got {factor.shape}")
        if factor.shape[1] != factors[0].shape[1]:
            raise DataError(
                f"factors: mode {mode} has rank {factor.shape[1]}, mode 0 {factors[0].shape[1]}"
            )
        if not np.isfinite(factor).all():
            raise DataError(f"factors: mode {mode} holds values that are not finite")
        factor.flags.writeable = False
    return factors


def column_weights(factors: Matrices) -> Floats:
    """Return each component's weight: the product of the component's column norms in all modes."""
    return np.asarray(reduce(np.multiply, (np.linalg.norm(f, axis=0) for f in factors)))


def unit_columns(factor: Floats) -> Floats:
    """Scale columns to norm 1. A column of zeros stays zero."""
    norms = np.linalg.norm(factor, axis=0)
    return np.asarray(factor / np.where(norms > 0, norms, 1.0))


def gram(factor: Array) -> NDArray[np.float64]:
    """Return ``factor.T @ factor``, summed in float64.

    For a float32 factor with many rows, blocks are summed in float32 (relative error below 1e-6).
    """
    total = np.zeros((factor.shape[1], factor.shape[1]))
    for start in range(0, len(factor), _BLOCK):
        block = factor[start : start + _BLOCK]
        if len(factor) < _MANY:
            block = block.astype(np.float64)
        total += block.T @ block
    return total


def hadamard(grams: Sequence[Array]) -> NDArray[np.float64]:
    """Return the element-wise product of Gram matrices."""
    return np.asarray(math.prod(grams[1:], start=grams[0]))


Factorised = CPModel | Sequence[ArrayLike]
"""A model, or its factors in the same order."""


@dataclass(frozen=True)
class Match:
    """A matching of two models' components. Each component is in at most one pair.

    Pair p consists of component ``estimate[p]`` of one model and ``truth[p]`` of the other. Pairs
    are ordered by `truth`. For each pair, `cosines` holds the product of the cosines in all modes.
    """

    estimate: NDArray[np.intp]
    truth: NDArray[np.intp]
    cosines: NDArray[np.float64]


def match_columns(estimate: Factorised, truth: Factorised) -> Match:
    """Match components so that the sum of their cosine products is maximal (Hungarian method).

    The greedy matching of pyttb and the Tensor Toolbox can give a smaller sum of cosine products. A
    column of zeros has cosine 0 with every column. Cosines keep their signs, as in the DPFact
    paper. If a mode is missing, signs are arbitrary, so compare only non-negative factors.

    The models' modes must have the same sizes, but the ranks may differ.
    """
    return _matched(map(column_cosines, *_comparable(estimate, truth)))


def chance_cosines(estimate: Factorised, truth: Factorised) -> Floats:
    """Return the cosine product that each component of `estimate` reaches by chance.

    The result is the 95th percentile over matches with artificial components, whose modes come from
    different components of `truth`. If no artificial component exists, return zeros.
    """
    cosines = list(map(column_cosines, *_comparable(estimate, truth)))
    rank, others = cosines[0].shape
    by_chance: list[list[float]] = [[] for _ in range(rank)]
    for shift in range(1, min(others, _SHIFTS + 1)):
        taken = {mode * shift % others for mode in range(len(cosines))}
        if len(taken) < max(2, len(cosines)):  # two modes would come from the same component
            continue
        match = _matched(np.roll(each, mode * shift, axis=1) for mode, each in enumerate(cosines))
        for component, cosine in zip(match.estimate, match.cosines, strict=True):
            by_chance[component].append(cosine)
    return np.array([np.percentile(each, _CHANCE_LEVEL) if each else 0.0 for each in by_chance])


def _matched(cosines: Iterable[Floats]) -> Match:
    # Importing scipy.optimize takes 0.1 s or more, and a site never matches models.
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415

    similarity = reduce(np.multiply, cosines)
    rows, columns = linear_sum_assignment(similarity, maximize=True)
    order = np.argsort(columns)
    rows, columns = rows[order], columns[order]
    return Match(rows, columns, similarity[rows, columns])


def factor_match_score(estimate: Factorised, truth: Factorised) -> float:
    """Return the factor match score (FMS) of two models, from 0 (unrelated) to 1 (equal).

    The formula is from the section "Privacy" of the DPFact paper. `match_columns` pairs components.
    A pair's score is the product of its cosines. If both arguments are of type `CPModel`, the score
    is multiplied by the ratio of the pair's smaller to its larger component weight. The FMS is the
    sum of the scores, divided by the larger rank, so a missing or spurious component counts as 0.
    (pyttb divides the sum of the scores by the smaller rank.)
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
    """Return the matrix of cosines between columns of `estimate` and columns of `truth`."""
    return np.asarray(unit_columns(estimate).T @ unit_columns(truth))


def alike(factors: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """Return a square mask of component pairs that are similar in at least N - 1 of the N modes."""
    cosines = [column_cosines(f.astype(float), f.astype(float)) for f in factors]
    but_one = [hadamard(cosines[:mode] + cosines[mode + 1 :]) for mode in range(len(cosines))]
    likeness = np.max(but_one, axis=0)
    np.fill_diagonal(likeness, 0)
    return np.asarray(likeness >= _ALIKE)


def _comparable(estimate: Factorised, truth: Factorised) -> tuple[Matrices, Matrices]:
    ours, theirs = (
        model.factors if isinstance(model, CPModel) else checked_matrices(model)
        for model in (estimate, truth)
    )
    sizes = [len(factor) for factor in ours], [len(factor) for factor in theirs]
    if sizes[0] != sizes[1]:
        raise DataError(f"factors: cannot compare modes of {sizes[0]} and of {sizes[1]} rows")
    return ours, theirs
