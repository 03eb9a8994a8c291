"""A site's ledger, open: what was asked before, what it cost, and whether it is whole."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

from dpfact_flower.errors import DataError, StateError
from dpfact_flower.machine.access import check_own
from dpfact_flower.privacy.events import ReleaseEvent
from dpfact_flower.privacy.ledger import checks
from dpfact_flower.privacy.ledger.file import LEDGER, create_ledger, open_ledger, translated
from dpfact_flower.privacy.ledger.idle import idle
from dpfact_flower.privacy.ledger.mark import mark_head, set_back_problems
from dpfact_flower.privacy.ledger.rows import (
    START,
    Head,
    LastAnswer,
    LedgerRow,
    ReleaseKey,
    StoredRow,
    chained,
    document_of,
    pack,
    payload_of,
    stored_rows,
    unpack,
)
from dpfact_flower.privacy.release import Release, replay
from dpfact_flower.privacy.tally import Tally


class Ledger:
    """A site's ledger, open; close it, or use it as a context manager.

    Every method but `verify` reads all rows, and refuses a ledger that is not what was written.

    Parameters
    ----------
    folder : path
        The site's folder.
    create : bool
        Create folder and ledger if there is none. The caller must know whether there ought to be
        one: an empty ledger has a whole budget.
    durable : bool
        Whether `charge` waits for the disk. False is for simulations only.

    Raises
    ------
    StateError
        If there is no ledger and none is to be created, the file is damaged, not a ledger or of a
        newer version, folder or file is a link or others may write to it, or the disk refuses.
        Nothing is ever created in its place.
    """

    def __init__(self, folder: str | Path, *, create: bool = True, durable: bool = True) -> None:
        self.path = Path(folder) / LEDGER
        self._check_own(reading=True)
        with translated(self.path):
            if not self.path.exists():
                if not create:
                    raise StateError(f"{self.path}: there is no ledger here")
                create_ledger(self.path)
            kept = None if durable else idle.take(self.path)
            self._connection = kept or open_ledger(self.path, durable=durable)
        self._durable = durable
        self._counted: Head | None = None
        # A row has this time, not that of its charge, which depends on the patients.
        self._opened = datetime.now(UTC)

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
        if self._durable or self._connection.in_transaction:
            self._connection.close()
        else:
            idle.give(self.path, self._connection)

    def answer(self, key: ReleaseKey) -> Release | None:
        """The release that answered this very key before, bit for bit, or None.

        Also None where the bytes are not kept, nothing having been charged. It charges nothing.

        Raises
        ------
        StateError
            If the kept bytes are damaged.
        """
        with self._transaction("DEFERRED") as connection:
            row = next((row for row in self._rows(connection) if row.answers(key)), None)
            return None if row is None else self._release(connection, row)

    def last(self, job: str) -> LastAnswer | None:
        """The latest round of a job that was answered, or None before the first."""
        return _last(self.rows(), job)

    def release_of(self, job: str, round_number: int) -> Release:
        """What was released in a round of a job.

        Raises
        ------
        StateError
            If that round was never answered, or its bytes are not kept or damaged.
        """
        with self._transaction("DEFERRED") as connection:
            row = _row_of(self._rows(connection), job, round_number)
            release = None if row is None else self._release(connection, row)
        if release is None:
            why = "was never answered" if row is None else "is not kept, being uncharged"
            raise StateError(f"{self.path}: round {round_number} of job {job!r} {why}")
        return release

    def charge(
        self,
        key: ReleaseKey,
        terms: str,
        release: Release,
        last_look: Callable[[], object] = lambda: None,
    ) -> Head:
        """Record a release with its cost; on return it is on the disk, and may be sent.

        The bytes are kept where they cost something; without a charge, only their hash is.

        All or nothing: after an exception nothing may be sent. (Where the disk failed late, the row
        may still turn out to be there: then budget is wasted, never hidden.) Recording the same
        release again changes nothing.

        Parameters
        ----------
        key : ReleaseKey
        terms : str
            Digest of what must stay the same from round to round of the job.
        release : Release
        last_look : callable
            Called when all is written and nothing holds yet; what it raises takes it back.

        Returns
        -------
        Head
            Where the ledger stands now, to be noted in the site's log.

        Raises
        ------
        StateError
            If the round, or a later one of the job, has another release already, the job was begun
            with other data, somebody else has charged since `events` was read, the ledger is
            another user's, or the disk refuses.
        """
        self._check_own()
        payload = pack(release.arrays)
        digest = hashlib.sha256(payload).hexdigest()
        # EXCLUSIVE waits here for who reads; IMMEDIATE, at its end, after the last look.
        with self._transaction("EXCLUSIVE") as connection:
            rows = self._rows(connection)
            head = _head(rows)
            if self._is_there(rows, key, terms, release, digest):
                return head
            if self._counted not in (None, head):
                raise StateError(
                    f"{self.path}: another process charged while round {key.round} of job "
                    f"{key.job!r} was computed; whether both fit the budget is not known: ask again"
                )
            document = document_of(key, terms, release, digest, self._opened)
            head = Head(head.rows + 1, chained(head.hash, document))
            connection.execute(
                "INSERT INTO releases (number, document, payload, hash) VALUES (?, ?, ?, ?)",
                (
                    head.rows,
                    document,
                    payload if release.events or not payload else None,
                    head.hash,
                ),
            )
            last_look()
        if self._counted is not None:
            self._counted = head
        if self._durable:  # a simulated site's ledger is nobody's budget
            mark_head(self.path, head)
        return head

    def has(self, key: ReleaseKey, terms: str, release: Release) -> bool:
        """Whether this very release is recorded, so that it may be sent again.

        Raises
        ------
        StateError
            If the round has another release, a later one of the job was answered, or the job was
            begun with other data.
        """
        digest = hashlib.sha256(pack(release.arrays)).hexdigest()
        return self._is_there(self.rows(), key, terms, release, digest)

    def events(self, job: str | None = None) -> tuple[ReleaseEvent, ...]:
        """Everything ever charged, or what was charged in one job, in order.

        If somebody else charges from now on, `charge` refuses: a budget was checked without that.
        `locked` prevents it where the platform has locks and nobody deleted the lock's file.

        Raises
        ------
        StateError
            If any row is not what was written: what was spent is then not known.
        """
        rows = self._count()
        return tuple(chain(*(row.events for row in rows if job is None or row.job == job)))

    def spent(self) -> Tally:
        """Everything ever charged, added up; as `events`."""
        rows = self._count()
        events = chain(*(row.events for row in rows))
        return Tally().plus(events, unprotected=sum(row.unprotected for row in rows))

    def charged(self, job: str) -> bool:
        """Whether anything was charged in a job."""
        return any(row.events for row in self.rows() if row.job == job)

    def rows(self) -> tuple[LedgerRow, ...]:
        """Every release in order."""
        with self._transaction("DEFERRED") as connection:
            return self._rows(connection)

    def head(self) -> Head:
        """Where the ledger stands."""
        return _head(self.rows())

    def verify(self, noted: Head | None = None) -> list[str]:
        """Check all there is to check; an empty list means that nothing is wrong.

        SQLite's own check of the file, the chain of hashes, released bytes against their hash,
        events against what this package makes, the order of rounds, and the head that is noted
        beside the ledger.

        Parameters
        ----------
        noted : Head, optional
            A head noted earlier: its row must be there, unchanged. Without one, the newest rows may
            have been cut off without a trace.

        Returns
        -------
        list of str
            Problems, each naming its row; no released value.
        """
        found: list[str] = []
        rows: list[LedgerRow] = []
        try:
            with self._transaction("DEFERRED") as connection:
                found.extend(checks.file_problems(connection))
                stored = stored_rows(connection)
                found.extend(self._problems(stored, rows))
                for row in rows:
                    found.extend(checks.payload_problems(connection, row))
                if noted is not None:
                    found.extend(checks.noted_problems(stored, noted))
        except StateError as error:  # a page that cannot be read ends the search
            found.append(str(error))
        return found

    def _problems(self, stored: list[StoredRow], rows: list[LedgerRow]) -> Iterator[str]:
        """Anything that leaves it unknown what was spent; `rows` gets what can be read."""
        yield from checks.chain_problems(stored)
        yield from checks.read_rows(stored, rows)
        yield from checks.job_problems(rows)
        yield from set_back_problems(self.path, stored)

    def _rows(self, connection: sqlite3.Connection) -> tuple[LedgerRow, ...]:
        """All rows; refused where anything is wrong with one."""
        rows: list[LedgerRow] = []
        for problem in self._problems(stored_rows(connection), rows):
            raise self._damaged(problem)
        return tuple(rows)

    def _count(self) -> tuple[LedgerRow, ...]:
        """All rows; what comes after them was not counted."""
        rows = self.rows()
        self._counted = _head(rows)
        return rows

    def _release(self, connection: sqlite3.Connection, row: LedgerRow) -> Release | None:
        """A kept release, checked; None where nothing was charged, and the bytes are not kept."""
        for problem in checks.payload_problems(connection, row):
            raise self._damaged(problem)
        payload = payload_of(connection, row.number)
        if payload is None:
            return None
        try:
            return replay(unpack(row.shapes, payload), row.events)
        except DataError as error:
            raise self._damaged(f"row {row.number}: {error}") from None

    def _check_own(self, *, reading: bool = False) -> None:
        """Whoever may put a journal beside the file changes what SQLite finds in it."""
        for path in (self.path.parent, self.path, Path(f"{self.path}-journal")):
            check_own(path, reading=reading)

    def _damaged(self, what: str) -> StateError:
        return StateError(
            f"{self.path}: damaged ledger: {what}; restore a copy, and count as spent what the "
            "site's log has since"
        )

    def _is_there(
        self,
        rows: tuple[LedgerRow, ...],
        key: ReleaseKey,
        terms: str,
        release: Release,
        digest: str,
    ) -> bool:
        """Whether this very release is recorded; refuse any other for what has been answered."""
        last = _last(rows, key.job)
        if last is None:
            return False
        if last.fingerprint != key.fingerprint:
            raise StateError(
                f"{self.path}: job {key.job!r} was begun with other data; if the data (or the key "
                "beside the ledger) has changed, start a new job"
            )
        if key.round > last.round:
            return False
        row = _row_of(rows, key.job, key.round)
        if row is None:
            raise StateError(
                f"{self.path}: round {key.round} of job {key.job!r} is stale: round {last.round} "
                "has been answered"
            )
        shapes = tuple(array.shape for array in release.arrays)
        sent = (key.request, terms, shapes, digest, release.events)
        if (row.request, row.terms, row.shapes, row.payload_sha256, row.events) != sent:
            raise StateError(
                f"{self.path}: round {key.round} of job {key.job!r} has its release already; a "
                "second one would be charged for nothing"
            )
        return True

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        """One transaction: a writer's (EXCLUSIVE) waits its turn at the beginning."""
        with translated(self.path):
            self._connection.execute(f"BEGIN {kind}")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def _head(rows: tuple[LedgerRow, ...]) -> Head:
    return Head(len(rows), rows[-1].hash if rows else START)


def _last(rows: tuple[LedgerRow, ...], job: str) -> LastAnswer | None:
    """The latest round of a job; within a job, rounds never go back."""
    for row in reversed(rows):
        if row.job == job:
            return LastAnswer(row.round, row.terms, row.request, row.fingerprint)
    return None


def _row_of(rows: tuple[LedgerRow, ...], job: str, round_number: int) -> LedgerRow | None:
    return next((row for row in rows if (row.job, row.round) == (job, round_number)), None)
