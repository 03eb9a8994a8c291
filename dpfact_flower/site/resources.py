"""Compute how much memory and disk space a round needs, without reading patients' data."""

from collections.abc import Callable, Sequence, Sized
from contextlib import ExitStack
from pathlib import Path

from dpfact_flower.errors import MessageError, StateError
from dpfact_flower.machine.files import reserved
from dpfact_flower.machine.memory import memory_limit, memory_used
from dpfact_flower.privacy import ReleaseEvent
from dpfact_flower.privacy.patient.plan import BYTES_A_VALUE
from dpfact_flower.privacy.patient.statistics import sum_threads
from dpfact_flower.settings import MOST_REFINEMENTS, MOST_SLOTS, SiteSettings
from dpfact_flower.tensor.triangle import strict_size, whole_size

_BYTES_A_COPY = 8
_PATIENTS_SHARE = 0.25
"""Share of the process's memory that is reserved for patients' data."""
_LEAST_BYTES = 2**24
_RESERVATION = ".reservation"  # no job can have this name
_BYTES_A_SHARE = 16
"""Bytes per value of a `Share`: 8 each for the new share and for the old share on the disk."""
_OTHER_BYTES = 2**18
"""Number of bytes for everything in a ledger except released values (64 SQLite pages)."""


def check_memory(events: Sequence[ReleaseEvent]) -> None:
    """Refuse a round that would leave too little memory for patients' data.

    If memory ran out, the system could kill the process after the process had read patients' data.
    A server that varied the size of its requests could then measure how much memory the data takes.
    """
    # A deployed process exits after each message, so nothing from earlier messages is in memory.
    sizes = [event.count for event in events] or [0]
    # Each thread after the first has its own copy of the sum.
    sums = (n * (BYTES_A_VALUE + _BYTES_A_COPY * (sum_threads(n) - 1)) for n in sizes)
    needed, limit = memory_used() + max(sums), memory_limit()
    if limit is not None and needed > limit * (1 - _PATIENTS_SHARE):
        raise MessageError(
            f"codes: a release of {max(sizes):,} values needs {needed / 2**30:.1f} GiB of memory; "
            f"this process may use {limit / 2**30:.1f}, of which {_PATIENTS_SHARE:.0%} is reserved "
            "for patients' data; ask for fewer codes"
        )


def bytes_to_reserve(
    events: Sequence[ReleaseEvent], vocabularies: Sequence[Sized], settings: SiteSettings
) -> int:
    """Compute, without using patients' data, how many bytes to reserve for the rest of a run.

    The free disk space depends on the size of the patients' file. If larger runs reserved more
    space, a server could measure the free space with preflights for runs of different sizes. With a
    built-in rule, all runs with noise therefore reserve the same space (`largest_run`). If a run
    with a custom rule needs more space, the reserved space is quadrupled as often as necessary.
    """
    if not events:
        return _LEAST_BYTES
    values = sum(event.count for event in events if not event.shared)
    share = max((event.count for event in events if event.shared), default=0)
    needed = bytes_needed(values) + _BYTES_A_SHARE * share
    size = largest_run(vocabularies, settings)
    while size < needed:
        size *= 4
    return size


def largest_run(vocabularies: Sequence[Sized], settings: SiteSettings) -> int:
    """Return the size in bytes of the largest run that the code lists and settings allow."""
    rank, sizes = settings.max_rank, [len(vocabulary) for vocabulary in vocabularies]
    refinement = sum(size * rank + whole_size(rank) for size in sizes)
    start = sum(sizes) + strict_size(sum(sizes))
    share = MOST_SLOTS * max(start, refinement) if settings.secure_key else 0
    return bytes_needed(start + MOST_REFINEMENTS * refinement) + _BYTES_A_SHARE * share


def bytes_needed(values: int) -> int:
    """Return a ledger's size for `values` released values: 4 bytes per value, plus overhead."""
    return 4 * values + values // 50 + _OTHER_BYTES


def reserve(stack: ExitStack, folder: Path, size: int) -> Callable[[], None]:
    """Reserve disk space until `stack` closes, and return a function that frees it earlier."""
    try:
        return stack.enter_context(reserved(folder / _RESERVATION, size))
    except OSError as error:
        raise StateError(
            f"{folder}: a round needs {size / 2**20:.0f} MiB of free disk space, as much as "
            f"the largest run that the code lists and max-rank allow ({error.strerror})"
        ) from None
