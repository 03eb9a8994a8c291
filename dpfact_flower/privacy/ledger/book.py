"""A site's ledger, open: what was asked before, what it cost, and whether it is whole."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dpfact_flower.errors import DataError, StateError
from dpfact_flower.machine.access import check_own
from dpfact_flower.privacy.events import ReleaseEvent
from dpfact_flower.privacy.ledger import checks
from dpfact_flower.privacy.ledger.file import LEDGER, create_ledger, marks, open_ledger, translated
from dpfact_flower.privacy.ledger.idle import idle
from dpfact_flower.privacy.ledger.mark import Mark, marked_head, read_mark, set_back, write_mark
from dpfact_flower.privacy.ledger.rows import (
    CONTENT,
    EVENT,
    NOT_KEPT,
    START,
    Head,
    LastAnswer,
    LedgerRow,
    Record,
    ReleaseKey,
    chained,
    event_row,
    events_of,
    has_events,
    hash_of,
    head_of,
    last_answer,
    pack,
    payload_of,
    records_of,
    unpack,
)
from dpfact_flower.privacy.release import Release, replay
from dpfact_flower.privacy.tally import Tally


class Ledger:
    """A site's ledger, open; close it, or use it as a context manager.

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
        self._tally: Tally | None = None

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
            found = connection.execute(
                f"SELECT number, {NOT_KEPT} FROM releases "
                "WHERE job = ? AND round = ? AND fingerprint = ? AND request = ?",
                (key.job, key.round, key.fingerprint, key.request),
            ).fetchone()
            if found is None or found[1]:
                return None
            return self._read(connection, found[0])

    def last(self, job: str) -> LastAnswer | None:
        """The latest round of a job that was answered, or None before the first."""
        with self._transaction("DEFERRED") as connection:
            return self._last(connection, job)

    def release_of(self, job: str, round_number: int) -> Release:
        """What was released in a round of a job.

        Raises
        ------
        StateError
            If that round was never answered, or its bytes are not kept or damaged.
        """
        with self._transaction("DEFERRED") as connection:
            found = connection.execute(
                f"SELECT number, {NOT_KEPT} FROM releases WHERE job = ? AND round = ?",
                (job, round_number),
            ).fetchone()
            if found is None or found[1]:
                why = "was never answered" if found is None else "is not kept, being uncharged"
                raise StateError(f"{self.path}: round {round_number} of job {job!r} {why}")
            return self._read(connection, found[0])

    def charge(self, key: ReleaseKey, terms: str, release: Release) -> Head:
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
        shapes, payload = pack(release.arrays)
        digest = hashlib.sha256(payload).hexdigest()
        events = _rows(release)
        with self._transaction("IMMEDIATE") as connection:
            head = head_of(connection)
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
            head = Head(head.rows + 1, chained(head.hash, content, events))
            connection.execute(
                f"INSERT INTO releases ({CONTENT}, payload, hash) VALUES ({marks(11)})",
                (*content, payload if events or not payload else None, head.hash),
            )
            if events:
                connection.executemany(
                    f"INSERT INTO events (number, {EVENT}) VALUES ({marks(11)})",
                    [(head.rows, *event) for event in events],
                )
        if self._counted is not None:
            self._counted = head
        if self._tally is not None:
            unprotected = bool(release.arrays) and not events
            self._marked(head, self._tally.plus(release.events, unprotected=unprotected))
        return head

    def has(self, key: ReleaseKey, terms: str, release: Release) -> bool:
        """Whether this very release is recorded, so that it may be sent again.

        Raises
        ------
        StateError
            If the round has another release, a later one of the job was answered, or the job was
            begun with other data.
        """
        shapes, payload = pack(release.arrays)
        sent = (terms, shapes, hashlib.sha256(payload).hexdigest())
        with self._transaction("DEFERRED") as connection:
            return self._is_there(connection, key, sent, _rows(release))

    def events(self, job: str | None = None) -> tuple[ReleaseEvent, ...]:
        """Everything ever charged, or what was charged in one job, in order.

        If somebody else charges from now on, `charge` refuses: a budget was checked without that.
        `locked` prevents it where the platform has locks and nobody deleted the lock's file.

        Raises
        ------
        StateError
            If any row is not what was written: what was spent is then not known.
        """
        with self._transaction("DEFERRED") as connection:
            self._counted = head_of(connection)
            records = records_of(connection)
            problem = next(checks.charge_problems(connection, records), None)
        if problem:
            raise self._damaged(problem)
        return tuple(
            event
            for record in records
            if job is None or record.job == job
            for event in record.release_events()
        )

    def spent(self) -> Tally:
        """Everything ever charged, added up; as `events`, without reading what was read before.

        All rows are checked and added up, and a mark is left beside the ledger (`mark`). As long as
        the file is the one that was marked, the rows after the mark are checked, and no others.

        Raises
        ------
        StateError
            If any row that is read is not what was written, or the mark knows of rows that are
            gone.
        """
        with self._transaction("DEFERRED") as connection:
            head = head_of(connection)  # from here on nobody else writes to the file
            mark = None
            if self._durable:
                mark = read_mark(self.path)
                self._check_not_set_back(connection)
            mark = mark or Mark(checks.BEGINNING, Tally())
            records = records_of(connection, after=mark.head.rows)
            problem = next(checks.charge_problems(connection, records, mark.head), None)
            if problem:
                raise StateError(f"{self.path}: damaged ledger: {problem}")
            tally = self._added_up(records, mark.tally)
            self._counted = head
            if records:
                self._marked(head, tally)
        self._tally = tally
        return tally

    def _check_not_set_back(self, connection: sqlite3.Connection) -> None:
        """Refuse a ledger that lacks what the mark beside it knows of."""
        head = marked_head(self.path)
        if head is not None and hash_of(connection, head.rows) != head.hash:
            raise StateError(f"{self.path}: {set_back(self.path)}")

    def charged(self, job: str) -> bool:
        """Whether anything was charged in a job."""
        with self._transaction("DEFERRED") as connection:
            return has_events(connection, job)

    def rows(self) -> tuple[LedgerRow, ...]:
        """Every release in order, for people.

        Raises
        ------
        StateError
            If a row cannot be read; `verify` says more.
        """
        with self._transaction("DEFERRED") as connection:
            records = records_of(connection)
        try:
            return tuple(record.row() for record in records)
        except (StateError, TypeError, ValueError) as error:
            raise self._damaged(f"a row cannot be read ({type(error).__name__})") from None

    def head(self) -> Head:
        """Where the ledger stands."""
        with self._transaction("DEFERRED") as connection:
            return head_of(connection)

    def verify(self, noted: Head | None = None) -> list[str]:
        """Check all there is to check; an empty list means that nothing is wrong.

        SQLite's own check of the file, the chain of hashes, released bytes against their hash,
        costs against noise, events against what this package makes, the order of rounds, and the
        total that the mark beside the ledger has.

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
        try:
            with self._transaction("DEFERRED") as connection:
                found.extend(checks.problems(connection, noted))
                found.extend(self._mark_problems(connection))
        except StateError as error:  # a page that cannot be read ends the search
            found.append(str(error))
        return found

    def _added_up(self, records: list[Record], tally: Tally) -> Tally:
        """A tally with further rows."""
        try:
            events = [event for record in records for event in record.release_events()]
            return tally.plus(events, unprotected=sum(record.unprotected for record in records))
        except (TypeError, ValueError) as error:
            raise StateError(f"{self.path}: damaged ledger ({type(error).__name__})") from None

    def _marked(self, head: Head, tally: Tally) -> None:
        self._tally = tally
        if self._durable:  # a simulated site's ledger is read anew: it is short, and waits for none
            write_mark(self.path, Mark(head, tally))

    def _mark_problems(self, connection: sqlite3.Connection) -> Iterator[str]:
        """Whether the mark beside the ledger has another total than the rows."""
        head = marked_head(self.path)
        if head is not None and hash_of(connection, head.rows) != head.hash:
            yield f"the ledger {set_back(self.path)}"
            return
        mark = read_mark(self.path)
        if mark is None:
            return
        records = records_of(connection)[: mark.head.rows]
        if self._added_up(records, Tally()) != mark.tally:
            yield "the mark beside the ledger has another total than its rows: delete it"

    def _read(self, connection: sqlite3.Connection, number: int) -> Release:
        """A kept release, checked."""
        records = records_of(connection, number)
        before = hash_of(connection, number - 1)
        record = records[-1] if records else None
        if record is None or record.hash != record.chained(START if before is None else before):
            raise self._damaged(f"row {number} is not what its hash was made of")
        for problem in (
            *checks.event_problems(record),
            *checks.payload_problems(connection, record),
        ):
            raise self._damaged(problem)
        payload = payload_of(connection, number)
        try:
            return replay(unpack(record.shapes, payload), record.release_events())
        except DataError as error:
            raise self._damaged(f"row {number}: {error}") from None

    def _check_own(self, *, reading: bool = False) -> None:
        """Whoever may put a journal beside the file changes what SQLite finds in it."""
        for path in (self.path.parent, self.path, Path(f"{self.path}-journal")):
            check_own(path, reading=reading)

    def _last(self, connection: sqlite3.Connection, job: str) -> LastAnswer | None:
        try:
            return last_answer(connection, job)
        except ValueError:
            raise self._damaged(f"the last round of job {job!r} cannot be read") from None

    def _damaged(self, what: str) -> StateError:
        return StateError(
            f"{self.path}: damaged ledger: {what}; restore a copy, and count as spent what the "
            "site's log has since"
        )

    def _is_there(
        self,
        connection: sqlite3.Connection,
        key: ReleaseKey,
        sent: tuple[str, str, str],
        events: tuple[tuple[Any, ...], ...],
    ) -> bool:
        """Whether this very release is recorded; refuse any other for what has been answered."""
        last = self._last(connection, key.job)
        if last is None:
            return False
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
        if found[1:] != (key.request, *sent) or events_of(connection, found[0]) != events:
            raise StateError(
                f"{self.path}: round {key.round} of job {key.job!r} has its release already; a "
                "second one would be charged for nothing"
            )
        return True

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        """One transaction: a writer's (IMMEDIATE) waits its turn at the beginning."""
        with translated(self.path):
            self._connection.execute(f"BEGIN {kind}")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def _rows(release: Release) -> tuple[tuple[Any, ...], ...]:
    """Columns of the release's events."""
    return tuple(event_row(place, event) for place, event in enumerate(release.events))
