"""How much memory a process may have, and has had."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_FIRST = Path("/proc/self/oom_score_adj")
_beside = [0]


def memory_limit() -> int | None:
    """Bytes that this process may use at most; None where the system does not say.

    The machine's memory, or less where a control group (a systemd unit's `MemoryMax`, a container)
    limits it. What other processes use at the moment is not subtracted.
    """
    limits = list(_group_limits())
    with suppress(AttributeError, ValueError, OSError):  # Windows has no such figures
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def memory_used() -> int:
    """Most bytes of memory that this process has had so far; 0 where the system does not say.

    With what another one holds for it, see `hold_beside`.
    """
    most = 0
    with suppress(AttributeError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _beside[0] + (most if sys.platform == "darwin" else 1024 * most)


def hold_beside(held: int) -> None:
    """Count bytes that another process holds for this one, under the same limit."""
    _beside[0] = held


def give_back() -> None:
    """Return memory that nothing lies in to the system, which C's library keeps for itself.

    Where arrays of a few megabytes have come and gone between others, that is much.
    """
    with suppress(AttributeError, OSError, TypeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)


def offer_to_be_ended() -> None:
    """Have the system end this process first where memory runs out; only Linux lets one choose."""
    with suppress(OSError):
        _FIRST.write_text("1000", encoding="ascii")


def leave_no_dump() -> None:
    """Have no file of this process's memory, nor of those it starts, where one breaks down."""
    with suppress(AttributeError, ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def _group_limits() -> Iterator[int]:
    """What each control group that the process is in allows: its own and all above it."""
    with suppress(OSError):
        for line in _OWN_GROUP.read_text(encoding="utf-8").splitlines():
            number, kinds, own = line.split(":", 2)
            if number == "0":  # of version 2, all kinds at once
                yield from _limits(_GROUPS, own, "memory.max")
            elif "memory" in kinds.split(","):
                yield from _limits(_GROUPS / "memory", own, "memory.limit_in_bytes")


def _limits(top: Path, own: str, file: str) -> Iterator[int]:
    folder = top / own.strip("/")
    while folder.is_relative_to(top):
        with suppress(OSError, ValueError):  # no such file at the top; "max" where none is set
            yield int((folder / file).read_text(encoding="ascii"))
        folder = folder.parent
