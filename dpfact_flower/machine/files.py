"""Files that are written atomically, and folders, all accessible to their owner alone."""

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
    """Open a file that replaces `path` when complete. A crash leaves the old or the new file.

    The content reaches the disk before the new name does, so a power failure loses no charge.
    Without `durable`, for simulations, writes do not wait for the disk.
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
    """Create a complete, durable file for its owner alone, unless `path` exists."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(handle)
        # A link, not a rename, because another process may have created the file meanwhile. That
        # process may also have removed our temporary file as a leftover; its file then is `path`.
        with suppress(FileExistsError, FileNotFoundError):
            os.link(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    _sync_folder(path.parent)
    for leftover in path.parent.glob(f".{path.name}.*"):  # left by a killed process
        leftover.unlink(missing_ok=True)


def for_owner(path: str, flags: int) -> int:
    """Open a file for its owner alone, and refuse links. Use this function as an `opener`."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


class Version(NamedTuple):
    """Identity of a file and of its current content."""

    path: Path
    inode: int
    modified: int
    size: int


def version(path: Path) -> Version:
    """Return the current version of a file."""
    status = path.stat()
    return Version(path, status.st_ino, status.st_mtime_ns, status.st_size)


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Create and lock a folder, and yield whether this process had to wait for another process.

    The lock ends with the process. Raise a StateError for a folder that other users may change.
    """
    try:
        private_folder(folder)
        check_own(folder)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StateError(f"{folder}: {error.strerror}") from None
    waited = False
    try:
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
    """Reserve disk space with a file. Call the yielded function just before using the space.

    Raise an OSError if the disk or a quota has too little space. macOS and a few file systems
    cannot reserve space. There, only the free space is checked.
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
    """Turn disk errors into a StateError with the folder and the reason, but without data."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DPFactError):  # some of our own errors are OSErrors too
            raise
        raise StateError(f"{folder}: {error.strerror or type(error).__name__}") from None


@contextmanager
def private_scratch() -> Iterator[Path]:
    """Yield a temporary folder for files about patients, accessible to its owner alone.

    The folder is in TMPDIR or in the user's own cache, because the system's temporary folder may be
    on a disk that must not hold patients' data.
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
    """Create a folder and its missing parents durably, with access for the owner alone."""
    if not folder.is_dir():
        for path in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
            path.mkdir(mode=0o700, exist_ok=True)
            _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Write a folder's entries to the disk, so that a rename in it is durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
