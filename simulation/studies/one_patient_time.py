"""Measure how one patient changes the CPU time of each charged round of patient mode.

    python -m simulation.studies.one_patient_time

Three sites get the same requests in turn. The first site has thousands of made-up patients. The
second site has one more patient, who is like the others. The third site instead has one more
patient who has every pair of codes, and who therefore takes the longest possible time. As in a
hospital's process, a round reads the site's file again and keeps the ledger on disk. A round's time
is measured from the request to the packed reply. docs/explanation/what-leaves.md has the figures.
The seconds depend on the machine, but their ratio does not.
"""

import argparse
import logging
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.client_app import DPFactClient
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.privacy.patient.plan import plan_patient
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.settings import PrivacySettings, SiteSettings, SolverSettings
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.wire.protocol import RoundRequest

SIZES = {"procedures": 202, "diagnoses": 316}
"""Number of codes in each mode, as in the paper's MIMIC-III tensor."""
CELLS = 15
"""Number of non-zeros of an ordinary patient."""
SOLVER = SolverSettings(rank=20)
PRIVACY = PrivacySettings(epsilon=4.0, start_share=0.7, refine_rounds=1, bound=0.1)


@dataclass(frozen=True)
class Row:
    """Median CPU seconds of one kind of round, and the seconds that each added patient costs.

    `added` has, for each added patient, the quartiles of the added seconds across all runs.
    """

    kind: str
    without: float
    added: dict[str, tuple[float, float, float]]

    def __str__(self) -> str:
        more = ", ".join(
            f"{who} {1e3 * middle:+.1f} ms ({1e3 * low:+.1f} to {1e3 * high:+.1f}), "
            f"{middle / self.without:+.1%}"
            for who, (low, middle, high) in self.added.items()
        )
        return f"{self.kind}: {1e3 * self.without:.1f} ms; {more}"


class _Once:
    """A site's file, read anew for each request, as in a process that handles one message."""

    def __init__(self, path: Path, like: SiteData) -> None:
        self.name, self.vocabularies, self._path = like.name, like.vocabularies, path

    @cached_property
    def _data(self) -> SiteData:
        return SiteData.load(self._path)

    def read(self) -> SiteData:
        """Read the whole file."""
        return self._data


def sites(patients: int) -> dict[str, SiteData]:
    """Return the three sites, keyed by the added patient."""
    rng = np.random.default_rng(0)
    sizes = list(SIZES.values())
    many = np.column_stack(
        [np.repeat(np.arange(patients), CELLS)]
        + [rng.integers(0, size, patients * CELLS) for size in sizes]
    )
    one = np.column_stack([rng.integers(0, size, CELLS) for size in sizes])
    every = np.argwhere(np.ones(sizes))
    return {
        "without": _site(many, patients),
        "a patient like the others": _site(_joined(many, one, patients), patients + 1),
        "one with every code": _site(_joined(many, every, patients), patients + 1),
    }


def _joined(cells: NDArray[np.int64], one: NDArray[np.int64], row: int) -> NDArray[np.int64]:
    return np.vstack([cells, np.column_stack([np.full(len(one), row), one])])


def _site(cells: NDArray[np.int64], patients: int) -> SiteData:
    vocabularies = tuple(
        Vocabulary(name, tuple(f"{name}{code}" for code in range(size)), ("",) * size)
        for name, size in SIZES.items()
    )
    shape = (patients, *SIZES.values())
    tensor = SparseTensor.from_coo(cells, np.ones(len(cells)), shape)
    return SiteData("north", tensor, vocabularies)


def requests(rank: int) -> dict[str, RoundRequest]:
    """Return one request for each kind of charged round, in order."""
    sizes = tuple(SIZES.values())
    plan = plan_patient(PRIVACY, sizes=sizes, rank=rank)
    first = RoundRequest(
        job="job", round=1, rounds=plan.rounds, seed=0, solver=replace(SOLVER, rank=rank),
        privacy=plan.settings, vocabulary="", anchors=(), rule="patient",
    )  # fmt: skip
    anchors = initial_factors(sizes, rank, 0)
    asked = {
        planned.name(list(SIZES)).partition(", ")[2]: replace(
            first, round=planned.round, anchors=anchors if planned.kind == "refine" else ()
        )
        for planned in plan.releases
    }
    slow = replace(first, job="slow", round=2, anchors=slow_factors(sizes, rank))
    return asked | {"refine procedures, hostile factors": slow}


def slow_factors(sizes: Sequence[int], rank: int) -> tuple[NDArray[np.float32], ...]:
    """Return factors that make every patient's fit run all sweeps and keep all columns.

    Each column is negative where the next one is positive, so the Gram matrix is tridiagonal.
    """
    block = (np.arange(sizes[0]) * (rank + 1) // sizes[0])[:, None]
    columns = np.arange(rank)
    steps = (block == columns).astype(np.float32) - (block == columns + 1)
    return steps, *(np.ones((size, rank), np.float32) for size in sizes[1:])


def seconds_of_run(path: Path, like: SiteData, folder: Path, rank: int) -> dict[str, float]:
    """Return the CPU seconds of each charged round of a run, over all threads."""
    settings = SiteSettings(state_dir=str(folder), allow_privacy="patient", max_epsilon=100.0)
    found = {}
    for kind, request in requests(rank).items():
        wire = request.to_wire()
        client = DPFactClient(_Once(path, like), settings)  # type: ignore[arg-type]
        began = time.process_time()
        client.fit(*wire)
        found[kind] = time.process_time() - began
    return found


def measure(patients: int, runs: int, rank: int) -> list[Row]:
    """Run the three sites in turn. The first run of each site is not counted."""
    made = sites(patients)
    taken: dict[str, list[dict[str, float]]] = {who: [] for who in made}
    with tempfile.TemporaryDirectory(prefix="dpfact-time-") as name:
        folder = Path(name)
        for who, data in made.items():
            data.save(folder / f"{who}.npz")
        for number in range(runs + 1):
            turn = list(made)[number % len(made) :] + list(made)[: number % len(made)]
            for who in turn:  # so that each site is first equally often
                state = folder / f"{number} {who}"
                taken[who].append(seconds_of_run(folder / f"{who}.npz", made[who], state, rank))
    counted = {who: some[1:] for who, some in taken.items()}
    return [_row(kind, counted) for kind in requests(rank)]


def _row(kind: str, taken: dict[str, list[dict[str, float]]]) -> Row:
    seconds = {who: np.array([run[kind] for run in some]) for who, some in taken.items()}
    without = seconds.pop("without")
    added = {
        who: tuple(np.percentile(some - without, (25, 50, 75)).tolist())
        for who, some in seconds.items()
    }
    return Row(kind, float(np.median(without)), added)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a line for each kind of round."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--patients", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--rank", type=int, default=SOLVER.rank)
    given = parser.parse_args(arguments)
    for row in measure(given.patients, given.runs, given.rank):
        print(row)  # noqa: T201 - what this script is for


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # affects only this process
    main()
