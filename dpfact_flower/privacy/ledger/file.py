"""The ledger's file, the note of its newest head, and the translation of the disk's errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from dpfact_flower.errors import DPFactError, SettingsError, StateError
from dpfact_flower.machine.files import create_once, private_folder, replacing
from dpfact_flower.privacy.ledger.rows import Head

LEDGER = "ledger.sqlite"
"""Name of the file in a site's folder."""

_APPLICATION_ID = int.from_bytes(b"DPFL", "big")
_VERSION = 1
_SECONDS_TO_WAIT = 30.0  # for another process's transaction
_SCHEMA = f"""
CREATE TABLE releases (
    number INTEGER PRIMARY KEY,
    document TEXT NOT NULL,
    hash TEXT NOT NULL,
    payload BLOB
);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_VERSION};
"""
_MOST_BYTES_OF_A_HEAD = 100


def create_ledger(path: Path) -> None:
    """Create an empty ledger, complete and on the disk; an existing one stays."""
    private_folder(path.parent)
    try:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as empty:
            empty.executescript(_SCHEMA)
            create_once(path, empty.serialize())
    except OSError as error:
        raise StateError(
            f"{path}: cannot be created ({error.strerror}); it needs a local disk with hard links"
        ) from None


def open_ledger(path: Path, *, durable: bool) -> sqlite3.Connection:
    """Connect to an existing ledger; never create one."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=_SECONDS_TO_WAIT,
        isolation_level=None,  # transactions are ours to begin
    )
    try:
        for pragma in (
            "journal_mode = DELETE",
            f"synchronous = {'EXTRA' if durable else 'OFF'}",
            "fullfsync = ON",  # macOS: fsync alone leaves data in the drive
            "trusted_schema = OFF",
            "temp_store = MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        _check_identity(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_identity(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse foreign files and those of later versions."""
    ((application,),) = connection.execute("PRAGMA application_id")
    if application != _APPLICATION_ID:
        raise StateError(f"{path}: not a ledger, or damaged; it is never recreated automatically")
    ((version,),) = connection.execute("PRAGMA user_version")
    if version != _VERSION:
        raise StateError(
            f"{path}: a ledger of version {version}; this dpfact-flower knows version {_VERSION}"
        )


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the disk into our own; their texts have no values."""
    try:
        yield
    except DPFactError:  # which may be an OSError too, and is ours already
        raise
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        raise StateError(f"{path}: {error} ({name})") from None
    except (OSError, OverflowError, UnicodeError) as error:
        # SQLite may quote a damaged schema in a message that is not text.
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise StateError(f"{path}: {reason}") from None


# --- The newest head, noted beside the ledger -----------------------------------------------------
#
# It is written after the charge. A ledger without that row was rolled back, or is another one, and
# its budget is not known. If the note is missing, damaged or cannot be written, only this alarm is
# lost.


def head_file(ledger: Path) -> Path:
    """File with the newest head; no job may have its name."""
    return ledger.with_name(f"{ledger.name}-head")


def verified_head(ledger: Path) -> Head | None:
    """The noted newest head; None where none is noted."""
    with suppress(OSError, ValueError, SettingsError), head_file(ledger).open("rb") as file:
        return Head.parse(file.read(_MOST_BYTES_OF_A_HEAD).decode())
    return None


def note_head(ledger: Path, head: Head) -> None:
    """Note the newest head; a failure is ignored, since the charge stands."""
    with suppress(Exception), replacing(head_file(ledger), durable=False) as file:
        file.write(str(head).encode())
