"""What federating costs beside the solver: time in one process, and bytes on the wire."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.processes import child
from benchmarks.rows import Row, Timing
from benchmarks.scale import Scale
from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.settings import SolverSettings
from dpfact_flower.tensor import SparseTensor

_TAU = SolverSettings().tau
"""Local passes a round, as a run has them by default: with more, the overhead's share falls."""


def measure(tensors: Mapping[str, SparseTensor], scale: Scale, _: Sequence[Row]) -> list[Row]:
    """Rows of runs in one process: the demo, and the sites of tensor M."""
    demo = _run("demo", min(6000, 10 * scale.small), scale, rank=12, rounds=4 * scale.rounds)
    found = [*_overhead("demo", demo, None), *_bytes("demo", demo)]
    if scale.name != "smoke":  # the same code once more, and most of its time is imports
        large = list(tensors)[-1]
        sites = _run("paper-mimic", scale.large, scale, rank=scale.rank, rounds=scale.rounds)
        found += [*_overhead(large, sites, 0.05), *_bytes(large, sites)]
    return found


def _run(name: str, patients: int, scale: Scale, *, rank: int, rounds: int) -> dict[str, Any]:
    """Federate a preset in a fresh process; summary and rounds of it."""
    with tempfile.TemporaryDirectory() as place:
        folder, out = Path(place) / "data", Path(place) / "run"
        folder.mkdir()
        cohort = synthetic(preset(name, patients=max(patients, 60)))
        cohort.save(folder)
        config = {
            "data": str(folder), "rank": rank, "rounds": rounds, "privacy": "none",
            "solver": "exact", "tau": _TAU, "state-dir": f"{place}/sites", "job": "bench",
        }  # fmt: skip
        child("federate", str(out), json.dumps(config))
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        solver: dict[int, float] = {}
        for site in cohort.sites:
            for line in _lines(Path(place) / "sites" / site.name / "bench" / "history.jsonl"):
                solver[line["round"]] = solver.get(line["round"], 0.0) + line["seconds"]
        return {
            "rounds": _lines(out / "history.jsonl"), "solver": solver, "summary": summary,
            "payload": 4 * rank * sum(cohort.sites[0].tensor.feature_shape) * len(cohort.sites),
        }  # fmt: skip


def _overhead(name: str, run: Mapping[str, Any], target: float | None) -> list[Row]:
    # The first round loads machine code and data.
    later = [(r["seconds"], run["solver"][r["round"]]) for r in run["rounds"][1:]]
    shares = Timing(tuple(1 - solver / seconds for seconds, solver in later))
    rest = Timing(tuple(seconds - solver for seconds, solver in later))
    summary = run["summary"]
    total = 1 - summary["solver_seconds"] / summary["seconds"]
    note = f"exact, tau = {_TAU}; all but the solver, from round 2; sites in turn"
    return [
        Row.of(f"federation {name}: overhead of a round", shares, "share", target=target,
               note=note),
        Row.of(f"federation {name}: the same, in time", rest, "ms/round", 1e3),
        Row(f"federation {name}: overhead of the run", total, "share",
            note=f"summary.json; {summary['rounds']} rounds, start-up of the first included"),
    ]  # fmt: skip


def _bytes(name: str, run: Mapping[str, Any]) -> list[Row]:
    last, payload = run["rounds"][-1], run["payload"]
    return [
        Row(f"federation {name}: bytes {way} / float32 payload", last[f"bytes_{way}"] / payload,
            "x", note=f"{last[f'bytes_{way}']:,} B a round, of them {payload:,} B factors")
        for way in ("down", "up")
    ]  # fmt: skip


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
