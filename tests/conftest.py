"""Fixtures that several test modules share."""

import multiprocessing.process
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Use one BLAS thread, set before NumPy is loaded: tests run in parallel, and arrays are small.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# A console keeps the width that it finds when it is created, and xdist sets one.
os.environ.pop("COLUMNS", None)

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.estimation import certainty, surrogate_fit
from dpfact_flower.evaluation import prediction
from dpfact_flower.machine.threads import thread_count
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.sparse import as_tensor
from simulation.paper.datasets import open_data
from tests.patience import Clock

# Examples have no deadline, because their duration only shows how busy the machine is.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", settings.get_profile("any-machine"), max_examples=10_000)
settings.load_profile("any-machine")

SURROGATES = {(surrogate_fit, "_FEW"): 4_000, (surrogate_fit, "_MANY"): 6_000,
              (surrogate_fit, "_RANDOM"): 4, (certainty, "_SURROGATES"): 1_000,
              (certainty, "SPLITS"): 2, (prediction, "SPLITS"): 3}  # fmt: skip
"""A tenth of the surrogate patients and a third of the fits, which is fast and enough here."""
ALL_SURROGATES = [(module, name, getattr(module, name)) for module, name in SURROGATES]
for (_module, _name), _few in SURROGATES.items():
    setattr(_module, _name, _few)

SIZES = (40, 25, 30)
CODES = {"procedures": 9, "diagnoses": 12}
RANK = 4


def count_tensor(patients: int, seed: int) -> SparseTensor:
    """Draw counts from a random non-negative model, with a few cells per patient."""
    rng = np.random.default_rng(seed)
    factors = [rng.gamma(0.3, 1.0, (size, RANK)) for size in (patients, *CODES.values())]
    counts = rng.poisson(np.einsum("ir,jr,kr->ijk", *factors))
    counts[np.arange(patients), 0, 0] += 1  # every patient has a cell
    return as_tensor(counts)


STARTS_PROCESSES = ("process", "ray", "deployment")
"""Marks of tests that may start a process or a browser, which `make check` leaves out."""
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
_without_processes: list[str] = []
"""The running test if it may not start a process."""


def _refuse_processes(event: str, arguments: tuple[object, ...]) -> None:
    if _without_processes and event in _STARTS:
        marks = ", ".join(STARTS_PROCESSES)
        pytest.fail(f"{_without_processes[0]} starts a process ({event}): mark it, one of {marks}")


def _audited(start):
    """Make `multiprocessing` report processes that it starts in C to the audit hook."""

    def audited(process):
        sys.audit("subprocess.Popen")
        start(process)

    return audited


sys.addaudithook(_refuse_processes)
multiprocessing.process.BaseProcess.start = _audited(multiprocessing.process.BaseProcess.start)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """Let only marked tests start a process, so that `make check` stays fast."""
    if not any(map(item.get_closest_marker, STARTS_PROCESSES)):
        _without_processes.append(item.nodeid)
    try:
        return (yield)
    finally:
        _without_processes.clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slowest files, so that no worker still runs them at the end."""
    marks = ("deployment", "ray", "slow")
    first = {mark: {i.path for i in items if i.get_closest_marker(mark)} for mark in marks}
    items.sort(key=lambda item: [item.path not in first[mark] for mark in marks])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Use one worker more than processors, because deployment tests mostly wait for Flower."""
    return min(thread_count() + 1, 4)


def make_vocabularies() -> tuple[Vocabulary, ...]:
    return tuple(
        Vocabulary(name, tuple(f"{name[0].upper()}{i:02d}" for i in range(size)), ("",) * size)
        for name, size in CODES.items()
    )


def make_cohort() -> Cohort:
    """Three small sites that share phenotypes."""
    vocabularies = make_vocabularies()
    sites = tuple(
        SiteData(f"site-{n}", count_tensor(size, seed=n), vocabularies)
        for n, size in enumerate(SIZES, start=1)
    )
    return Cohort("small", sites, None)


@pytest.fixture(params=[0o022, 0o077, 0o000], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture(scope="module")
def all_surrogates() -> Iterator[None]:
    """Draw as many surrogate patients as other processes draw."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, number in ALL_SURROGATES:
            patch.setattr(module, name, number)
        yield


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The server's clock, which goes on where it would wait."""
    it = Clock()
    for module in ("connected", "collect"):
        monkeypatch.setattr(f"dpfact_flower.{module}.time", it)
    return it


@pytest.fixture(scope="session")
def vocabularies() -> tuple[Vocabulary, ...]:
    return make_vocabularies()


@pytest.fixture(scope="session")
def cohort() -> Cohort:
    """The small cohort of the whole session, which no test may change."""
    return make_cohort()


@pytest.fixture(scope="session")
def planted() -> Cohort:
    """Two sites with four planted phenotypes, which no test may change."""
    return synthetic(
        preset("demo", patients=400, phenotypes=4, shares="0.7,0.3", local=0.0,
               modes="procedures:20:3,diagnoses:30:3")
    )  # fmt: skip


@pytest.fixture
def cohort_folder(cohort: Cohort, tmp_path: Path) -> Path:
    folder = tmp_path / "cohort"
    folder.mkdir()
    cohort.save(folder)
    return folder


@pytest.fixture(scope="session")
def ehr_data() -> Path:
    """The folder in which the paper's evaluation expects open EHR data."""
    folder = open_data()
    if not (folder / "mimic3_demo").is_dir():
        pytest.skip(f"open EHR data not found in {folder}; set DPFACT_DATA to its folder")
    return folder
