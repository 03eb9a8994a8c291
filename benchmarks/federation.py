"""Measure a federation's overhead: time in one process and in Ray, and bytes on the wire."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.processes import child
from benchmarks.rows import Row, Timing
from benchmarks.scale import Scale
from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.evaluation.run_folder import read_summary
from dpfact_flower.evaluation.summary import Exchange
from dpfact_flower.tensor import SparseTensor

_TAU = 2
"""Local passes per round. More passes would reduce the overhead's share."""
_TARGET = 0.05
_RAY_ROUNDS = 12
_SITES = (1, 2, 4, 8)


def measure(tensors: Mapping[str, SparseTensor], scale: Scale, _: Sequence[Row]) -> list[Row]:
    """Return rows for runs in one process and in Ray: the demo, tensor M's sites, more sites."""
    patients = min(6000, 10 * scale.small)
    demo = {"solver": "exact", "privacy": "none", "start": "random", "rank": 12}
    demo |= {"rounds": scale.rounds}
    private = {"solver": "exact", "privacy": "patient", "rank": 12}
    run = _run("demo", patients, demo)
    found = [*_overhead("demo exact", run, None), *_bytes("demo exact", run)]
    found += _bytes_of_run("demo patient mode", _run("demo", patients, private))
    if scale.name != "smoke":  # this would run the same code again, mostly imports
        large = list(tensors)[-1]
        plain = {
            "privacy": "none",
            "start": "random",
            "rank": scale.rank,
            "eta": 1e-3,
            "relative-l21": 0.0,
        }
        for solver in ("exact", "psgd"):
            config = plain | {"solver": solver, "rounds": scale.rounds}
            run = _run("paper-mimic", scale.large, config)
            found += _overhead(f"{large} {solver}", run, _TARGET if scale.whole else None)
            found += _bytes(f"{large} {solver}", run)
        found += _sites(large, scale, plain | {"solver": "exact"})
        ray = plain | {"solver": "exact", "rounds": _RAY_ROUNDS}
        found += _overhead(f"{large} exact, Ray", _run("paper-mimic", scale.large, ray, ray=True))
    return found


def _sites(name: str, scale: Scale, plain: Mapping[str, Any]) -> list[Row]:
    """Return rows for the same patients at more and more sites."""
    found = []
    for sites in _SITES:
        shares = {"shares": ",".join("1" * sites), "local": 0.0}
        run = _run("paper-mimic", scale.large // 4, {**plain, "rounds": _RAY_ROUNDS}, **shares)
        rounds = Timing(tuple(run["seconds"][1:]))
        label = f"scaling {name}, sites: {sites}"
        found += [
            Row.of(f"{label}, a round", rounds, "ms/round", 1e3,
                   note=f"exact, {scale.large // 4:,} patients in all, sites in turn"),
            Row(f"{label}, bytes", run["last"]["bytes_up"] / 1e3, "kB/round", note="up"),
        ]  # fmt: skip
    return found


def _run(
    name: str, patients: int, settings: Mapping[str, Any], *, ray: bool = False, **changes: Any
) -> dict[str, Any]:
    """Federate a preset in a fresh process, or in Ray, and time its rounds and their parts.

    For Ray, the time is measured by the server, from a round's start to its last reply.
    """
    with tempfile.TemporaryDirectory() as place:
        folder, out = Path(place) / "data", Path(place) / "run"
        folder.mkdir()
        cohort = synthetic(preset(name, patients=max(patients, 60), **changes))
        cohort.save(folder)
        config = {
            "data": str(folder), "tau": _TAU, "state-dir": f"{place}/sites", "job": "bench",
            **settings,
        }  # fmt: skip
        if ray:
            _simulate(out, config)
        timed = {} if ray else child("federate", str(out), json.dumps(config))
        sent = read_summary(out).exchange
        solver: dict[int, float] = {}
        for site in cohort.sites:
            for line in _lines(Path(place) / "sites" / site.name / "bench" / "history.jsonl"):
                solver[line["round"]] = solver.get(line["round"], 0.0) + line["seconds"]
        codes = sum(cohort.sites[0].tensor.feature_shape)
        rounds = _lines(out / "history.jsonl")
        return {
            "seconds": timed.get("rounds", [r["seconds"] for r in rounds]),
            "solver": [solver.get(r["round"], 0.0) for r in rounds],  # none in patient mode
            "last": rounds[-1], "sent": sent, "parts": timed.get("parts", {}),
            "payload": 4 * settings["rank"] * codes * len(cohort.sites),
        }  # fmt: skip


def _simulate(out: Path, config: Mapping[str, Any]) -> None:
    """Run in Flower's simulation with one virtual client at a time, as in one process."""
    command = [sys.executable, "-m", "dpfact_flower", "simulate", "--out", str(out)]
    command += ["--cpus", str(os.cpu_count()), "--data", config["data"]]
    for key, value in config.items():
        if key != "data":
            command += ["-s", f"{key}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout[-1000:]}{done.stderr[-1000:]}")


def _overhead(name: str, run: Mapping[str, Any], target: float | None = None) -> list[Row]:
    rounds = list(zip(run["seconds"], run["solver"], strict=True))
    later = rounds[1:]  # the first loads machine code and data
    shares = Timing(tuple(1 - solver / seconds for seconds, solver in later))
    rest = Timing(tuple(seconds - solver for seconds, solver in later))
    whole, solver = sum(run["seconds"]), sum(run["solver"])
    note = f"tau = {_TAU}; all but the solver, from round 2; sites in turn"
    parts = {part: seconds / len(rounds) for part, seconds in run["parts"].items()}
    return [
        Row.of(f"federation {name}: overhead of a round", shares, "share", target=target,
               note=note),
        Row.of(f"federation {name}: the same, in time", rest, "ms/round", 1e3,
               note=", ".join(f"{part} {1e3 * seconds:.0f}" for part, seconds in parts.items())),
        Row(f"federation {name}: overhead of the run", 1 - solver / whole, "share",
            note=f"{len(rounds)} rounds: {whole:.1f} s, of them solver {solver:.1f} s; start-up of "
            "the first included"),
    ]  # fmt: skip


def _bytes(name: str, run: Mapping[str, Any]) -> list[Row]:
    last, payload = run["last"], run["payload"]
    return [
        Row(f"federation {name}: bytes {way} / float32 payload", last[f"bytes_{way}"] / payload,
            "x", note=f"{last[f'bytes_{way}']:,} B a round, of them {payload:,} B factors")
        for way in ("down", "up")
    ]  # fmt: skip


def _bytes_of_run(name: str, run: Mapping[str, Any]) -> list[Row]:
    sent: Exchange = run["sent"]
    total = sent.bytes_up + sent.bytes_down
    note = f"{sent.bytes_up:,} B up and {sent.bytes_down:,} B down in the whole run"
    return [
        Row(f"federation {name}: traffic / {scheme}'s", total / theirs, "x", note=note)
        for scheme, theirs in (("the paper", sent.bytes_paper), ("TRIP", sent.bytes_trip))
    ]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
