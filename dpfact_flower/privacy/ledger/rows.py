"""What a row of the ledger holds, as people see it and as it is in the file; and queries."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.machine.parsed import from_json
from dpfact_flower.privacy.events import ReleaseEvent, at_least_one

START = "0" * 64
"""Stands for the hash of the row before the first."""
# What a row's hash covers, in this order; the payload through its own hash.
CONTENT = "number, recorded, job, round, fingerprint, request, terms, shapes, payload_sha256"
EVENT = "position, name, sensitivity, sigma, count, unit, neighbours, claim, seeded, rho"
EVENT_FIELDS = EVENT.split(", ")[1:-1]
# A charged release has its bytes, or is damaged. One without charge need not fill the disk.
NOT_KEPT = "payload IS NULL AND number NOT IN (SELECT number FROM events)"


@dataclass(frozen=True)
class ReleaseKey:
    """What a release answers: the same key is answered with the same bytes.

    Attributes
    ----------
    fingerprint : str
        SHA-256 of the site's tensor.
    job : str
    round : int
        From 1.
    request : str
        Digest of everything that was asked.

    Raises
    ------
    SettingsError
        If the round is below 1.
    """

    fingerprint: str
    job: str
    round: int
    request: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "round", at_least_one("round", self.round))


@dataclass(frozen=True)
class LastAnswer:
    """The latest round of a job that was answered.

    Attributes
    ----------
    round : int
    terms, request, fingerprint : str
        Digests: of what must stay the same in a job, of the request, of the data.
    """

    round: int
    terms: str
    request: str
    fingerprint: str


@dataclass(frozen=True)
class Head:
    """Where a ledger stands; noted elsewhere, it shows later that no row has gone.

    Attributes
    ----------
    rows : int
    hash : str
        Of the newest row, in hexadecimal.
    """

    rows: int
    hash: str

    def __str__(self) -> str:
        return f"{self.rows}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote.

        Raises
        ------
        SettingsError
            If it has another form.
        """
        found = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", text.strip())
        if not found:
            raise SettingsError(f"head: need ROWS:HASH as in the site's log; got {text[:80]!r}")
        return cls(int(found[1]), found[2])


@dataclass(frozen=True)
class LedgerRow:
    """One release as people may see it: everything but the bytes.

    Attributes
    ----------
    number : int
        From 1, without gaps.
    recorded : str
        Time of the charge by the site's clock, ISO 8601, UTC.
    job : str
    round : int
    fingerprint, request, terms : str
        Digests, as in `ReleaseKey` and `LastAnswer`.
    shapes : tuple of tuple of int
        Of the released arrays; none for a round in which nothing left the site.
    payload_sha256 : str
        Of the released bytes.
    payload_kept : bool
        Whether the bytes are there: those of a release with charge.
    events : tuple of ReleaseEvent
        What was charged; none for a release without noise.
    hash : str
        Over the hash of the row before and this row's content.
    """

    number: int
    recorded: str
    job: str
    round: int
    fingerprint: str
    request: str
    terms: str
    shapes: tuple[tuple[int, ...], ...]
    payload_sha256: str
    payload_kept: bool
    events: tuple[ReleaseEvent, ...]
    hash: str

    @property
    def unprotected(self) -> bool:
        """Whether values left the site without noise, which no epsilon bounds."""
        return bool(self.shapes) and not self.events


