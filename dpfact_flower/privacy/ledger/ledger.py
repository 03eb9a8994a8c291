"""Read, extend, verify and copy a ledger."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from dpfact_flower.errors import DPFactError, StateError, plural
from dpfact_flower.machine.files import check_own, locked, private_folder, replacing
from dpfact_flower.privacy.ledger.file import (
    LEDGER,
    START,
    Head,
    LedgerRow,
    ReleaseKey,
    chained,
    create_ledger,
    digest_of,
    document_of,
    from_bytes,
    head_file,
    keyed_hash,
    note_head,
    noted_head,
    open_ledger,
    to_bytes,
    translated,
)
from dpfact_flower.privacy.release import Release, ReleaseEvent, Share, replay


class Ledger:
    """A site's open ledger, which must be closed or used as a context manager.

    If the ledger is damaged, every method that reads the ledger, except `verify`, raises an error.

    If `create` is true, a missing ledger is created. Set `create` only for a site that never had a
    ledger, because a new ledger contains no earlier charges. If `durable` is true, `charge` returns
    only after the charge is on disk.
    """

    def __init__(self, folder: str | Path, *, create: bool, durable: bool = True) -> None:
        self.path = Path(folder) / LEDGER
        self._check_own(reading=True)
        with translated(self.path):
            if not self.path.exists():
                if not create:
                    raise StateError(f"{self.path}: there is no ledger here")
                create_ledger(self.path)
            self._connection = open_ledger(self.path, durable=durable)
        self._durable = durable
        # Rows record this time, because the time of the charge would depend on patients' data.
        self._opened = datetime.now(UTC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the ledger file."""
        self._connection.close()

    def rows(self) -> tuple[LedgerRow, ...]:
        """Return all rows, oldest first."""
        with self._transaction("DEFERRED") as connection:
            return self._rows(connection)

    def head(self) -> Head:
        """Return the number of rows and the newest row's hash."""
        return Head.of(self.rows())

    def release_of(self, job: str, round_number: int) -> Release | None:
        """Return a round's recorded release, or None if the ledger has no values for the round."""
        with self._transaction("DEFERRED") as connection:
            row = _row_of(self._rows(connection), job, round_number)
            if row is None:
                return None
            payload = _payload_of(connection, row)
        for problem in _payload_problems(row, payload):
            raise self._damaged(problem)
        return None if payload is None else replay(from_bytes(row.shapes, payload), row.events)

    def holds(self, row: LedgerRow, release: Release | Share) -> bool:
        """Return whether a row records exactly the given release."""
        shapes = tuple(array.shape for array in release.arrays)
        _, digest = self._stored(row.key, release)
        return (row.shapes, row.payload_sha256, row.events) == (shapes, digest, release.events)

    def _stored(self, key: ReleaseKey, release: Release | Share) -> tuple[bytes | None, str]:
        """Return a release's bytes (None if the ledger stores only a hash), and the bytes' hash."""
        payload = to_bytes(release.arrays)
        if isinstance(release, Share) or (payload and not release.events):
            return None, keyed_hash(self.path.parent, *key, payload=payload)
        return payload, digest_of(payload)

    def events(self, job: str | None = None) -> tuple[ReleaseEvent, ...]:
        """Return the charged events of a job, or of all jobs if `job` is None, oldest first."""
        rows = self.rows()
        return tuple(event for row in rows if job in (None, row.job) for event in row.events)

    def charge(
        self,
        key: ReleaseKey,
        terms: str,
        release: Release | Share,
        expected: Head,
        before_commit: Callable[[], object] = lambda: None,
    ) -> Head:
        """Record a release and its cost on disk before the release is sent.

        Return the ledger's new head, which the caller should write to the site's log. For a share
        of a secure sum, or for values without noise, the ledger stores only a keyed hash. If
        `charge` raises an exception, the release must not be sent. Recording the same release again
        has no effect. For any other release, raise a StateError if the ledger has a row for the
        same or a later round of the job, or if the data has changed during the job.

        `terms` is a digest of the settings that must not change within a job. `expected` is the
        ledger's head at the time of the budget check. If another process has made a charge since
        the budget check, a new release is refused. If `before_commit` raises an error, nothing is
        charged.
        """
        self._check_own()
        payload, digest = self._stored(key, release)
        # An EXCLUSIVE transaction waits for other readers when it begins. An IMMEDIATE transaction
        # would wait for them when it ends, so the charge could be delayed after `before_commit`.
        with self._transaction("EXCLUSIVE") as connection:
            rows = self._rows(connection)
            head = Head.of(rows)
            if self._is_recorded(rows, key, terms, release):
                return head
            if expected != head:
                raise StateError(
                    f"{self.path}: another process charged while round {key.round} of job "
                    f"{key.job!r} was computed, so the budget may be exceeded: repeat the round"
                )
            document = document_of(key, terms, release, digest, self._opened)
            head = Head(head.rows + 1, chained(head.hash, document))
            connection.execute(
                "INSERT INTO releases (number, document, hash, payload) VALUES (?, ?, ?, ?)",
                (head.rows, document, head.hash, payload),
            )
            before_commit()
        if self._durable:  # a simulated site's ledger protects no real budget
            note_head(self.path, head)
        return head

    def verify(self, noted: Head | None = None) -> list[str]:
        """Check the file, hashes, released bytes and heads of the ledger, and return all problems.

        `noted` is an earlier head, with which the ledger must agree. If `noted` is None, the
        removal of the newest rows may go undetected. The returned texts contain no released values.
        """
        problems: list[str] = []
        try:
            with self._transaction("DEFERRED") as connection:
                lines = [line for (line,) in connection.execute("PRAGMA integrity_check")]
                problems += [f"SQLite's integrity check: {line}" for line in lines if line != "ok"]
                rows, damage = self._read(connection)
                problems += damage
                for row in rows:
                    problems.extend(_payload_problems(row, _payload_of(connection, row)))
                if noted is not None:
                    problems.extend(_rolled_back(connection, noted))
        except StateError as error:  # nothing after an unreadable page can be checked
            problems.append(str(error))
        return problems

    def _read(self, connection: sqlite3.Connection) -> tuple[list[LedgerRow], list[str]]:
        """Return the valid rows, and all problems that make the spent budget uncertain."""
        rows: list[LedgerRow] = []
        problems, previous = [], START
        stored = connection.execute(
            "SELECT number, document, hash, payload IS NOT NULL FROM releases ORDER BY number"
        ).fetchall()
        for expected, (number, document, hash_, has_payload) in enumerate(stored, start=1):
            if number != expected:
                problems.append(
                    f"row {number}: found in the place of row {expected}, so rows are missing"
                )
            elif hash_ != chained(previous, document):
                problems.append(f"row {number}: its content or place does not match its hash")
            else:
                try:
                    rows.append(LedgerRow.read(number, document, hash_, bool(has_payload)))
                except (DPFactError, KeyError, TypeError, ValueError):
                    problems.append(f"row {number}: cannot be read")
            previous = hash_
        noted = noted_head(self.path)
        if noted is not None and any(_rolled_back(connection, noted)):
            note = head_file(self.path).name
            problems.append(
                f"it lacks rows that {note} beside it records: it was rolled back or replaced, and "
                "later charges are missing; restore the newest copy (dpfact ledger restore), or "
                f"count the charges in the log as spent and then delete {note}"
            )
        return rows, problems

    def _rows(self, connection: sqlite3.Connection) -> tuple[LedgerRow, ...]:
        """Return all rows, or raise a StateError if the ledger has a problem."""
        rows, problems = self._read(connection)
        if problems:
            raise self._damaged(problems[0])
        return tuple(rows)

    def _is_recorded(
        self, rows: Sequence[LedgerRow], key: ReleaseKey, terms: str, release: Release | Share
    ) -> bool:
        """Return whether a release is recorded, or raise an error if the release is not allowed."""
        # Within a job, round numbers always increase.
        last = next((row for row in reversed(rows) if row.job == key.job), None)
        if last is None:
            return False
        if last.fingerprint != key.fingerprint:
            raise StateError(
                f"{self.path}: job {key.job!r} began with different data; if the data (or the key "
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
        if (row.key, row.terms) != (key, terms) or not self.holds(row, release):
            raise StateError(
                f"{self.path}: round {key.round} of job {key.job!r} was released already; a second "
                "release would waste budget"
            )
        return True

    def _check_own(self, *, reading: bool = False) -> None:
        """Raise an error if other users could change the ledger, its folder or its journal."""
        for path in (self.path.parent, self.path, Path(f"{self.path}-journal")):
            check_own(path, reading=reading)

    def _damaged(self, what: str) -> StateError:
        return StateError(
            f"{self.path}: damaged ledger: {what}; restore a copy, and count all later charges in "
            "the site's log as spent"
        )

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        """Run an SQLite transaction. If `kind` is EXCLUSIVE, wait for all readers to finish."""
        with translated(self.path):
            self._connection.execute(f"BEGIN {kind}")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def _row_of(rows: Sequence[LedgerRow], job: str, round_number: int) -> LedgerRow | None:
    return next((row for row in rows if (row.job, row.round) == (job, round_number)), None)


def _payload_of(connection: sqlite3.Connection, row: LedgerRow) -> bytes | None:
    payload: bytes | None
    query = "SELECT CAST(payload AS BLOB) FROM releases WHERE number = ?"
    (payload,) = connection.execute(query, (row.number,)).fetchone()
    return payload


def _payload_problems(row: LedgerRow, payload: bytes | None) -> Iterator[str]:
    """Yield a problem if released bytes have changed, or are missing from a row that needs them."""
    if payload is None and not all(event.shared for event in row.events):
        yield f"row {row.number}: the released bytes are missing"
    elif payload is not None and digest_of(payload) != row.payload_sha256:
        yield f"row {row.number}: the released bytes do not match their hash"


def _rolled_back(connection: sqlite3.Connection, noted: Head) -> Iterator[str]:
    hashes = [hash_ for (hash_,) in connection.execute("SELECT hash FROM releases ORDER BY number")]
    if noted.rows > len(hashes):
        yield (
            f"the noted head has {plural(noted.rows, 'row')}, the ledger {len(hashes)}: the newest "
            "rows are missing (this may be an old copy)"
        )
    elif [START, *hashes][noted.rows] != noted.hash:
        yield f"row {noted.rows}: differs from the noted head, so the ledger was rewritten"


def back_up(folder: Path, target: Path) -> Head:
    """Copy the ledger from a site's folder to `target`, and check the copy.

    Return the copy's head, which the caller should store elsewhere to detect changes to the copy.
    """
    path = target / LEDGER
    with Ledger(folder, create=False) as ledger, translated(path):
        private_folder(target)
        if path.exists():
            raise StateError(f"{path}: there is a ledger already; give each backup its own folder")
        with replacing(path) as file:
            file.write(ledger._connection.serialize())
    return _verified(target, None)


def restore(backup: Path, folder: Path, noted: Head) -> Head:
    """Restore a lost ledger from a backup, but never replace an existing ledger.

    `noted` is the last head in the site's log. Refuse a backup without `noted` or a later head.
    """
    path = folder / LEDGER
    note, head = head_file(path), _verified(backup, None)
    advice = "restore a newer copy, or count all later charges in the log as spent and then"
    _verified(backup, noted, f"; {advice} give --noted its own head, {head}")
    _verified(backup, noted_head(path), f"; {note} has this head: {advice} delete {note.name}")
    with locked(folder), translated(path):
        for old in (path, Path(f"{path}-journal")):
            if old.exists():
                raise StateError(
                    f"{old}: exists; a ledger is never replaced. If it is damaged beyond repair, "
                    "move the ledger and its journal elsewhere, and keep them"
                )
        with replacing(path) as file:
            file.write((backup / LEDGER).read_bytes())
    return head


def _verified(folder: Path, noted: Head | None, advice: str = "") -> Head:
    with Ledger(folder, create=False) as ledger:
        if problems := ledger.verify(noted):
            raise StateError(f"{ledger.path}: {'; '.join(problems)}{advice}")
        return ledger.head()
