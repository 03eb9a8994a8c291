"""A process that the system ends while it works on patients, in a deployment of two sites.

The centre sees the one code of a round that failed, what was charged stands, and the next round is
answered. The system is the kernel where this user may limit memory, and the test itself elsewhere.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.privacy.ledger import Ledger
from dpfact_flower.runtime.connection import tool
from dpfact_flower.runtime.superlink import SuperLink, free_port, local_superlink
from dpfact_flower.runtime.supervisor import supervised
from dpfact_flower.server.history import read_history
from dpfact_flower.tensor import SparseTensor
from tests.patience import PATIENCE, await_that
from tests.processes import descendant
from tests.runtime.deployment import APP, lines_of, server_config

PATIENTS, CELLS = 800_000, 15
"""Of the site whose process is ended: reading them takes seconds and hundreds of megabytes."""
CONFIG = {"rank": 4, "seed": 5, "relative-l21": 0.0, "privacy": "patient", "epsilon": 4.0,
          "delta": 1e-5, "refine-rounds": 1, "min-sites": 1, "round-timeout": PATIENCE}  # fmt: skip
SPARE = 200 * 2**20
"""Bytes beside what the executor and a process that reads nobody take."""


@dataclass(frozen=True)
class Site:
    """A site with an executor of its own."""

    name: str
    folder: Path
    executor: int

    @property
    def state(self) -> Path:
        return self.folder / "state" / self.name

    def log(self) -> str:
        return (self.folder / "site.log").read_text()

    def looks(self) -> int:
        path = self.state / ".failed-attempts"
        return path.stat().st_size if path.exists() else 0


@contextmanager
def running(
    superlink: SuperLink, folder: Path, data: SiteData, group: Path | None
) -> Iterator[Site]:
    """A SuperNode and an executor, in a group of processes if there is one."""
    folder.mkdir()
    data.save(folder / "data.npz")
    (folder / "secret").write_bytes(os.urandom(32))
    settings = {
        "site": data.name, "data-path": str(folder / "data.npz"),
        "state-dir": str(folder / "state"), "allow-privacy": "patient", "max-epsilon": 4.0,
    }  # fmt: skip
    (folder / "site.toml").write_text(tomli_w.dumps(settings))
    port, environment = str(free_port()), {**superlink.environment, "OPENBLAS_NUM_THREADS": "1"}
    node = [
        tool("flower-supernode"), "--insecure", "--superlink", superlink.address, "--port", port,
        "--isolation", "process", "--superexec-auth-secret-file", str(folder / "secret"),
    ]  # fmt: skip
    answer = [
        tool("dpfact"), "site", "answer", "--config", str(folder / "site.toml"),
        "--secret", str(folder / "secret"), "--port", port,
    ]  # fmt: skip

    with (
        (folder / "node.log").open("wb") as of_node,
        (folder / "site.log").open("wb") as of_site,
        supervised(node, env=environment, stdout=of_node, stderr=of_node),
        supervised(
            answer, env=environment, stdout=of_site, stderr=of_site, preexec_fn=lambda: join(group)
        ) as process,
    ):
        yield Site(data.name, folder, process.pid)


def join(group: Path | None) -> None:
    """Have this process, and all that it starts, be of a group."""
    if group is not None:
        (group / "cgroup.procs").write_text(str(os.getpid()))


@pytest.fixture
def group() -> Iterator[Path | None]:
    """A group of processes whose memory can be limited (version 1 or 2); None where it cannot."""
    top = Path("/sys/fs/cgroup")
    one = top / "memory" / f"dpfact-test-{os.getpid()}"
    two = top / f"dpfact-test-{os.getpid()}"
    found = None
    for path, file in ((one, "memory.limit_in_bytes"), (two, "memory.max")):
        try:
            path.mkdir()
        except OSError:
            continue
        if (path / file).exists() and found is None:
            found = path
        else:
            path.rmdir()
    yield found
    if found is not None:
        await_that(lambda: not (found / "cgroup.procs").read_text(), "the end of the group")
        found.rmdir()


def memory_of_a_process_that_reads_nobody(group: Path) -> int:
    """Most bytes of the group with one: of the executor's, and of files that both have read."""
    command = [sys.executable, "-c", "import dpfact_flower.runtime.clientapp"]
    subprocess.run(command, check=True, preexec_fn=lambda: join(group))
    old = group / "memory.max_usage_in_bytes"
    return int((old if old.exists() else group / "memory.peak").read_text())


