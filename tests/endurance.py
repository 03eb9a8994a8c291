"""``python -m tests.endurance``: many nodes, two runs at once, and what they take as time goes by.

A SuperLink and SuperNodes on loopback, each a process of its own, answer runs without noise, two at
a time and one pair after another, for as long as is asked. Every half minute a line says what all
their processes together have: memory, open files, threads; the size of the SuperLink's database
and of the sites' folders; and how many rounds have been finished.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.runtime.keeper import kept
from dpfact_flower.runtime.superlink import SuperLink, local_superlink
from tests.conftest import count_tensor, make_vocabularies
from tests.patience import await_that
from tests.processes import processes_of
from tests.runtime.deployment import APP, CONFIG, lines_of, site_config, supernode

PATIENTS = 40
LINE_SECONDS = 30.0


@dataclass(frozen=True)
class Taken:
    """What a deployment has at one time.

    Attributes
    ----------
    minutes : float
        Since it was begun.
    rounds : int
        Finished so far, of all runs.
    processes, handles, threads : int
    resident : float
        Memory in MiB; what processes share counts in each.
    database, folders : float
        Bytes on the disk, in MiB.
    """

    minutes: float
    rounds: int
    processes: int
    handles: int
    threads: int
    resident: float
    database: float
    folders: float

    @property
    def line(self) -> str:
        """Of the table."""
        figures = (f"{each:.1f}" if type(each) is float else each for each in vars(self).values())
        return f"| {' | '.join(map(str, figures))} |"


def looked_at(home: Path, states: Path, rounds: int, began: float) -> Taken:
    """Look once."""
    ids, handles, threads, resident = processes_of(home), 0, 0, 0.0
    for pid in ids:
        with suppress(OSError):  # gone
            handles += len(list(Path(f"/proc/{pid}/fd").iterdir()))
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            status = dict(line.split(":", 1) for line in lines)
            threads += int(status["Threads"])
            resident += int(status.get("VmRSS", "0").split()[0]) / 1024
    files = [path for path in states.glob("state-*/**/*") if path.is_file()]
    return Taken(
        (time.monotonic() - began) / 60, rounds, len(ids), handles, threads, resident,
        _size(home.glob("state.db*")), _size(files),
    )  # fmt: skip


def _size(paths: Iterator[Path] | list[Path]) -> float:
    total = 0
    for path in paths:
        with suppress(OSError):
            total += path.stat().st_size
    return total / 2**20


def runs(superlink: SuperLink, folder: Path, nodes: int, rounds: int) -> Iterator[int]:
    """Two runs at once, again and again; rounds that are finished, a few times a second."""
    done, pair = 0, 0
    lists = ",".join(str(folder / f"{each.name}.json") for each in make_vocabularies())
    while True:
        pair += 1
        with ExitStack() as stack:
            outs = [folder / f"run-{pair}-{which}" for which in "ab"]
            works = []
            for out in outs:
                config = {
                    **CONFIG, "rounds": rounds, "data": "", "sites": nodes, "min-sites": 1,
                    "vocabulary": lists, "out": str(out),
                    "round-timeout": 1800.0, "wait-timeout": 1800.0,
                }  # fmt: skip
                log = stack.enter_context(out.with_suffix(".log").open("wb"))
                command = superlink.run_command(APP, config)
                options = {"env": superlink.environment, "stdout": log, "stderr": log}
                works.append(stack.enter_context(kept(command, **options)))
            while any(work.poll() is None for work in works):
                yield done + sum(len(lines_of(out / "history.jsonl")) for out in outs)
                time.sleep(0.5)
            done += sum(len(lines_of(out / "history.jsonl")) for out in outs)


def main() -> int:
    """Print a line now and then; 1 if no round was finished."""
    parser = argparse.ArgumentParser(prog="python -m tests.endurance", description=__doc__)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=20, help="of each run")
    asked = parser.parse_args()
    sites = tuple(
        SiteData(f"site-{n}", count_tensor(PATIENTS, seed=n), make_vocabularies())
        for n in range(1, asked.nodes + 1)
    )
    rounds = 0
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        Cohort("endurance", sites, None).save(folder / "cohort")
        for vocabulary in make_vocabularies():
            vocabulary.save(folder / f"{vocabulary.name}.json")
        superlink = stack.enter_context(local_superlink(folder / "flwr", simulation=False))
        for site in sites:
            config = site_config(folder / "cohort", folder, site.name)
            stack.enter_context(supernode(superlink, folder, config))
        logs = [folder / f"{site.name}.log" for site in sites]
        await_that(lambda: all("SuperNode ID" in log.read_text() for log in logs), "every node")
        began, due = time.monotonic(), 0.0
        print("| minutes | rounds | processes | handles | threads | MiB | database | folders |")
        print("|---|---|---|---|---|---|---|---|")
        for rounds in runs(superlink, folder, asked.nodes, asked.rounds):
            seen = time.monotonic() - began
            if seen >= due:
                due = seen + LINE_SECONDS
                print(looked_at(superlink.home, folder, rounds, began).line, flush=True)
            if seen > 60 * asked.minutes:
                break
    return 0 if rounds else 1


if __name__ == "__main__":
    sys.exit(main())
