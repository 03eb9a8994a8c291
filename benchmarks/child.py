"""Run a task in a fresh process: ``python -m benchmarks.child TASK ...`` prints one line of JSON.

No heavy module is imported before the clock starts.
"""

import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# ruff: noqa: PLC0415

_HEAVY = ("torch", "ray", "sklearn", "pandas", "matplotlib", "scipy.optimize")


def import_module(name: str) -> dict[str, Any]:
    """Return the seconds that an import takes, and the heavy packages that it also imports."""
    began = time.perf_counter()
    importlib.import_module(name)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "heavy": _heavy()}


def public_names() -> dict[str, Any]:
    """Return the seconds needed to import every public name, each imported on first use."""
    began = time.perf_counter()
    package = importlib.import_module("dpfact_flower")
    for name in package.__all__:
        getattr(package, name)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "heavy": _heavy()}


def _heavy() -> list[str]:
    return [name for name in _HEAVY if name in sys.modules]


def answer(data: str, privacy: str) -> dict[str, Any]:
    """Return the seconds from the first import to the reply to round 1 from Flower's ClientApp.

    The seconds include Flower's own imports. The result also has the time of these imports, and the
    CPU time.
    """
    began, cpu = time.perf_counter(), time.process_time()
    from flwr.app import MessageType
    from flwr.clientapp import ClientApp

    flower = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    from dpfact_flower.client_app import app
    from dpfact_flower.runtime.grid import InProcessGrid
    from dpfact_flower.wire import records

    assert isinstance(app, ClientApp)
    with tempfile.TemporaryDirectory() as state:
        node = {"data-path": data, "state-dir": state, "allow-privacy": privacy}
        if privacy == "patient":
            node["max-epsilon"] = 10.0
        arrays, config = _request(data, rank=12, privacy=privacy).to_wire()
        grid = InProcessGrid(app, [node])
        message = grid.create_message(records.ask(arrays, config), MessageType.TRAIN, 2, "1")
        (reply,) = grid.send_and_receive([message])
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    if reply.has_error():
        raise RuntimeError(reply.error.reason)
    return {"seconds": seconds, "cpu": cpu, "flower": flower, "heavy": _heavy()}


def load(data: str, rank: str, solver: str = "exact") -> dict[str, Any]:
    """Return the peak memory for loading a site's file and computing one round."""
    from dpfact_flower.data.site_data import SiteData

    return _peak_of_round(SiteData.load(data).tensor, data, int(rank), solver)


def only_round(data: str, rank: str, solver: str = "exact") -> dict[str, Any]:
    """Return the peak memory of one round. The tensor is read without checks or copies."""
    from dpfact_flower.machine.parsed import load_npz
    from dpfact_flower.tensor import SparseTensor

    arrays = load_npz(data, ())
    shape = tuple(arrays["shape"].tolist())
    tensor = SparseTensor(arrays["indices"], arrays["values"], shape)
    return _peak_of_round(tensor, data, int(rank), solver)


def large(patients: str, rank: str) -> dict[str, Any]:
    """Return the kernels' times on tensor L, and the peak memory of a psgd round on this tensor."""
    import numpy as np

    from benchmarks.kernel import digits
    from benchmarks.large import large as make
    from benchmarks.solver import drawn_steps

    counts = make(int(patients))
    nnz, rows = counts.nnz, sum(counts.shape)
    steps, order = drawn_steps(counts, int(rank), repetitions=3)
    facts = {
        "nnz": nnz, "rows": rows, "steps": steps, "order": order,
        "digits": digits(counts, int(rank), passes=1),
    }  # fmt: skip
    before = _reset_peak()
    began = time.perf_counter()
    shape = tuple(np.asarray(counts.shape[1:]).tolist())
    _round(counts, _request_of(shape, int(rank), "psgd"))
    return facts | {"peak": _peak() - before + 16 * nnz, "seconds": time.perf_counter() - began}


def federate(out: str, config: str) -> dict[str, Any]:
    """Run an entire federation in one process, and time its rounds and their parts."""
    from benchmarks.parts import watch, watch_rounds
    from dpfact_flower.runtime.serve import federate_config as run

    seconds, rounds = watch(), watch_rounds()
    run(json.loads(config) | {"out": out})
    parts = {part: sum(calls) for part, calls in seconds.items()}
    return {"rounds": rounds(), "parts": parts}


def _peak_of_round(tensor: Any, data: str, rank: int, solver: str) -> dict[str, Any]:
    _round(tensor, _request(data, rank, solver))
    return {"peak": _peak()}


def _round(tensor: Any, request: Any) -> None:
    from dpfact_flower.data.site_data import SiteData
    from dpfact_flower.data.vocabulary import Vocabulary
    from dpfact_flower.site.elastic import ElasticRound
    from dpfact_flower.site.round import JobState

    codes = [tuple(map(str, range(size))) for size in tensor.feature_shape]
    lists = tuple(Vocabulary(f"mode-{number}", each) for number, each in enumerate(codes))
    source = SiteData("bench", tensor, lists)
    ElasticRound(lists, request, site="bench", simulation=False).run(source, JobState())