@dataclass(frozen=True)
class Record:
    """A row as it is in the file, which need not make sense.

    Attributes
    ----------
    content : tuple
        Columns `CONTENT`.
    events : tuple of tuple
        Columns `EVENT`, by position.
    hash : str
    kept : bool
        Whether the payload is there.
    """

    content: tuple[Any, ...]
    events: tuple[tuple[Any, ...], ...]
    hash: Any
    kept: bool

    @property
    def number(self) -> int:
        """Of the row, from 1."""
        return int(self.content[0])

    @property
    def job(self) -> Any:
        """Name of the job."""
        return self.content[2]

    @property
    def round(self) -> Any:
        """Round of the job."""
        return self.content[3]

    @property
    def fingerprint(self) -> Any:
        """Digest of the site's data."""
        return self.content[4]

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the released arrays; ValueError or TypeError if they make no sense."""
        shapes = tuple(tuple(shape) for shape in from_json(self.content[7]))
        if any(type(size) is not int or size < 0 for shape in shapes for size in shape):
            raise ValueError("shapes")
        return shapes

    def chained(self, previous: Any) -> str:
        """Hash that the row should have, given that of the row before."""
        return chained(previous, self.content, self.events)

    def release_events(self) -> tuple[ReleaseEvent, ...]:
        """The events; StateError if one makes no sense."""
        return tuple(event_of(row) for row in self.events)

    @property
    def unprotected(self) -> bool:
        """Whether values left the site without noise; errors as for `shapes`."""
        return bool(self.shapes) and not self.events

    def row(self) -> LedgerRow:
        """The row for people."""
        number, recorded, job, round_number, fingerprint, request, terms, _, digest = self.content
        return LedgerRow(
            number=number, recorded=recorded, job=job, round=round_number,
            fingerprint=fingerprint, request=request, terms=terms, shapes=self.shapes,
            payload_sha256=digest, payload_kept=self.kept, events=self.release_events(),
            hash=self.hash,
        )  # fmt: skip


def chained(previous: Any, content: tuple[Any, ...], events: tuple[tuple[Any, ...], ...]) -> str:
    """SHA-256 over the hash before and a row's content, as JSON; floats in their shortest form."""
    text = json.dumps([previous, content, events], separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def event_row(position: int, event: ReleaseEvent) -> tuple[Any, ...]:
    """Columns `EVENT` of an event."""
    fields = event.to_dict()
    values = (fields[name] for name in EVENT_FIELDS)
    return (position, *(int(v) if isinstance(v, bool) else v for v in values), event.rho)


def event_of(row: tuple[Any, ...]) -> ReleaseEvent:
    """The event of columns `EVENT`; StateError if it makes no sense."""
    fields = dict(zip(EVENT_FIELDS, row[1:-1], strict=True))
    fields["seeded"] = {0: False, 1: True}.get(fields["seeded"], fields["seeded"])
    return ReleaseEvent.from_dict(fields)


def pack(arrays: Sequence[NDArray[np.float32]]) -> tuple[str, bytes]:
    """Shapes as JSON, and all values as little-endian float32, array by array in C order."""
    if any(array.dtype != np.float32 for array in arrays):
        raise DataError("release: every array must be float32")
    shapes = json.dumps([array.shape for array in arrays], separators=(",", ":"))
    return shapes, b"".join(np.ascontiguousarray(array, "<f4").data for array in arrays)


def unpack(shapes: Iterable[tuple[int, ...]], payload: bytes) -> list[NDArray[np.float32]]:
    """Arrays of the shapes; ValueError if the bytes are not exactly theirs."""
    arrays, start = [], 0
    for shape in shapes:
        end = start + 4 * math.prod(shape)
        values = np.frombuffer(payload[start:end], "<f4").astype(np.float32)
        arrays.append(values.reshape(shape))
        start = end
    if start != len(payload):
        raise ValueError("payload")
    return arrays


def has_events(connection: sqlite3.Connection, job: str) -> bool:
    """Whether anything was charged in a job."""
    return bool(
        connection.execute(
            "SELECT EXISTS (SELECT 1 FROM releases JOIN events USING (number) WHERE job = ?)",
            (job,),
        ).fetchone()[0]
    )


def last_answer(connection: sqlite3.Connection, job: str) -> LastAnswer | None:
    """The latest round of a job that was answered; None before the first.

    Raises
    ------
    ValueError
        If what the file holds of it makes no sense.
    """
    found = connection.execute(
        "SELECT round, terms, request, fingerprint FROM releases WHERE job = ? "
        "ORDER BY round DESC LIMIT 1",
        (job,),
    ).fetchone()
    if found and not (type(found[0]) is int and all(type(text) is str for text in found[1:])):
        raise ValueError("last answer")
    return LastAnswer(*found) if found else None


def head_of(connection: sqlite3.Connection) -> Head:
    """Where the ledger stands."""
    found = connection.execute(
        "SELECT number, hash FROM releases ORDER BY number DESC LIMIT 1"
    ).fetchone()
    return Head(*found) if found else Head(0, START)


def records_of(
    connection: sqlite3.Connection, number: int | None = None, *, after: int = 0
) -> list[Record]:
    """All rows in order, one, or those after one; payloads are read one at a time."""
    events: dict[int, list[tuple[Any, ...]]] = {}
    some = "WHERE number > ?" if after else "" if number is None else "WHERE number = ?"
    key = (after,) if after else () if number is None else (number,)
    for row in connection.execute(
        f"SELECT number, {EVENT} FROM events {some} ORDER BY number, position", key
    ):
        events.setdefault(row[0], []).append(row[1:])
    return [
        Record(row[:-2], tuple(events.get(row[0], ())), row[-2], bool(row[-1]))
        for row in connection.execute(
            f"SELECT {CONTENT}, hash, payload IS NOT NULL FROM releases {some} ORDER BY number", key
        )
    ]


def hash_of(connection: sqlite3.Connection, number: int) -> Any:
    """Hash of a row; that of none before the first, and None where the row is missing."""
    if number == 0:
        return START
    found = connection.execute("SELECT hash FROM releases WHERE number = ?", (number,)).fetchone()
    return found[0] if found else None


def events_of(connection: sqlite3.Connection, number: int) -> tuple[tuple[Any, ...], ...]:
    """Columns `EVENT` of a row's events, by position."""
    return tuple(
        connection.execute(
            f"SELECT {EVENT} FROM events WHERE number = ? ORDER BY position", (number,)
        )
    )


def payload_of(connection: sqlite3.Connection, number: int) -> Any:
    """The released bytes; None if there are none, or damage hides them from a search."""
    found = connection.execute(
        "SELECT payload FROM releases WHERE number = ?", (number,)
    ).fetchone()
    return found[0] if found else None
