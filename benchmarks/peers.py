"""Compare our code with other code on the same tensors. A ratio above 1 means ours is faster."""

from collections.abc import Mapping, Sequence

import numpy as np
from numba import njit

from benchmarks import libraries
from benchmarks.rows import Row, ratio, timed, value_of
from benchmarks.scale import Scale
from benchmarks.solver import ETA, start
from dpfact_flower.settings import SolverSettings
from dpfact_flower.site.local_fit import scaled
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.arrays import Array


def measure(tensors: Mapping[str, SparseTensor], scale: Scale, found: Sequence[Row]) -> list[Row]:
    """Return the rows of a naive pass and of other libraries, for each tensor."""
    peers: list[Row] = []
    for name, counts in tensors.items():
        tensor = scaled(counts, SolverSettings())
        peers += _naive(name, tensor, scale, found)
        peers += libraries.measure(name, tensor, scale, found)
    return peers


@njit(cache=True)
def naive_pass(indices: Array, values: Array, A: Array, B: Array, C: Array, eta: float) -> None:
    """Run naive P-SGD on three float64 arrays, one entry after another."""
    for s in range(len(values)):
        i, j, k = indices[s]
        error = -values[s]
        for r in range(A.shape[1]):
            error += A[i, r] * B[j, r] * C[k, r]
        for r in range(A.shape[1]):
            a, b, c = A[i, r], B[j, r], C[k, r]
            A[i, r] = max(0.0, a - eta * error * b * c)
            B[j, r] = max(0.0, b - eta * error * a * c)
            C[k, r] = max(0.0, c - eta * error * a * b)


def _naive(name: str, tensor: SparseTensor, scale: Scale, found: Sequence[Row]) -> list[Row]:
    factors, _ = start(tensor, SolverSettings(rank=scale.rank))
    A, B, C = (factor.astype(np.float64) for factor in factors)
    rng = np.random.default_rng(4)

    def call() -> None:
        order = rng.permutation(tensor.nnz)
        naive_pass(tensor.indices[order], tensor.values[order], A, B, C, ETA)

    peer = Row.of(
        f"peer {name}: naive numba f64 pass", timed(call, *scale.timing),
        "ns/nnz", 1e9 / tensor.nnz, note="full permutation; no elastic term",
    )  # fmt: skip
    ours = value_of(found, f"psgd {name} joint: pass")
    return [peer, ratio(f"ratio {name}: naive numba / psgd joint pass", peer, ours)]
