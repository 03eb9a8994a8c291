"""A real deployment on loopback for the tests: SuperNodes, configs, what is left behind."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpfact_flower.evaluation.run_folder import read_model
from dpfact_flower.runtime.keeper import kept
from dpfact_flower.runtime.superlink import SuperLink, free_port, tool
from tests.patience import PATIENCE, await_that

APP = Path(__file__).parents[2] / "simulation"


@contextmanager
def supernode(
    superlink: SuperLink,
    folder: Path,
    config: dict[str, object],
    security: Sequence[str] = ("--insecure",),
) -> Iterator[subprocess.Popen[bytes]]:
    """A SuperNode process for one hospital; its log is `<site>.log` in `folder`."""
    text = " ".join(
        f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"
        for key, value in config.items()
    )
    command = [
        tool("flower-supernode"), *security, "--superlink", superlink.address,
        "--port", str(free_port()), "--node-config", text,
    ]  # fmt: skip
    with (
        (folder / f"{config['site']}.log").open("wb") as log,
        kept(command, env=superlink.environment, stdout=log, stderr=log) as process,
    ):
        yield process


def site_config(cohort_folder: Path, tmp_path: Path, site: str, **changes) -> dict[str, object]:
    """A hospital's node config."""
    return {
        "site": site, "data-path": str(cohort_folder / f"{site}.npz"),
        "state-dir": str(tmp_path / f"state-{site}"), "allow-privacy": "none", **changes,
    }  # fmt: skip


def server_config(cohort, tmp_path: Path) -> dict[str, object]:
    """A deployed server has the public code lists and nothing else."""
    paths = []
    for vocabulary in cohort.vocabularies:
        path = tmp_path / f"{vocabulary.name}.json"
        vocabulary.save(path)
        paths.append(str(path))
    return {"data": "", "vocabulary": ",".join(paths), "out": str(tmp_path / "deployed"),
            "sites": 3, "min-sites": 2, "wait-timeout": PATIENCE}  # fmt: skip


def assert_same(out: Path, expected) -> None:
    """Compare a run's global factors with others, bit for bit."""
    for got, want in zip(read_model(out)[0], expected, strict=True):
        np.testing.assert_array_equal(got, want)


def lines_of(path: Path) -> list[str]:
    """Lines of a file; none where there is no file yet."""
    return path.read_text().splitlines() if path.exists() else []


def await_none_left(home: Path) -> None:
    """Wait until no process has this Flower home; only Linux shows that."""
    await_that(lambda: not processes_of(home), f"the end of every process of {home}")


def processes_of(home: Path) -> list[int]:
    """Ids of the processes that were started with this Flower home, helpers' helpers too."""
    mark = f"FLWR_HOME={home}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # somebody else's, or gone
            continue
        if mark in environment and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


@dataclass(frozen=True)
class Process:
    """What tells a process from a later one with its number."""

    pid: int
    began: int
    name: str


def running() -> dict[Process, int]:
    """Parent's id of each process of this machine that has not ended; only Linux shows that."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone
            # The name stands in brackets and may hold anything; 20th after it comes the start.
            head, _, rest = (folder / "stat").read_text().rpartition(")")
            state, parent, *more = rest.split()
            if state not in "ZX":
                process = Process(int(folder.name), int(more[17]), head.partition("(")[2])
                found[process] = int(parent)
    return found


def family_of(pid: int) -> set[Process]:
    """A process's descendants, not itself."""
    parents = running()
    family, ids = set(), {pid}
    while more := {each for each in parents if parents[each] in ids} - family:
        family |= more
        ids = {each.pid for each in more}
    return family
