"""Small problems, and slow references in plain loops and dense arrays to hold solvers against."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver import LocalProblem
from dpfact_flower.tensor import SparseTensor
from tests.rounding import DIVISION, Bounded, gamma

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
        """What a solver is given."""
        given = {"tensor": self.tensor, "factors": self.factors, "anchors": self.anchors}
        return LocalProblem(**given | changes, settings=settings, rng=np.random.default_rng(seed))


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


def visit_one_by_one(
    factors, anchors, cells, counts, *, eta, gamma, clip, floor, loss=None, patients=1.0
):
    """Algorithm 1's inner loop, one visit after the other; `Bounded` factors.

    Of another `loss`, values alone are right: its bounds leave out what its gradient rounds.
    """
    factors = [Bounded.of(f) for f in factors]
    eta, pull = Bounded.of(eta), Bounded.of(eta) * float(gamma)
    for cell, count in zip(cells, counts, strict=True):
        old = [f[i] for f, i in zip(factors, cell, strict=True)]
        for n, i in enumerate(cell):
            others = math.prod(old[m] for m in range(len(old)) if m != n)
            model, x = (old[n] * others).total(), np.float32(max(count, 0))
            gradient = model - x if loss is None else Bounded.of(loss.gradient(x, model.value))
            if count <= 0:  # a zero cell, of this weight
                gradient = Bounded.of(float(-count)) * gradient
            far = patients if n == 0 else 1.0
            if far != 1:
                gradient = Bounded.of(far) * gradient
            if clip:
                length = Bounded(np.abs(gradient.value), gradient.bound) * others.norm()
                share = length.share_of(clip * math.sqrt(far))
                gradient = (gradient * share).rounded()  # eta * clip may be one
            new = old[n]
            if n > 0 and count > 0 and gamma:
                new = (np.float32(1) - pull) * new + pull * anchors[n - 1][i]
            factors[n][i] = (new - eta * gradient * others).at_least(floor)
    return factors


def mttkrp_by_entries(tensor, factors, mode) -> np.ndarray:
    """MTTKRP from its definition, an entry after the other, in float64."""
    terms = (
        np.multiply.reduce(
            [
                np.asarray(f, np.float64)[i]
                for n, (f, i) in enumerate(zip(factors, tensor.indices.T, strict=True))
                if n != mode
            ],
        )
        * tensor.values[:, None]
    )
    total = np.zeros((tensor.shape[mode], factors[0].shape[1]))
    np.add.at(total, tensor.indices[:, mode], terms)
    return total


def mttkrp_bound(tensor, factors, mode, dtype=np.float32) -> np.ndarray:
    """What rounding may change of an MTTKRP: an entry's N - 1 products, and its row's sum."""
    size = mttkrp_by_entries(tensor, [np.abs(f) for f in factors], mode)
    entries = np.bincount(tensor.indices[:, mode], minlength=len(size))
    roundings = len(factors) - 1 + entries
    return np.array([gamma(n, dtype) for n in roundings.tolist()])[:, None] * size


def cells_bound(factors, cells) -> np.ndarray:
    """What float32 may change of the model at some cells: N - 1 products, and a sum over R."""
    rows = [np.abs(np.asarray(f, np.float64))[i] for f, i in zip(factors, cells.T, strict=True)]
    return gamma(len(factors) - 1 + factors[0].shape[1]) * np.multiply.reduce(rows).sum(axis=1)


def fit_bounds(tensor, factors) -> tuple[float, float]:
    """What float32 may change of sum (x - m)^2 over the entries, and of <X, M>.

    A cell's value m is off by d: then (x - m)^2 by d (2 |x - m| + d), and x m by x d.
    """
    off, x = cells_bound(factors, tensor.indices), tensor.values.astype(np.float64)
    error = x - dense_model(factors)[tuple(tensor.indices.T)]
    return float(np.sum(off * (2 * np.abs(error) + off))), float(np.sum(x * off))


def loss_bound(tensor, factors, roundings) -> float:
    """What so many roundings a term may change of ``1/2 ||X||^2 - <X, M> + 1/2 ||M||^2``."""
    size = dense_model([np.abs(f) for f in factors])
    return gamma(roundings) * float(np.sum(tensor.to_dense() * size) + 0.5 * np.sum(size**2))


def column_by_column(old, new, target, q, floor, mu=0.0, panel=8) -> Bounded:
    """One sweep of block coordinate descent: what each column is to be, given those before it.

    The columns before it are taken as the kernel left them (`new`), so no column inherits an
    earlier one's rounding, and the bound is that of one column's update alone.

    A column's gradient is ``target - sum_k q_rk F_k``. Its terms go through R + 1 sums at most,
    one product and the rounding of q, and for the columns before it in the same panel, whose change
    is subtracted later, through two more operations each.
    """
    old, new, q = (np.asarray(x, np.float64) for x in (old, new, q))
    rank = len(q)
    columns, expected = old.copy(), Bounded(old)
    for r in range(rank):
        changes = np.abs(new - old)[:, r - r % panel : r] @ np.abs(q[r - r % panel : r, r])
        size = np.abs(target.value[:, r]) + np.abs(columns) @ np.abs(q[r])
        size += np.abs(old) @ np.abs(q[r]) + 2 * changes
        gradient = target.value[:, r] - columns @ q[r]
        slack = target.bound[:, r] + gamma(rank + 2 * panel + 3) * size
        step = Bounded(1 / q[r, r]).rounded(DIVISION + 1)
        best = (Bounded(old[:, r]) + step * Bounded(gradient, slack)).at_least(floor)
        if mu > 0:
            best = shrunk(best, mu / q[r, r])
        expected[:, r] = best
        columns[:, r] = new[:, r]
    return expected


def shrunk(column: Bounded, threshold: float) -> Bounded:
    """``column * max(1 - threshold / ||column||, 0)``, which grows with the norm."""
    norm = column.norm()
    threshold = threshold * np.array([1 + gamma(DIVISION), 1, 1 - gamma(DIVISION)])
    norms = np.maximum(norm.value + norm.bound * np.array([-1, 0, 1]), 1e-300)
    least, keep, most = np.maximum(1 - threshold / norms, 0)
    return column * Bounded(keep, max(most - keep, keep - least)).rounded(DIVISION)
