"""Files that are whole or not there, and folders for their owner alone."""

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest

from dpfact_flower.errors import PrivacyRefusedError, StateError
from dpfact_flower.machine import files
from dpfact_flower.machine.files import disk_errors, locked, private_folder, replacing, reserved


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture(params=[0o022, 0o077, 0o000], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def write(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file_and_no_other(tmp_path, error):
    def fail(name: str) -> None:
        with replacing(tmp_path / name) as file:
            file.write(b"half")
            raise error

    write(tmp_path / "x", b"very old")
    write(tmp_path / "x", b"old")
    for name in ("x", "new"):
        with pytest.raises(error):
            fail(name)
    assert os.listdir(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b"old"


def test_the_bytes_are_on_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path, monkeypatch
):
    steps = []
    fsync, rename = os.fsync, os.replace

    def note_fsync(handle: int) -> None:
        found = os.fstat(handle)
        steps.append("folder" if stat.S_ISDIR(found.st_mode) else f"{found.st_size} bytes")
        fsync(handle)

    def note_replace(*paths: str) -> None:
        steps.append("name")
        rename(*paths)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    write(tmp_path / "x", b"new")
    assert steps == ["3 bytes", "name", "folder"]


@pytest.mark.usefixtures("umask")
def test_a_file_is_the_owners_alone_even_where_the_old_one_was_not(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    (tmp_path / "x").chmod(0o666)
    write(tmp_path / "x", b"new")
    assert mode_of(tmp_path / "x") == 0o600


@pytest.mark.usefixtures("umask")
def test_every_new_folder_is_the_owners_alone(tmp_path):
    private_folder(tmp_path / "a" / "b" / "c")
    for folder in ("a", "a/b", "a/b/c"):
        assert mode_of(tmp_path / folder) == 0o700
    (tmp_path / "a").chmod(0o750)  # one that is there keeps its mode
    private_folder(tmp_path / "a" / "d")
    assert mode_of(tmp_path / "a") == 0o750


# --- room on the disk


@pytest.mark.parametrize("size", [1, 5000, 300_000])
def test_room_is_held_until_it_is_given_back(tmp_path, size):
    path = tmp_path / ".room"
    with reserved(path, size) as free:
        assert path.stat().st_size == size
        assert path.stat().st_blocks * 512 >= size  # not a file with a hole
        assert path.stat().st_mode & 0o777 == 0o600
        free()
        assert not path.exists()
    with pytest.raises(KeyError), reserved(path, size):
        raise KeyError
    assert not path.exists()


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSPC, None])
def test_where_room_cannot_be_held_it_is_looked_for_and_its_lack_refused(
    tmp_path, monkeypatch, number
):
    def refuse(*_):
        raise OSError(number, "No space, or not here")

    if number is None:
        monkeypatch.delattr(os, "posix_fallocate")
    else:
        monkeypatch.setattr(os, "posix_fallocate", refuse)
    if number != errno.ENOSPC:
        with reserved(tmp_path / ".room", 10):
            pass
    beyond = shutil.disk_usage(tmp_path).total + 1
    with pytest.raises(OSError, match="No space"), reserved(tmp_path / ".room", beyond):
        pytest.fail("there is no such room")
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_disk_are_our_own_and_our_own_stay_what_they_are(tmp_path):
    with pytest.raises(StateError, match="Permission denied"), disk_errors(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied")
    with pytest.raises(StateError, match="OSError"), disk_errors(tmp_path):
        raise OSError
    with pytest.raises(PrivacyRefusedError), disk_errors(tmp_path):  # a PermissionError too
        raise PrivacyRefusedError("no")


def test_a_lock_is_taken_in_ones_own_folder_alone(tmp_path):
    with locked(tmp_path / "new"):
        assert mode_of(tmp_path / "new") == 0o700
    (tmp_path / "new" / ".lock").unlink()
    (tmp_path / "new" / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="new: "), locked(tmp_path / "new"):
        pass
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="Not a directory"), locked(tmp_path / "file" / "below"):
        pass
    (tmp_path / "new").chmod(0o777)
    with pytest.raises(StateError, match="others may write"), locked(tmp_path / "new"):
        pass


def test_scratch_files_are_private_in_the_users_own_folder_and_gone_in_the_end(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for given, home in ((None, tmp_path / "cache" / "dpfact"), ("own", tmp_path / "own")):
        monkeypatch.delenv("TMPDIR", raising=False)
        if given:
            monkeypatch.setenv("TMPDIR", str(tmp_path / given))
        with files.private_scratch() as folder:
            assert folder.parent == home
            assert folder.stat().st_mode & 0o777 == home.stat().st_mode & 0o777 == 0o700
            (folder / "patients").write_text("x")
        assert list(home.iterdir()) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "file" / "below"))
    with pytest.raises(StateError, match="set TMPDIR to a folder of your own"):
        files.private_scratch().__enter__()
