"""Time the local solvers' P-SGD pass, exact iteration and MTTKRP, in nanoseconds per non-zero."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.rows import Row, Timing, timed
from benchmarks.scale import Scale, first_request
from dpfact_flower.settings import SolverSettings
from dpfact_flower.site.elastic import initial_state
from dpfact_flower.site.local_fit import local_settings, scaled
from dpfact_flower.solver import LocalProblem
from dpfact_flower.solver.exact import exact
from dpfact_flower.solver.kernels import sgd
from dpfact_flower.solver.kernels.order import visits, zero_visits
from dpfact_flower.solver.kernels.sgd import Step
from dpfact_flower.solver.mttkrp import Fibres, stacked_mttkrp
from dpfact_flower.solver.psgd import psgd
from dpfact_flower.solver.solvers import solvers
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.arrays import Array
from dpfact_flower.tensor.stack import stack_factors

_MORE = 4
"""Number of iterations by which two calls to exact differ, so that set-up costs cancel out."""

ETA = 1e-4
"""Small step size, because a measurement makes many passes and none may diverge."""


def measure(tensors: Mapping[str, SparseTensor], scale: Scale, _: Sequence[Row]) -> list[Row]:
    """Return all rows of the solvers for each tensor."""
    found = []
    for name, counts in tensors.items():
        tensor = scaled(counts, SolverSettings())  # as a site does
        found += _psgd(name, tensor, scale)
        found += _exact(name, tensor, scale)
        found += _mttkrp(name, tensor, scale)
    return found


def start(tensor: SparseTensor, settings: SolverSettings) -> tuple[Factors, Factors]:
    """Return a site's factors and anchors at the beginning of round 1."""
    request = first_request(tensor, settings)
    state = initial_state(tensor, request, np.random.default_rng(0))
    return state.factors, request.anchors


def drawn_pass(
    tensor: SparseTensor, settings: SolverSettings
) -> tuple[Array, Array, list[tuple[Array, Array]]]:
    """Return the stacks of factors and anchors, and the visits of one pass, drawn beforehand."""
    factors, anchors = start(tensor, settings)
    stack, rng = stack_factors(factors), np.random.default_rng(1)
    drawn = list(visits(tensor, zero_visits(tensor, settings), rng, stack))
    return stack, stack_factors(anchors), drawn


def drawn_steps(
    tensor: SparseTensor, rank: int, repetitions: int
) -> tuple[list[float], list[float]]:
    """Return the CPU seconds of a joint pass's steps, and of drawing its order."""
    settings = SolverSettings(rank=rank, solver="psgd", eta=ETA, zeros="none")
    factors, anchors = start(tensor, settings)
    stack, anchored = stack_factors(factors), stack_factors(anchors)
    step = replace(step_of(settings), gamma=0.0)
    steps, order = [], []
    for _ in range(repetitions):
        began, stepping = time.thread_time(), 0.0
        for rows, counts in visits(tensor, 0, np.random.default_rng(2)):
            before = time.thread_time()
            sgd.visit(stack, anchored, rows, counts, step)
            stepping += time.thread_time() - before
        steps.append(stepping)
        order.append(time.thread_time() - began - stepping)
    _check_finite(stack)
    return steps, order


def step_of(settings: SolverSettings) -> Step:
    """Return the settings of a visit."""
    return Step(
        eta=settings.eta,
        gamma=5.0,  # the paper's; its size does not change the time
    )


