"""CP models: their exact error on a sparse tensor, component weights, and how alike two models are.

A model of rank R holds one factor matrix a mode; the value of a cell is the sum over r of the
product of the matching entries. Nothing here densifies: sums over all cells follow from the
values at the non-zeros and from Gram matrices, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfact_flower.errors import DataError
from dpfact_flower.fit import RMSE, SquaredError
from dpfact_flower.solver.kernels import model_values
from dpfact_flower.solver.objective import gram, hadamard
from dpfact_flower.tensor import SparseTensor

Factors = tuple[NDArray[np.float64], ...]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class CPModel:
    """A CP model, one factor matrix a mode; mode 0 is the patients.

    Attributes
    ----------
    factors : tuple of ndarray of float64, each of shape (I_n, R)
        Any sequence of arrays is accepted and kept as read-only float64.

    Raises
    ------
    DataError
        Unless there are two modes or more, all 2-D, not empty, finite and of one rank.
    """

    factors: Factors

    def __post_init__(self) -> None:
        factors = _checked_factors(self.factors)
        if len(factors) < 2:
            raise DataError(f"factors: need at least 2 modes, got {len(factors)}")
        object.__setattr__(self, "factors", factors)

    @classmethod
    def of(cls, *factors: ArrayLike) -> CPModel:
        """Model of factor matrices of any float type, patients first."""
        return cls(tuple(np.asarray(factor, np.float64) for factor in factors))

    def __repr__(self) -> str:
        # Sizes alone: the first factor holds patients.
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
    def features(self) -> Factors:
        """All factors but the patients'."""
        return self.factors[1:]

    @property
    def weights(self) -> NDArray[np.float64]:
        """Weight lambda_r of each component, the product of its column norms; shape (R,)."""
        return _column_weights(self.factors)

    def normalized(self) -> tuple[NDArray[np.float64], CPModel]:
        """Weights of shape (R,) and the model with unit columns, for display and matching only.

        The product of both is this model. A column of zeros stays zero.
        """
        return self.weights, CPModel(tuple(_unit_columns(factor) for factor in self.factors))

    def with_unit_features(self) -> CPModel:
        """The same model with feature columns of norm 1: a component's scale is its patients'.

        So memberships of models with feature factors of their own have one unit.
        """
        patients, *features = self.factors
        scale = _column_weights(tuple(features))
        return CPModel((patients * scale, *(_unit_columns(factor) for factor in features)))

    def to_dense(self) -> NDArray[np.float64]:
        """Every cell, for tests and small examples.

        Raises
        ------
        DataError
            Above ten million cells.
        """
        cells = math.prod(self.shape)
        if cells > 10_000_000:
            raise DataError(f"refusing to densify {cells:,} cells (limit 10,000,000)")
        dense = np.zeros(self.shape)
        for columns in zip(*(factor.T for factor in self.factors), strict=True):
            dense += reduce(np.multiply.outer, columns)
        return dense

    def norm_squared(self) -> float:
        """Squared Frobenius norm of the model, from the Gram matrices of its factors."""
        return norm_squared(self.factors)

    def inner(self, tensor: SparseTensor) -> float:
        """Inner product <X, M> with a tensor of the same shape."""
        return math.fsum(float(x @ m) for x, m in _at_nonzeros(tensor, self.factors))

    def squared_error(self, tensor: SparseTensor) -> SquaredError:
        """Exact sums of squared errors on a tensor of the same shape; see `squared_error`."""
        return squared_error(tensor, self.factors)

    def rmse(self, tensor: SparseTensor) -> RMSE:
        """Root mean square errors on one tensor; for several sites add `squared_error` first."""
        return self.squared_error(tensor).rmse

    def fit(self, tensor: SparseTensor) -> float:
        """Share of the data explained, see `SquaredError.fit`."""
        return self.squared_error(tensor).fit


def squared_error(tensor: SparseTensor, factors: Sequence[NDArray[Any]]) -> SquaredError:
    """Exact sums of squared errors of a CP model, in float64 and a part of the patients at a time.

    Over the zero cells the error is ||M||^2 less what M puts on the non-zeros, so the total
    equals ||X||^2 - 2<X,M> + ||M||^2 with less cancellation.

    Parameters
    ----------
    tensor : SparseTensor
    factors : sequence of N ndarrays of float32 or float64, each (I_n, R), patients first

    Raises
    ------
    DataError
        If their sizes are not the tensor's.
    """
    parts = [((x - m) @ (x - m), m @ m) for x, m in _at_nonzeros(tensor, factors)]
    nonzeros = math.fsum(error for error, _ in parts)
    zeros = norm_squared(factors) - math.fsum(mass for _, mass in parts)
    return SquaredError(
        all_cells=nonzeros + max(zeros, 0.0),  # rounding alone can make it negative
        nonzeros=nonzeros,
        data=tensor.norm_squared(),
        cells=tensor.cells,
        nnz=tensor.nnz,
    )


def norm_squared(factors: Sequence[NDArray[Any]]) -> float:
    """Squared Frobenius norm of a CP model of factors of any float type."""
    return float(hadamard([gram(factor) for factor in factors]).sum())


