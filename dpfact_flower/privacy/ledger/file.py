"""The ledger's file: its tables, how it is made and opened, and the disk's errors as our own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from dpfact_flower.errors import DPFactError, StateError
from dpfact_flower.machine.files import create_once, private_folder

LEDGER = "ledger.sqlite"
"""Name of the file in a site's folder."""

_APPLICATION_ID = int.from_bytes(b"DPFL", "big")
_VERSION = 1
_SECONDS_TO_WAIT = 30.0  # for another process's transaction

_SCHEMA = """
CREATE TABLE releases (
    number INTEGER PRIMARY KEY,
    document TEXT NOT NULL,
    payload BLOB,
    hash TEXT NOT NULL
);
"""


def create_ledger(path: Path) -> None:
    """Give an empty ledger its name, whole and on the disk; one that exists by now stays."""
    private_folder(path.parent)
    try:
        with _in_memory() as empty:
            create_once(path, empty.serialize())
    except OSError as error:
        raise StateError(
            f"{path}: cannot be created ({error.strerror}); it needs a local disk with hard links"
        ) from None


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


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Errors of SQLite and of the disk as our own; their texts hold no values."""
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
