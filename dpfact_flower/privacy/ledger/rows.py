"""What a row of the ledger holds, as people see it and as it is in the file."""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.machine.parsed import from_json
from dpfact_flower.privacy.events import ReleaseEvent, at_least_one
from dpfact_flower.privacy.release import Release

START = "0" * 64
"""Stands for the hash of the row before the first."""
_RANDOM_BYTES = 32
_TEXTS = ("recorded", "job", "fingerprint", "request", "terms", "payload_sha256", "random")


@dataclass(frozen=True)
class ReleaseKey:
    """What a release answers: the same key is answered with the same bytes.

    Attributes
    ----------
    fingerprint : str
        Of the site's tensor, under the site's own key: see `data_tag`.
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

    It is a commitment to the rows, and tells nothing of them: each has random bytes.

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
        When the round was asked for by the site's clock, ISO 8601, UTC. When it was charged would
        tell how long the patients took.
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
        Over the hash of the row before and this row's document.
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

    @property
    def size(self) -> int:
        """Bytes that were released."""
        return 4 * sum(math.prod(shape) for shape in self.shapes)

    def answers(self, key: ReleaseKey) -> bool:
        """Whether this row answered that very request."""
        asked = (self.fingerprint, self.job, self.round, self.request)
        return asked == (key.fingerprint, key.job, key.round, key.request)


class StoredRow(NamedTuple):
    """A row as it is in the file, which need not make sense; its payload is read when needed."""

    number: int
    document: Any
    """JSON text: what `document_of` made."""
    hash: Any
    kept: bool
    """Whether the payload is there."""

    def read(self) -> LedgerRow:
        """What it says.

        Raises
        ------
        StateError, ValueError
            If it makes no sense.
        """
        told = from_json(self.document) if isinstance(self.document, str) else None
        names = {*_TEXTS, "round", "shapes", "events"}
        if not isinstance(told, dict) or set(told) != names or type(told["round"]) is not int:
            raise ValueError("document")
        if any(type(told[name]) is not str for name in _TEXTS):
            raise ValueError("document")
        if not all(isinstance(told[name], list) for name in ("shapes", "events")):
            raise ValueError("document")
        del told["random"]
        return LedgerRow(**told | {
            "number": self.number, "hash": self.hash, "payload_kept": self.kept,
            "shapes": tuple(map(_shape, told["shapes"])),
            "events": tuple(map(ReleaseEvent.from_dict, told["events"])),
        })  # fmt: skip


def _shape(told: Any) -> tuple[int, ...]:
    if not isinstance(told, list) or any(type(size) is not int or size < 0 for size in told):
        raise ValueError("shapes")
    return tuple(told)


def chained(previous: str, document: str) -> str:
    """SHA-256 over the hash of the row before and a row's document."""
    return hashlib.sha256(f"{previous}\n{document}".encode()).hexdigest()


def document_of(
    key: ReleaseKey, terms: str, release: Release, digest: str, recorded: datetime
) -> str:
    """A new row as JSON; its random bytes hide all else from whoever has the hash alone."""
    return json.dumps({
        "recorded": recorded.isoformat(timespec="seconds"), **asdict(key), "terms": terms,
        "shapes": [array.shape for array in release.arrays], "payload_sha256": digest,
        "events": [event.to_dict() for event in release.events],
        "random": secrets.token_hex(_RANDOM_BYTES),
    })  # fmt: skip


def stored_rows(connection: sqlite3.Connection) -> list[StoredRow]:
    """All rows in order."""
    return [
        StoredRow(number, document, hash_, bool(kept))
        for number, document, hash_, kept in connection.execute(
            "SELECT number, document, hash, payload IS NOT NULL FROM releases ORDER BY number"
        )
    ]


def payload_of(connection: sqlite3.Connection, number: int) -> Any:
    """The released bytes; None if there are none, or damage hides them from a search."""
    found = connection.execute(
        "SELECT payload FROM releases WHERE number = ?", (number,)
    ).fetchone()
    return found[0] if found else None


def pack(arrays: Sequence[NDArray[np.float32]]) -> bytes:
    """All values as little-endian float32, array by array in C order."""
    if any(array.dtype != np.float32 for array in arrays):
        raise DataError("release: every array must be float32")
    return b"".join(np.ascontiguousarray(array, "<f4").data for array in arrays)


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
