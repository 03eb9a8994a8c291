"""The site's ledger: everything it ever released, on its own disk before it is sent.

One SQLite file a site, ``state-dir/site/ledger.sqlite``. A row is a release: what was asked, what
was charged for it, and the values that were sent, as float32. The budget belongs to the site's
patients, not to a file or a job: every charged row counts, whatever job or data it names.

Durability
----------
`Ledger.charge` returns when row, events and bytes are on the disk, in one transaction. A rollback
journal (journal_mode DELETE) rather than a write-ahead log: between transactions the ledger is one
file, so a copy of it is whole, and what is charged never sits in a side file that a backup may
leave out. In that mode synchronous FULL is not enough: the commit is the deletion of the journal,
and only EXTRA makes the deletion itself durable; else a power loss can bring the journal back, and
with it the state before the charge. An empty ledger is made in full before it gets its name, so a
file that is empty or cut off is damage and never a new start.

In simulation, whose sites have no patients to protect from a power loss, `durable` may be False:
SQLite then leaves writing to the operating system, and a killed process still loses nothing.

Evidence
--------
Each row holds SHA-256 over the hash of the row before and its own content; `Ledger.verify` computes
all again. That finds damage and careless edits. It cannot find that the newest rows are gone, nor
stop somebody who rewrites the whole chain: for that, note the `Head` elsewhere (the site logs it).

Two processes may use one ledger: writers take turns, and a round has one release. The folder must
be on a local disk, since SQLite's locks are not to be trusted on network shares.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import DataError, SettingsError, StateError
from dpfact_flower.files import private_folder, remove_leftovers, sync_folder
from dpfact_flower.privacy.events import PAPER_CLAIM, PATIENT_CLAIM, ReleaseEvent, at_least_one
from dpfact_flower.privacy.mechanism import Release, replay

LEDGER = "ledger.sqlite"
"""Name of the file in a site's folder."""

_APPLICATION_ID = int.from_bytes(b"DPFL", "big")
_VERSION = 1
_SECONDS_TO_WAIT = 30.0  # for another process's transaction
_START = "0" * 64  # stands for the hash of the row before the first

