"""What closes a site until a person has looked: failed attempts in a row, or a rolled-back ledger.

Failed attempts: whatever fails once patients have been read is not charged: a want of memory, a
disk, a process that is killed. That it failed, and how long that took, is about the machine, but a
machine's load depends on its patients; and a server may provoke it and ask again. So attempts are
counted, each before it begins.

A rolled-back ledger: a folder that is restored from an old backup has the budget of that time, and
nothing in it shows that. But the server knows which rounds of a job each site has answered, and
says so with every request. What it says proves nothing, so a person has to look.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpfact_flower.errors import StateError
from dpfact_flower.machine.files import replacing
from dpfact_flower.privacy.ledger import LedgerRow
from dpfact_flower.wire.protocol import RoundRequest

ATTEMPT_LIMIT = 10
"""Attempts in a row that release nothing. A release forgets them: it was paid for."""
ATTEMPTS = ".failed-attempts"  # no job can have this name
_NOTE = "LEDGER-LACKS-ROUNDS.txt"
_TEXT = """The server says that this site has answered round {said} of job {job!r}. The ledger has
{found}. The folder may have been rolled back, and then what was spent since is not counted.
Restore the newest copy of the ledger. If there is none, lower max-epsilon by what was charged
since: the site's log and the centre (dpfact status) know it. Then delete this file, and ask the
centre for a new job. If nothing was rolled back, the server is wrong: ask the centre why.
"""


def failed_attempts(folder: Path) -> int:
    """Attempts since the last release, of a site's folder."""
    path = folder / ATTEMPTS
    return path.stat().st_size if path.exists() else 0


def check_attempts(folder: Path) -> None:
    """Refuse another attempt where too many in a row released nothing."""
    failed = failed_attempts(folder)
    if failed >= ATTEMPT_LIMIT:
        raise StateError(
            f"{folder / ATTEMPTS}: {failed} rounds in a row read the patients and released "
            "nothing; remove the cause, which this log names, then delete this file"
        )


@contextmanager
def counting_attempt(folder: Path) -> Iterator[None]:
    """Count an attempt before it begins, and forget all where it ends well; hold the lock."""
    path = folder / ATTEMPTS
    with replacing(path, durable=False) as file:  # its size is the count; a kill leaves it too
        file.write(b"+" * (failed_attempts(folder) + 1))
    yield
    with suppress(OSError):
        path.unlink()


def rolled_back_faults(folder: Path) -> list[str]:
    """What a person has to look at, of a site's folder."""
    note = folder / _NOTE
    if not note.exists():
        return []
    return [
        f"{note}: the server has answers that the ledger does not know of; read this file: nothing "
        "is answered until it is deleted"
    ]


def check_not_rolled_back(
    request: RoundRequest, site: str, last: LedgerRow | None, folder: Path
) -> None:
    """Refuse where the server has, or had, answers that the ledger does not know of; note it."""
    answered = request.answered.get(site, 0)
    if answered > (last.round if last else 0):
        latest = f"round {last.round} as its last" if last else "no round of it"
        with replacing(folder / _NOTE) as file:
            file.write(_TEXT.format(said=answered, job=request.job, found=latest).encode())
    for fault in rolled_back_faults(folder):
        raise StateError(fault)
