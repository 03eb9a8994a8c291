"""The disk space that a round reserves. It does not depend on patients' data.

A server may request runs of any size, and a preflight costs the server nothing. If each run
reserved only what it needs, the server could measure the free disk space, which depends on the size
of the patients' file. Therefore, every run reserves enough space for the largest run possible with
the hospital's code lists and its `max-rank`.
"""

from collections.abc import Callable, Sequence, Sized
from contextlib import ExitStack
from pathlib import Path

from dpfact_flower.errors import StateError
from dpfact_flower.machine.files import reserved
from dpfact_flower.privacy import ReleaseEvent
from dpfact_flower.settings import MOST_REFINEMENTS, MOST_SLOTS, SiteSettings
from dpfact_flower.tensor.triangle import strict_size, whole_size

_LEAST = 2**24
_FILE = ".reservation"  # no job can have this name
_SHARED = 16
"""Number of bytes per value of a share. The old share is kept until the new one is complete."""
_BESIDE = 2**18
"""Number of bytes for all data except released values (64 SQLite pages)."""


def bytes_to_reserve(
    events: Sequence[ReleaseEvent], vocabularies: Sequence[Sized], settings: SiteSettings
) -> int:
    """Return the number of bytes to reserve for the rest of a run.

    All noisy runs with a built-in rule reserve the same size. If a run with another rule needs
    more, this size is multiplied by 4 until it is large enough.
    """
    if not events:
        return _LEAST
    values = sum(event.count for event in events if not event.shared)
    share = max((event.count for event in events if event.shared), default=0)
    size, needed = largest_run(vocabularies, settings), bytes_needed(values) + _SHARED * share
    while size < needed:
        size *= 4
    return size


def largest_run(vocabularies: Sequence[Sized], settings: SiteSettings) -> int:
    """Return the number of bytes needed by the largest run that a hospital's settings allow."""
    rank, sizes = settings.max_rank, [len(vocabulary) for vocabulary in vocabularies]
    refinement = sum(size * rank + whole_size(rank) for size in sizes)
    start = sum(sizes) + strict_size(sum(sizes))
    share = MOST_SLOTS * max(start, refinement) if settings.secure_key else 0
    return bytes_needed(start + MOST_REFINEMENTS * refinement) + _SHARED * share


def bytes_needed(values: int) -> int:
    """Return the ledger's size in bytes: 4 per value, plus overhead for pages and the journal."""
    return 4 * values + values // 50 + _BESIDE


def reserve(held: ExitStack, folder: Path, size: int) -> Callable[[], None]:
    """Reserve disk space in a site's folder while `held` is open. Call the result to use it."""
    try:
        return held.enter_context(reserved(folder / _FILE, size))
    except OSError as error:
        raise StateError(
            f"{folder}: a round needs {size / 2**20:.0f} MiB of free disk space, as much as "
            f"the largest run that the code lists and max-rank allow ({error.strerror})"
        ) from None