# What an event may say together; anything else was not made by this package.
_KNOWN = {("entry", "replace", PAPER_CLAIM), ("patient", "add-remove", PATIENT_CLAIM)}

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
# What a row's hash covers, in this order; the payload through its own hash.
_CONTENT = "number, recorded, job, round, fingerprint, request, terms, shapes, payload_sha256"
_EVENT = "position, name, sensitivity, sigma, count, unit, neighbours, claim, seeded, rho"
_EVENT_FIELDS = _EVENT.split(", ")[1:-1]
# A charged release is never let go of: without its bytes it is damaged.
_GONE = "payload IS NULL AND number NOT IN (SELECT number FROM events)"


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
            If it is of another form.
        """
        found = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", text.strip())
        if not found:
            raise SettingsError(f"head: need ROWS:HASH as the site's log has it; got {text[:80]!r}")
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
        Whether the bytes are still there; those without charge go once a later round is answered.
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


class Ledger:
    """A site's ledger, open; close it, or use it as a context manager.

    Parameters
    ----------
    folder : path
        The site's folder.
    create : bool
        Make folder and ledger if there is none. Whether there ought to be one is the caller's to
        know: an empty ledger has a whole budget.
    durable : bool
        Whether `charge` waits for the disk. False is for simulations alone.

    Raises
    ------
    StateError
        If there is no ledger and none is to be made, the file is damaged, not a ledger or of a
        newer version, or the disk refuses. Nothing is ever made anew in its place.
    """

    def __init__(self, folder: str | Path, *, create: bool = True, durable: bool = True) -> None:
        self.path = Path(folder) / LEDGER
        with _translated(self.path):
            if not self.path.exists():
                if not create:
                    raise StateError(f"{self.path}: there is no ledger here")
                _create(self.path)
            self._connection = _open(self.path, durable=durable)
        self._counted: Head | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; what was charged has long been on the disk."""
        self._connection.close()

    def answer(self, key: ReleaseKey) -> Release | None:
        """The release that answered this very key before, bit for bit, or None.

        Also None where the bytes were let go of, being without charge and followed by a later
        round. Nothing is charged again.

        Raises
        ------
        StateError
            If the kept bytes are damaged.
        """
        with self._transaction("DEFERRED") as connection:
            found = connection.execute(
                f"SELECT number, {_GONE} FROM releases "
                "WHERE job = ? AND round = ? AND fingerprint = ? AND request = ?",
                (key.job, key.round, key.fingerprint, key.request),
            ).fetchone()
            if found is None or found[1]:
                return None
            return self._read(connection, found[0])

    def last(self, job: str) -> LastAnswer | None:
        """The latest round of a job that was answered, or None before the first."""
        with self._transaction("DEFERRED") as connection:
            return _last(connection, job)

    def release_of(self, job: str, round_number: int) -> Release:
        """What was released in a round of a job.

        Raises
        ------
        StateError
            If that round was never answered, or its bytes are gone or damaged.
        """
        with self._transaction("DEFERRED") as connection:
            found = connection.execute(
                f"SELECT number, {_GONE} FROM releases WHERE job = ? AND round = ?",
                (job, round_number),
            ).fetchone()
            if found is None or found[1]:
                why = "was never answered" if found is None else "was let go of"
                raise StateError(f"{self.path}: round {round_number} of job {job!r} {why}")
            return self._read(connection, found[0])

    def charge(self, key: ReleaseKey, terms: str, release: Release) -> Head:
        """Write a release down with its cost; on return it is on the disk, and may be sent.

        All or nothing: after an exception nothing may be sent. (Where the disk failed late, the row
        may still turn out to be there: budget is wasted then, never hidden.) The same release again
        changes nothing.

        Parameters
        ----------
        key : ReleaseKey
        terms : str
            Digest of what must stay the same from round to round of the job.
        release : Release

        Returns
        -------
        Head
            Where the ledger stands now, to be noted in the site's log.

        Raises
        ------
        StateError
            If the round, or a later one of the job, has another release already, the job was begun
            with other data, somebody else has charged since `events` was read, or the disk refuses.
        """
        shapes, payload = _pack(release.arrays)
        digest = hashlib.sha256(payload).hexdigest()
        events = tuple(_event_row(place, event) for place, event in enumerate(release.events))
        with self._transaction("IMMEDIATE") as connection:
            head = _head(connection)
            if self._is_there(connection, key, (terms, shapes, digest), events):
                return head
            if self._counted not in (None, head):
                raise StateError(
                    f"{self.path}: another process charged while round {key.round} of job "
                    f"{key.job!r} was computed; whether both fit the budget is not known: ask again"
                )
            recorded = datetime.now(UTC).isoformat(timespec="seconds")
            content = (
                head.rows + 1, recorded, key.job, key.round, key.fingerprint, key.request, terms,
                shapes, digest,
            )  # fmt: skip
            head = Head(head.rows + 1, _chained(head.hash, content, events))
            connection.execute(
                f"INSERT INTO releases ({_CONTENT}, payload, hash) VALUES ({_marks(11)})",
                (*content, payload, head.hash),
            )
            connection.executemany(
                f"INSERT INTO events (number, {_EVENT}) VALUES ({_marks(11)})",
                [(head.rows, *event) for event in events],
            )
            # Without charge a release can be made again at no cost; it need not fill the disk.
            connection.execute(
                "UPDATE releases SET payload = NULL WHERE job = ? AND round < ? "
                "AND payload IS NOT NULL AND number NOT IN (SELECT number FROM events)",
                (key.job, key.round),
            )
        if self._counted is not None:
            self._counted = head
        return head

    def events(self, job: str | None = None) -> tuple[ReleaseEvent, ...]:
        """Everything ever charged, or what was charged in one job, in order.

        What somebody else charges from now on makes `charge` refuse: a budget was checked without
        it. `locked` prevents that where the platform has locks, and nobody deleted the lock's file.

        Raises
        ------
        StateError
            If any row is not what was written: what was spent is then not known.
        """
        with self._transaction("DEFERRED") as connection:
            self._counted = _head(connection)
            records = _records(connection)
            problems = [
                *_chain_problems(records),
                *_stray_problems(connection),
                *(problem for record in records for problem in record.event_problems()),
            ]
        if problems:
            raise StateError(f"{self.path}: damaged ledger: {problems[0]}")
        return tuple(
            event
            for record in records
            if job is None or record.job == job
            for event in record.release_events()
        )

    def rows(self) -> tuple[LedgerRow, ...]:
        """Every release in order, for people.

        Raises
        ------
        StateError
            If a row cannot be read; `verify` says more.
        """
        with self._transaction("DEFERRED") as connection:
            records = _records(connection)
        try:
            return tuple(record.row() for record in records)
        except (TypeError, ValueError) as error:
            raise StateError(f"{self.path}: damaged ledger ({type(error).__name__})") from None

    def head(self) -> Head:
        """Where the ledger stands."""
        with self._transaction("DEFERRED") as connection:
            return _head(connection)

    def verify(self, noted: Head | None = None) -> list[str]:
        """Check all there is to check; an empty list says that nothing is wrong.

        SQLite's own check of the file, the chain of hashes, released bytes against their hash,
        costs against noise, events against what this package makes, the order of rounds.

        Parameters
        ----------
        noted : Head, optional
            A head noted earlier: its row must be there, unchanged. Without one, the newest rows may
            have been cut off and nothing shows.

        Returns
        -------
        list of str
            Problems, each naming its row; no released value.
        """
        problems: list[str] = []
        try:
            with self._transaction("DEFERRED") as connection:
                problems += _file_problems(connection)
                records = _records(connection)
                problems += _chain_problems(records)
                problems += _stray_problems(connection)
                problems += _job_problems(records)
                latest = {record.job: record.number for record in records}
                for record in records:
                    problems += record.event_problems()
                    problems += _payload_problems(
                        connection, record, needed=latest[record.job] == record.number
                    )
                if noted is not None:
                    problems += _noted_problems(records, noted)
        except StateError as error:  # a page that cannot be read ends the search
            problems.append(str(error))
        return problems

    def _read(self, connection: sqlite3.Connection, number: int) -> Release:
        """A kept release, checked."""
        records = _records(connection, number)
        before = connection.execute(
            "SELECT hash FROM releases WHERE number = ?", (number - 1,)
        ).fetchone()
        record = records[-1] if records else None
        if record is None or record.hash != record.chained(before[0] if before else _START):
            raise StateError(
                f"{self.path}: damaged ledger: row {number} is not what its hash was made of"
            )
        for problem in (
            *record.event_problems(),
            *_payload_problems(connection, record, needed=True),
        ):
            raise StateError(f"{self.path}: damaged ledger: {problem}")
        payload = _payload(connection, number)
        try:
            return replay(_unpack(record.shapes, payload), record.release_events())
        except DataError as error:
            raise StateError(f"{self.path}: damaged ledger: row {number}: {error}") from None

    def _is_there(
        self,
        connection: sqlite3.Connection,
        key: ReleaseKey,
        sent: tuple[str, str, str],
        events: tuple[tuple[Any, ...], ...],
    ) -> bool:
        """Whether this very release is written down; refuse any other for what is answered."""
        last = _last(connection, key.job)
        if last is None:
            return False
        if type(last.round) is not int:
            raise StateError(
                f"{self.path}: damaged ledger: a round of job {key.job!r} is no number"
            )
        if last.fingerprint != key.fingerprint:
            raise StateError(
                f"{self.path}: job {key.job!r} was begun with other data; if the data has "
                "changed, start a new job"
            )
        if key.round > last.round:
            return False
        found = connection.execute(
            "SELECT number, request, terms, shapes, payload_sha256 FROM releases "
            "WHERE job = ? AND round = ?",
            (key.job, key.round),
        ).fetchone()
        if found is None:
            raise StateError(
                f"{self.path}: round {key.round} of job {key.job!r} is stale: round {last.round} "
                "has been answered"
            )
        if found[1:] != (key.request, *sent) or _events_of(connection, found[0]) != events:
            raise StateError(
                f"{self.path}: round {key.round} of job {key.job!r} has its release already; a "
                "second one would be charged for nothing"
            )
        return True

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        """One transaction: a writer's (IMMEDIATE) waits for its turn at the beginning."""
        with _translated(self.path):
            self._connection.execute(f"BEGIN {kind}")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


