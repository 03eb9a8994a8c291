"""How much of the disk a round reserves: what the hospital's own settings say, and no more.

A server may ask for runs of any size, in a preflight for nothing. If each reserved its own size,
the server would find out how much the disk has left, which the patients' file fills too. So the
largest run that the hospital's code lists and `max-rank` allow decides, whatever is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dpfact_flower.errors import StateError
from dpfact_flower.machine.files import reserved
from dpfact_flower.privacy import ReleaseEvent
from dpfact_flower.settings import MOST_REFINEMENTS, MOST_SLOTS
from dpfact_flower.tensor.triangle import strict_size, whole_size

_LEAST = 2**24
_FILE = ".reservation"  # no job can have this name
_SHARED = 16
"""Bytes for a value of a share, which is kept beside the one before until it takes its place."""
_BESIDE = 2**18
"""Bytes for all that is written beside released values: 64 pages of SQLite."""


def bytes_to_reserve(
    events: Sequence[ReleaseEvent], sizes: Sequence[int], rank: int, *, sharing: bool = False
) -> int:
    """Bytes for what the rest of a run is charged: the same for whatever is asked.

    They follow from the sizes of the hospital's code lists, its largest rank, and whether it takes
    part in secure sums (`sharing`). No run of this package's rules is larger; a run of another rule
    reserves in steps of four beyond.
    """
    if not events:
        return _LEAST
    values = sum(event.count for event in events if not event.shared)
    share = max((event.count for event in events if event.shared), default=0)
    size, needed = largest_run(sizes, rank, sharing=sharing), bytes_needed(values) + _SHARED * share
    while size < needed:
        size *= 4
    return size


def largest_run(sizes: Sequence[int], rank: int, *, sharing: bool = False) -> int:
    """Bytes for the largest run that a hospital's code lists and largest rank allow."""
    refinement = sum(size * rank + whole_size(rank) for size in sizes)
    codes = sum(sizes)
    start = codes + strict_size(codes)
    share = MOST_SLOTS * max(start, refinement) if sharing else 0
    return bytes_needed(start + MOST_REFINEMENTS * refinement) + _SHARED * share


def bytes_needed(values: int) -> int:
    """Bytes that suffice to charge so many values: 4 each, pages, and the journal."""
    return 4 * values + values // 50 + _BESIDE


@contextmanager
def reserve(folder: Path, size: int) -> Iterator[Callable[[], None]]:
    """Reserve disk space in a site's folder; call what it yields right before it is needed."""
    with ExitStack() as stack:
        try:
            free = stack.enter_context(reserved(folder / _FILE, size))
        except OSError as error:
            raise StateError(
                f"{folder}: a round needs {size / 2**20:.0f} MiB free, as much as the largest run "
                f"that the code lists and max-rank allow may leave ({error.strerror})"
            ) from None
        yield free
