"""Processes of this machine (Linux only), for tests that must leave none behind."""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.patience import await_that


def await_none_left(home: Path) -> None:
    """Wait until no process has this Flower home."""
    await_that(lambda: not processes_of(home), f"the end of every process of {home}")


def processes_of(home: Path) -> list[int]:
    """Return the ids of the processes with this Flower home, including helpers of helpers."""
    mark = f"FLWR_HOME={home}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # another user's, or ended
            continue
        if mark in environment and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


@dataclass(frozen=True)
class Process:
    """The identity of a process, which differs from a later process with the same id."""

    pid: int
    began: int
    name: str = field(compare=False)  # Ray's processes change their names


def running() -> dict[Process, int]:
    """Return the parent's id of each running process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended
            # The name is in brackets and may hold any character. The 20th field after: the start.
            head, _, rest = (folder / "stat").read_text().rpartition(")")
            state, parent, *more = rest.split()
            if state not in "ZX":
                process = Process(int(folder.name), int(more[17]), head.partition("(")[2])
                found[process] = int(parent)
    return found


def family_of(pid: int) -> set[Process]:
    """Return a process's descendants."""
    parents = running()
    family, ids = set(), {pid}
    while more := {each for each in parents if parents[each] in ids} - family:
        family |= more
        ids = {each.pid for each in more}
    return family


def descendant(pid: int, words: str) -> int | None:
    """Return a descendant with these words on its command line, or None."""
    for each in family_of(pid):
        with suppress(OSError):  # ended
            line = Path(f"/proc/{each.pid}/cmdline").read_bytes().replace(b"\0", b" ")
            if words.encode() in line:
                return each.pid
    return None
