"""What can be wrong with a ledger: each problem in words that name its row, and no value."""

from __future__ import annotations

import hashlib
import math
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from dpfact_flower.errors import StateError
from dpfact_flower.privacy.events import PAPER_CLAIM, PATIENT_CLAIM
from dpfact_flower.privacy.ledger.rows import START, Head, Record, event_of, payload_of, records_of

BEGINNING = Head(0, START)
# What an event may combine; anything else was not made by this package.
KNOWN = {("entry", "replace", PAPER_CLAIM), ("patient", "add-remove", PATIENT_CLAIM)}


def problems(connection: sqlite3.Connection, noted: Head | None) -> Iterator[str]:
    """All there is to find; with a head noted elsewhere, also that the ledger was cut off."""
    yield from file_problems(connection)
    records = records_of(connection)
    yield from chain_problems(records)
    yield from stray_problems(connection)
    yield from job_problems(records)
    for record in records:
        yield from event_problems(record)
        yield from payload_problems(connection, record)
    if noted is not None:
        yield from noted_problems(records, noted)


def charge_problems(
    connection: sqlite3.Connection, records: Sequence[Record], after: Head = BEGINNING
) -> Iterator[str]:
    """Anything that leaves it unknown what was spent, in the rows after one that is known."""
    yield from chain_problems(records, after)
    yield from stray_problems(connection, after.rows)
    for record in records:
        yield from event_problems(record)


def file_problems(connection: sqlite3.Connection) -> Iterator[str]:
    """What SQLite itself finds wrong with the file."""
    for (line,) in connection.execute("PRAGMA integrity_check"):
        if line != "ok":
            yield f"SQLite's integrity check: {line}"


def chain_problems(records: Sequence[Record], after: Head = BEGINNING) -> Iterator[str]:
    """Rows that are missing, were added, moved or changed."""
    previous: Any = after.hash
    for expected, record in enumerate(records, start=after.rows + 1):
        if record.number != expected:
            yield f"row {record.number}: stands where row {expected} should: rows are missing"
        if record.hash != record.chained(previous):
            yield f"row {record.number}: its content or place is not what its hash was made of"
        previous = record.hash


def stray_problems(connection: sqlite3.Connection, after: int = 0) -> Iterator[str]:
    """Charges whose release is gone."""
    some = f"number > {int(after)} AND " if after else ""
    for (number,) in connection.execute(
        f"SELECT DISTINCT number FROM events WHERE {some}"
        "NOT EXISTS (SELECT 1 FROM releases WHERE releases.number = events.number)"
    ):
        yield f"row {number}: it was charged, and is missing"


def job_problems(records: Sequence[Record]) -> Iterator[str]:
    """Rounds that go back, and data that changed, within a job."""
    last: dict[Any, Record] = {}
    for record in records:
        before = last.get(record.job)
        if type(record.round) is not int or (before is not None and record.round <= before.round):
            yield f"row {record.number}: its round does not follow the rounds of its job"
            continue
        if before is not None and record.fingerprint != before.fingerprint:
            yield f"row {record.number}: its job was begun with other data"
        last[record.job] = record


def payload_problems(connection: sqlite3.Connection, record: Record) -> Iterator[str]:
    """Released bytes that are missing or not what was sent; without charge none need be there."""
    where = f"row {record.number}"
    payload = payload_of(connection, record.number)
    try:
        size = 4 * sum(math.prod(shape) for shape in record.shapes)
    except (TypeError, ValueError):
        yield f"{where}: the shapes of its arrays cannot be read"
        return
    if payload is None:
        if record.events:
            yield f"{where}: the released bytes are missing"
    elif not isinstance(payload, bytes) or len(payload) != size:
        yield f"{where}: the released bytes are not of the recorded shapes"
    elif hashlib.sha256(payload).hexdigest() != record.content[8]:
        yield f"{where}: the released bytes are not what their hash was made of"


def noted_problems(records: Sequence[Record], noted: Head) -> Iterator[str]:
    """Whether the noted head is a row of this ledger."""
    if noted.rows > len(records):
        yield (
            f"the noted head has {noted.rows} rows, the ledger {len(records)}: the newest rows are "
            "missing (is this an old copy?)"
        )
    elif (records[noted.rows - 1].hash if noted.rows else START) != noted.hash:
        yield f"row {noted.rows}: it is not the row that was noted: the ledger was rewritten"


def event_problems(record: Record) -> Iterator[str]:
    """What is wrong with the charges."""
    for row in record.events:
        where = f"row {record.number}, event {row[0]}"
        try:
            event = event_of(row)
        except StateError as error:
            yield f"{where}: {error}"
            continue
        if (event.unit, event.neighbours, event.claim) not in KNOWN:
            yield f"{where}: unit, neighbours and claim are none that this package makes"
        if row[-1] != event.rho:
            yield f"{where}: its rho is not sensitivity**2 / (2 sigma**2)"
