"""Slow references, in plain loops and dense arrays, that the solvers are held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from dpfact_flower.tensor import SparseTensor

LETTERS = "abcd"


@dataclass
class Problem:
    tensor: SparseTensor
    factors: tuple[np.ndarray, ...]
    anchors: tuple[np.ndarray, ...]

    @property
    def rank(self) -> int:
        return self.factors[0].shape[1]


def make_problem(
    shape=(7, 5, 6), rank=3, density=0.3, seed=0, highest=4, signed=False, scale=1.0
) -> Problem:
    rng = np.random.default_rng(seed)
    dense = rng.integers(1, highest + 1, shape) * (rng.random(shape) < density)
    dense.flat[0] = 1
    where = np.argwhere(dense)
    tensor = SparseTensor.from_coo(where, dense[tuple(where.T)], shape)

    def matrices(sizes):
        low = -1.0 if signed else 0.0
        return tuple(rng.uniform(low, scale, (n, rank)).astype(np.float32) for n in sizes)

    return Problem(tensor, matrices(shape), matrices(shape[1:]))


def dense_model(factors) -> np.ndarray:
    letters = LETTERS[: len(factors)]
    terms = ",".join(f"{letter}r" for letter in letters)
    return np.einsum(f"{terms}->{letters}", *[np.asarray(f, np.float64) for f in factors])


def dense_objective(problem, factors, *, gamma=0.0, mu=0.0, zeros="stratified") -> float:
    data, factors = problem.tensor.to_dense(), [f.astype(np.float64) for f in factors]
    error = data - dense_model(factors)
    if zeros == "none":
        error = error[data > 0]
    pull = sum(np.sum((f - a) ** 2) for f, a in zip(factors[1:], problem.anchors, strict=True))
    groups = np.linalg.norm(factors[0], axis=0).sum()
    return 0.5 * np.sum(error**2) + 0.5 * gamma * pull + mu * groups


def visit_one_by_one(factors, anchors, cells, counts, *, eta, gamma, clip, weight, floor, in_turn):
    """Algorithm 1's inner loop, one numpy expression at a time, in float64."""
    factors = [f.astype(np.float64) for f in factors]
    for cell, count in zip(cells, counts, strict=True):
        old = [f[i].copy() for f, i in zip(factors, cell, strict=True)]
        for n, i in enumerate(cell):
            rows = [f[k] for f, k in zip(factors, cell, strict=True)] if in_turn else old
            others = np.prod([row for m, row in enumerate(rows) if m != n], axis=0)
            data_gradient = (rows[n] @ others - count) * others * (1 if count > 0 else weight)
            length = np.linalg.norm(data_gradient)
            if clip and length > clip:
                data_gradient *= clip / length
            new = rows[n] - eta * data_gradient
            if n > 0 and count > 0:
                new -= eta * gamma * (rows[n] - anchors[n - 1][i])
            factors[n][i] = np.maximum(new, floor)
    return factors


@pytest.fixture(scope="session")
def problem() -> Callable[..., Problem]:
    return make_problem


@pytest.fixture(scope="session")
def model() -> Callable[..., np.ndarray]:
    return dense_model


@pytest.fixture(scope="session")
def objective() -> Callable[..., float]:
    return dense_objective


@pytest.fixture(scope="session")
def reference_visits() -> Callable[..., list[np.ndarray]]:
    return visit_one_by_one
