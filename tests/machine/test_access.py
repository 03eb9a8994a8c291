"""Who can read a file and who can change it."""

import os
import subprocess
from pathlib import Path

import pytest

from dpfact_flower.errors import StateError
from dpfact_flower.machine.access import (
    changeable,
    changeable_within,
    check_own,
    check_way,
    not_private,
)

ME = os.geteuid() if hasattr(os, "geteuid") else 0
pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs owners and modes")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own" / "file"
    path.parent.mkdir(mode=0o700)
    path.write_text("x")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601])
def test_any_right_of_others_is_a_fault(file, mode):
    assert not_private(file, ME) == not_private(file.parent, ME) == []
    file.chmod(0o644)  # everybody may read what only its owner may change
    assert changeable(file, {ME}) == []
    file.chmod(mode)
    assert not_private(file, ME) == [f"others have rights to {file}: chmod 600 {file}"]


def test_a_link_and_another_owner_are_faults(file):
    (fault,) = [each for each in not_private(file, 61_777) if each.startswith(f"{file} ")]
    assert f"chown 61777 {file}" in fault
    link = file.with_name("link")
    link.symlink_to(file)
    assert not_private(link, ME) == [f"{link} is a link: name what it points to"]


def test_a_folder_above_that_others_may_write_to_is_a_fault(file, tmp_path):
    tmp_path.chmod(0o777)
    for found in (not_private(file, ME), changeable(file, {ME})):
        assert found == [f"others can write to {tmp_path}: chmod go-w {tmp_path}"]
    tmp_path.chmod(0o1777)  # there nobody can move what is not theirs
    assert not_private(file, ME) == []


def test_a_file_deep_within_that_others_may_write_to_is_found(file, tmp_path):
    file.chmod(0o666)
    assert list(changeable_within(tmp_path, {ME})) == [
        f"others can write to {file}: chmod go-w {file}"
    ]
    file.chmod(0o600)
    assert list(changeable_within(tmp_path, {ME})) == []


@pytest.mark.skipif(ME != 0, reason="only root can give files away")
def test_another_owner_can_change_a_file(file):
    os.chown(file, 61_777, -1)
    assert changeable(file, {ME}) == [
        f"{file} belongs to 61777, who can change it: chown root {file}"
    ]
    assert changeable(file, {61_777}) == []


# --- what a process refuses with every request


def made_foreign(path: Path, how: str, monkeypatch) -> None:
    """Have others share, or be able to change, what lies there."""
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
def test_what_others_could_change_is_refused_with_its_path_and_the_way_out(
    tmp_path, how, kind, monkeypatch
):
    path = tmp_path / "it's here"
    path.mkdir() if kind == "folder" else path.touch()
    for mode in (0o500, 0o755, 0o700):  # others may read it
        path.chmod(mode)
        check_own(path)
    made_foreign(path, how, monkeypatch)
    with pytest.raises(StateError, match=FOREIGN[how]) as error:
        check_own(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
    if how not in ("link", "owner"):  # the command that it names does what it says
        command = str(error.value).partition("trusted: ")[2]
        subprocess.run(command, shell=True, check=True)
        check_own(path)


def test_what_is_not_there_is_not_refused_and_what_is_no_file_is(tmp_path):
    check_own(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StateError, match="neither a folder nor a file"):
        check_own(tmp_path / "pipe")
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="Not a directory"):
        check_own(tmp_path / "file" / "below")


def test_another_users_file_may_be_looked_at_but_not_if_others_write_to_it(tmp_path, monkeypatch):
    (tmp_path / "a").touch(mode=0o600)
    made_foreign(tmp_path / "a", "owner", monkeypatch)
    check_own(tmp_path / "a", reading=True)
    (tmp_path / "a").chmod(0o602)
    with pytest.raises(StateError, match="others may write"):
        check_own(tmp_path / "a", reading=True)


@pytest.mark.parametrize(
    ("mode", "right"), [(0o755, True), (0o775, True), (0o1777, True), (0o777, False)]
)
def test_nobody_may_move_a_folder_away_from_under_its_owner(tmp_path, mode, right):
    folder = tmp_path / "above" / "state" / "site"
    folder.mkdir(parents=True)
    (tmp_path / "above").chmod(mode)
    if right:
        check_way(folder)
        check_way(folder / "not" / "there")
        return
    with pytest.raises(StateError, match="anybody may write to it") as error:
        check_way(folder)
    assert f"chmod o-w {tmp_path / 'above'}" in str(error.value)


def test_a_link_on_the_way_is_its_users_or_roots(tmp_path, monkeypatch):
    (tmp_path / "real" / "state").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    check_way(tmp_path / "link" / "state")
    user, lstat = os.geteuid(), Path.lstat
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    monkeypatch.setattr(Path, "lstat", lambda path: _owned(lstat(path), user + 2))
    with pytest.raises(StateError, match="link: is a symbolic link of user"):
        check_way(tmp_path / "link" / "state")


def _owned(found: os.stat_result, user: int) -> os.stat_result:
    return os.stat_result([*found[:4], user, *found[5:10]])


def test_links_that_go_round_in_circles_are_our_own_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StateError, match="cannot be reached"):
        check_way(tmp_path / "a" / "state")
