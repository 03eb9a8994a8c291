"""Back up a ledger, and restore a lost ledger. An existing ledger is never replaced."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from dpfact_flower.errors import StateError
from dpfact_flower.machine.files import locked, private_folder, replacing
from dpfact_flower.privacy.ledger.file import LEDGER, open_ledger, translated
from dpfact_flower.privacy.ledger.ledger import Ledger
from dpfact_flower.privacy.ledger.rows import Head


def back_up(folder: Path, target: Path) -> Head:
    """Copy the ledger of a site's folder into `target`, and check the copy.

    Returns
    -------
    Head
        Head of the copy. Store the head separately from the copy.
    """
    path = target / LEDGER
    with Ledger(folder, create=False):  # checks that the ledger exists and has the right owner
        pass
    with translated(path):
        private_folder(target)
        if path.exists():
            raise StateError(f"{path}: there is a ledger already; give each backup its own folder")
        with closing(open_ledger(folder / LEDGER, durable=True)) as connection:
            content = connection.serialize()
        with replacing(path) as file:
            file.write(content)
    return _checked(target, None)


def restore(backup: Path, folder: Path, noted: Head) -> Head:
    """Restore a lost ledger from a backup, if nothing was charged after the backup.

    Parameters
    ----------
    backup, folder : Path
        Folder with the copy, and the site's folder, which has no ledger.
    noted : Head
        The last head in the site's log.
    """
    path = folder / LEDGER
    head = _checked(backup, noted)
    with locked(folder), translated(path):
        for old in (path, Path(f"{path}-journal")):
            if old.exists():
                raise StateError(
                    f"{old}: exists; a ledger is never replaced. If it is damaged for good, "
                    "move both files elsewhere together, and keep them"
                )
        content = (backup / LEDGER).read_bytes()
        with replacing(path) as file:
            file.write(content)
    return head


def _checked(folder: Path, noted: Head | None) -> Head:
    with Ledger(folder, create=False) as ledger:
        if problems := ledger.verify(noted):
            raise StateError(f"{ledger.path}: {'; '.join(problems)}")
        return ledger.head()
