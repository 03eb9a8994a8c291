"""``python -m laboratory.endurance``: many nodes, two runs at once, and what they take in hours.

A SuperLink and hospitals on loopback, each of processes of its own as docs/how-to/deploy.md has
them, answer runs without noise: two at a time, and one pair after another, for as long as is asked.
Four times a minute it is looked what their processes have. In the end it says by how much that grew
in an hour: of the processes that were there before the first run and last for all of them, and of
the ServerApps, each for as long as its run lasts.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.runtime.connection import tool
from dpfact_flower.runtime.supervisor import supervised
from laboratory.campaign.deployed import CODE, CONNECTION, Deployment, deployment
from tests.conftest import count_tensor, make_vocabularies
from tests.processes import Process, family_of
from tests.runtime.deployment import CONFIG, lines_of

PATIENTS = 40
LOOK_SECONDS = 15.0
_WARM = 1 / 4
"""Of the looks, the first, which are left out: caches fill, and every path is taken once."""
_BLOCKS = 8
"""Looks are averaged in so many rows of them, or what one has in common with the next would pass
for knowledge: a mean of many is nearly independent of the mean before."""
_SERVER = "flwr-serverapp"


@dataclass(frozen=True)
class Used:
    """What a process has: open files, threads, memory in MiB; what is shared counts in each."""

    handles: int
    threads: int
    resident: float


def used_by(pid: int) -> Used:
    """Look at a process.

    Raises
    ------
    OSError
        If it has gone.
    """
    handles = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    # One that has ended and is not reaped has no memory.
    resident = int(status.get("VmRSS", "0").split()[0]) / 1024
    return Used(handles, int(status["Threads"]), resident)


@dataclass(frozen=True)
class Look:
    """What a deployment had at one time.

    Attributes
    ----------
    minutes : float
        Since the first run was submitted.
    rounds : int
        Finished so far, of all runs.
    used : dict of Process to Used
    database, folders : float
        Of the SuperLink, and of the sites' state, in MiB on the disk.
    """

    minutes: float
    rounds: int
    used: dict[Process, Used]
    database: float
    folders: float

    def line(self, lasting: set[Process]) -> str:
        """Of the table, of the processes that last."""
        own = [each for process, each in self.used.items() if process in lasting]
        figures = (
            f"{self.minutes:.1f}", self.rounds, len(own), sum(each.handles for each in own),
            sum(each.threads for each in own), f"{sum(each.resident for each in own):.1f}",
            len(self.used), f"{sum(each.resident for each in self.used.values()):.0f}",
            f"{self.database:.2f}", f"{self.folders:.2f}",
        )  # fmt: skip
        return f"| {' | '.join(map(str, figures))} |"


HEADS = ("minutes", "rounds", "lasting processes", "their handles", "threads", "MiB",
         "processes in all", "MiB in all", "database, MiB", "sites' folders, MiB")  # fmt: skip


def processes(made: Deployment) -> set[Process]:
    """All of a deployment's, but those that submit."""
    return {each for unit in made.services.values() for each in family_of(unit.keeper)}


def looked_at(made: Deployment, rounds: int, minutes: float) -> Look:
    """Look once."""
    used = {}
    for process in processes(made):
        with suppress(OSError):  # gone
            used[process] = used_by(process.pid)
    states = [path for each in made.hospitals for path in (each.folder / "site").glob("state/**/*")]
    database = made.folder.glob("tls/superlink.db*")
    return Look(minutes, rounds, used, _size(database), _size(states))


def _size(paths: Iterator[Path] | list[Path]) -> float:
    total = 0
    for path in paths:
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total / 2**20


