"""Files that are written whole or not at all, and folders, both for their owner alone."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from dpfact_flower.errors import DPFactError, StateError
from dpfact_flower.machine.access import check_own

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # Windows has none


@contextmanager
def replacing(path: Path, *, durable: bool = True, over: Path | None = None) -> Iterator[IO[bytes]]:
    """File that takes `path`'s place when it is complete; a crash leaves the old one or the new.

    An exception leaves the old file and no trace of the new one. The bytes are on the disk before
    the name is: what was charged or released is never forgotten because the power failed. Readable
    by its owner alone, since most of what is written this way is about patients.

    Parameters
    ----------
    path : Path
    durable : bool
        Without it nothing waits for the disk: a killed process still leaves the old file or the
        new, but a power loss may leave half of one. For simulations only.
    over : Path, optional
        A file beside it, for its owner alone, that nobody needs any more. If it exists it is
        written over, and ends up with `path`'s name: where the blocks exist already, a large file
        takes a fraction of the time. Leave the file's position at the end of what is written.
    """
    file, temporary = _file_for(path, over)
    try:
        with file:
            yield file
            file.flush()
            if temporary == over and file.tell() < os.fstat(file.fileno()).st_size:
                file.truncate()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if durable:
            sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def create_once(path: Path, content: bytes) -> None:
    """Give a new file its name, whole and on the disk, for its owner alone; one that exists stays.

    Raises
    ------
    OSError
        If the disk refuses, or has no hard links.
    """
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
    sync_folder(path.parent)
    remove_leftovers(path)


def _file_for(path: Path, over: Path | None) -> tuple[IO[bytes], Path]:
    if over is not None:
        with suppress(FileNotFoundError):
            return open(over, "r+b"), over
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    return os.fdopen(handle, "wb"), Path(temporary)


def add_line(path: Path, line: str, *, durable: bool = True) -> int:
    """Add a line to a file, which is created for its owner alone; `durable` as for `replacing`.

    Returns
    -------
    int
        Size of the file with it.
    """
    with open(path, "ab", opener=for_owner) as file:
        file.write(f"{line}\n".encode())
        if durable:
            file.flush()
            os.fsync(file.fileno())
        return file.tell()


def for_owner(path: str, flags: int) -> int:
    """Opener of a file that its owner alone may read; a link in its place is an error."""
    return os.open(path, flags | _NO_LINK, 0o600)


class Version(NamedTuple):
    """What distinguishes a file and its content from all others, and from itself once changed."""

    path: Path
    inode: int
    modified: int
    size: int


def version(path: Path) -> Version:
    """The present version of a file.

    Raises
    ------
    OSError
        If there is none.
    """
    found = path.stat()
    return Version(path, found.st_ino, found.st_mtime_ns, found.st_size)


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold a folder for this process: nobody else reads, charges and writes in between.

    Yields whether somebody else had it and was waited for.

    The lock ends with the process, however it ends. Where the platform has no `flock` (Windows),
    running one process at a time is up to the operator.

    Raises
    ------
    StateError
        If the folder is not this user's alone, see `check_own`, or cannot be made or locked.
    """
    try:
        private_folder(folder)
        check_own(folder)
        handle = (
            -1
            if fcntl is None
            else os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | _NO_LINK, 0o600)
        )
    except OSError as error:
        raise StateError(f"{folder}: {error.strerror}") from None
    if fcntl is None:
        yield False
        return
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
    """Room on the disk, held by a file; call what it yields right before the room is needed.

    Whether there is room is then known before the work begins. Where the platform cannot hold it
    (macOS, Windows, a few file systems), it is only looked for.

    Parameters
    ----------
    path : Path
        The file, which is gone in the end.
    size : int
        Bytes.

    Raises
    ------
    OSError
        If the disk or a quota has no such room.
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
    """Errors of the disk as our own; their texts hold no values.

    Raises
    ------
    StateError
        Naming the folder and what the system says.
    """
    try:
        yield
    except DPFactError:  # of which some are errors of the system to who looks at their bases
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StateError(f"{folder}: {reason}") from None


@contextmanager
def private_scratch() -> Iterator[Path]:
    """A folder for files about patients, for its owner alone; it is gone in the end.

    In the user's own cache, or where the variable TMPDIR says: the system's folder for temporary
    files may be on a disk that was never meant for patients.

    Raises
    ------
    StateError
        If it cannot be made.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dpfact"
    home = Path(os.environ.get("TMPDIR") or cache)
    try:
        private_folder(home)
        made = tempfile.TemporaryDirectory(prefix="dpfact-", dir=home)
    except OSError as error:
        raise StateError(
            f"{home}: {error.strerror}; set TMPDIR to a folder of your own for temporary files"
        ) from None
    with made as folder:
        yield Path(folder)


def remove_leftovers(path: Path) -> None:
    """Delete what `replacing` left of `path` when its process was killed; hold the lock first."""
    for leftover in path.parent.glob(f".{path.name}.*"):
        leftover.unlink(missing_ok=True)


def private_folder(folder: Path) -> None:
    """Create a folder and whatever is missing above it, for its owner alone, durably.

    Folders that are there already keep their permissions.
    """
    if folder.is_dir():
        return
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename durable, where the platform can."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
