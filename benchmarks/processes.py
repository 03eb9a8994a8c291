"""Measure start-up time and peak memory, which only a fresh process shows."""

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.rows import Row, Timing
from benchmarks.scale import Scale
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.tensor import SparseTensor

_CHILD = "benchmarks.child"
_ROOT = Path(__file__).parents[1]
_IMPORTS = (
    ("import dpfact_flower", ("import", "dpfact_flower"), 0.5),
    ("all its public names", ("names",), None),
    ("import dpfact_flower.client_app", ("import", "dpfact_flower.client_app"), None),
)
_BYTES_PER_NONZERO = 16


def measure(tensors: Mapping[str, SparseTensor], scale: Scale, _: Sequence[Row]) -> list[Row]:
    """Return the rows for start-up and memory."""
    with tempfile.TemporaryDirectory() as folder:
        large = list(tensors)[-1]
        return [
            *_start_up(scale, Path(folder)),
            *_memory(large, tensors[large], scale, Path(folder)),
        ]


def child(*arguments: str, **environment: str) -> dict[str, Any]:
    """Run a task of `benchmarks.child` in a fresh process and read its result."""
    done = subprocess.run(
        [sys.executable, "-m", _CHILD, *arguments],
        cwd=_ROOT,  # site-packages may contain another `benchmarks`
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _start_up(scale: Scale, folder: Path) -> list[Row]:
    if scale.starts > 1:
        child("names")  # brings the files into the system's cache
    found = []
    for label, task, target in _IMPORTS[: 3 if scale.starts > 1 else 1]:
        starts = [child(*task) for _ in range(scale.starts)]
        heavy = ", ".join(starts[0]["heavy"]) or "no torch, ray, sklearn, pandas, matplotlib"
        found.append(Row.of(f"start-up: {label}", _timing(starts), "s", target=target, note=heavy))
    cohort = synthetic(preset("demo", patients=min(6000, 10 * scale.small)))
    file, cache = folder / "demo-site.npz", str(folder / "numba-cache")
    cohort.sites[0].save(file)
    for privacy, what in (("none", "one exact round"), ("patient", "the start's release")):
        cold = child("answer", str(file), privacy, NUMBA_CACHE_DIR=cache)
        warm = [
            child("answer", str(file), privacy, NUMBA_CACHE_DIR=cache) for _ in range(scale.starts)
        ]
        found += _answers(privacy, what, warm)
        found.append(
            Row(f"start-up: the same, {privacy}, nothing cached", cold["seconds"], "s",
                note="numba compiles: once an installation")
        )  # fmt: skip
    return found


def _answers(privacy: str, what: str, starts: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the times of a deployed site's process that answers one message, and their parts."""
    cpu, flower, flower_cpu = (
        median(values)
        for values in (
            [start["cpu"] for start in starts],
            [start["flower"]["seconds"] for start in starts],
            [start["flower"]["cpu"] for start in starts],
        )
    )
    heavy = ", ".join(starts[0]["heavy"]) or "no torch, sklearn, pandas, matplotlib"
    return [
        Row.of(f"start-up: to the first answer, {privacy}", _timing(starts), "s", target=1.5,
               note=f"imports, a demo site's data, {what}; machine code cached; {heavy}"),
        Row(f"start-up: to the first answer, {privacy}, CPU", cpu, "s",
            repetitions=len(starts),
            note=f"of it Flower's own imports {flower_cpu:.2f}, in wall time {flower:.2f}"),
    ]  # fmt: skip


def _memory(name: str, tensor: SparseTensor, scale: Scale, folder: Path) -> list[Row]:
    """Compare the peak memory of a round with that of a process with almost no data."""
    rank = str(scale.rank)
    tiny, large = folder / "tiny.npz", folder / "large.npz"
    _as_site(tensor.select_patients([0, 1])).save(tiny)
    _as_site(tensor).save(large)
    tensor_bytes = _BYTES_PER_NONZERO * tensor.nnz
    allowed = tensor_bytes + 4 * scale.rank * sum(tensor.shape)

    def peak(way: str, file: Path, solver: str) -> float:
        return median(child(way, str(file), rank, solver)["peak"] for _ in range(scale.starts))

    some = slice(None) if scale.starts > 1 else slice(1)  # each is a process or two
    bases, found = {solver: peak("round", tiny, solver) for solver in ("exact", "psgd")[some]}, []
    ways = (("round", "round"), ("load", "load and round"))[some]
    for solver, (way, what) in itertools.product(bases, ways):
        base = bases[solver]
        used = peak(way, large, solver) - base
        note = (
            f"{used / 1e6:.0f} MB over {base / 1e6:.0f} MB with two patients; "
            f"16 B a non-zero + factors: {allowed / 1e6:.0f} MB"
        )
        # A peak below the tensor's own bytes is lost in the variation of the process.
        value = used / allowed if used > tensor_bytes else None
        found.append(
            Row(f"memory {name}: {solver} {what}", value, "x bound", target=2,
                repetitions=scale.starts, note=note)
        )  # fmt: skip
    return found


def _as_site(tensor: SparseTensor) -> SiteData:
    vocabularies = tuple(
        Vocabulary(f"mode-{mode}", tuple(f"c{code}" for code in range(size)), ("",) * size)
        for mode, size in enumerate(tensor.feature_shape, 1)
    )
    return SiteData("bench", tensor, vocabularies)


def _timing(starts: Sequence[Mapping[str, Any]]) -> Timing:
    return Timing(tuple(start["seconds"] for start in starts))
