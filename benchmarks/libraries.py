"""Time tensor libraries on the same tensors in the same run: pyttb, GenTen and TensorLy.

The libraries solve the plain problem, without constraints and without an elastic term. CPU time is
measured, so that other processes do not count. The times of two calls with different numbers of
iterations are subtracted, so that the other costs of a call cancel out.
"""

import contextlib
import importlib
import io
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.rows import Row, Timing, ratio, timed, value_of
from benchmarks.scale import Scale
from benchmarks.solver import in_turn, start
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver import LocalProblem
from dpfact_flower.solver.exact import exact
from dpfact_flower.tensor import SparseTensor

_DENSE = 20_000_000
"""Largest tensor for TensorLy, in cells. Its Khatri-Rao products also need memory."""
_SAMPLES = 20_000
"""Number of cells, including zeros, in a step of pyttb's GCP-Adam."""
_EXACT = "exact {}: iteration without non-negativity"


def measure(name: str, tensor: SparseTensor, scale: Scale, found: Sequence[Row]) -> list[Row]:
    """Return the rows of all libraries for one tensor. `found` contains our own rows."""
    rows = [*_cp_als(name, tensor, scale, found), *_genten(name, tensor, scale, found)]
    if "pyttb" in _installed():
        rows += _mttkrp(name, tensor, scale, found)
        rows += _gcp(name, tensor, scale, found)
    return [*rows, *_tensorly(name, tensor, scale)]


def _installed() -> dict[str, Any]:
    """Return the libraries installed here."""
    found = {}
    for name in ("pyttb", "pygenten", "tensorly"):
        with contextlib.suppress(ImportError):
            found[name] = importlib.import_module(name)
    return found


def _missing(label: str, library: str, target: float | None = None) -> list[Row]:
    return [Row(label, None, "x", target, at_least=True, note=f"{library} is not installed")]


def _further(call: Callable[[int], object], more: int, repetitions: int) -> Timing:
    """Return the CPU seconds of one more iteration of ``call(iterations)``, run without output."""

    def seconds(iterations: int) -> float:
        began = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            call(iterations)
        return time.process_time() - began

    seconds(1)
    pairs = [(seconds(1), seconds(1 + more)) for _ in range(repetitions)]
    return Timing.of_more(*zip(*pairs, strict=True), more)


def _to_pyttb(tensor: SparseTensor) -> Any:
    pyttb = _installed()["pyttb"]
    values = tensor.values.astype(np.float64)[:, None]
    return pyttb.sptensor(tensor.indices.astype(np.int64), values, tensor.shape)


def _guess(tensor: SparseTensor, rank: int) -> list[Any]:
    """Return our own initial factors in float64."""
    factors, _ = start(tensor, SolverSettings(rank=rank))
    return [factor.astype(np.float64) for factor in factors]


