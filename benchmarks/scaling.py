"""Measure how the time per non-zero depends on the size and rank, and the gain from threads."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from benchmarks.rows import Row, timed
from benchmarks.scale import Scale
from benchmarks.solver import ETA, in_turn, start, step_of
from dpfact_flower.machine.threads import in_order
from dpfact_flower.privacy.patient.statistics import refinement
from dpfact_flower.settings import SolverSettings
from dpfact_flower.site.local_fit import scaled
from dpfact_flower.solver import LocalProblem
from dpfact_flower.solver.exact import exact
from dpfact_flower.solver.kernels import sgd
from dpfact_flower.solver.kernels.order import visits
from dpfact_flower.solver.psgd import psgd
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.stack import stack_factors

_SHARES = (8, 4, 2, 1)
_RANKS = (10, 20, 50, 100)
_VARIABLE = "OMP_NUM_THREADS"


def measure(tensors: Mapping[str, SparseTensor], scale: Scale, _: Sequence[Row]) -> list[Row]:
    """Return the largest tensor's rows."""
    name, counts = list(tensors.items())[-1]
    tensor = scaled(counts, SolverSettings())
    found = []
    for share in _SHARES:
        part = tensor.select_patients(range(max(2, tensor.n_patients // share)))
        label = f"scaling {name}, {100 / share:g} % of the patients"
        found += _solvers(label, part, scale.rank, scale)
    for rank in _RANKS:
        found += _solvers(f"scaling {name}, rank {rank}", tensor, rank, scale)
    return [*found, *_threads(name, tensor, scale)]


def _solvers(label: str, tensor: SparseTensor, rank: int, scale: Scale) -> list[Row]:
    """Measure the CPU time of a joint pass, including its order, and of one exact iteration."""
    settings = SolverSettings(rank=rank, solver="psgd", eta=ETA, zeros="none")
    factors, anchors = start(tensor, settings)
    stack, anchored, step = (
        stack_factors(factors),
        stack_factors(anchors),
        step_of(settings),
    )

    def one_pass() -> None:
        for rows, counts in visits(tensor, 0, np.random.default_rng(2)):
            sgd.visit(stack, anchored, rows, counts, step)

    timing = in_turn(
        {"psgd pass": one_pass, "exact call": _exact_call(tensor, rank)}, scale.repetitions
    )
    return [
        Row.of(f"{label}: {what}", seconds, "ns/nnz", 1e9 / tensor.nnz,
               note=f"{tensor.nnz:,} non-zeros")
        for what, seconds in timing.items()
    ]  # fmt: skip


def _exact_call(tensor: SparseTensor, rank: int) -> Callable[[], None]:
    settings = SolverSettings(rank=rank, tau=1, relative_l21=0.0)
    factors, anchors = start(tensor, settings)

    def call() -> None:
        exact(LocalProblem(tensor, factors, anchors, settings, np.random.default_rng(0)))

    return call


def _threads(name: str, tensor: SparseTensor, scale: Scale) -> list[Row]:
    """Compare the wall time on one thread with that on one thread per processor."""
    processors = os.cpu_count() or 1
    label = f"scaling {name}, {processors} threads for one"
    found = []
    for what, call in _threaded(tensor, scale, processors).items():
        alone = timed(call, scale.repetitions, scale.shortest)
        with _thread_limit(processors):
            together = timed(call, scale.repetitions, scale.shortest)
        found.append(
            Row(f"{label}: {what}", alone.median / together.median, "x", at_least=True,
                spread=together.spread, repetitions=scale.repetitions,
                note=f"wall time, {alone.median:.3g} s on one")
        )  # fmt: skip
    return found


def _threaded(
    tensor: SparseTensor, scale: Scale, processors: int
) -> dict[str, Callable[[], object]]:
    """Return the calls that use several threads."""
    settings = SolverSettings(rank=scale.rank, solver="psgd", eta=ETA, zeros="none")
    factors, anchors = start(tensor, settings)
    sites = np.array_split(np.arange(tensor.n_patients), processors)
    parts = [(tensor.select_patients(site), factors[0][site]) for site in sites]

    def site_by_site() -> None:
        def fit(part: tuple[SparseTensor, np.ndarray]) -> None:
            data, patients = part
            own = (patients, *factors[1:])
            psgd(LocalProblem(data, own, anchors, settings, np.random.default_rng(0)))

        list(in_order(fit, parts))

    def statistic() -> None:
        refinement(tensor, anchors, 0, ridge=np.zeros(scale.rank), bound=0.1, sigma=1.0)

    return {
        "exact, over patients": _exact_call(tensor, scale.rank),
        "psgd, over sites": site_by_site,
        "patient mode's statistic, over patients": statistic,
    }


@contextmanager
def _thread_limit(threads: int) -> Iterator[None]:
    before = os.environ[_VARIABLE]
    os.environ[_VARIABLE] = str(threads)
    try:
        yield
    finally:
        os.environ[_VARIABLE] = before
