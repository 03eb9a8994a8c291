"""The newest head beside the ledger: an alarm where the ledger is set back.

It is a note, not a record: where it is gone, damaged or cannot be written, nothing is lost but the
alarm. It is written after the charge. So a ledger that lacks its row was set back, or is another
one: what was charged since is forgotten, and no budget is known any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from dpfact_flower.errors import SettingsError
from dpfact_flower.machine.files import replacing
from dpfact_flower.privacy.ledger.checks import noted_problems
from dpfact_flower.privacy.ledger.rows import Head, StoredRow

_MOST_BYTES = 100


def marked_head(ledger: Path) -> Head | None:
    """The newest row that the ledger had, whatever file it is now; None where none is noted."""
    with suppress(OSError, ValueError, SettingsError), _path(ledger).open("rb") as file:
        return Head.parse(file.read(_MOST_BYTES).decode())
    return None


def mark_head(ledger: Path, head: Head) -> None:
    """Note the newest row, if that works: the charge stands, whatever fails here."""
    with suppress(Exception), replacing(_path(ledger), durable=False) as file:
        file.write(str(head).encode())


def set_back_problems(ledger: Path, stored: Sequence[StoredRow]) -> Iterator[str]:
    """Whether the ledger lacks the row that is noted beside it."""
    head = marked_head(ledger)
    if head is not None and any(noted_problems(stored, head)):
        yield (
            f"it lacks rows that {_path(ledger).name} beside it knows of: it was set back, or is "
            "another one, and what was charged since would be forgotten; restore the newest copy "
            "(dpfact ledger restore), and delete that file only once you have counted as spent "
            "what the log has"
        )


def _path(ledger: Path) -> Path:
    """Of a name that no job may have."""
    return ledger.with_name(f"{ledger.name}-head")