def _reset_peak() -> int:
    """Reset the peak if the system can, and return the memory in use."""
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not clear.exists():
        return 0
    clear.write_text("5", encoding="ascii")
    return 1024 * next(
        int(x.split()[1]) for x in status.read_text().splitlines() if x.startswith("VmRSS:")
    )


def _peak() -> int:
    """Return this process's peak resident memory, in bytes.

    On Linux, a process inherits `ru_maxrss` from its parent, so a large parent hides a small child.
    The high-water mark `VmHWM`, in contrast, starts at zero.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text(encoding="utf-8").splitlines()
        return 1024 * next(int(x.split()[1]) for x in lines if x.startswith("VmHWM:"))
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)


def _request(data: str, rank: int, solver: str = "exact", privacy: str = "none") -> Any:
    """Return round 1's request for the modes in a site's file. Only the modes' sizes are read."""
    import numpy as np

    with np.load(data) as archive:
        sizes = tuple(archive["shape"][1:].tolist())
    if privacy == "patient":
        return _patient_request(sizes, rank)
    return _request_of(sizes, rank, solver)


def _patient_request(sizes: tuple[int, ...], rank: int) -> Any:
    from dpfact_flower.privacy.patient.plan import plan_patient
    from dpfact_flower.settings import PrivacySettings, SolverSettings
    from dpfact_flower.wire.protocol import RoundRequest

    privacy = PrivacySettings(start_share=0.7, refine_rounds=1, bound=0.1)
    plan = plan_patient(privacy, sizes=sizes, rank=rank)
    return RoundRequest(
        job="bench", round=1, rounds=plan.rounds, seed=0, solver=SolverSettings(rank=rank),
        privacy=privacy, vocabulary="", anchors=(), rule="patient",
    )  # fmt: skip


def _request_of(sizes: tuple[int, ...], rank: int, solver: str) -> Any:
    from dpfact_flower.server.rule import initial_factors
    from dpfact_flower.settings import PrivacySettings, SolverSettings
    from dpfact_flower.wire.protocol import RoundRequest

    zeros = "none" if solver == "psgd" else "stratified"
    return RoundRequest(
        job="bench", round=1, rounds=1, seed=0,
        solver=SolverSettings(
            rank=rank, tau=1, solver=solver, eta=1e-4, zeros=zeros, relative_l21=0.0
        ),
        privacy=PrivacySettings(privacy="none"), vocabulary="", rule="elastic",
        anchors=initial_factors(sizes, rank, 0),
    )  # fmt: skip


def read(folder: str, memory: str) -> dict[str, Any]:
    """Return the seconds and peak memory needed to make a tensor from two event tables."""
    import duckdb  # noqa: F401 - its import is no reading

    from dpfact_flower.data.readers import event_tables

    before = _reset_peak()
    began, cpu = time.perf_counter(), time.process_time()
    tables = {mode: Path(folder) / f"{mode}.csv" for mode in ("procedures", "diagnoses")}
    cohort = event_tables.read(tables, "bench", top=(200, 300), memory=memory)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    (site,) = cohort.summary()
    facts = {"seconds": seconds, "cpu": cpu, "peak": _peak(), "before": before}
    return facts | {"patients": site.patients}


def scan(folder: str) -> dict[str, Any]:
    """Return the seconds that DuckDB takes to read every field of the same tables."""
    import duckdb

    began, cpu = time.perf_counter(), time.process_time()
    for mode in ("procedures", "diagnoses"):
        duckdb.sql(
            f"""SELECT max(patient), max(time), max(code)
                FROM read_csv('{folder}/{mode}.csv', all_varchar=true)"""
        ).fetchall()
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def scan_all(folder: str) -> dict[str, Any]:
    """Return the seconds that DuckDB takes to read every field of all CSV files in a folder."""
    import duckdb

    began, cpu = time.perf_counter(), time.process_time()
    for path in sorted(Path(folder).rglob("*.csv")):
        duckdb.sql(f"SELECT max(COLUMNS(*)) FROM read_csv('{path}', all_varchar=true)").fetchall()
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def read_ehr(kind: str, folder: str, memory: str, drugs: str) -> dict[str, Any]:
    """Return a reader's seconds and peak memory for the tables that `benchmarks.ehr` makes."""
    import duckdb  # noqa: F401 - its import is no reading

    from dpfact_flower.data.readers import runner

    more = {"drugs": True} if drugs == "True" else {}
    before = _reset_peak()
    began, cpu = time.perf_counter(), time.process_time()
    cohort = runner.read(kind, folder, memory=memory, top=(202, 316, 200)[: 2 + len(more)], **more)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    summary = cohort.summary()
    return {
        "seconds": seconds, "cpu": cpu, "peak": _peak(), "before": before,
        "patients": len(cohort), "cells": sum(line.nonzeros for line in summary),
    }  # fmt: skip


_TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "import": import_module,
    "names": public_names,
    "answer": answer,
    "load": load,
    "round": only_round,
    "large": large,
    "federate": federate,
    "read": read,
    "scan": scan,
    "scan_all": scan_all,
    "read_ehr": read_ehr,
}

if __name__ == "__main__":
    print(json.dumps(_TASKS[sys.argv[1]](*sys.argv[2:])))
