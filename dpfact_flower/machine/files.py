"""Files that are written whole or not at all, and folders, both for their owner alone."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from dpfact_flower.errors import DPFactError, StateError
from dpfact_flower.machine.access import check_own


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """File that takes `path`'s place when it is complete; a crash leaves the old one or the new.

    An exception leaves the old file and no trace of the new one. The bytes are on the disk before
    the name is: what was charged or released is never forgotten because the power failed. Only the
    owner can read it, since most of what is written this way is about patients. Without `durable`,
    for simulations, nothing waits for the disk, and a power loss may leave half of a file.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(handle)
        os.replace(temporary, path)
        if durable:
            _sync_folder(path.parent)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def create_once(path: Path, content: bytes) -> None:
    """Make a file, whole, on the disk and for its owner alone, unless one of its name exists."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # A link, not a rename: another process may have made, and written, the file meanwhile.
        # It may also have cleared away ours as a leftover; then its own has the name.
        with suppress(FileExistsError, FileNotFoundError):
            os.link(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    _sync_folder(path.parent)
    for leftover in path.parent.glob(f".{path.name}.*"):  # of a process that was killed
        leftover.unlink(missing_ok=True)


def add_line(path: Path, line: str, *, durable: bool = True) -> int:
    """Add a line to a file, created for its owner alone; gives the file's size afterwards."""
    with open(path, "ab", opener=for_owner) as file:
        file.write(f"{line}\n".encode())
        if durable:
            file.flush()
            os.fsync(file.fileno())
        return file.tell()


def for_owner(path: str, flags: int) -> int:
    """Opener of a file that its owner alone may read; a link in its place is an error."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


class Version(NamedTuple):
    """What distinguishes a file and its content from all others, and from itself once changed."""

    path: Path
    inode: int
    modified: int
    size: int


def version(path: Path) -> Version:
    """The present version of a file."""
    status = path.stat()
    return Version(path, status.st_ino, status.st_mtime_ns, status.st_size)


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold a folder for this process: nobody else reads, charges and writes in between.

    Yields whether another process had it and was waited for. The lock ends with the process. A
    StateError names a folder that is not this user's alone, or that cannot be made or locked.
    """
    try:
        private_folder(folder)
        check_own(folder)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StateError(f"{folder}: {error.strerror}") from None
    try:
        waited = False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = True
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield waited
    finally:
        os.close(handle)


@contextmanager
def reserved(path: Path, size: int) -> Iterator[Callable[[], None]]:
    """Reserve bytes on the disk by a file; call what this yields right before they are needed.

    An OSError comes before the work begins where the disk or a quota lacks them. macOS and a few
    file systems cannot reserve: there the free bytes are only compared.
    """

    def free() -> None:
        path.unlink(missing_ok=True)

    try:
        with open(path, "wb", opener=for_owner) as file:
            _fill(file.fileno(), path.parent, size)
        yield free
    finally:
        with suppress(OSError):
            free()


def _fill(handle: int, folder: Path, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(handle, 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
        else:
            return
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Errors of the disk as a StateError that names the folder; their texts hold no values."""
    try:
        yield
    except DPFactError:  # some of our own are OSErrors, too
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StateError(f"{folder}: {reason}") from None


@contextmanager
def private_scratch() -> Iterator[Path]:
    """A folder for files about patients, for its owner alone; it is gone in the end.

    In the user's own cache, or where the variable TMPDIR says: the system's folder for temporary
    files may be on a disk that was never meant for patients.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dpfact"
    home = Path(os.environ.get("TMPDIR") or cache)
    try:
        private_folder(home)
        scratch = tempfile.TemporaryDirectory(prefix="dpfact-", dir=home)
    except OSError as error:
        raise StateError(
            f"{home}: {error.strerror}; set TMPDIR to a folder of your own for temporary files"
        ) from None
    with scratch as folder:
        yield Path(folder)


def private_folder(folder: Path) -> None:
    """Create a folder and whatever is missing above it, for its owner alone, durably.

    Folders that are there already keep their permissions.
    """
    if folder.is_dir():
        return
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
