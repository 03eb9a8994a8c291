"""Small problems, and slow references with plain loops and dense arrays for the solvers."""

import math
from dataclasses import dataclass

import numpy as np

from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver import LocalProblem
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.sparse import as_tensor

LETTERS = "abcd"


@dataclass
class Problem:
    tensor: SparseTensor
    factors: tuple[np.ndarray, ...]
    anchors: tuple[np.ndarray, ...]

    @property
    def rank(self) -> int:
        return self.factors[0].shape[1]

    def ask(self, settings: SolverSettings, seed: int = 0, **changes) -> LocalProblem:
        """Return a solver's input."""
        given = {"tensor": self.tensor, "factors": self.factors, "anchors": self.anchors}
        return LocalProblem(**given | changes, settings=settings, rng=np.random.default_rng(seed))


def make_problem(
    shape=(7, 5, 6), rank=3, density=0.3, seed=0, highest=4, signed=False, scale=1.0
) -> Problem:
    rng = np.random.default_rng(seed)
    dense = rng.integers(1, highest + 1, shape) * (rng.random(shape) < density)
    dense.flat[0] = 1

    def matrices(sizes):
        low = -1.0 if signed else 0.0
        return tuple(rng.uniform(low, scale, (n, rank)).astype(np.float32) for n in sizes)

    return Problem(as_tensor(dense), matrices(shape), matrices(shape[1:]))


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


def visit_one_by_one(
    factors, anchors, cells, counts, *, eta, gamma, clip, floor, loss=None, patients=1.0
):
    """Run Algorithm 1's inner loop, one visit after another, in float64."""
    factors = [f.astype(np.float64) for f in factors]
    for cell, count in zip(cells, counts, strict=True):
        old = [f[i].copy() for f, i in zip(factors, cell, strict=True)]
        model, x = np.prod(old, axis=0).sum(), max(float(count), 0.0)
        slope = model - x if loss is None else loss.gradient(x, model)
        if count <= 0:  # a zero cell with this weight
            slope *= -float(count)
        for n, i in enumerate(cell):
            far = patients if n == 0 else 1.0
            step = far * slope * np.prod(old[:n] + old[n + 1 :], axis=0)
            length = np.linalg.norm(step)
            if clip and length > clip * math.sqrt(far):
                step *= clip * math.sqrt(far) / length
            new = old[n]
            if n > 0 and count > 0:
                new = (1 - eta * gamma) * new + eta * gamma * anchors[n - 1][i]
            factors[n][i] = np.maximum(new - eta * step, floor)
    return factors


def assert_near(found, expected, share=1e-5):
    """Check equality up to a share of the largest value, as for float32 rounding. NaN fails."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= share * np.abs(expected).max()


def assert_moved(found, before, expected, share=1e-3):
    """Check factors against a reference, up to a share of the largest change."""
    for ours, start, theirs in zip(found, before, expected, strict=True):
        moved = np.abs(theirs - start).max()
        assert moved > 0
        assert np.abs(ours - theirs).max() < share * moved


def mttkrp_by_entries(tensor, factors, mode) -> np.ndarray:
    """Compute the MTTKRP from its definition, entry by entry, in float64."""
    terms = tensor.values[:, None].astype(np.float64)
    for n, (factor, rows) in enumerate(zip(factors, tensor.indices.T, strict=True)):
        if n != mode:
            terms = terms * np.asarray(factor, np.float64)[rows]
    found = np.zeros((tensor.shape[mode], terms.shape[1]))
    np.add.at(found, tensor.indices[:, mode], terms)
    return found


def model_size(factors) -> float:
    """Return the sum of the norms of a model's components."""
    return float(np.prod([np.linalg.norm(f.astype(float), axis=0) for f in factors], axis=0).sum())


def column_by_column(old, new, target, q, floor, mu=0.0) -> np.ndarray:
    """Return the columns after one sweep of block coordinate descent, each given the previous ones.

    The previous columns are the kernel's (`new`), so no column inherits another's rounding.
    """
    old, new, q = (np.asarray(x, np.float64) for x in (old, new, q))
    columns, expected = old.copy(), old.copy()
    for r in range(len(q)):
        slope = target[:, r] - columns @ q[r]
        best = np.maximum(old[:, r] + slope / q[r, r], floor)
        expected[:, r] = shrunk(best, mu / q[r, r])
        columns[:, r] = new[:, r]
    return expected


def shrunk(column, threshold):
    """Return ``column * max(1 - threshold / ||column||, 0)``."""
    return column * max(1 - threshold / max(np.linalg.norm(column), 1e-300), 0)
