"""Files that are complete or absent, and the users who can read or change them."""

import errno
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from dpfact_flower.errors import PrivacyRefusedError, StateError
from dpfact_flower.machine import files

ME = os.geteuid()


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def write(path: Path, content: bytes) -> None:
    with files.replacing(path) as file:
        file.write(content)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file_and_no_other(tmp_path, error):
    def fail(name: str) -> None:
        with files.replacing(tmp_path / name) as file:
            file.write(b"half")
            raise error

    write(tmp_path / "x", b"very old")
    write(tmp_path / "x", b"old")
    for name in ("x", "new"):
        with pytest.raises(error):
            fail(name)
    assert os.listdir(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b"old"


def steps_to_disk(monkeypatch, folder: Path, naming: str) -> list[str]:
    """Record when files, their names (by a function of `os`) and their folder reach the disk."""
    steps = []
    fsync, name = os.fsync, getattr(os, naming)

    def note_fsync(handle: int) -> None:
        found = os.fstat(handle)
        if not stat.S_ISDIR(found.st_mode):
            steps.append(f"{found.st_size} bytes")
        elif folder.exists() and os.path.samestat(found, folder.stat()):
            steps.append("folder")
        fsync(handle)

    def note_name(*paths: str) -> None:
        steps.append("name")
        name(*paths)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, naming, note_name)
    return steps


@pytest.mark.parametrize(
    ("naming", "make", "first"),
    [("replace", lambda path: write(path, b"new"), ["3 bytes"]),
     ("link", lambda path: files.create_once(path, b"key"), ["3 bytes"]),
     ("mkdir", files.private_folder, [])],
)  # fmt: skip
def test_content_then_name_then_folder_reach_the_disk(tmp_path, monkeypatch, naming, make, first):
    steps = steps_to_disk(monkeypatch, tmp_path, naming)
    make(tmp_path / "x")
    assert steps == [*first, "name", "folder"]


@pytest.mark.usefixtures("umask")
def test_a_file_is_the_owners_alone_even_where_the_old_one_was_not(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    (tmp_path / "x").chmod(0o666)
    write(tmp_path / "x", b"new")
    assert mode_of(tmp_path / "x") == 0o600


@pytest.mark.usefixtures("umask")
def test_every_new_folder_is_the_owners_alone(tmp_path):
    files.private_folder(tmp_path / "a" / "b" / "c")
    for folder in ("a", "a/b", "a/b/c"):
        assert mode_of(tmp_path / folder) == 0o700
    (tmp_path / "a").chmod(0o750)  # an existing folder keeps its mode
    files.private_folder(tmp_path / "a" / "d")
    assert mode_of(tmp_path / "a") == 0o750


# --- disk space


@pytest.mark.parametrize("size", [1, 5000, 300_000])
def test_room_is_held_until_it_is_given_back(tmp_path, size):
    path = tmp_path / ".room"
    with files.reserved(path, size) as free:
        assert path.stat().st_size == size
        assert path.stat().st_blocks * 512 >= size  # not a sparse file
        assert mode_of(path) == 0o600
        free()
        assert not path.exists()
    with pytest.raises(KeyError), files.reserved(path, size):
        raise KeyError
    assert not path.exists()


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSPC, None])
def test_where_room_cannot_be_held_its_lack_is_seen_and_refused(tmp_path, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, "No space, or not here")

    if number is None:
        monkeypatch.delattr(os, "posix_fallocate")
    else:
        monkeypatch.setattr(os, "posix_fallocate", refuse)
    if number != errno.ENOSPC:
        with files.reserved(tmp_path / ".room", 10):
            pass
    beyond = shutil.disk_usage(tmp_path).total + 1
    with pytest.raises(OSError, match="No space"), files.reserved(tmp_path / ".room", beyond):
        pytest.fail("there is no such room")
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_disk_are_our_own_and_our_own_stay_what_they_are(tmp_path):
    with pytest.raises(StateError, match="Permission denied"), files.disk_errors(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied")
    with pytest.raises(StateError, match="OSError"), files.disk_errors(tmp_path):
        raise OSError
    with pytest.raises(PrivacyRefusedError), files.disk_errors(tmp_path):
        raise PrivacyRefusedError("no")


def test_a_lock_is_taken_in_ones_own_folder_alone(tmp_path):
    with files.locked(tmp_path / "new"):
        assert mode_of(tmp_path / "new") == 0o700
    (tmp_path / "new" / ".lock").unlink()
    (tmp_path / "new" / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="new: "), files.locked(tmp_path / "new"):
        pass
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "below"
    with pytest.raises(StateError, match="Not a directory"), files.locked(below):
        pass
    (tmp_path / "new").chmod(0o777)
    with pytest.raises(StateError, match="others may write"), files.locked(tmp_path / "new"):
        pass


def test_scratch_files_are_private_in_the_users_folder_and_gone_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for given, home in ((None, tmp_path / "cache" / "dpfact"), ("own", tmp_path / "own")):
        monkeypatch.delenv("TMPDIR", raising=False)
        if given:
            monkeypatch.setenv("TMPDIR", str(tmp_path / given))
        with files.private_scratch() as folder:
            assert folder.parent == home
            assert mode_of(folder) == mode_of(home) == 0o700
            (folder / "patients").write_text("x")
        assert list(home.iterdir()) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "file" / "below"))
    with pytest.raises(StateError, match="set TMPDIR to a folder of your own"):
        files.private_scratch().__enter__()


