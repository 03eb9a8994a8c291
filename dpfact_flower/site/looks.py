"""How often a site's patients were read in a row, and nothing was released and charged.

Whatever fails once patients have been read is not charged: a want of memory, a disk, a process that
is killed. That it failed, and how long that took, is about the machine, but a machine's load
depends on its patients; and a server may provoke it and ask again. So it is counted, before each
look, and after a few in a row a person has to look first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpfact_flower.errors import StateError
from dpfact_flower.machine.files import replacing

MOST_LOOKS = 10
"""Looks in a row that release nothing. A release forgets them: it was paid for."""
_FILE = ".looks"  # no job can have this name


def looks(folder: Path) -> int:
    """Looks since the last release, of a site's folder."""
    path = folder / _FILE
    return path.stat().st_size if path.exists() else 0


def check_looks(folder: Path) -> int:
    """Looks since the last release, if there may be another.

    Raises
    ------
    StateError
        If there are too many for another.
    """
    before = looks(folder)
    if before >= MOST_LOOKS:
        raise StateError(
            f"{folder / _FILE}: {before} rounds in a row read the patients and released nothing; "
            "mend what this log says of them, then delete this file"
        )
    return before


@contextmanager
def counted_look(folder: Path) -> Iterator[None]:
    """Count a look at a site's patients before it begins, and forget all where it ends well.

    Parameters
    ----------
    folder : Path
        The site's, locked.

    Raises
    ------
    StateError
        If too many before it released nothing.
    OSError
        If it cannot be counted.
    """
    path, before = folder / _FILE, check_looks(folder)
    with replacing(path, durable=False) as file:  # its size is the count; a kill leaves it too
        file.write(b"+" * (before + 1))
    yield
    with suppress(OSError):
        path.unlink()