# --- Rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Record:
    """A row as it is in the file, which need not make sense.

    Attributes
    ----------
    content : tuple
        Columns `_CONTENT`.
    events : tuple of tuple
        Columns `_EVENT`, by position.
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
        return int(self.content[0])

    @property
    def job(self) -> Any:
        return self.content[2]

    @property
    def round(self) -> Any:
        return self.content[3]

    @property
    def fingerprint(self) -> Any:
        return self.content[4]

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the released arrays; ValueError or TypeError if they make no sense."""
        shapes = tuple(tuple(shape) for shape in json.loads(self.content[7]))
        if any(type(size) is not int or size < 0 for shape in shapes for size in shape):
            raise ValueError("shapes")
        return shapes

    def chained(self, previous: Any) -> str:
        """Hash that the row should have, given that of the row before."""
        return _chained(previous, self.content, self.events)

    def release_events(self) -> tuple[ReleaseEvent, ...]:
        """The events; StateError if one makes no sense."""
        return tuple(_event(row) for row in self.events)

    def event_problems(self) -> Iterator[str]:
        """What is wrong with the charges."""
        for row in self.events:
            where = f"row {self.number}, event {row[0]}"
            try:
                event = _event(row)
            except StateError as error:
                yield f"{where}: {error}"
                continue
            if (event.unit, event.neighbours, event.claim) not in _KNOWN:
                yield f"{where}: unit, neighbours and claim are none that this package makes"
            if row[-1] != event.rho:
                yield f"{where}: its rho is not sensitivity**2 / (2 sigma**2)"

    def row(self) -> LedgerRow:
        """The row for people."""
        number, recorded, job, round_number, fingerprint, request, terms, _, digest = self.content
        return LedgerRow(
            number=number, recorded=recorded, job=job, round=round_number,
            fingerprint=fingerprint, request=request, terms=terms, shapes=self.shapes,
            payload_sha256=digest, payload_kept=self.kept, events=self.release_events(),
            hash=self.hash,
        )  # fmt: skip


