"""Store a ledger's rows, secret key and newest head (row count and hash) on disk."""

import hashlib
import hmac
import json
import math
import re
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import SettingsError, StateError, shown
from dpfact_flower.machine import files
from dpfact_flower.machine.parsed import from_json
from dpfact_flower.privacy.release import Release, ReleaseEvent, Share

START = "0" * 64
"""Value used as the previous row's hash in the first row, which has no predecessor."""


class ReleaseKey(NamedTuple):
    """The values that identify a request. Requests with equal values always get identical replies.

    `fingerprint` is a keyed hash of the job and the site's tensor. `request` is a digest.
    """

    fingerprint: str
    job: str
    round: int
    request: str


class Head(NamedTuple):
    """The number of rows in a ledger, and the hash of its newest row."""

    rows: int
    hash: str

    def __str__(self) -> str:
        return f"{self.rows}:{self.hash}"

    @classmethod
    def of(cls, rows: Sequence["LedgerRow"]) -> Self:
        """Return the head of a ledger that has the given rows."""
        return cls(len(rows), rows[-1].hash if rows else START)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a head from its text, such as ``12:9eb1...``."""
        match = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", text.strip())
        if not match:
            raise SettingsError(f"head: need ROWS:HASH as in the site's log; got {shown(text)}")
        return cls(int(match[1]), match[2])


@dataclass(frozen=True)
class LedgerRow:
    """One row of the ledger, without the released bytes.

    `payload_kept` is true if the ledger stores the released bytes. If the bytes are not stored,
    `payload_sha256` is a keyed hash. `recorded` is the time of the request in UTC. `shapes` is
    empty if no values left the site. `events` is empty if values left the site without noise.
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
    @lru_cache(maxsize=1024)  # all rows are read several times per request
    def read(cls, number: int, document: str, hash_: str, kept: bool) -> Self:
        """Parse a row from a document created by `document_of`."""
        fields = from_json(document)
        del fields["random"]
        fields["shapes"] = tuple(map(tuple, fields["shapes"]))
        fields["events"] = tuple(ReleaseEvent(**event) for event in fields["events"])
        return cls(number, hash_, kept, **fields)

    @property
    def key(self) -> ReleaseKey:
        """The key of the request that led to the release."""
        return ReleaseKey(self.fingerprint, self.job, self.round, self.request)

    @property
    def unprotected(self) -> bool:
        """Whether values left the site without noise."""
        return bool(self.shapes) and not self.events


def chained(previous: str, document: str) -> str:
    """Compute a row's hash (SHA-256) from the previous row's hash and the row's document."""
    return digest_of(f"{previous}\n{document}".encode())


def document_of(
    key: ReleaseKey, terms: str, release: Release | Share, digest: str, recorded: datetime
) -> str:
    """Return a new row as JSON, with random bytes so that the row's hash reveals no content."""
    return json.dumps({
        "recorded": recorded.isoformat(timespec="seconds"), **key._asdict(), "terms": terms,
        "shapes": [array.shape for array in release.arrays],
        "payload_sha256": digest,
        "events": list(map(asdict, release.events)),
        "random": secrets.token_hex(32),
    })  # fmt: skip


def digest_of(content: bytes) -> str:
    """Return the hexadecimal SHA-256 of `content`."""
    return hashlib.sha256(content).hexdigest()


def to_bytes(arrays: Sequence[NDArray[np.float32 | np.int64]]) -> bytes:
    """Serialise arrays in C order as little-endian float32 (int64 for a secure sum's share)."""
    little = (np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for array in arrays)
    return b"".join(array.data for array in little)


def from_bytes(shapes: Sequence[tuple[int, ...]], payload: bytes) -> list[NDArray[np.float32]]:
    """Read arrays of the given shapes from bytes that `to_bytes` wrote."""
    values = np.frombuffer(payload, "<f4").astype(np.float32)
    parts = np.split(values, np.cumsum([math.prod(shape) for shape in shapes], dtype=int))
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=False)]


LEDGER = "ledger.sqlite"
"""Name of the ledger file in a site's folder."""
KEY = ".ledger-key"
"""Name of the key file. No job can have this name. Copies of ledger.sqlite* omit the key."""
_APPLICATION_ID = int.from_bytes(b"DPFL", "big")
_VERSION = 1
_KEY_BYTES = 32
_SECONDS_TO_WAIT = 30.0  # time to wait for another process's transaction
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


def create_ledger(path: Path) -> None:
    """Create an empty ledger on disk in one step, unless a ledger already exists."""
    files.private_folder(path.parent)
    try:
        with closing(sqlite3.connect(":memory:")) as empty:
            empty.executescript(_SCHEMA)
            files.create_once(path, empty.serialize())
    except OSError as error:
        raise StateError(
            f"{path}: cannot be created ({error.strerror}); it needs a local disk with hard links"
        ) from None


def open_ledger(path: Path, *, durable: bool) -> sqlite3.Connection:
    """Connect to an existing ledger. Never create one."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=_SECONDS_TO_WAIT,
        isolation_level=None,  # `Ledger` begins transactions itself
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
    """Convert SQLite and disk errors to this package's errors, whose messages reveal no data."""
    try:
        with files.disk_errors(path):
            yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        raise StateError(f"{path}: {error} ({name})") from None
    except (OverflowError, UnicodeError) as error:
        # SQLite may quote a damaged schema in a message, which then cannot be decoded.
        raise StateError(f"{path}: {type(error).__name__}") from None


def head_file(ledger: Path) -> Path:
    """Return the path of the file that contains the ledger's newest head."""
    return ledger.with_name(f"{ledger.name}-head")


def noted_head(ledger: Path) -> Head | None:
    """Return the head in the head file, or None if the head file is missing or cannot be read."""
    with suppress(OSError, ValueError, SettingsError), head_file(ledger).open("rb") as file:
        return Head.parse(file.read(100).decode())
    return None


def note_head(ledger: Path, head: Head) -> None:
    """Store the newest head. Ignore write errors, because the ledger itself is already on disk."""
    with suppress(Exception), files.replacing(head_file(ledger), durable=False) as file:
        file.write(str(head).encode())


# Rows contain hashes computed with a secret key. Without the key, anyone who knew all other
# patients' data could test whether a given patient is included, or guess a small share. If the key
# is lost, the site makes a new key. Running jobs then cannot continue, but all charges still count.


def read_data_key(folder: Path) -> bytes | None:
    """Return the key in a site's folder, or None if the folder has no key."""
    path = folder / KEY
    files.check_own(path)
    with files.disk_errors(path):
        if not path.exists():
            return None
        key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise StateError(
            f"{path}: damaged; delete it, and the site makes a new key. Running jobs cannot "
            "continue, but all charges still count"
        )
    return key


def data_key(folder: Path) -> bytes:
    """Return the key in a site's folder, creating the key if necessary."""
    if read_data_key(folder) is None:
        with files.disk_errors(folder / KEY):
            files.create_once(folder / KEY, secrets.token_bytes(_KEY_BYTES))
    key = read_data_key(folder)
    assert key is not None
    return key


def keyed_hash(folder: Path, *fields: str | int, payload: bytes = b"") -> str:
    """Return the HMAC of fields and bytes, computed with the site's key."""
    code = hmac.new(data_key(folder), json.dumps(fields).encode() + b"\n", "sha256")
    code.update(payload)  # unambiguous, because JSON text has no line break
    return code.hexdigest()
