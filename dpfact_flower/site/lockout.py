"""Stop a site after repeated failures or a ledger rollback, until a person has checked the site.

A round that fails after reading patients' data is not charged. However, whether and when a round
fails can depend on the data, so a server could provoke failures to learn about patients. The site
therefore counts each round before reading the data, and refuses requests after too many failures.

If a site's folder is restored from an old backup, the ledger lacks later charges. The site notices
the rollback, because each request states the last round that the site answered. A person must then
find out whether the ledger or the server is wrong.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpfact_flower.errors import StateError
from dpfact_flower.machine.files import replacing
from dpfact_flower.privacy.ledger import LEDGER, LedgerRow
from dpfact_flower.wire.protocol import RoundRequest

ATTEMPT_LIMIT = 10
"""Maximum number of consecutive attempts that release nothing. A release resets the count."""
ATTEMPTS = ".failed-attempts"  # no job can have this name
_NOTE = f"{LEDGER}-LACKS-ROUNDS.txt"  # no job can have this name
_TEXT = """The server says that this site has answered round {answered} of job {job!r}. The
ledger has {latest}. The folder may have been rolled back, and later charges may be missing.
Restore the newest copy of the ledger. If the copy lacks charges, lower max-epsilon by as much as
epsilon_spent (max-epsilon-alone: epsilon_alone_spent) rose in the site's log since the copy. Then
delete this file, and ask the centre for a new job. If nothing was rolled back, ask the centre why.
"""


def failed_attempts(folder: Path) -> int:
    """Return the number of rounds attempted since the last release."""
    path = folder / ATTEMPTS
    return path.stat().st_size if path.exists() else 0


def check_attempts(folder: Path) -> None:
    """Refuse another attempt if too many consecutive attempts have released nothing."""
    if (failed := failed_attempts(folder)) >= ATTEMPT_LIMIT:
        raise StateError(
            f"{folder / ATTEMPTS}: {failed} rounds in a row read the patients and released "
            "nothing; remove the cause, which this log names, then delete this file"
        )


@contextmanager
def counting_attempt(folder: Path) -> Iterator[None]:
    """Count an attempt before it begins, and reset the count after a success."""
    path = folder / ATTEMPTS
    with replacing(path, durable=False) as file:  # the file's size is the count
        file.write(b"+" * (failed_attempts(folder) + 1))
    yield
    path.unlink()


def check_no_note(folder: Path) -> None:
    """Refuse every request until a person has read and deleted the note about a rollback."""
    note = folder / _NOTE
    if note.exists():
        raise StateError(
            f"{note}: the server has answers that the ledger does not have; read this file: the "
            "site answers nothing until it is deleted"
        )


def check_not_rolled_back(
    request: RoundRequest, site: str, last: LedgerRow | None, folder: Path
) -> None:
    """Refuse all requests once a request names an answered round that is not in the ledger."""
    answered = request.answered.get(site, 0)
    if answered > (last.round if last else 0):
        latest = f"round {last.round} as the latest" if last else "no round of this job"
        text = _TEXT.format(answered=answered, job=request.job, latest=latest)
        with replacing(folder / _NOTE) as file:
            file.write(text.encode())
    check_no_note(folder)
