"""How much memory a process may have, and has had."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_FIRST = Path("/proc/self/oom_score_adj")
_beside = [0]


def memory_limit() -> int | None:
    """Bytes that this process may use at most; None where the system does not say.

    The machine's memory, or less where a control group limits it: a systemd unit's `MemoryMax`, a
    container's. Memory that other processes use at the moment counts as free.
    """
    limits = list(_group_limits())
    with suppress(ValueError, OSError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def memory_used() -> int:
    """Most bytes that this process has had so far, with what `hold_beside` says."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _beside[0] + (most if sys.platform == "darwin" else 1024 * most)


def hold_beside(held: int) -> None:
    """Count bytes that another process holds for this one, under the same limit."""
    _beside[0] = held


def give_back() -> None:
    """Return free memory to the system, of which glibc keeps much after large arrays."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def offer_to_be_ended() -> None:
    """Have Linux end this process first where memory runs out."""
    with suppress(OSError):
        _FIRST.write_text("1000", encoding="ascii")


def leave_no_dump() -> None:
    """Write no core file of this process, nor of those it starts."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def _group_limits() -> Iterator[int]:
    """The limit of each control group that the process is in: its own and all above it."""
    with suppress(OSError):
        for line in _OWN_GROUP.read_text(encoding="utf-8").splitlines():
            number, kinds, group = line.split(":", 2)
            if number == "0":  # of version 2, all kinds at once
                yield from _limits(_GROUPS, group, "memory.max")
            elif "memory" in kinds.split(","):
                yield from _limits(_GROUPS / "memory", group, "memory.limit_in_bytes")


def _limits(top: Path, group: str, file: str) -> Iterator[int]:
    folder = top / group.strip("/")
    while folder.is_relative_to(top):
        with suppress(OSError, ValueError):  # no such file at the top; "max" where none is set
            yield int((folder / file).read_text(encoding="ascii"))
        folder = folder.parent