def end_by_memory(group: Path, most: int, times: int) -> None:
    """Limit a group's memory until the kernel has ended so many of its processes."""
    old = (group / "memory.limit_in_bytes").exists()
    limit = group / ("memory.limit_in_bytes" if old else "memory.max")
    events = group / ("memory.oom_control" if old else "memory.events")

    def ended() -> int:
        lines = events.read_text().splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])

    limit.write_text(str(most))
    await_that(lambda: ended() == times, "the kernel's end of a process")
    limit.write_text("-1" if old else "max")


def end_at_work(site: Site, times: int) -> None:
    """End the process that reads patients, so many times."""
    for number in range(1, times + 1):
        await_that(lambda n=number: site.looks() == n, "a look at the patients")
        process = descendant(site.executor, "dpfact_flower.runtime.clientapp")
        assert process is not None
        os.kill(process, signal.SIGKILL)


def large(site: SiteData, name: str) -> SiteData:
    """Many patients with cells of one pattern, shifted from one to the next."""
    one, other = site.tensor.feature_shape
    patients = np.repeat(np.arange(PATIENTS), CELLS)
    cells = (patients + 7 * np.tile(np.arange(CELLS), PATIENTS)) % (one * other)
    indices = np.column_stack([patients, cells // other, cells % other])
    tensor = SparseTensor.from_coo(indices, np.ones(len(cells)), (PATIENTS, one, other))
    return replace(site, name=name, tensor=tensor)


@pytest.mark.nightly
@pytest.mark.deployment
@pytest.mark.parametrize("by", ["kernel", "test"])
def test_a_process_that_is_ended_at_work_is_a_round_that_failed(cohort, tmp_path, group, by):
    if by == "kernel" and group is None:
        pytest.skip("this user cannot limit the memory of a group of processes")
    small, big = cohort.sites[0], large(cohort.sites[1], "big")
    config = {**CONFIG, **server_config(cohort, tmp_path), "sites": 2, "min-sites": 1}
    history = tmp_path / "deployed" / "history.jsonl"
    with ExitStack() as stack:
        superlink = stack.enter_context(local_superlink(tmp_path / "flwr", simulation=False))
        stack.enter_context(running(superlink, tmp_path / "small", small, None))
        site = stack.enter_context(running(superlink, tmp_path / "big", big, group))
        await_that(lambda: "answering" in site.log(), "the executor")
        used = memory_of_a_process_that_reads_nobody(group) if by == "kernel" else 0
        command = superlink.run_command(APP, config)
        run = stack.enter_context(supervised(command, env=superlink.environment))
        await_that(lambda: lines_of(history) or run.poll() is not None, "round 1")
        if by == "kernel":
            end_by_memory(group, used + SPARE, times=2)
        else:
            end_at_work(site, times=2)
        assert rows_of(site) == [1]  # what was charged stands, and nothing was charged since
        assert run.wait(PATIENCE) == 0
        assert site.log().count("has died") == 2
    rounds = read_history(tmp_path / "deployed")
    assert [record.sites for record in rounds] == [
        ("big", "site-1"), ("site-1",), ("big", "site-1"), ("big", "site-1"),
    ]  # fmt: skip
    (failure,) = rounds[1].failures  # after it was asked again, once
    assert failure.reason == "error 2: dpfact:failed (details are in the site's own log)"
    assert not any(record.failures for record in (rounds[0], *rounds[2:]))
    assert rows_of(site) == [1, 3]
    assert site.looks() == 0


def rows_of(site: Site) -> list[int]:
    """Rounds that were charged."""
    with Ledger(site.state, create=False) as ledger:
        assert ledger.verify() == []
        return [row.round for row in ledger.rows()]
