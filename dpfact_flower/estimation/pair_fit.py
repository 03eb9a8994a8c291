"""Fit all sites' co-occurrences at once, by least squares.

Site t releases a matrix P_t of noisy co-occurrences, and ``F diag(d_t) F^T`` is fitted to P_t. The
matrix F >= 0 stacks all modes' feature factors, and d_t >= 0 is site t's usage (weight) of each
column of F. Diagonals are not released and not fitted. Exact coordinate descent updates F row by
row, and then the usages. To save time, ``P_t F`` is updated only after every `_BLOCK` rows.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.machine.compiled import compiled
from dpfact_flower.tensor import Floats
from dpfact_flower.tensor.triangle import ROOT2

Sites = NDArray[np.floating[Any]]
"""An array of shape (codes, sites, codes) in which ``sites[j, t, k]`` is P_t[j, k]. Each code's
rows are contiguous, so a block of codes for all sites is one matrix. float32 is precise enough."""

_BLOCK = 32
"""Number of rows between two updates of ``P_t F``. Blocks of 64 and 128 rows are equally fast."""
_ROW_SWEEPS, _USAGE_SWEEPS = 2, 3
"""Numbers of coordinate-descent sweeps over one row of F, and over one site's usages."""
TINY = 1e-12
"""The smallest divisor, which avoids division by zero."""


class Model(NamedTuple):
    """Stacked factors, of shape (codes, phenotypes), and usages, of shape (sites, phenotypes)."""

    F: Floats
    d: Floats


def matrices_of(releases: Sequence[NDArray[Any]] | NDArray[Any], codes: int) -> NDArray[np.float32]:
    """Unpack the sites' strict triangles into symmetric matrices (`Sites`) with zero diagonals."""
    sites = np.zeros((codes, len(releases), codes), np.float32)
    upper = ~np.tri(codes, dtype=bool)
    for t, release in enumerate(releases):
        sites[:, t][upper] = np.asarray(release, np.float64) / ROOT2
        sites[:, t] += sites[:, t].T
    return sites


def summed(releases: Sequence[NDArray[Any]]) -> Floats:
    """Return the sum of the sites' releases in float64."""
    return np.asarray(sum(releases, np.zeros(releases[0].shape)))


def times(sites: Sites, F: Floats) -> Sites:
    """Return each site's matrix times F, as an array of shape (sites, codes, phenotypes)."""
    codes, count, _ = sites.shape
    flat = sites.reshape(codes, -1).T  # the matrices are symmetric
    return (flat @ F.astype(sites.dtype)).reshape(count, codes, -1)


def pairs_gram(F: Floats) -> Floats:
    """Return the inner products of f f^T and g g^T off the diagonal, for all columns f, g of F."""
    gram, squares = F.T @ F, F * F
    return np.asarray(gram * gram - squares.T @ squares)


def explained(sites: Sites, model: Model) -> float:
    """Return the amount by which the model reduces the squared error of off-diagonal entries."""
    return _explained(inner(times(sites, model.F), model.F), model.d, pairs_gram(model.F))


def fit_pairs(
    sites: Sites, start: Model, *, threshold: float, iterations: int, settled: float = 0.0
) -> Model:
    """Improve the factors F and the usages d in turn, in at most `iterations` steps.

    A code stays in a factor only if it improves the fit by more than noise of standard deviation
    `threshold` would. The fit ends if a step changes `explained` by less than a fraction `settled`.
    """
    F, d = start.F.copy(), start.d.copy()
    products = times(sites, F)
    before = math.inf
    for _ in range(iterations):
        norms = np.linalg.norm(F, axis=0)
        norms[norms < TINY] = 1.0
        F, d, products = F / norms, d * norms**2, products / norms.astype(sites.dtype)
        _update_rows(sites, F, d, products, threshold)
        system, target = pairs_gram(F), inner(products, F)
        solve_usages(d, target, system, _USAGE_SWEEPS)
        now = _explained(target, d, system)
        if abs(now - before) < settled * now:
            break
        before = now
    return Model(F, d)


def solve_usages(d: Floats, target: Floats, system: Floats, sweeps: int) -> None:
    """Fit the usages `d` >= 0 in place, given the results of `inner` and `pairs_gram`."""
    for usage, slope in zip(d, target - d @ system, strict=True):
        _descend(usage, slope, system, sweeps)


def inner(products: Sites, F: Floats) -> Floats:
    """Return ``f^T P f``: one row for each site's matrix P, one column for each column f of F."""
    return np.asarray(np.einsum("tjr,jr->tr", products, F))


def _explained(target: Floats, d: Floats, system: Floats) -> float:
    return float(2 * (target * d).sum() - ((d @ system) * d).sum())


def _update_rows(sites: Sites, F: Floats, d: Floats, products: Sites, threshold: float) -> None:
    """Fit the rows of the factors `F` one at a time, and update `F` and the sites' `products`."""
    codes, count, _ = sites.shape
    gram, weights = F.T @ F, d.T @ d
    added = np.empty((count * codes, F.shape[1]), sites.dtype)
    for first in range(0, codes, _BLOCK):
        rows = sites[first : first + _BLOCK]
        change = np.zeros((len(rows), F.shape[1]), sites.dtype)
        _update_block(rows, first, F, d, products, gram, weights, threshold, change)
        np.matmul(rows.reshape(len(rows), -1).T, change, out=added)
        products += added.reshape(products.shape)


@compiled()
def _descend(x: Any, slope: Any, system: Any, sweeps: int) -> None:
    """Minimise a quadratic over x >= 0. `system` is its Hessian, `slope` its negative gradient."""
    for _ in range(sweeps):
        for r in range(len(x)):
            if system[r, r] > 1e-12:
                step = max(-x[r], slope[r] / system[r, r])
                if step != 0.0:  # most entries are 0 and stay 0
                    x[r] += step
                    for s in range(len(x)):
                        slope[s] -= system[r, s] * step
            else:
                x[r] = 0.0


@compiled()
def _targets(
    rows: Any, first: int, d: Any, products: Any, change: Any, place: int, out: Any
) -> None:
    """Write one row of `products` to `out`, updated by `change` and summed by usage over sites."""
    out[:] = 0.0
    for t in range(len(d)):
        for r in range(len(out)):
            out[r] += d[t, r] * products[t, first + place, r]
        for earlier in range(place):
            value = rows[earlier, t, first + place]
            for r in range(len(out)):
                out[r] += d[t, r] * (value * change[earlier, r])


@compiled()
def _update_block(
    rows: Any, first: int, F: Any, d: Any, products: Any, gram: Any, weights: Any,
    threshold: float, change: Any,
) -> None:  # fmt: skip
    """Fit one block of rows of `F`, update `gram`, and write the rows' changes to `change`."""
    rank = F.shape[1]
    slope, system, old = np.empty(rank), np.empty((rank, rank)), np.empty(rank)
    for place in range(len(change)):
        row = F[first + place]
        old[:] = row
        _targets(rows, first, d, products, change, place, slope)
        for r in range(rank):
            for s in range(rank):  # omit the row's product with itself, which is on the diagonal
                system[r, s] = weights[r, s] * (gram[r, s] - row[r] * row[s])
                slope[s] -= system[r, s] * row[r]
            slope[r] -= threshold * math.sqrt(max(system[r, r], 0.0))
        _descend(row, slope, system, _ROW_SWEEPS)
        for r in range(rank):
            change[place, r] = row[r] - old[r]
            for s in range(rank):
                gram[r, s] += row[r] * row[s] - old[r] * old[s]
