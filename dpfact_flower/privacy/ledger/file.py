"""The ledger's file: its tables, how it is made and opened, and the disk's errors as our own."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from dpfact_flower.errors import StateError
from dpfact_flower.machine.files import private_folder, remove_leftovers, sync_folder

LEDGER = "ledger.sqlite"
"""Name of the file in a site's folder."""

_APPLICATION_ID = int.from_bytes(b"DPFL", "big")
_VERSION = 1
_SECONDS_TO_WAIT = 30.0  # for another process's transaction

_SCHEMA = """
CREATE TABLE releases (
    number INTEGER PRIMARY KEY,
    recorded TEXT NOT NULL,
    job TEXT NOT NULL,
    round INTEGER NOT NULL,
    fingerprint TEXT NOT NULL,
    request TEXT NOT NULL,
    terms TEXT NOT NULL,
    shapes TEXT NOT NULL,
    payload_sha256 TEXT NOT NULL,
    payload BLOB,
    hash TEXT NOT NULL,
    UNIQUE (job, round)
);
CREATE TABLE events (
    number INTEGER NOT NULL REFERENCES releases (number),
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    sensitivity REAL NOT NULL,
    sigma REAL NOT NULL,
    count INTEGER NOT NULL,
    unit TEXT NOT NULL,
    neighbours TEXT NOT NULL,
    claim TEXT NOT NULL,
    seeded INTEGER NOT NULL,
    rho REAL NOT NULL,
    PRIMARY KEY (number, position)
) WITHOUT ROWID;
"""


def create_ledger(path: Path) -> None:
    """Give an empty ledger its name, whole and on the disk; one that exists by now stays."""
    private_folder(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            with _in_memory() as empty:
                file.write(empty.serialize())
            file.flush()
            os.fsync(file.fileno())
        # A link, not a rename: another process may have made, and charged, the ledger meanwhile.
        # It may also have cleared away our file as a leftover; then its own has the name.
        with suppress(FileExistsError, FileNotFoundError):
            os.link(temporary, path)
    except OSError as error:
        raise StateError(
            f"{path}: cannot be created ({error.strerror}); it needs a local disk with hard links"
        ) from None
    finally:
        Path(temporary).unlink(missing_ok=True)
    sync_folder(path.parent)
    remove_leftovers(path)


@contextmanager
def _in_memory() -> Iterator[sqlite3.Connection]:
    """An empty ledger in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {_VERSION}")
        yield connection
    finally:
        connection.close()


def open_ledger(path: Path, *, durable: bool) -> sqlite3.Connection:
    """Connect to an existing ledger; never create one."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=_SECONDS_TO_WAIT,
        isolation_level=None,  # transactions are ours to begin
        check_same_thread=durable,  # a simulation's threads hand it on, see `idle`
    )
    try:
        for pragma in (
            f"journal_mode = {'DELETE' if durable else 'PERSIST'}",
            f"synchronous = {'EXTRA' if durable else 'OFF'}",
            "fullfsync = ON",  # macOS: fsync alone leaves data in the drive
            "foreign_keys = ON",
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
    """Refuse foreign files, those of later versions, and those whose tables were altered."""
    if _pragma(connection, "application_id") != _APPLICATION_ID:
        raise StateError(f"{path}: not a ledger, or damaged; it is never recreated automatically")
    version = _pragma(connection, "user_version")
    if version != _VERSION:
        raise StateError(
            f"{path}: a ledger of version {version}; this dpfact-flower knows version {_VERSION}"
        )
    if _tables(connection) != _own_tables():
        raise StateError(f"{path}: damaged ledger: its tables are not those of a ledger")


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def _tables(connection: sqlite3.Connection) -> list[Any]:
    return connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!' "
        "ORDER BY name"
    ).fetchall()


@cache
def _own_tables() -> list[Any]:
    with _in_memory() as empty:
        return _tables(empty)


def marks(count: int) -> str:
    """Places of a statement's parameters."""
    return ", ".join("?" * count)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Errors of SQLite and of the disk as our own; their texts hold no values."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        raise StateError(f"{path}: {error} ({name})") from None
    except (OSError, OverflowError, UnicodeError) as error:
        # SQLite may quote a damaged schema in a message that is not text.
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise StateError(f"{path}: {reason}") from None
