"""Tasks for a fresh process, ``python -m benchmarks.child TASK ...``; prints one line of JSON.

Nothing heavy is imported before the clock starts.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# ruff: noqa: PLC0415

_HEAVY = ("torch", "ray", "sklearn", "pandas", "matplotlib")


def import_module(name: str) -> dict[str, Any]:
    """Seconds of an import, and which heavy packages came with it."""
    began = time.perf_counter()
    importlib.import_module(name)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "heavy": [heavy for heavy in _HEAVY if heavy in sys.modules]}


def public_names() -> dict[str, Any]:
    """Seconds to have every public name, which are imported when they are asked for."""
    began = time.perf_counter()
    package = importlib.import_module("dpfact_flower")
    for name in package.__all__:
        getattr(package, name)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "heavy": [heavy for heavy in _HEAVY if heavy in sys.modules]}


def answer(data: str) -> dict[str, Any]:
    """Seconds from the first import to the reply to round 1, through Flower's ClientApp."""
    began = time.perf_counter()
    from flwr.common import MessageType

    from dpfact_flower import records
    from dpfact_flower.client_app import app
    from dpfact_flower.grid import InProcessGrid

    with tempfile.TemporaryDirectory() as state:
        node = {"data-path": data, "state-dir": state, "allow-privacy": "none"}
        arrays, config = _request(data, rank=12).to_wire()
        grid = InProcessGrid(app, [node])
        message = grid.create_message(records.ask(arrays, config), MessageType.TRAIN, 2, "1")
        (reply,) = grid.send_and_receive([message])
        seconds = time.perf_counter() - began
    if reply.has_error():
        raise RuntimeError(reply.error.reason)
    return {"seconds": seconds}


def load(data: str, rank: str) -> dict[str, Any]:
    """Peak memory of loading a site's file and one exact round."""
    from dpfact_flower.data.site_data import SiteData

    return _peak_of_round(SiteData.load(data).tensor, data, int(rank))


def only_round(data: str, rank: str) -> dict[str, Any]:
    """Peak memory of one exact round; the tensor is read as it is, without checks and copies."""
    from dpfact_flower.tensor import SparseTensor, load_npz

    arrays = load_npz(data, ())
    shape = tuple(arrays["shape"].tolist())
    return _peak_of_round(SparseTensor(arrays["indices"], arrays["values"], shape), data, int(rank))


def federate(out: str, config: str) -> dict[str, Any]:
    """Run a whole federation in one process."""
    from dpfact_flower.federate import federate as run

    run(json.loads(config) | {"out": out})
    return {"out": str(Path(out))}


def _peak_of_round(tensor: Any, data: str, rank: int) -> dict[str, Any]:
    from dpfact_flower.site import run_round

    run_round(tensor, None, _request(data, rank), site="bench", modes=("a", "b"), simulation=False)
    return {"peak": _peak()}


def _peak() -> int:
    """Peak resident memory of this process, in bytes.

    Linux hands `ru_maxrss` on to a process from the one that started it, so a large parent hides
    a small child; the high-water mark of the address space begins anew.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text(encoding="utf-8").splitlines()
        return 1024 * next(int(x.split()[1]) for x in lines if x.startswith("VmHWM:"))
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)


def _request(data: str, rank: int) -> Any:
    """Round 1's request for the modes of a site's file; only their sizes are read here."""
    import numpy as np

    from dpfact_flower.elastic import initial_factors
    from dpfact_flower.protocol import RoundRequest
    from dpfact_flower.settings import PrivacySettings, SolverSettings

    with np.load(data) as archive:
        sizes = archive["shape"][1:].tolist()
    return RoundRequest(
        job="bench", round=1, rounds=1, seed=0,
        solver=SolverSettings(rank=rank, tau=1), privacy=PrivacySettings(privacy="none"),
        vocabulary="", anchors=initial_factors(sizes, rank, 0),
    )  # fmt: skip


_TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "import": import_module,
    "names": public_names,
    "answer": answer,
    "load": load,
    "round": only_round,
    "federate": federate,
}

if __name__ == "__main__":
    print(json.dumps(_TASKS[sys.argv[1]](*sys.argv[2:])))
