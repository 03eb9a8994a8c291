"""A ledger whose rows were changed."""

from __future__ import annotations

import json
import random
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

_COLUMNS = ("number", "document", "payload", "hash")


def in_rows(content: bytes, rng: random.Random) -> bytes:
    """Cells and documents of a ledger changed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.sqlite"
        path.write_bytes(content)
        with closing(sqlite3.connect(path)) as connection:
            for _ in range(rng.randint(1, 3)):
                with suppress(sqlite3.Error, OverflowError, UnicodeError, ValueError):
                    _change(connection, rng)
            connection.commit()
        return path.read_bytes()


def _change(connection: sqlite3.Connection, rng: random.Random) -> None:
    numbers = [n for (n,) in connection.execute("SELECT number FROM releases")]
    number, chance = rng.choice(numbers), rng.random()
    if chance < 0.1:
        connection.execute("DELETE FROM releases WHERE number = ?", (number,))
    elif chance < 0.15:
        connection.execute(rng.choice((
            "DROP TABLE releases", "PRAGMA user_version = 7", "PRAGMA application_id = 3",
            "ALTER TABLE releases ADD COLUMN more TEXT", "CREATE VIEW v AS SELECT 1",
        )))  # fmt: skip
    elif chance < 0.3:
        column = rng.choice(_COLUMNS)
        connection.execute(
            f"UPDATE releases SET {column} = ? WHERE number = ?", (_odd(rng), number)
        )
    else:
        _change_document(connection, number, rng)


def _change_document(connection: sqlite3.Connection, number: int, rng: random.Random) -> None:
    found = connection.execute("SELECT document FROM releases WHERE number = ?", (number,))
    told = json.loads(found.fetchone()[0])
    place = rng.choice([told, *told["events"]])
    place[rng.choice(list(place))] = rng.choice((_odd(rng), [], {}, None, [[True]], [["x"]], [{}]))
    connection.execute(
        "UPDATE releases SET document = ? WHERE number = ?",
        (json.dumps(told, default=repr), number),
    )


def _odd(rng: random.Random) -> Any:
    return rng.choice((
        0, -1, 2**62, 1.5, float("inf"), float("nan"), "", "x", b"", b"\xff\x00", "[" * 100_000,
        "[[1e999]]", "[[true]]", "[null]", "{}", "[[99999999999999999999]]", "OTHER-1", "job",
        "patient", "entry", 1e-320, "y" * 3000, "line\nline",
    ))  # fmt: skip
