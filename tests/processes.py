"""Processes of this machine, seen by tests that must leave none behind; only Linux shows them."""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.patience import await_that


def await_none_left(home: Path) -> None:
    """Wait until no process has this Flower home."""
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
    name: str = field(compare=False)  # Ray's change theirs


def running() -> dict[Process, int]:
    """Parent's id of each process of this machine that has not ended."""
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


def descendant(pid: int, words: str) -> int | None:
    """A process's descendant with these words on its command line; None if there is none."""
    for each in family_of(pid):
        with suppress(OSError):  # gone
            line = Path(f"/proc/{each.pid}/cmdline").read_bytes().replace(b"\0", b" ")
            if words.encode() in line:
                return each.pid
    return None
