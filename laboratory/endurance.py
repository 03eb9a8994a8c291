"""Measure resource use over hours, with many nodes and two runs: `python -m laboratory.endurance`.

A SuperLink and hospitals run on loopback as separate processes, as in docs/how-to/deploy.md. For
the given time, they carry out pairs of simultaneous runs without noise. Four times a minute, the
program measures the processes' resources. At the end, it prints the growth per hour of all
processes that existed throughout. The process whose memory grew most is also shown alone.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.runtime.superlink import tool
from dpfact_flower.runtime.supervisor import supervised
from laboratory.campaign.deployed import CODE, CONNECTION, Deployment, deployment
from tests.conftest import count_tensor, make_vocabularies
from tests.processes import Process, family_of
from tests.runtime.deployment import CONFIG, lines_of

PATIENTS = 40
LOOK_SECONDS = 15.0
_WARM = 1 / 4
"""Share of the first measurements, which are left out because caches are still filling."""
_BLOCKS = 8
"""Number of blocks in which measurements are averaged. Successive measurements are correlated, but
means of long blocks are nearly independent."""


class Used(NamedTuple):
    """A process's open files, its threads, and its memory in MiB, including shared memory."""

    handles: float
    threads: float
    memory: float


class Look(NamedTuple):
    """A deployment's resources at one time (sizes in MiB), and the rounds of all runs so far."""

    minutes: float
    rounds: int
    used: dict[Process, Used]
    database: float
    folders: float


def processes(made: Deployment) -> set[Process]:
    """Return a deployment's processes, except those that submit runs."""
    return {each for unit in made.services.values() for each in family_of(unit.keeper)}


def used_by(pid: int) -> Used:
    """Measure a process. Raise an OSError if the process has ended."""
    handles = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    # A process that has ended but is not reaped has no memory.
    return Used(handles, int(status["Threads"]), int(status.get("VmRSS", "0").split()[0]) / 1024)


def looked_at(made: Deployment, rounds: int, minutes: float) -> Look:
    """Measure a deployment once."""
    used = {}
    for process in processes(made):
        with suppress(OSError):  # the process has ended
            used[process] = used_by(process.pid)
    states = [path for each in made.hospitals for path in (each.folder / "site").glob("state/**/*")]
    database = made.folder.glob("tls/flwr/superlink.db*")
    return Look(minutes, rounds, used, _size(database), _size(states))


def _size(paths: Iterator[Path] | list[Path]) -> float:
    total = 0
    for path in paths:
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total / 2**20


def slope(minutes: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Return the growth per hour, and half the width of its 95 % interval.

    The growth is the slope of a line through block means. The first quarter of values is left out.
    """
    start = round(_WARM * len(values))
    x, y = (
        [float(np.mean(block)) for block in np.array_split(np.array(each[start:]), _BLOCKS)]
        for each in (minutes, values)
    )
    if len(set(y)) == 1:
        return 0.0, 0.0
    fit = stats.linregress(x, y)
    width = float(stats.t.ppf(0.975, _BLOCKS - 2)) * float(fit.stderr)
    return 60 * float(fit.slope), 60 * width


def growth(looks: Sequence[Look], lasting: set[Process]) -> Iterator[str]:
    """Yield a table's lines with the growth of each resource."""
    warm = looks[round(_WARM * len(looks))]
    most = max(lasting, key=lambda p: looks[-1].used[p].memory - warm.used[p].memory)
    yield "| of | figure | at first | at last | growth in an hour | 95 % |"
    yield "|---" * 6 + "|"
    for name, group in (
        (f"the {len(lasting)} processes that last", lasting),
        (f"of these that whose memory grew most, {most.name}", {most}),
    ):
        for place, figure in enumerate(Used._fields):
            values = [sum(look.used[p][place] for p in group) for look in looks]
            yield _line(f"{name} | {figure}", looks, values)
    yield _line("the SuperLink | database, MiB", looks, [look.database for look in looks])
    yield _line("the sites | folders, MiB", looks, [look.folders for look in looks])


def _line(name: str, looks: Sequence[Look], values: list[float]) -> str:
    found, width = slope([look.minutes for look in looks], values)
    ends = f"{values[round(_WARM * len(values))]:.1f} | {values[-1]:.1f}"
    return f"| {name} | {ends} | {found:+.2f} | {found - width:+.2f} to {found + width:+.2f} |"


def pair_of_runs(made: Deployment, number: int, nodes: int, rounds: int) -> Iterator[int]:
    """Submit two runs at once, and yield the number of finished rounds a few times a second."""
    outs = [made.folder / f"run-{number}-{which}" for which in "ab"]
    with ExitStack() as stack:
        works = []
        for seed, out in enumerate(outs):
            settings = {
                **CONFIG, "rounds": rounds, "seed": seed, "sites": nodes,
                "min-sites": nodes // 2, "round-timeout": 600.0, "wait-timeout": 1800.0,
            }  # fmt: skip
            command = [tool("dpfact"), "submit", CONNECTION, "--out", str(out)]
            command += ["--vocabulary", made.vocabulary]
            command += [word for k, v in settings.items() for word in ("-s", f"{k}={v}")]
            log = stack.enter_context(out.with_suffix(".log").open("wb"))
            options = {"env": made.environment, "cwd": CODE, "stdout": log, "stderr": log}
            works.append(stack.enter_context(supervised(command, **options)))
        while any(work.poll() is None for work in works):
            made.look()
            time.sleep(0.5)
            yield sum(len(lines_of(out / "history.jsonl")) for out in outs)
        for work, out in zip(works, outs, strict=True):
            if work.returncode:
                last = out.with_suffix(".log").read_text(errors="replace")[-3000:]
                sys.exit(f"{out.name}: exit code {work.returncode}\n{last}")


def main() -> int:
    """Print progress and growth. Return 1 if a process ended too early."""
    parser = argparse.ArgumentParser(prog="python -m laboratory.endurance", description=__doc__)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=20, help="of each run")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sites = tuple(
        SiteData(f"site-{n}", count_tensor(PATIENTS, seed=n), make_vocabularies())
        for n in range(1, asked.nodes + 1)
    )
    looks, done, pair, began = list[Look](), 0, 0, time.monotonic()
    with (
        tempfile.TemporaryDirectory() as name,
        deployment(Cohort("endurance", sites, None), Path(name)) as made,
    ):
        made.allow("none")
        made.await_all()
        lasting = processes(made)
        while time.monotonic() - began < 60 * asked.minutes:
            pair, rounds = pair + 1, 0
            for rounds in pair_of_runs(made, pair, asked.nodes, asked.rounds):
                seen = time.monotonic() - began
                if seen >= LOOK_SECONDS * len(looks):
                    looks.append(looked_at(made, done + rounds, seen / 60))
                    print(f"{seen / 60:.1f} minutes: {looks[-1].rounds} rounds", flush=True)
            done += rounds
    gone = lasting - looks[-1].used.keys()
    print("\n".join(growth(looks, lasting - gone)))
    print(f"{done} rounds; ended: {', '.join(each.name for each in gone) or 'nothing that lasts'}")
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main())