def slope(minutes: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Growth in an hour, and half the width of its 95 % interval.

    Of a straight line through the means of rows of looks; the first quarter is left out.
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


def growth(
    looks: Sequence[Look], lasting: Mapping[Process, str], servers: set[Process]
) -> Iterator[str]:
    """Lines of a table: by how much each figure grew; `lasting` says what each process is."""
    yield "| of | figure | at first | at last | growth in an hour | 95 % | |"
    yield "|---|---|---|---|---|---|---|"
    groups = {f"the {len(lasting)} processes that last": (looks, set(lasting))}
    most = max(lasting, key=lambda each: _gained(looks, each), default=None)
    if most is not None:
        groups[f"of these that whose memory grew most, {lasting[most]}"] = (looks, {most})
    times = Counter(process for look in looks for process in look.used if process in servers)
    if times:
        longest, _ = max(times.items(), key=lambda each: each[1])
        own = [look for look in looks if longest in look.used]
        groups["the ServerApp that lasted longest"] = (own, {longest})
    for name, (seen, group) in groups.items():
        for figure in ("handles", "threads", "resident"):
            values = [
                float(sum(getattr(u, figure) for p, u in look.used.items() if p in group))
                for look in seen
            ]
            yield _growth_line(name, figure, [look.minutes for look in seen], values)
    minutes = [look.minutes for look in looks]
    yield _growth_line("the SuperLink", "database", minutes, [look.database for look in looks])
    yield _growth_line("the sites", "folders", minutes, [look.folders for look in looks])


def _gained(looks: Sequence[Look], process: Process) -> float:
    """MiB that a process has more at the last look than when all was warm."""
    seen = [look.used[process].resident for look in looks if process in look.used]
    return seen[-1] - seen[round(_WARM * len(seen))] if seen else 0.0


def _growth_line(name: str, figure: str, minutes: list[float], values: list[float]) -> str:
    start = round(_WARM * len(values))
    ends = [f"{each:.1f}" for each in (values[start], values[-1])] if values else ["", ""]
    if len(values) - start < 2 * _BLOCKS:
        return f"| {name} | {figure} | {' | '.join(ends)} | too few looks | | |"
    found, width = slope(minutes, values)
    verdict = "grows" if found - width > 0 else "no growth seen"
    return (
        f"| {name} | {figure} | {' | '.join(ends)} | {found:+.2f} | "
        f"{found - width:+.2f} to {found + width:+.2f} | {verdict} |"
    )


class RunProblemError(Exception):
    """A run of two that did not end well."""


def runs(made: Deployment, nodes: int, rounds: int) -> Iterator[int]:
    """Two runs at once, again and again; rounds that are finished, a few times a second."""
    done, pair = 0, 0
    while True:
        pair += 1
        with ExitStack() as stack:
            outs = [made.folder / f"run-{pair}-{which}" for which in "ab"]
            works = []
            for number, out in enumerate(outs):
                settings = {
                    **CONFIG, "rounds": rounds, "seed": number, "sites": nodes,
                    "min-sites": nodes // 2, "round-timeout": 600.0, "wait-timeout": 1800.0,
                }  # fmt: skip
                command = [tool("dpfact"), "submit", CONNECTION, "--out", str(out)]
                command += ["--vocabulary", made.vocabulary]
                command += [word for k, v in settings.items() for word in ("-s", f"{k}={v}")]
                log = stack.enter_context(out.with_suffix(".log").open("wb"))
                options = {"env": made.environment, "cwd": CODE, "stdout": log, "stderr": log}
                works.append(stack.enter_context(supervised(command, **options)))
            while any(work.poll() is None for work in works):
                yield done + sum(len(lines_of(out / "history.jsonl")) for out in outs)
                made.look()
                time.sleep(0.5)
            for work, out in zip(works, outs, strict=True):
                if work.returncode:
                    last = out.with_suffix(".log").read_text(errors="replace")[-3000:]
                    raise RunProblemError(f"{out.name}: exit code {work.returncode}\n{last}")
            done += sum(len(lines_of(out / "history.jsonl")) for out in outs)


def commands(found: Iterable[Process]) -> dict[Process, str]:
    """What was typed to start each process, without options; nothing of one that has gone."""
    words = {}
    for process in found:
        with suppress(OSError):
            line = Path(f"/proc/{process.pid}/cmdline").read_text(errors="replace").split("\0")
            program = [Path(word).name for word in line if word and not word.startswith("-")]
            words[process] = " ".join(program[:3])
    return words


def _servers(found: Look) -> set[Process]:
    return {process for process, words in commands(found.used).items() if _SERVER in words}


def main() -> int:
    """Print a line now and then, and the growth; 1 if a run failed or a lasting process ended."""
    parser = argparse.ArgumentParser(prog="python -m laboratory.endurance", description=__doc__)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=20, help="of each run")
    asked = parser.parse_args()
    sites = tuple(
        SiteData(f"site-{n}", count_tensor(PATIENTS, seed=n), make_vocabularies())
        for n in range(1, asked.nodes + 1)
    )
    cohort, looks, servers = Cohort("endurance", sites, None), [], set()
    with tempfile.TemporaryDirectory() as name, deployment(cohort, Path(name)) as made:
        made.allow("none")
        made.await_all()
        lasting = commands(processes(made))
        began = time.monotonic()
        print(f"| {' | '.join(HEADS)} |\n{'|---' * len(HEADS)}|")
        problem = ""
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # then of what was seen
        try:
            for rounds in runs(made, asked.nodes, asked.rounds):
                seen = time.monotonic() - began
                if seen >= LOOK_SECONDS * len(looks):
                    looks.append(looked_at(made, rounds, seen / 60))
                    servers |= _servers(looks[-1])
                    print(looks[-1].line(set(lasting)), flush=True)
                if seen > 60 * asked.minutes:
                    break
        except KeyboardInterrupt:
            problem = "ended from outside"
        except RunProblemError as error:
            problem = str(error)
    gone = lasting.keys() - looks[-1].used.keys()
    problem += "".join(f"\n{each.name} ({each.pid}) ended" for each in gone)
    stayed = {process: what for process, what in lasting.items() if process not in gone}
    print("\n".join(growth(looks, stayed, servers)))
    last = looks[-1]
    print(f"{last.rounds} rounds in {last.minutes:.0f} minutes; {problem or 'no problem'}")
    return 1 if problem or not last.rounds else 0


if __name__ == "__main__":
    sys.exit(main())
