"""Ours against others on the same tensor in the same run; a ratio above 1 is in our favour.

The peers solve the plain problem: neither constraint, nor elastic term, nor zeros left out. Their
cp_als and our exact solver are timed in CPU time, which others at work do not add to.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
from numba import njit

from benchmarks.rows import Row, Timing, timed, value_of
from benchmarks.scale import Scale
from benchmarks.solver import ETA, start
from dpfact_flower.settings import SolverSettings
from dpfact_flower.site import scaled
from dpfact_flower.solver.kernels import Array
from dpfact_flower.tensor import SparseTensor


def measure(tensors: Mapping[str, SparseTensor], scale: Scale, found: Sequence[Row]) -> list[Row]:
    """Rows of the peers, for each tensor."""
    peers: list[Row] = []
    for name, counts in tensors.items():
        tensor = scaled(counts, SolverSettings())
        peers += _naive(name, tensor, scale, found)
        peers += _pyttb(name, tensor, scale, found)
        peers += _genten(name, tensor, scale, found)
    return peers


@njit(cache=True)
def naive_pass(indices: Array, values: Array, A: Array, B: Array, C: Array, eta: float) -> None:
    """P-SGD as one writes it down: three float64 arrays, an entry after the other."""
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
    return [peer, _ratio(f"ratio {name}: naive numba / psgd joint pass", peer, ours)]


def _pyttb(name: str, tensor: SparseTensor, scale: Scale, found: Sequence[Row]) -> list[Row]:
    target = 150.0 if name == "M" else None
    label = f"ratio {name}: pyttb cp_als / exact iteration"
    try:
        import pyttb  # noqa: PLC0415
    except ImportError:
        return [Row(label, None, "x", target, True, note="pyttb is not installed")]
    theirs = pyttb.sptensor(
        tensor.indices.astype(np.int64), tensor.values.astype(np.float64)[:, None], tensor.shape
    )
    factors, _ = start(tensor, SolverSettings(rank=scale.rank))
    guess = pyttb.ktensor([factor.astype(np.float64) for factor in factors])

    def seconds(iterations: int) -> float:
        began = time.process_time()
        pyttb.cp_als(
            theirs, scale.rank, init=guess.copy(), maxiters=iterations, stoptol=0, printitn=0
        )
        return time.process_time() - began

    # What a call costs beside its iterations cancels out.
    repetitions = 2 if name == "M" else max(2, scale.repetitions // 2)
    seconds(1)
    timing = Timing(tuple((seconds(3) - seconds(1)) / 2 for _ in range(repetitions)))
    peer = Row.of(f"peer {name}: pyttb cp_als iteration", timing, "ns/nnz", 1e9 / tensor.nnz)
    ours = value_of(found, f"exact {name}: iteration without non-negativity")
    return [peer, _ratio(label, peer, ours, target)]


def _genten(name: str, tensor: SparseTensor, scale: Scale, found: Sequence[Row]) -> list[Row]:
    """GenTen's cp_als (C++), which prints what it does."""
    target = 5.0 if name == "M" else None
    label = f"ratio {name}: GenTen cp_als / exact iteration"
    try:
        import pygenten  # noqa: PLC0415
        import pyttb  # noqa: PLC0415
    except ImportError:
        return [Row(label, None, "x", target, True, note="pygenten is not installed")]
    theirs = pyttb.sptensor(
        tensor.indices.astype(np.int64), tensor.values.astype(np.float64)[:, None], tensor.shape
    )

    def seconds(iterations: int) -> float:
        began = time.process_time()
        pygenten.cp_als(
            theirs, rank=scale.rank, maxiters=iterations, tol=0.0, seed=1, printitn=0, timings=False
        )
        return time.process_time() - began

    seconds(1)
    timing = Timing(tuple((seconds(6) - seconds(1)) / 5 for _ in range(scale.repetitions)))
    peer = Row.of(f"peer {name}: GenTen cp_als iteration", timing, "ns/nnz", 1e9 / tensor.nnz)
    ours = value_of(found, f"exact {name}: iteration without non-negativity")
    return [peer, _ratio(label, peer, ours, target)]


def _ratio(name: str, peer: Row, ours: float | None, target: float | None = None) -> Row:
    if peer.value is None or ours is None:
        return Row(name, None, "x", target, at_least=True, note="one of the two has no value")
    value = peer.value / ours
    return Row(name, value, "x", target, at_least=True, spread=peer.spread)
