"""How far a ledger has been checked, and what its rows add up to until there.

A ledger grows for good, and a site's process, which lives for one message, need not read all of it
in every round. So whoever has checked and added up all rows leaves a mark beside the ledger: the
head it got to, the tally, and which file that was (inode, time of change, size, and SQLite's count
of changes). A mark counts only while the file is exactly that one. A row that anybody edits, a
copy, a ledger that was set back: each makes another file, and then every row is checked again.

A mark is a note, not a record. Without it the rows are read; where it cannot be written, it is not.
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
    with suppress(OSError, KeyError, TypeError, ValueError, SettingsError, StateError):
        path = _path(ledger)
        if path.stat().st_size > _MOST_BYTES:
            return None
        told = json.loads(path.read_text(encoding="utf-8"))
        said = told["said"]
        if told["sha256"] == _digest(said) and said["file"] == _file(ledger):
            return Mark(Head.parse(said["head"]), Tally.from_json(said["tally"]))
    return None


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
