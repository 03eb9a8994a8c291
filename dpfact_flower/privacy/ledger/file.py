"""Handle the ledger's file, its key, the note of its newest head, and errors of the disk."""

from __future__ import annotations

import hmac
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from dpfact_flower.errors import DPFactError, SettingsError, StateError
from dpfact_flower.machine.access import check_own
from dpfact_flower.machine.files import create_once, disk_errors, private_folder, replacing
from dpfact_flower.privacy.ledger.rows import Head

LEDGER = "ledger.sqlite"
"""Name of the ledger's file in a site's folder."""

KEY = ".ledger-key"
"""Name of the key's file, which is not a valid job name, and not in copies of ledger.sqlite*."""

_APPLICATION_ID = int.from_bytes(b"DPFL", "big")
_VERSION = 1
_KEY_BYTES = 32
_SECONDS_TO_WAIT = 30.0  # to wait for another process's transaction
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
    """Create a complete empty ledger on the disk, unless one exists."""
    private_folder(path.parent)
    try:
        with closing(sqlite3.connect(":memory:")) as empty:
            empty.executescript(_SCHEMA)
            create_once(path, empty.serialize())
    except OSError as error:
        raise StateError(
            f"{path}: cannot be created ({error.strerror}); it needs a local disk with hard links"
        ) from None


def open_ledger(path: Path, *, durable: bool) -> sqlite3.Connection:
    """Connect to an existing ledger, without creating one."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=_SECONDS_TO_WAIT,
        isolation_level=None,  # we begin transactions ourselves
    )
    try:
        for pragma in (
            "journal_mode = DELETE",
            f"synchronous = {'EXTRA' if durable else 'OFF'}",
            "fullfsync = ON",  # on macOS, fsync alone leaves data in the drive's cache
            "trusted_schema = OFF",
            "temp_store = MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        ((application,),) = connection.execute("PRAGMA application_id")
        ((version,),) = connection.execute("PRAGMA user_version")
        if (application, version) != (_APPLICATION_ID, _VERSION):
            raise StateError(f"{path}: not a ledger of version {_VERSION}, or damaged")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the disk into our own errors, without values in the texts."""
    try:
        yield
    except DPFactError:  # our own error, even if it is an OSError too
        raise
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        raise StateError(f"{path}: {error} ({name})") from None
    except (OSError, OverflowError, UnicodeError) as error:
        # SQLite may quote a damaged schema in a message that cannot be decoded.
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise StateError(f"{path}: {reason}") from None


# --- The note of the newest head, next to the ledger ----------------------------------------------
#
# The note is written after the charge. A ledger without the noted row was rolled back or replaced,
# and its budget is not known. If the note is missing or damaged, or cannot be written, only this
# alarm is lost.


def head_file(ledger: Path) -> Path:
    """Return the path of the file with the newest head. No job may have the file's name."""
    return ledger.with_name(f"{ledger.name}-head")


def verified_head(ledger: Path) -> Head | None:
    """Return the newest head from the note, or None if no note exists."""
    with suppress(OSError, ValueError, SettingsError), head_file(ledger).open("rb") as file:
        return Head.parse(file.read(_MOST_BYTES_OF_A_HEAD).decode())
    return None


def note_head(ledger: Path, head: Head) -> None:
    """Note the newest head. A failure is ignored, because the charge is already recorded."""
    with suppress(Exception), replacing(head_file(ledger), durable=False) as file:
        file.write(str(head).encode())


# --- The key of the data's fingerprint ------------------------------------------------------------
#
# With a plain hash of the data, anyone who knows all patients but one could test whether that
# patient is in the data. The key is random, stays at the site, and is not in the backups of `dpfact
# ledger backup`. No budget depends on the key. If it is lost, the site makes a new one, running
# jobs cannot continue, and all charges still count.


def read_key(folder: Path) -> bytes | None:
    """Return the key of a site's folder, or None if no key exists."""
    path = folder / KEY
    check_own(path)
    with disk_errors(path):
        if not path.exists():
            return None
        key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise StateError(
            f"{path}: damaged; delete it, and a new key is made: jobs under way cannot go on, and "
            "nothing that was charged is forgotten"
        )
    return key


def data_key(folder: Path) -> bytes:
    """Return the key of a site's folder. Make the key if no key exists."""
    if read_key(folder) is None:
        with disk_errors(folder / KEY):
            create_once(folder / KEY, secrets.token_bytes(_KEY_BYTES))
    key = read_key(folder)
    assert key is not None
    return key


def data_tag(folder: Path, fingerprint: str) -> str:
    """Return a tensor's fingerprint under a site's key, for the ledger and the site's state."""
    return hmac.digest(data_key(folder), fingerprint.encode(), "sha256").hex()
