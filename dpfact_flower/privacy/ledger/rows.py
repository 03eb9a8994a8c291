"""Rows of the ledger: JSON documents, each chained to the previous row by its hash."""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.machine.parsed import from_json
from dpfact_flower.privacy.events import ReleaseEvent
from dpfact_flower.privacy.release import Release, Share

START = "0" * 64
"""Hash that the first row uses as the hash of the previous row."""


class ReleaseKey(NamedTuple):
    """The key of a request. The same key always gets the same bytes.

    `fingerprint` is the fingerprint of the site's tensor under the site's own key (`data_tag`), and
    `request` is the digest of the whole request.
    """

    fingerprint: str
    job: str
    round: int
    request: str


class Head(NamedTuple):
    """The number of rows of a ledger, and the hash of the newest row.

    A head that is kept elsewhere can later show that rows are missing.
    """

    rows: int
    hash: str

    def __str__(self) -> str:
        return f"{self.rows}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a head's text."""
        match = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", text.strip())
        if not match:
            raise SettingsError(f"head: need ROWS:HASH as in the site's log; got {text[:80]!r}")
        return cls(int(match[1]), match[2])


@dataclass(frozen=True)
class LedgerRow:
    """One row of the ledger: a release without its bytes.

    `payload_kept` is true if the ledger keeps the bytes, as for charged releases. `recorded` is the
    time of the request (site's clock, UTC), because the time of the charge would reveal how long
    the computation took. `shapes` is empty if nothing left the site, and `events` is empty if
    values left without noise.
    """

    number: int
    hash: str
    payload_kept: bool
    recorded: str
    fingerprint: str
    job: str
    round: int
    request: str
    terms: str
    shapes: tuple[tuple[int, ...], ...]
    payload_sha256: str
    events: tuple[ReleaseEvent, ...]

    @classmethod
    @lru_cache(maxsize=1024)  # one request reads all rows several times
    def read(cls, number: int, document: str, hash_: str, kept: bool) -> Self:
        """Read a row from a document that `document_of` made."""
        fields = from_json(document)
        del fields["random"]
        fields["shapes"] = tuple(map(tuple, fields["shapes"]))
        fields["events"] = tuple(ReleaseEvent(**event) for event in fields["events"])
        return cls(number, hash_, kept, **fields)

    @property
    def key(self) -> ReleaseKey:
        """The request that the row answered."""
        return ReleaseKey(self.fingerprint, self.job, self.round, self.request)

    @property
    def shared(self) -> bool:
        """Whether the release is a share of a secure sum. The ledger keeps no values of shares."""
        return any(event.shared for event in self.events)

    @property
    def unprotected(self) -> bool:
        """Whether values left the site without noise."""
        return bool(self.shapes) and not self.events

    def holds(self, terms: str, release: Release | Share) -> bool:
        """Return whether the row records exactly this release."""
        shapes = tuple(array.shape for array in release.arrays)
        digest = digest_of(pack(release.arrays))
        recorded = (self.terms, self.shapes, self.payload_sha256, self.events)
        return recorded == (terms, shapes, digest, release.events)


def chained(previous: str, document: str) -> str:
    """Return the SHA-256 of the previous row's hash and a row's document."""
    return digest_of(f"{previous}\n{document}".encode())


def document_of(
    key: ReleaseKey, terms: str, release: Release | Share, payload: bytes, recorded: datetime
) -> str:
    """Return a new row as JSON. Random bytes hide the row's content if only the hash is known."""
    return json.dumps({
        "recorded": recorded.isoformat(timespec="seconds"), **key._asdict(), "terms": terms,
        "shapes": [array.shape for array in release.arrays],
        "payload_sha256": digest_of(payload),
        "events": [event.to_dict() for event in release.events],
        "random": secrets.token_hex(32),
    })  # fmt: skip


def digest_of(content: bytes) -> str:
    """Return the hexadecimal SHA-256 of `content`."""
    return hashlib.sha256(content).hexdigest()


def pack(arrays: Sequence[NDArray[np.float32 | np.int64]]) -> bytes:
    """Return all values as little-endian float32 (int64 for a share), array by array in C order."""
    if any(array.dtype not in (np.float32, np.int64) for array in arrays):
        raise DataError("release: every array must be float32, or the int64 of a share")
    little = (array.astype(array.dtype.newbyteorder("<"), copy=False) for array in arrays)
    return b"".join(np.ascontiguousarray(array).data for array in little)


def unpack(shapes: Iterable[tuple[int, ...]], payload: bytes) -> list[NDArray[np.float32]]:
    """Read arrays of the given shapes from the bytes of `pack`."""
    arrays, start = [], 0
    for shape in shapes:
        size = math.prod(shape)
        values = np.frombuffer(payload, "<f4", size, start) if size else np.empty(0, "<f4")
        arrays.append(values.astype(np.float32).reshape(shape))
        start += 4 * size
    return arrays