def _chained(previous: Any, content: tuple[Any, ...], events: tuple[tuple[Any, ...], ...]) -> str:
    """SHA-256 over the hash before and a row's content, as JSON; floats in their shortest form."""
    text = json.dumps([previous, content, events], separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def _event_row(position: int, event: ReleaseEvent) -> tuple[Any, ...]:
    """Columns `_EVENT` of an event."""
    fields = event.to_dict()
    values = (fields[name] for name in _EVENT_FIELDS)
    return (position, *(int(v) if isinstance(v, bool) else v for v in values), event.rho)


def _event(row: tuple[Any, ...]) -> ReleaseEvent:
    """The event of columns `_EVENT`; StateError if it makes no sense."""
    fields = dict(zip(_EVENT_FIELDS, row[1:-1], strict=True))
    fields["seeded"] = {0: False, 1: True}.get(fields["seeded"], fields["seeded"])
    return ReleaseEvent.from_dict(fields)


def _pack(arrays: Sequence[NDArray[np.float32]]) -> tuple[str, bytes]:
    """Shapes as JSON, and all values as little-endian float32, array by array in C order."""
    if any(array.dtype != np.float32 for array in arrays):
        raise DataError("release: every array must be float32")
    shapes = json.dumps([array.shape for array in arrays], separators=(",", ":"))
    return shapes, b"".join(array.astype("<f4", copy=False).tobytes() for array in arrays)


def _unpack(shapes: Iterable[tuple[int, ...]], payload: bytes) -> list[NDArray[np.float32]]:
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


# --- Queries --------------------------------------------------------------------------------------


def _last(connection: sqlite3.Connection, job: str) -> LastAnswer | None:
    found = connection.execute(
        "SELECT round, terms, request, fingerprint FROM releases WHERE job = ? "
        "ORDER BY round DESC LIMIT 1",
        (job,),
    ).fetchone()
    return LastAnswer(*found) if found else None


def _head(connection: sqlite3.Connection) -> Head:
    found = connection.execute(
        "SELECT number, hash FROM releases ORDER BY number DESC LIMIT 1"
    ).fetchone()
    return Head(*found) if found else Head(0, _START)


def _records(connection: sqlite3.Connection, number: int | None = None) -> list[_Record]:
    """All rows in order, or one; without payloads, which are read one at a time."""
    events: dict[int, list[tuple[Any, ...]]] = {}
    one = "" if number is None else "WHERE number = ?"
    key = () if number is None else (number,)
    for row in connection.execute(
        f"SELECT number, {_EVENT} FROM events {one} ORDER BY number, position", key
    ):
        events.setdefault(row[0], []).append(row[1:])
    return [
        _Record(row[:-2], tuple(events.get(row[0], ())), row[-2], bool(row[-1]))
        for row in connection.execute(
            f"SELECT {_CONTENT}, hash, payload IS NOT NULL FROM releases {one} ORDER BY number", key
        )
    ]


def _events_of(connection: sqlite3.Connection, number: int) -> tuple[tuple[Any, ...], ...]:
    return tuple(
        connection.execute(
            f"SELECT {_EVENT} FROM events WHERE number = ? ORDER BY position", (number,)
        )
    )


def _payload(connection: sqlite3.Connection, number: int) -> Any:
    """The released bytes; None if there are none, or damage hides them from a search."""
    found = connection.execute(
        "SELECT payload FROM releases WHERE number = ?", (number,)
    ).fetchone()
    return found[0] if found else None


# --- Problems -------------------------------------------------------------------------------------


def _file_problems(connection: sqlite3.Connection) -> Iterator[str]:
    """What SQLite itself finds wrong with the file."""
    for (line,) in connection.execute("PRAGMA integrity_check"):
        if line != "ok":
            yield f"SQLite's integrity check: {line}"


def _chain_problems(records: Sequence[_Record]) -> Iterator[str]:
    """Rows that are missing, were added, moved or changed."""
    previous: Any = _START
    for expected, record in enumerate(records, start=1):
        if record.number != expected:
            yield f"row {record.number}: stands where row {expected} should: rows are missing"
        if record.hash != record.chained(previous):
            yield f"row {record.number}: its content or place is not what its hash was made of"
        previous = record.hash


def _stray_problems(connection: sqlite3.Connection) -> Iterator[str]:
    """Charges whose release is gone."""
    for (number,) in connection.execute(
        "SELECT DISTINCT number FROM events WHERE number NOT IN (SELECT number FROM releases)"
    ):
        yield f"row {number}: it was charged, and is missing"


def _job_problems(records: Sequence[_Record]) -> Iterator[str]:
    """Rounds that go back, and data that changed, within a job."""
    last: dict[Any, _Record] = {}
    for record in records:
        before = last.get(record.job)
        if type(record.round) is not int or (before is not None and record.round <= before.round):
            yield f"row {record.number}: its round does not follow the rounds of its job"
            continue
        if before is not None and record.fingerprint != before.fingerprint:
            yield f"row {record.number}: its job was begun with other data"
        last[record.job] = record


def _payload_problems(
    connection: sqlite3.Connection, record: _Record, *, needed: bool
) -> Iterator[str]:
    """Released bytes that are missing or not what was sent; without charge, old ones may go."""
    where = f"row {record.number}"
    payload = _payload(connection, record.number)
    try:
        size = 4 * sum(math.prod(shape) for shape in record.shapes)
    except (TypeError, ValueError):
        yield f"{where}: the shapes of its arrays cannot be read"
        return
    if payload is None:
        if needed or record.events:
            yield f"{where}: the released bytes are missing"
    elif not isinstance(payload, bytes) or len(payload) != size:
        yield f"{where}: the released bytes are not of the recorded shapes"
    elif hashlib.sha256(payload).hexdigest() != record.content[8]:
        yield f"{where}: the released bytes are not what their hash was made of"


def _noted_problems(records: Sequence[_Record], noted: Head) -> Iterator[str]:
    """Whether the noted head is a row of this ledger."""
    if noted.rows > len(records):
        yield (
            f"the noted head has {noted.rows} rows, the ledger {len(records)}: the newest rows are "
            "missing (is this an old copy?)"
        )
    elif (records[noted.rows - 1].hash if noted.rows else _START) != noted.hash:
        yield f"row {noted.rows}: it is not the row that was noted: the ledger was rewritten"


# --- The file -------------------------------------------------------------------------------------


def _create(path: Path) -> None:
    """Give an empty ledger its name, whole and on the disk; one that is there by now stays."""
    private_folder(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            with _in_memory() as empty:
                file.write(empty.serialize())
            file.flush()
            os.fsync(file.fileno())
        # A link and no rename: another process may have made, and charged, the ledger meanwhile.
        # It may also have cleared away our file as a leftover; then its own has the name.
        with suppress(FileExistsError, FileNotFoundError):
            os.link(temporary, path)
    except OSError as error:
        raise StateError(
            f"{path}: cannot be made ({error.strerror}); it needs a local disk with hard links"
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


def _open(path: Path, *, durable: bool) -> sqlite3.Connection:
    """Connect to a ledger that is there; never create one."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=_SECONDS_TO_WAIT,
        isolation_level=None,  # transactions are ours to begin
    )
    try:
        for pragma in (
            "journal_mode = DELETE",
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
    """Refuse files of others, of later versions, and with tables that were tampered with."""
    if _pragma(connection, "application_id") != _APPLICATION_ID:
        raise StateError(f"{path}: not a ledger, or damaged; it is never made anew by itself")
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


def _marks(count: int) -> str:
    return ", ".join("?" * count)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Errors of SQLite and of the disk as ours; their texts hold no values."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        raise StateError(f"{path}: {error} ({name})") from None
    except (OSError, OverflowError, UnicodeError) as error:
        # SQLite may quote a damaged schema in a message that is no text.
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise StateError(f"{path}: {reason}") from None