def _at_nonzeros(
    tensor: SparseTensor, factors: Sequence[NDArray[Any]]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Values of the tensor and of the model at the non-zeros, a part at a time."""
    shape = tuple(map(len, factors))
    if tensor.shape != shape:
        raise DataError(f"tensor: shape {tensor.shape} does not fit a model of {shape}")
    features = [factor.astype(np.float64) for factor in factors[1:]]
    for part in tensor.parts():
        index = tensor.indices[part].copy()
        first, last = index[0, 0], index[-1, 0]  # the entries are sorted by patient
        patients = factors[0][first : last + 1].astype(np.float64)
        index[:, 0] -= first
        yield tensor.values[part].astype(np.float64), model_values(index, (patients, *features))


@dataclass(frozen=True)
class Match:
    """A one-to-one matching of the components of two models, min(R) pairs.

    Attributes
    ----------
    estimate, truth : ndarray of int, shape (pairs,)
        Component ``estimate[p]`` of the first model is matched with ``truth[p]`` of the second;
        ordered by `truth`.
    cosines : ndarray of float64, shape (pairs,)
        Product over the modes of the cosines of the matched columns.
    """

    estimate: NDArray[np.intp]
    truth: NDArray[np.intp]
    cosines: NDArray[np.float64]


def match_columns(
    estimate: CPModel | Sequence[ArrayLike],
    truth: CPModel | Sequence[ArrayLike],
    *,
    modes: Sequence[int] | None = None,
) -> Match:
    """Match components so that the sum of their cosine products is largest.

    The Hungarian method finds the best matching; taking the best pair first, as pyttb's and the
    Tensor Toolbox's greedy score do, can only do as well or worse. A column of zeros has cosine 0
    with everything. Signs count, as in the paper: a component is unchanged when two of its
    columns change sign, but a model compared without one of its modes should be non-negative.

    Parameters
    ----------
    estimate, truth : CPModel or sequence of (I_n, R) arrays
        Two models, or two tuples of factors such as the feature factors alone; the sizes I_n
        must agree, the ranks need not.
    modes : sequence of int, optional
        Positions of the factors to compare. Default: all.

    Raises
    ------
    DataError
        On factors that cannot be compared.
    """
    ours, theirs = _comparable(estimate, truth, modes)
    return _match(ours, theirs)


def factor_match_score(
    estimate: CPModel | Sequence[ArrayLike],
    truth: CPModel | Sequence[ArrayLike],
    *,
    modes: Sequence[int] | None = None,
    with_weights: bool | None = None,
) -> float:
    """Factor match score (FMS) of two models: 1 is equal, 0 is unrelated.

    The formula of the paper's section Privacy, after `match_columns`: the mean over components of
    ``(1 - |xi - xi'| / max(xi, xi'))`` times the product of the columns' cosines, xi being the
    product of a component's column norms. When ranks differ, the min(R) pairs found are divided
    by max(R), so a missing or spurious component counts 0 (pyttb divides by the smaller rank).

    Parameters
    ----------
    estimate, truth, modes
        As for `match_columns`; xi is taken over the modes compared.
    with_weights : bool, optional
        Whether the weights xi count. Default: between two models yes; between tuples of factors
        no, since without the patients' factor a component's scale is arbitrary.

    Returns
    -------
    float
        At most 1; at least 0 for non-negative factors.

    Raises
    ------
    DataError
        On factors that cannot be compared.
    """
    ours, theirs = _comparable(estimate, truth, modes)
    match = _match(ours, theirs)
    scores = match.cosines
    if with_weights is None:
        with_weights = isinstance(estimate, CPModel) and isinstance(truth, CPModel)
    if with_weights:
        xi = _column_weights(ours)[match.estimate]
        xi_truth = _column_weights(theirs)[match.truth]
        largest = np.maximum(xi, xi_truth)
        penalty = np.abs(xi - xi_truth) / np.where(largest > 0, largest, 1.0)
        scores = scores * (1.0 - penalty)
    return float(scores.sum() / max(ours[0].shape[1], theirs[0].shape[1]))


def column_cosines(
    estimate: NDArray[np.float64], truth: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Cosine of every column of one (I, R) array with every column of another; (R, R')."""
    return np.asarray(_unit_columns(estimate).T @ _unit_columns(truth))


def _match(ours: Factors, theirs: Factors) -> Match:
    similarity = reduce(np.multiply, map(column_cosines, ours, theirs))
    # Importing scipy.optimize takes 0.1 s and more, and a site never matches models.
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415

    rows, columns = linear_sum_assignment(similarity, maximize=True)
    order = np.argsort(columns)
    rows, columns = rows[order], columns[order]
    return Match(rows, columns, similarity[rows, columns])


def _comparable(
    estimate: CPModel | Sequence[ArrayLike],
    truth: CPModel | Sequence[ArrayLike],
    modes: Sequence[int] | None,
) -> tuple[Factors, Factors]:
    ours, theirs = (
        given.factors if isinstance(given, CPModel) else _checked_factors(given)
        for given in (estimate, truth)
    )
    if len(ours) != len(theirs):
        raise DataError(f"factors: cannot compare {len(ours)} modes with {len(theirs)}")
    wanted = range(len(ours)) if modes is None else modes
    if not wanted or any(mode not in range(len(ours)) for mode in wanted):
        raise DataError(f"modes: need some of 0..{len(ours) - 1}, got {list(wanted)}")
    for mode in wanted:
        if len(ours[mode]) != len(theirs[mode]):
            raise DataError(
                f"factors: mode {mode} has {len(ours[mode])} rows against {len(theirs[mode])}"
            )
    return tuple(ours[m] for m in wanted), tuple(theirs[m] for m in wanted)


def _checked_factors(given: Sequence[ArrayLike] | Any) -> Factors:
    try:
        factors = tuple(np.asarray(factor, dtype=np.float64).view() for factor in given)
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


def _column_weights(factors: Factors) -> NDArray[np.float64]:
    return np.asarray(reduce(np.multiply, (np.linalg.norm(f, axis=0) for f in factors)))


def _unit_columns(factor: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(factor, axis=0)
    return np.asarray(factor / np.where(norms > 0, norms, 1.0))
