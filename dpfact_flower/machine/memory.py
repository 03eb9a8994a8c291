"""Measure and control the memory use of this process."""

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
_parent = [0]


def memory_limit() -> int | None:
    """Return the memory limit of this process in bytes, or None if the limit is unknown.

    The limit is the machine's memory, or a lower limit set by a systemd unit or container.
    """
    limits = list(_group_limits())
    with suppress(ValueError, OSError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def memory_used() -> int:
    """Return this process's peak memory plus the parent's recorded memory, in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _parent[0] + (most if sys.platform == "darwin" else 1024 * most)


def count_parent_memory(size: int) -> None:
    """Record how many bytes the parent process uses, because parent and child share one limit."""
    _parent[0] = size


def give_back() -> None:
    """Make glibc return the memory of freed large arrays to the system."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def be_killed_first() -> None:
    """Make Linux kill this process first when memory runs out."""
    with suppress(OSError):
        _FIRST.write_text("1000", encoding="ascii")


def disable_core_dumps() -> None:
    """Disable core dumps of this process and its children."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def _group_limits() -> Iterator[int]:
    """Yield the limits of this process's control group and of the group's ancestors."""
    with suppress(OSError):
        for line in _OWN_GROUP.read_text(encoding="utf-8").splitlines():
            number, kinds, group = line.split(":", 2)
            if number == "0":  # version 2: all controllers in one group
                yield from _limits(_GROUPS, group, "memory.max")
            elif "memory" in kinds.split(","):
                yield from _limits(_GROUPS / "memory", group, "memory.limit_in_bytes")


def _limits(top: Path, group: str, file: str) -> Iterator[int]:
    folder = top / group.strip("/")
    while folder.is_relative_to(top):
        with suppress(OSError, ValueError):  # the root group has no file; "max" means no limit
            yield int((folder / file).read_text(encoding="ascii"))
        folder = folder.parent