def _cp_als(name: str, tensor: SparseTensor, scale: Scale, found: Sequence[Row]) -> list[Row]:
    target = 150.0 if name == "M" else None
    label = f"ratio {name}: pyttb cp_als / exact iteration"
    pyttb = _installed().get("pyttb")
    if pyttb is None:
        return _missing(label, "pyttb", target)
    theirs, guess = _to_pyttb(tensor), pyttb.ktensor(_guess(tensor, scale.rank))

    def call(iterations: int) -> None:
        pyttb.cp_als(
            theirs, scale.rank, init=guess.copy(), maxiters=iterations, stoptol=0, printitn=0
        )

    repetitions = 2 if name == "M" else max(2, scale.repetitions // 2)
    timing = _further(call, 2, repetitions)
    peer = Row.of(f"peer {name}: pyttb cp_als iteration", timing, "ns/nnz", 1e9 / tensor.nnz)
    return [peer, ratio(label, peer, value_of(found, _EXACT.format(name)), target)]


def _genten(name: str, tensor: SparseTensor, scale: Scale, found: Sequence[Row]) -> list[Row]:
    """Time GenTen's cp_als (C++) through its Python package, which accepts pyttb's tensors."""
    target = 5.0 if name == "M" else None
    label = f"ratio {name}: GenTen cp_als / exact iteration"
    installed = _installed()
    if not installed.keys() >= {"pyttb", "pygenten"}:
        return _missing(label, "pygenten", target)
    theirs = _to_pyttb(tensor)

    def call(iterations: int) -> None:
        installed["pygenten"].cp_als(
            theirs, rank=scale.rank, maxiters=iterations, tol=0.0, seed=1, printitn=0, timings=False
        )

    timing = _further(call, 5, scale.repetitions)
    peer = Row.of(f"peer {name}: GenTen cp_als iteration", timing, "ns/nnz", 1e9 / tensor.nnz)
    return [peer, ratio(label, peer, value_of(found, _EXACT.format(name)), target)]


def _mttkrp(name: str, tensor: SparseTensor, scale: Scale, found: Sequence[Row]) -> list[Row]:
    theirs, guess = _to_pyttb(tensor), _guess(tensor, scale.rank)
    timing = timed(lambda: theirs.mttkrp(guess, 0), 2, 0.0)
    peer = Row.of(f"peer {name}: pyttb mttkrp, mode 0", timing, "ns/nnz", 1e9 / tensor.nnz)
    ours = value_of(found, f"mttkrp {name}: mode 0")
    return [peer, ratio(f"ratio {name}: pyttb mttkrp / ours, mode 0", peer, ours)]


def _gcp(name: str, tensor: SparseTensor, scale: Scale, found: Sequence[Row]) -> list[Row]:
    """Time pyttb's Adam on sampled cells, with as many zeros per non-zero as psgd."""
    pyttb = _installed()["pyttb"]
    adam = importlib.import_module("pyttb.gcp.optimizers").Adam
    sampling = importlib.import_module("pyttb.gcp.samplers")
    goal = importlib.import_module("pyttb.gcp.handles").Objectives.GAUSSIAN
    theirs, guess = _to_pyttb(tensor), pyttb.ktensor(_guess(tensor, scale.rank))
    cells = min(_SAMPLES, 6 * tensor.nnz)
    count = sampling.StratifiedCount(cells // 6, cells - cells // 6)
    sampler = sampling.GCPSampler(
        theirs, gradient_sampler=sampling.Samplers.STRATIFIED, gradient_samples=count,
        function_sampler=sampling.Samplers.STRATIFIED, function_samples=count,
    )  # fmt: skip

    def call(steps: int) -> None:
        optimizer = adam(rate=1e-6, epoch_iters=steps, max_iters=1)
        pyttb.gcp_opt(
            theirs, scale.rank, goal, optimizer, init=guess.copy(), sampler=sampler, printitn=0
        )

    timing = _further(call, 4, 2)
    peer = Row.of(
        f"peer {name}: pyttb gcp_opt (Adam), a cell", timing, "ns/visit", 1e9 / cells,
        note=f"{cells:,} cells a step, zeros among them; the whole factors move in each",
    )  # fmt: skip
    ours = value_of(found, f"psgd {name} joint, zeros: pass, a visit")
    return [peer, ratio(f"ratio {name}: pyttb gcp_opt / psgd, a cell", peer, ours)]


def _tensorly(name: str, tensor: SparseTensor, scale: Scale) -> list[Row]:
    """Time TensorLy's parafac. It needs all cells in memory, so only patients that fit are used."""
    label = f"ratio {name}, thinned: TensorLy parafac / exact iteration"
    if "tensorly" not in _installed():
        return _missing(label, "tensorly")
    decomposition = importlib.import_module("tensorly.decomposition")
    most = max(2, _DENSE // math.prod(tensor.feature_shape))
    thinned = tensor.select_patients(range(min(most, tensor.n_patients)))
    if thinned.nnz == 0:
        return [Row(label, None, "x", at_least=True, note="no cells are left")]
    dense = np.zeros(thinned.shape)
    dense[tuple(thinned.indices.T)] = thinned.values
    guess = (np.ones(scale.rank), _guess(thinned, scale.rank))

    def call(iterations: int) -> None:
        decomposition.parafac(
            dense, scale.rank, n_iter_max=iterations, init=guess, tol=0, linesearch=False
        )

    settings = SolverSettings(rank=scale.rank, nonnegative=False, gamma=0.0)
    factors, anchors = start(thinned, settings)
    rng = np.random.default_rng(0)
    ours = in_turn(
        {"exact": lambda: exact(LocalProblem(thinned, factors, anchors, settings, rng))}, 3
    )["exact"]
    peer = Row.of(
        f"peer {name}, thinned: TensorLy parafac iteration", _further(call, 1, 2), "ns/nnz",
        1e9 / thinned.nnz,
        note=f"{thinned.n_patients:,} patients, {thinned.nnz:,} non-zeros of {dense.size:,} cells",
    )  # fmt: skip
    return [peer, ratio(label, peer, ours.median * 1e9 / thinned.nnz)]
