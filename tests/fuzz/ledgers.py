"""A ledger that somebody wrote into who knows how its rows are chained."""

from __future__ import annotations

import random
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from dpfact_flower.privacy.ledger.rows import CONTENT, EVENT, START, chained, events_of


def in_rows(content: bytes, rng: random.Random) -> bytes:
    """Cells of a ledger changed, most often with all hashes made right again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.sqlite"
        path.write_bytes(content)
        with closing(sqlite3.connect(path)) as connection:
            for _ in range(rng.randint(1, 3)):
                with suppress(sqlite3.Error, OverflowError, UnicodeError):
                    _change(connection, rng)
            if rng.random() < 0.8:
                with suppress(sqlite3.Error, UnicodeError):
                    _rechain(connection)
            connection.commit()
        return path.read_bytes()


def _change(connection: sqlite3.Connection, rng: random.Random) -> None:
    table, columns = rng.choice((("releases", f"{CONTENT}, payload, hash"), ("events", EVENT)))
    column = rng.choice(columns.split(", "))
    numbers = [n for (n,) in connection.execute(f"SELECT DISTINCT number FROM {table}")]
    number = rng.choice(numbers)
    if rng.random() < 0.1:
        connection.execute(f"DELETE FROM {table} WHERE number = ?", (number,))
    elif rng.random() < 0.05:
        connection.execute(rng.choice((
            "DROP TABLE events", "PRAGMA user_version = 7", "PRAGMA application_id = 3",
            "ALTER TABLE releases ADD COLUMN more TEXT", "CREATE VIEW v AS SELECT 1",
        )))  # fmt: skip
    else:
        value = _odd(rng)
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE number = ?", (value, number))


def _odd(rng: random.Random) -> Any:
    return rng.choice((
        0, -1, 2**62, 1.5, float("inf"), float("nan"), "", "x", b"", b"\xff\x00", "[" * 100_000,
        "[[1e999]]", "[[true]]", "[null]", "{}", "[[99999999999999999999]]", "OTHER-1", "job",
        "patient", "entry", 1e-320, "y" * 3000, "line\nline",
    ))  # fmt: skip


def _rechain(connection: sqlite3.Connection) -> None:
    before: Any = START
    for row in connection.execute(f"SELECT {CONTENT} FROM releases ORDER BY number").fetchall():
        before = chained(before, row, events_of(connection, row[0]))
        connection.execute("UPDATE releases SET hash = ? WHERE number = ?", (before, row[0]))
