"""How much memory a process may have, and has had."""

from __future__ import annotations

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


def memory_limit() -> int | None:
    """Bytes that this process may use at most; None where the system does not say.

    The machine's memory, or less where a control group of version 2 (a systemd unit's `MemoryMax`,
    a container) limits it. What other processes use at the moment is not subtracted.
    """
    limits = list(_group_limits())
    with suppress(AttributeError, ValueError, OSError):  # Windows has no such figures
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def memory_used() -> int:
    """Most bytes of memory that this process has had so far; 0 where the system does not say."""
    most = 0
    with suppress(AttributeError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def _group_limits() -> Iterator[int]:
    """What each control group that the process is in allows: its own and all above it."""
    with suppress(OSError, StopIteration):
        lines = _OWN_GROUP.read_text(encoding="utf-8").splitlines()
        own = next(line[3:] for line in lines if line.startswith("0::"))
        folder = _GROUPS / own.strip("/")
        while folder.is_relative_to(_GROUPS):
            with suppress(OSError, ValueError):  # no such file at the top; "max" where none is set
                yield int((folder / "memory.max").read_text(encoding="ascii"))
            folder = folder.parent
