"""What can be wrong with a ledger: each problem in words that name its row, and no value."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence

from dpfact_flower.errors import StateError
from dpfact_flower.privacy.events import PAPER_CLAIM, PATIENT_CLAIM
from dpfact_flower.privacy.ledger.rows import (
    START,
    Head,
    LedgerRow,
    StoredRow,
    chained,
    payload_of,
)

# What an event may combine; anything else was not made by this package.
KNOWN = {("entry", "replace", PAPER_CLAIM), ("patient", "add-remove", PATIENT_CLAIM)}


def file_problems(connection: sqlite3.Connection) -> Iterator[str]:
    """What SQLite itself finds wrong with the file."""
    for (line,) in connection.execute("PRAGMA integrity_check"):
        if line != "ok":
            yield f"SQLite's integrity check: {line}"


def chain_problems(stored: Sequence[StoredRow]) -> Iterator[str]:
    """Rows that are missing, were added, moved or changed."""
    previous = START
    for expected, row in enumerate(stored, start=1):
        if row.number != expected:
            yield f"row {row.number}: stands where row {expected} should: rows are missing"
        if not isinstance(row.document, str) or row.hash != chained(previous, row.document):
            yield f"row {row.number}: its content or place is not what its hash was made of"
        previous = row.hash


def read_rows(stored: Sequence[StoredRow], found: list[LedgerRow]) -> Iterator[str]:
    """What makes no sense; rows that do are added to `found`."""
    for row in stored:
        try:
            found.append(row.read())
        except (StateError, ValueError) as error:
            said = f": {error}" if isinstance(error, StateError) else ""
            yield f"row {row.number}: cannot be read{said}"
        else:
            yield from _event_problems(found[-1])


def _event_problems(row: LedgerRow) -> Iterator[str]:
    for place, event in enumerate(row.events):
        if (event.unit, event.neighbours, event.claim) not in KNOWN:
            yield (
                f"row {row.number}, event {place}: unit, neighbours and claim are none that this "
                "package makes"
            )


def job_problems(rows: Sequence[LedgerRow]) -> Iterator[str]:
    """Rounds that go back, and data that changed, within a job."""
    last: dict[str, LedgerRow] = {}
    for row in rows:
        before = last.get(row.job)
        if before is not None and row.round <= before.round:
            yield f"row {row.number}: its round does not follow the rounds of its job"
            continue
        if before is not None and row.fingerprint != before.fingerprint:
            yield f"row {row.number}: its job was begun with other data"
        last[row.job] = row


def payload_problems(connection: sqlite3.Connection, row: LedgerRow) -> Iterator[str]:
    """Released bytes that are missing or not what was sent; without charge none need be there."""
    payload = payload_of(connection, row.number)
    if payload is None:
        if row.events:
            yield f"row {row.number}: the released bytes are missing"
    elif not isinstance(payload, bytes) or len(payload) != row.size:
        yield f"row {row.number}: the released bytes are not of the recorded shapes"
    elif hashlib.sha256(payload).hexdigest() != row.payload_sha256:
        yield f"row {row.number}: the released bytes are not what their hash was made of"


def noted_problems(stored: Sequence[StoredRow], noted: Head) -> Iterator[str]:
    """Whether the noted head is a row of this ledger."""
    if noted.rows > len(stored):
        yield (
            f"the noted head has {noted.rows} rows, the ledger {len(stored)}: the newest rows are "
            "missing (is this an old copy?)"
        )
    elif (stored[noted.rows - 1].hash if noted.rows else START) != noted.hash:
        yield f"row {noted.rows}: it is not the row that was noted: the ledger was rewritten"