# --- users who can read or change a file


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own" / "file"
    path.parent.mkdir(mode=0o700)
    path.write_text("x")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601])
def test_any_right_of_others_is_a_fault(file, mode):
    assert files.not_private(file, ME) == files.not_private(file.parent, ME) == []
    file.chmod(0o644)  # everybody may read a file that only its owner may change
    assert files.changeable(file, {ME}) == []
    file.chmod(mode)
    assert files.not_private(file, ME) == [f"others have rights to {file}: chmod 600 {file}"]


def test_a_link_and_another_owner_are_faults(file):
    (fault,) = [each for each in files.not_private(file, 61_777) if each.startswith(f"{file} ")]
    assert f"chown 61777 {file}" in fault
    link = file.with_name("link")
    link.symlink_to(file)
    assert files.not_private(link, ME) == [f"{link} is a link: give its target"]


def test_a_folder_above_that_others_may_write_to_is_a_fault(file, tmp_path):
    tmp_path.chmod(0o777)
    for found in (files.not_private(file, ME), files.changeable(file, {ME})):
        assert found == [f"others can write to {tmp_path}: chmod go-w {tmp_path}"]
    tmp_path.chmod(0o1777)  # there, users can only move their own files
    assert files.not_private(file, ME) == []


def test_a_file_deep_within_that_others_may_write_to_is_found(file, tmp_path, monkeypatch):
    file.chmod(0o666)
    fault = f"others can write to {file}: chmod go-w {file}"
    assert list(files.changeable_within(tmp_path, {ME})) == [fault]
    file.chmod(0o600)
    walked = [(file.parent, [], [".gone", "file"])]  # a temporary file of another process
    monkeypatch.setattr(os, "walk", lambda _: walked)
    assert list(files.changeable_within(tmp_path, {ME})) == []


@pytest.mark.skipif(ME != 0, reason="only root can give files away")
def test_another_owner_can_change_a_file(file):
    os.chown(file, 61_777, -1)
    fault = f"{file} belongs to 61777, who can change it: chown root {file}"
    assert files.changeable(file, {ME}) == [fault]
    assert files.changeable(file, {61_777}) == []


# --- refusals of every request


def made_foreign(path: Path, how: str, monkeypatch) -> None:
    """Let other users share or change a path."""
    if how == "link":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to(path.with_name("elsewhere"))
    elif how == "owner":
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    else:
        path.chmod(int(how, 8))


FOREIGN = {
    "link": "a symbolic link", "owner": "sudo chown -R",
    "0777": "chmod -R go-w", "0720": "chmod -R go-w",
    "0702": "chmod -R go-w", "1777": "mode 1777",
}  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize("kind", ["folder", "file"])
@pytest.mark.parametrize("how", FOREIGN)
def test_what_others_can_change_is_refused_with_path_and_way_out(tmp_path, how, kind, monkeypatch):
    path = tmp_path / "it's here"
    path.mkdir() if kind == "folder" else path.touch()
    for mode in (0o500, 0o755, 0o700):  # others may read it
        path.chmod(mode)
        files.check_own(path)
    made_foreign(path, how, monkeypatch)
    with pytest.raises(StateError, match=FOREIGN[how]) as error:
        files.check_own(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
    if how not in ("link", "owner"):  # the proposed command works
        subprocess.run(str(error.value).partition("content: ")[2], shell=True, check=True)
        files.check_own(path)


def test_what_is_not_there_is_not_refused_and_what_is_no_file_is(tmp_path):
    files.check_own(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StateError, match="neither a folder nor a file"):
        files.check_own(tmp_path / "pipe")
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="Not a directory"):
        files.check_own(tmp_path / "file" / "below")


def test_another_users_file_may_be_looked_at_but_not_if_others_write_to_it(tmp_path, monkeypatch):
    (tmp_path / "a").touch(mode=0o600)
    made_foreign(tmp_path / "a", "owner", monkeypatch)
    files.check_own(tmp_path / "a", reading=True)
    (tmp_path / "a").chmod(0o602)
    with pytest.raises(StateError, match="others may write"):
        files.check_own(tmp_path / "a", reading=True)


def test_nobody_may_move_a_folder_away_from_under_its_owner(tmp_path):
    folder = tmp_path / "above" / "state" / "site"
    folder.mkdir(parents=True)
    for mode in (0o755, 0o775, 0o1777):
        (tmp_path / "above").chmod(mode)
        files.check_parents(folder)
        files.check_parents(folder / "not" / "there")
    (tmp_path / "above").chmod(0o777)
    with pytest.raises(StateError, match="anybody may write to it") as error:
        files.check_parents(folder)
    assert f"chmod o-w {tmp_path / 'above'}" in str(error.value)


def test_a_link_on_the_way_is_its_users_or_roots(tmp_path, monkeypatch):
    (tmp_path / "real" / "state").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    files.check_parents(tmp_path / "link" / "state")
    user, lstat = os.geteuid(), Path.lstat
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)

    def of_another(path: Path) -> os.stat_result:
        found = lstat(path)
        return os.stat_result([*found[:4], user + 2, *found[5:10]])

    monkeypatch.setattr(Path, "lstat", of_another)
    with pytest.raises(StateError, match="link: is a symbolic link of user"):
        files.check_parents(tmp_path / "link" / "state")


def test_links_that_go_round_in_circles_are_our_own_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StateError, match="cannot be reached"):
        files.check_parents(tmp_path / "a" / "state")
