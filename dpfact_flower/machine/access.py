"""Who can read a file and who can change it, by owners and modes, for whoever asks as root.

An access control list needs no reading: its mask stands where the group's bits are.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

try:
    import pwd
except ImportError:  # Windows
    pwd = None  # type: ignore[assignment]

_ANY = 0o077
_WRITE = 0o022


def user_name(uid: int) -> str:
    """A user's name, or the number where nobody has it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, AttributeError):
        return str(uid)


def not_private(path: Path, uid: int) -> list[str]:
    """What lets anybody but one user (and root) at a file or folder; in words, with the way out."""
    found, quoted = path.lstat(), shlex.quote(str(path))
    faults = []
    if stat.S_ISLNK(found.st_mode):
        return [f"{path} is a link: name what it points to"]
    if found.st_uid != uid:
        owner, wanted = user_name(found.st_uid), user_name(uid)
        faults.append(f"{path} belongs to {owner}: chown {wanted} {quoted}")
    if found.st_mode & _ANY:
        mode = "700" if stat.S_ISDIR(found.st_mode) else "600"
        faults.append(f"others have rights to {path}: chmod {mode} {quoted}")
    return faults + changeable_above(path, {uid})


def changeable(path: Path, uids: Collection[int]) -> list[str]:
    """What lets anybody but these users and root change a file or folder, or a folder above it."""
    return _changeable(path.resolve(), uids) + changeable_above(path, uids)


def changeable_within(folder: Path, uids: Collection[int]) -> Iterator[str]:
    """`changeable` for a folder and all that is in it."""
    yield from changeable(folder, uids)
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            if not path.is_symlink():
                yield from _changeable(path, uids)


def changeable_above(path: Path, uids: Collection[int]) -> list[str]:
    """What lets others put something else in a path's place: rights to the folders above it."""
    faults = []
    for folder in path.resolve().parents:
        found = folder.stat()
        # In a folder with the sticky bit, as /tmp has, nobody can move what is not theirs.
        if found.st_mode & _WRITE and not found.st_mode & stat.S_ISVTX:
            faults.append(f"others can write to {folder}: chmod go-w {shlex.quote(str(folder))}")
        if found.st_uid not in {0, *uids}:
            faults.append(_belongs(folder, found.st_uid))
    return faults


def _changeable(path: Path, uids: Collection[int]) -> list[str]:
    found, faults = path.lstat(), []
    if found.st_mode & _WRITE:
        faults.append(f"others can write to {path}: chmod go-w {shlex.quote(str(path))}")
    if found.st_uid not in {0, *uids}:
        faults.append(_belongs(path, found.st_uid))
    return faults


def _belongs(path: Path, uid: int) -> str:
    quoted = shlex.quote(str(path))
    return f"{path} belongs to {user_name(uid)}, who can change it: chown root {quoted}"
