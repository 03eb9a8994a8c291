"""Write files atomically, and keep files and folders inaccessible to other users."""

import errno
import fcntl
import os
import pwd
import shlex
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from dpfact_flower.errors import SettingsError, StateError, shown

_ANY = 0o077
_WRITE = stat.S_IWGRP | stat.S_IWOTH


@contextmanager
def replacing(path: Path, *, durable: bool = True, once: bool = False) -> Iterator[IO[bytes]]:
    """Yield a temporary file that is renamed to `path` on success, so `path` is never incomplete.

    A `durable` file survives a power failure. If `once` is true, an existing `path` is kept.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no folder", str(path.parent))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "need a file, but this is a folder", str(path))
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(handle)
        if once:
            # The file is linked, not renamed, because another process may have created `path`
            # meanwhile and may then have removed our temporary file as a leftover.
            with suppress(FileExistsError, FileNotFoundError):
                os.link(temporary, path)
        else:
            os.replace(temporary, path)
        if durable:
            _sync_folder(path.parent)
    finally:
        Path(temporary).unlink(missing_ok=True)


def create_once(path: Path, content: bytes) -> None:
    """Atomically and durably create `path`, accessible only to its owner, unless `path` exists."""
    with replacing(path, once=True) as file:
        file.write(content)
    for leftover in path.parent.glob(f".{path.name}.*"):  # left by a killed process
        leftover.unlink(missing_ok=True)


def for_owner(path: str, flags: int) -> int:
    """An `opener` for `open` that refuses symbolic links and creates files for their owner only."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Create and lock a folder. Yield True if this process had to wait for the lock.

    The lock never outlives the process. Raise a StateError if other users can change the folder.
    """
    with disk_errors(folder):
        private_folder(folder)
        check_own(folder)
        handle = for_owner(str(folder / ".lock"), os.O_RDWR | os.O_CREAT)
    with os.fdopen(handle, "rb"):
        waited = False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = True
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield waited


@contextmanager
def reserved(path: Path, size: int) -> Iterator[Callable[[], None]]:
    """Reserve disk space with a placeholder file, and yield a function that deletes this file.

    Raise an OSError if the disk or a quota has too little space. If the system cannot reserve space
    (as on macOS), this function only checks the free space.
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
    """Turn a disk error into a StateError that names the folder and the reason, but no data."""
    try:
        yield
    except OSError as error:
        raise StateError(f"{folder}: {error.strerror or type(error).__name__}") from None


@contextmanager
def private_scratch() -> Iterator[Path]:
    """Yield a temporary folder for patients' data, accessible only to the folder's owner.

    The folder is in TMPDIR or in the user's cache folder. The system's temporary folder may be on a
    disk that must not hold patients' data.
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
    """Durably create a folder and its missing parents, accessible only to their owner."""
    if not folder.is_dir():
        for path in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
            path.mkdir(mode=0o700, exist_ok=True)
            _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Write a folder's entries to the disk, so that renames in the folder are durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# At every request, `check_own` and `check_parents` refuse unsafe files. For an administrator,
# `not_private` and `changeable` also list parent folders that a group may write to. Requests are
# not refused for such folders, because many systems give each user a private group. Access control
# lists need no separate check, because their mask appears in the group's mode bits.


def check_own(path: Path, *, reading: bool = False) -> None:
    """Raise an error unless a path is the user's own file or folder, writable by nobody else.

    A missing path is accepted. If `reading` is true, another user may own the path.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise StateError(f"{path}: {error.strerror}") from None
    user = os.geteuid()
    if stat.S_ISLNK(status.st_mode):
        raise StateError(f"{path}: is a symbolic link, which others may change; give its target")
    if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        raise StateError(f"{path}: is neither a folder nor a file; remove it if nothing needs it")
    if status.st_uid != user and not reading:
        raise StateError(
            f"{path}: belongs to user {status.st_uid}, but this process runs as user {user}; if "
            f"you trust its content: sudo chown -R {user} {shlex.quote(str(path))}"
        )
    if status.st_mode & _WRITE:
        raise StateError(
            f"{path}: others may write to it (mode {stat.S_IMODE(status.st_mode):04o}); if you "
            f"trust its content: chmod -R go-w {shlex.quote(str(path))}"
        )


