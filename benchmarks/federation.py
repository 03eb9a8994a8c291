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
from dpfact_flower.tensor import SparseTensor

_TAU = 2
"""Local passes a round. With more, the overhead's share falls."""
_TARGET = 0.05


def measure(tensors: Mapping[str, SparseTensor], scale: Scale, _: Sequence[Row]) -> list[Row]:
    """Rows of runs in one process: the demo, and the sites of tensor M."""
    patients = min(6000, 10 * scale.small)
    demo = {"solver": "exact", "privacy": "none", "rank": 12, "rounds": scale.rounds}
    private = {"solver": "exact", "privacy": "patient", "rank": 12}
    run = _run("demo", patients, demo)
    found = [*_overhead("demo exact", run, None), *_bytes("demo exact", run)]
    found += _bytes_of_run("demo patient mode", _run("demo", patients, private))
    if scale.name != "smoke":  # the same code once more, and most of its time is imports
        large = list(tensors)[-1]
        for solver in ("exact", "psgd"):
            name = f"{large} {solver}"
            plain = {"privacy": "none", "rank": scale.rank, "rounds": scale.rounds}
            run = _run("paper-mimic", scale.large, plain | {"solver": solver, "eta": 1e-3})
            found += [*_overhead(name, run, _TARGET), *_bytes(name, run)]
    return found


def _run(name: str, patients: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Federate a preset in a fresh process; summary, rounds and parts of it."""
    with tempfile.TemporaryDirectory() as place:
        folder, out = Path(place) / "data", Path(place) / "run"
        folder.mkdir()
        cohort = synthetic(preset(name, patients=max(patients, 60)))
        cohort.save(folder)
        config = {
            "data": str(folder), "tau": _TAU, "state-dir": f"{place}/sites", "job": "bench",
            **settings,
        }  # fmt: skip
        parts = child("federate", str(out), json.dumps(config))["parts"]
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        solver: dict[int, float] = {}
        for site in cohort.sites:
            for line in _lines(Path(place) / "sites" / site.name / "bench" / "history.jsonl"):
                solver[line["round"]] = solver.get(line["round"], 0.0) + line["seconds"]
        codes = sum(cohort.sites[0].tensor.feature_shape)
        return {
            "rounds": _lines(out / "history.jsonl"), "solver": solver, "summary": summary,
            "payload": 4 * settings["rank"] * codes * len(cohort.sites), "parts": parts,
        }  # fmt: skip


def _overhead(name: str, run: Mapping[str, Any], target: float | None) -> list[Row]:
    # The first round loads machine code and data.
    later = [(r["seconds"], run["solver"][r["round"]]) for r in run["rounds"][1:]]
    shares = Timing(tuple(1 - solver / seconds for seconds, solver in later))
    rest = Timing(tuple(seconds - solver for seconds, solver in later))
    summary = run["summary"]
    total = 1 - summary["solver_seconds"] / summary["seconds"]
    note = f"tau = {_TAU}; all but the solver, from round 2; sites in turn"
    parts = {part: seconds / len(run["rounds"]) for part, seconds in run["parts"].items()}
    return [
        Row.of(f"federation {name}: overhead of a round", shares, "share", target=target,
               note=note),
        Row.of(f"federation {name}: the same, in time", rest, "ms/round", 1e3,
               note=", ".join(f"{part} {1e3 * seconds:.0f}" for part, seconds in parts.items())),
        Row(f"federation {name}: overhead of the run", total, "share",
            note=f"{summary['rounds']} rounds: {summary['seconds']:.1f} s, of them solver "
            f"{summary['solver_seconds']:.1f} s; start-up of the first included"),
    ]  # fmt: skip


def _bytes(name: str, run: Mapping[str, Any]) -> list[Row]:
    last, payload = run["rounds"][-1], run["payload"]
    return [
        Row(f"federation {name}: bytes {way} / float32 payload", last[f"bytes_{way}"] / payload,
            "x", note=f"{last[f'bytes_{way}']:,} B a round, of them {payload:,} B factors")
        for way in ("down", "up")
    ]  # fmt: skip


def _bytes_of_run(name: str, run: Mapping[str, Any]) -> list[Row]:
    summary = run["summary"]
    total = summary["bytes_up"] + summary["bytes_down"]
    note = f"{summary['bytes_up']:,} B up and {summary['bytes_down']:,} B down in the whole run"
    return [
        Row(f"federation {name}: traffic / {scheme}'s", total / summary[f"bytes_{key}"], "x",
            note=note)
        for scheme, key in (("the paper", "paper"), ("TRIP", "trip"))
    ]  # fmt: skip


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