def in_turn(calls: Mapping[str, Callable[[], object]], repetitions: int) -> dict[str, Timing]:
    """Return the CPU time of several calls that, after a warm-up, take turns in each repetition.

    A busy moment of the machine thus affects all calls, and other processes do not count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repetitions):
        for name, call in calls.items():
            began = time.process_time()
            call()
            seconds[name].append(time.process_time() - began)
    return {name: Timing(tuple(found)) for name, found in seconds.items()}


def _psgd(name: str, tensor: SparseTensor, scale: Scale) -> list[Row]:
    per_nonzero, unit, visit = 1e9 / tensor.nnz, "ns/nnz", sgd.visit
    settings = _settings(scale, zeros="none")
    stack, anchors, drawn = drawn_pass(tensor, settings)
    step = step_of(settings)

    def steps() -> None:
        for rows, counts in drawn:
            visit(stack, anchors, rows, counts, step)

    def whole() -> None:
        for rows, counts in visits(tensor, 0, np.random.default_rng(2)):
            visit(stack, anchors, rows, counts, step)

    kernel, total = timed(steps, *scale.timing), timed(whole, *scale.timing)
    _check_finite(stack)
    found = [
        Row.of(f"psgd {name} joint: steps", kernel, unit, per_nonzero,
               note="kernel with the elastic term, visits drawn beforehand"),
        Row.of(f"psgd {name} joint: pass", total, unit, per_nonzero,
               note="drawing the order included"),
    ]  # fmt: skip
    if name == "M":
        found.append(Row.of(f"psgd {name} joint: pass, seconds", total, "s", target=0.2))
    return [*found, *_psgd_zeros(name, tensor, scale), _psgd_epoch(name, tensor, scale)]


def _psgd_zeros(name: str, tensor: SparseTensor, scale: Scale) -> list[Row]:
    settings = _settings(scale, zeros="stratified", eta=1e-8)  # zeros weigh thousands each
    stack, anchors, _ = drawn_pass(tensor, settings)
    step, zeros, model = step_of(settings), zero_visits(tensor, settings), stack.copy()

    def whole() -> None:
        for rows, counts in visits(tensor, zeros, np.random.default_rng(2), model):
            sgd.visit(stack, anchors, rows, counts, step)

    total = timed(whole, *scale.timing)
    _check_finite(stack)
    return [
        Row.of(f"psgd {name} joint, zeros: pass", total, "ns/nnz", 1e9 / tensor.nnz,
               note=f"{zeros / tensor.nnz:.0f} sampled zeros per non-zero"),
        Row.of(f"psgd {name} joint, zeros: pass, a visit", total, "ns/visit",
               1e9 / (tensor.nnz + zeros)),
    ]  # fmt: skip


def _psgd_epoch(name: str, tensor: SparseTensor, scale: Scale) -> Row:
    tau = 2
    settings = _settings(scale, zeros="none", tau=tau)
    factors, anchors = start(tensor, settings)
    passes = (
        tau
        + psgd(LocalProblem(tensor, factors, anchors, settings, np.random.default_rng(3))).rollbacks
    )

    def call() -> None:
        psgd(LocalProblem(tensor, factors, anchors, settings, np.random.default_rng(3)))

    return Row.of(
        f"psgd {name} joint: epoch", timed(call, *scale.timing), "ns/nnz",
        1e9 / (tensor.nnz * passes), note="order, steps, loss; set-up of a call of tau = 2 shared",
    )  # fmt: skip


def _exact(name: str, tensor: SparseTensor, scale: Scale) -> list[Row]:
    found = []
    for changes, label in (
        ({}, ""), ({"nonnegative": False}, " without non-negativity"),
        ({"mu": 1.0, "relative_l21": 0.0}, " with mu"),
    ):  # fmt: skip
        settings = SolverSettings(**{"rank": scale.rank, "tau": 1, "relative_l21": 0.0, **changes})  # type: ignore[arg-type]
        factors, anchors = start(tensor, settings)
        local = local_settings(first_request(tensor, settings), factors)
        local = replace(
            local, gamma=solvers.find(local.solver).elastic_weight(tensor, factors, local)
        )

        def call(tau: int) -> None:
            many = replace(local, tau=tau)  # noqa: B023
            exact(LocalProblem(tensor, factors, anchors, many, np.random.default_rng(0)))  # noqa: B023

        timing = in_turn(
            {"one": lambda: call(1), "several": lambda: call(1 + _MORE)},
            3 * scale.repetitions,
        )
        further = Timing.of_more(timing["one"].seconds, timing["several"].seconds, _MORE)
        target = 27 if name == "M" and not label else None
        found += [
            Row.of(f"exact {name}: iteration{label}", further, "ns/nnz", 1e9 / tensor.nnz,
                   target=target, note=f"CPU time; {_MORE} more iterations in a call"),
            Row.of(f"exact {name}: call of one{label}", timing["one"], "ns/nnz", 1e9 / tensor.nnz,
                   note="tau = 1: finding the fibres, and the objective before, included"),
        ]  # fmt: skip
    return found


def _mttkrp(name: str, tensor: SparseTensor, scale: Scale) -> list[Row]:
    factors, _ = start(tensor, SolverSettings(rank=scale.rank))
    fibres, stack = Fibres.of(tensor), stack_factors(factors)
    finding = timed(lambda: Fibres.of(tensor), *scale.timing)
    found = [Row.of(f"mttkrp {name}: finding the fibres", finding, "ns/nnz", 1e9 / tensor.nnz)]
    for mode in range(tensor.ndim):

        def call() -> None:
            stacked_mttkrp(fibres, stack, mode)  # noqa: B023

        timing = timed(call, *scale.timing)
        found.append(Row.of(f"mttkrp {name}: mode {mode}", timing, "ns/nnz", 1e9 / tensor.nnz))
    return found


def _settings(scale: Scale, **changes: object) -> SolverSettings:
    config = {"rank": scale.rank, "solver": "psgd", "eta": ETA} | changes
    return SolverSettings(**config)  # type: ignore[arg-type]


def _check_finite(stack: Array) -> None:
    if not math.isfinite(float(stack.sum(dtype=np.float64))):
        raise RuntimeError("the passes that were timed diverged: their times mean nothing")
