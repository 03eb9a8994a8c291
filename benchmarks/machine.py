"""Describe the machine of a run, and check whether other processes used it."""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info

from benchmarks.rows import Row

_PACKAGES = ("dpfact-flower", "flwr", "numpy", "scipy", "numba", "pyttb", "pygenten", "tensorly")
_BUSY = 0.5
"""If the load average before a run is higher, other processes are running."""


def describe() -> dict[str, Any]:
    """Return the processor, versions, thread settings, and the load before any measurement."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "threads": {k: v for k, v in sorted(os.environ.items()) if k.endswith("_NUM_THREADS")},
        "blas": [pool["internal_api"] + " " + str(pool["version"]) for pool in threadpool_info()],
        "load": load(),
    }


def show(facts: dict[str, Any]) -> None:
    """Print what `describe` found."""
    for key, value in facts.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        print(f"{key:9} {text}")
    warn_if_busy((), facts["load"])


def load() -> float | None:
    """Return the last minute's load average, or None if the system does not report it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def warn_if_busy(found: Sequence[Row], before: float | None) -> None:
    """Warn if figures are doubtful because other processes were running."""
    if before is not None and before > _BUSY:
        print(f"WARNING: load average {before:.2f} before the run; times may be too long")
    robbed = [row.name for row in found if row.cpu is not None and row.cpu < 0.9]
    if robbed:
        print(f"WARNING: less than 90 % of a core for: {', '.join(robbed)}")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    facts = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    name = facts.get("model name", platform.processor())
    family, model = facts.get("cpu family", "?"), facts.get("model", "?")
    return f"{name} (family {family}, model {model})"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"
