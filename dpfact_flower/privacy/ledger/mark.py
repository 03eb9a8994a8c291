"""How far a ledger has been checked, and what its rows add up to until there.

A ledger grows for good, and a site's process, which lives for one message, need not read all of it
in every round. So whoever has checked and added up all rows leaves a mark beside the ledger: the
head it got to, the tally, and which file that was (inode, time of change, size, and SQLite's count
of changes). A mark counts only while the file is exactly that one. A row that anybody edits, a
copy: each makes another file, and then every row is checked again.

A mark is a note, not a record. Without it the rows are read; where it cannot be written, it is not.
But it is written after the charge. So a ledger that lacks the row that it names was set back, or is
another one: what was charged since is forgotten, and no budget is known any more.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfact_flower.errors import SettingsError, StateError
from dpfact_flower.machine.files import replacing, version
from dpfact_flower.privacy.ledger.rows import Head
from dpfact_flower.privacy.tally import Tally

_SUFFIX = "-checked"
"""Of the ledger's own files, whose names no job may have."""
_MOST_BYTES = 100_000
_DAMAGED = (
    OSError, KeyError, TypeError, ValueError, RecursionError, SettingsError, StateError,
)  # fmt: skip
_HEADER = 28  # bytes of SQLite's header, up to the file's count of changes


@dataclass(frozen=True)
class Mark:
    """Rows of a ledger that were checked.

    Attributes
    ----------
    head : Head
        The newest of them.
    tally : Tally
        Of all of them.
    """

    head: Head
    tally: Tally


def read_mark(ledger: Path) -> Mark | None:
    """The mark of the ledger's file as it is now; None if there is none, or it is damaged.

    Hold the file's lock, so that nobody is writing to it.
    """
    with suppress(*_DAMAGED):
        said = _said(ledger)
        if said["file"] == _file(ledger):
            return Mark(Head.parse(said["head"]), Tally.from_json(said["tally"]))
    return None


def marked_head(ledger: Path) -> Head | None:
    """The newest row that the ledger had when it was marked, whatever file it is now."""
    with suppress(*_DAMAGED):
        return Head.parse(_said(ledger)["head"])
    return None


def set_back(ledger: Path) -> str:
    """What to say of a ledger that lacks the row that its mark names."""
    return (
        f"lacks rows that {_path(ledger).name} beside it knows of: it was set back, or is another "
        "one, and what was charged since would be forgotten; restore the newest copy (dpfact "
        "ledger restore), and delete that file only once you have counted as spent what the log has"
    )


def _said(ledger: Path) -> Any:
    path = _path(ledger)
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError("mark")
    told = json.loads(path.read_text(encoding="utf-8"))
    if told["sha256"] != _digest(told["said"]):
        raise ValueError("mark")
    return told["said"]


def write_mark(ledger: Path, mark: Mark) -> None:
    """Note how far the ledger's file, as it is now, was checked; if that fails, nothing is lost."""
    with suppress(OSError):
        said = {"file": _file(ledger), "head": str(mark.head), "tally": mark.tally.to_json()}
        with replacing(_path(ledger), durable=False) as file:
            file.write(json.dumps({"said": said, "sha256": _digest(said)}).encode())


def _path(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}{_SUFFIX}")


def _file(ledger: Path) -> list[int]:
    found = version(ledger)
    with ledger.open("rb") as file:
        changes = int.from_bytes(file.read(_HEADER)[-4:], "big")
    return [found.inode, found.modified, found.size, changes]


def _digest(said: Any) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
