"""Store the results of jobs on disk, so that an interrupted run can continue.

A job is one fit of one system. A job's result is a JSON file, with the shared factors in another
file next to it. The file's name contains a digest of the job's settings and of the code. A result
is therefore never used for other settings or other code. Times are stored apart from the other
values, because they vary.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import dpfact_flower
from dpfact_flower.evaluation.run_folder import read_json
from dpfact_flower.machine.files import replacing
from dpfact_flower.machine.parsed import load_npz
from dpfact_flower.tensor import Factors

_HERE = Path(__file__).parent
_PACKAGE = Path(dpfact_flower.__file__).parent
_FOLDERS = (
    "data", "estimation", "machine", "privacy", "runtime", "server", "site", "solver", "tensor",
    "wire",
)  # fmt: skip
_CODE = (
    *sorted(_PACKAGE.glob("*.py")),
    *(path for folder in _FOLDERS for path in sorted((_PACKAGE / folder).rglob("*.py"))),
    *(_PACKAGE / "evaluation" / name for name in ("prediction.py", "prevalence.py")),
    *sorted((_HERE.parent / "baselines").glob("*.py")),
    _HERE.parent / "systems.py",
    *(_HERE / name for name in ("datasets.py", "measures.py", "systems.py")),
)  # fmt: skip


@dataclass(frozen=True, order=True)
class Job:
    """The settings that determine the result of one fit.

    `data` is the name of a data set in `datasets`, and `system` is a key of `systems.SYSTEMS`.
    Patient mode plans its own number of rounds and ignores `rounds`. `splits` is the number of
    splits for predicting death, or 0 if death is not predicted. `epsilon` and `delta` are 0 for
    systems without noise. `relative_l21` is the relative l2,1 weight of the exact solver, or -1 for
    the system's own weight. `tables` says whether the result describes the phenotypes. `sites` is
    the number of sites among which a traffic job divides the data, and 0 for other jobs.
    """

    data: str
    system: str
    rank: int
    rounds: int
    seed: int = 0
    splits: int = 0
    epsilon: float = 0.0
    delta: float = 0.0
    relative_l21: float = -1.0
    tables: bool = False
    sites: int = 0

    @property
    def fit(self) -> "Job":
        """Return this job without the measures it requests, so that experiments can share it."""
        return replace(self, splits=0, tables=False)

    def key(self, code: str) -> str:
        """Return the result's file name, given the digest of the code."""
        text = json.dumps(asdict(self), sort_keys=True) + code
        return f"{self.system}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def __str__(self) -> str:
        if self.sites:
            return f"{self.data}: bytes of {self.system}, R = {self.rank}, {self.sites} sites"
        if not self.rank:
            return f"{Path(self.data).name}: {self.system}"
        noise = f", epsilon {self.epsilon:g}" if self.epsilon else ""
        return f"{Path(self.data).name}: {self.system}, R = {self.rank}, seed {self.seed}{noise}"


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a job.

    `values` holds all values that are the same if the job is repeated. `seconds` is the computing
    time without measurements, and `wall` is the time from the beginning to the end of the job.
    `shared` holds the shared feature factors, if there are any.
    """

    values: dict[str, Any]
    seconds: float
    shared: Factors = ()
    wall: float = 0.0


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Return 16 digits of the SHA-256 of the sources that results depend on."""
    digest = hashlib.sha256()
    for path in _CODE:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Store:
    """Results in a folder, one file per job.

    `code` is the digest of the code that computed the results, by default of the current code.
    """

    def __init__(self, folder: Path, code: str = "") -> None:
        self.folder, self.code = folder, code or code_digest()
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, job: Job) -> Result | None:
        """Return a job's result, or None if the job has not been run with this code."""
        path = self.folder / f"{job.key(self.code)}.json"
        if not path.exists():
            return None
        content = read_json(path)
        arrays = path.with_suffix(".npz")
        shared = tuple(load_npz(arrays, ()).values()) if arrays.exists() else ()
        return Result(content["values"], content["seconds"], shared, content.get("wall", 0.0))

    def save(self, job: Job, result: Result) -> None:
        """Save a result. The JSON file is written last, so if it exists, the result is complete."""
        path = self.folder / f"{job.key(self.code)}.json"
        if result.shared:
            with replacing(path.with_suffix(".npz")) as file:
                np.savez_compressed(file, *result.shared)
        content = {
            "job": asdict(job), "values": result.values,
            "seconds": result.seconds, "wall": result.wall,
        }  # fmt: skip
        with replacing(path) as file:
            file.write((json.dumps(content, indent=1) + "\n").encode())


def merged(jobs: Iterable[Job]) -> dict[Job, Job]:
    """Merge all jobs for the same fit into one job with all their measures."""
    found: dict[Job, Job] = {}
    for job in jobs:
        known = found.get(job.fit, job)
        found[job.fit] = replace(
            job, splits=max(job.splits, known.splits), tables=job.tables or known.tables
        )
    return found


class Results:
    """Results of finished jobs. A lookup ignores which measures a job requests."""

    def __init__(self, found: dict[Job, Result]) -> None:
        self._found = {job.fit: result for job, result in found.items()}

    def __contains__(self, job: Job) -> bool:
        return job.fit in self._found

    def __getitem__(self, job: Job) -> Result:
        return self._found[job.fit]

    def complete(self, jobs: Sequence[Job]) -> bool:
        """Return whether all jobs have results."""
        return all(job in self for job in jobs)