def check_private(path: Path) -> None:
    """Refuse a secret file that others may read or write; see `check_own`."""
    check_own(path, reading=True)
    if path.exists() and path.stat().st_mode & _ANY:
        raise StateError(f"{path}: others may read it; chmod 600 {shlex.quote(str(path))}")


def check_parents(folder: Path) -> None:
    """Refuse a folder that any user could move, or whose path contains another user's symlink."""
    try:
        parents = dict.fromkeys((*folder.absolute().parents, *folder.resolve().parents))
        existing = [(path, path.lstat(), path.stat()) for path in parents if path.exists()]
    except (OSError, RuntimeError) as error:  # a RuntimeError for circular links
        raise StateError(f"{folder}: cannot be reached ({type(error).__name__})") from None
    for above, link, status in existing:
        if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
            raise StateError(
                f"{above}: is a symbolic link of user {link.st_uid} on the way to {folder}; "
                "give the folder without this link"
            )
        if _lets_move(status, stat.S_IWOTH):
            raise StateError(
                f"{above}: anybody may write to it and can thus replace {folder}; "
                f"chmod o-w {shlex.quote(str(above))}"
            )


def _lets_move(above: os.stat_result, writers: int) -> bool:
    """Return whether other users could move the contents of `above`. `writers` is a bit mask."""
    # With the sticky bit, as in /tmp, users can only move their own files.
    return bool(above.st_mode & writers) and not above.st_mode & stat.S_ISVTX


def user_name(uid: int) -> str:
    """Return the name of the user with this UID, or the UID as text if there is no such user."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def user_id(name: str) -> int:
    """Return a user's UID, given the user's name or the UID as text."""
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        raise SettingsError(f"this machine has no user {shown(name)}") from None


def not_private(path: Path, uid: int) -> list[str]:
    """List permission faults that let users other than root and `uid` access a path."""
    status, quoted = path.lstat(), shlex.quote(str(path))
    if stat.S_ISLNK(status.st_mode):
        return [f"{path} is a link: give its target"]
    faults = []
    if status.st_uid != uid:
        owner, expected = user_name(status.st_uid), user_name(uid)
        faults.append(f"{path} belongs to {owner}: chown {expected} {quoted}")
    if status.st_mode & _ANY:
        mode = "700" if stat.S_ISDIR(status.st_mode) else "600"
        faults.append(f"others have rights to {path}: chmod {mode} {quoted}")
    return faults + _changeable_above(path, {uid})


def changeable(path: Path, uids: Collection[int]) -> list[str]:
    """List permission faults that let users other than root and `uids` change or move a path."""
    return _changeable(path.resolve(), uids) + _changeable_above(path, uids)


def changeable_within(folder: Path, uids: Collection[int]) -> Iterator[str]:
    """Yield the faults that `changeable` finds in a folder and all its contents."""
    yield from changeable(folder, uids)
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            with suppress(FileNotFoundError):  # a temporary file of a running process
                if not path.is_symlink():
                    yield from _changeable(path, uids)


def _changeable_above(path: Path, uids: Collection[int]) -> list[str]:
    """List permission faults of the parent folders of `path`."""
    parents = path.resolve().parents
    return [fault for folder in parents for fault in _changeable(folder, uids, is_parent=True)]


def _changeable(path: Path, uids: Collection[int], *, is_parent: bool = False) -> list[str]:
    status, quoted = path.lstat(), shlex.quote(str(path))
    is_written = _lets_move(status, _WRITE) if is_parent else status.st_mode & _WRITE
    faults = []
    if is_written:
        faults.append(f"others can write to {path}: chmod go-w {quoted}")
    if status.st_uid not in {0, *uids}:
        owner = user_name(status.st_uid)
        faults.append(f"{path} belongs to {owner}, who can change it: chown root {quoted}")
    return faults
