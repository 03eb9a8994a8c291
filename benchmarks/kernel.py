"""Compare psgd's inner loop with C and float64 loops, and time it on tensors of extreme size.

The compared loops take turns, so that a busy moment of the machine affects all of them. CPU time is
measured, so that other processes do not count.
"""

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.c_kernel import CKernel, MissingCompilerError
from benchmarks.peers import naive_pass
from benchmarks.processes import child
from benchmarks.rows import Row, Timing
from benchmarks.scale import Scale, claims
from benchmarks.solver import ETA, drawn_pass, in_turn, start, step_of
from dpfact_flower.settings import SolverSettings
from dpfact_flower.site.local_fit import scaled
from dpfact_flower.solver.kernels import sgd
from dpfact_flower.solver.kernels.order import visits
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.cp import CPModel
from dpfact_flower.tensor.stack import row_offsets, stack_factors

_TARGETS = {"S": 15.0, "M": 15.0, "C": 20.0}
"""Nanoseconds per non-zero for the steps of a joint pass without the elastic term."""

_DIGITS = 4
_PAPER_STEP = 0.01  # larger steps amplify differences in rounding
_VISITS = 4_000_000  # minimum number per second of a repetition


def measure(tensors: Mapping[str, SparseTensor], scale: Scale, _: Sequence[Row]) -> list[Row]:
    """Return the kernels' rows for each tensor."""
    found: list[Row] = []
    for name, counts in {**tensors, **claims(scale)}.items():
        tensor = scaled(counts, SolverSettings())
        found += _against_c(name, tensor, scale)
        found.append(_digits_row(name, digits(tensor, scale.rank)))
    return [*found, *_large(scale)]


def _against_c(name: str, tensor: SparseTensor, scale: Scale) -> list[Row]:
    settings = SolverSettings(rank=scale.rank, solver="psgd", eta=ETA, zeros="none")
    first, anchors, drawn = drawn_pass(tensor, settings)
    elastic = step_of(settings)
    passes = max(1, round(_VISITS * scale.shortest / tensor.nnz))
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            c, reason = CKernel(first.shape[1], Path(folder)), ""
        except MissingCompilerError as error:
            c, reason = None, str(error)
        for step, label in ((replace(elastic, gamma=0.0), ""), (elastic, ", elastic")):
            kinds = {"vector": sgd} | ({"C": c} if c else {})
            stacks = {kind: stack_factors([first]) for kind in kinds}

            def call(kind: str) -> None:
                for _ in range(passes):
                    for rows, counts in drawn:
                        kinds[kind].visit(stacks[kind], anchors, rows, counts, step)  # noqa: B023

            timing = in_turn(
                {kind: lambda kind=kind: call(kind) for kind in kinds}, 3 * scale.repetitions
            )
            per_nonzero = 1e9 / (tensor.nnz * passes)
            target = None if label else _TARGETS.get(name)
            for kind, seconds in timing.items():
                found.append(
                    Row.of(f"kernel {name} joint{label}: {kind}", seconds, "ns/nnz", per_nonzero,
                           target=target if kind == "vector" else None, note="CPU time")
                )  # fmt: skip
            found.append(_ratio(f"kernel {name} joint{label}: vector / C", timing, reason))
            far = max(
                np.abs(stack - stacks["vector"]).max() / np.abs(stack).max()
                for stack in stacks.values()
            )
            if not far < 1e-3:
                raise RuntimeError(f"kernels disagree on {name}: by {far:g} of the largest value")
    return found


def _ratio(name: str, timing: Mapping[str, Timing], reason: str) -> Row:
    """Return the row of a ratio: the median of the repetitions' ratios."""
    if "C" not in timing:
        return Row(name, None, "x", 1.15, note=reason)
    pairs = zip(timing["vector"].seconds, timing["C"].seconds, strict=True)
    ratios = Timing(tuple(ours / theirs for ours, theirs in pairs))
    return Row(
        name, ratios.median, "x", 1.15, spread=ratios.spread, repetitions=len(ratios.seconds),
        best=min(ratios.seconds), note="median of the ratios within a repetition",
    )  # fmt: skip


def digits(tensor: SparseTensor, rank: int, passes: int = 2) -> float:
    """Return the number of digits to which float32 kernels and a float64 loop agree in RMSE."""
    settings = SolverSettings(rank=rank, solver="psgd", eta=_PAPER_STEP, zeros="none")
    factors, anchors = start(tensor, settings)
    step = replace(step_of(settings), gamma=0.0)
    stack, unused = stack_factors(factors), stack_factors(anchors)
    A, B, C = (factor.astype(np.float64) for factor in factors)
    offsets = row_offsets(tensor.shape)
    for rng in (np.random.default_rng(n) for n in range(passes)):
        for rows, counts in visits(tensor, 0, rng):
            sgd.visit(stack, unused, rows, counts, step)
            naive_pass(rows - offsets[:-1].astype(np.int32), counts, A, B, C, step.eta)
    single = np.split(stack[:, :rank], offsets[1:-1])
    models = CPModel.of(*single), CPModel.of(A, B, C)
    errors = [model.squared_error(tensor).rmse.nonzeros for model in models]
    return -math.log10(max(abs(errors[0] / errors[1] - 1), 1e-16))


def _digits_row(name: str, value: float) -> Row:
    return Row(
        f"kernel {name}: digits of RMSE, float32 against float64", value, "digits", _DIGITS,
        at_least=True, note="two passes in the same order",
    )  # fmt: skip


def _large(scale: Scale) -> list[Row]:
    """Return the rows of tensor L, measured in a separate process."""
    name = "L" if scale.whole else "L-thinned"
    need = 5e9 * scale.huge / 1e6
    if _available() < need:
        note = f"needs {need / 1e9:.0f} GB of free memory"
        return [Row(f"kernel {name} joint: pass", None, "ns/nnz", note=note)]
    facts = child("large", str(scale.huge), str(scale.rank))
    size = f"{facts['nnz'] / 1e6:.1f}M non-zeros"
    bound = 16 * facts["nnz"] + 4 * scale.rank * facts["rows"]
    steps, order = (1e9 * median(facts[key]) / facts["nnz"] for key in ("steps", "order"))
    return [
        Row(f"kernel {name} joint: steps", steps, "ns/nnz", 20.0 if scale.whole else None,
            note=f"{size}; CPU time, without the elastic term and the order"),
        Row(f"kernel {name}: order", order, "ns/nnz", note="shuffling blocks of patients"),
        _digits_row(name, facts["digits"]),
        Row(f"memory {name}: psgd round, all", facts["peak"] / bound, "x bound", 2,
            note=f"{facts['peak'] / 1e9:.2f} GB with the tensor; {facts['seconds']:.1f} s"),
        Row(f"memory {name}: psgd round, beside the tensor",
            (facts["peak"] - 16 * facts["nnz"]) / 1e9, "GB", 2),
    ]  # fmt: skip


def _available() -> float:
    """Return the free memory in bytes, or infinity if the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return math.inf
    return 1024.0 * next(int(x.split()[1]) for x in lines if x.startswith("MemAvailable:"))
