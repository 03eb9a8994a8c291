"""Who can read a file and who can change it."""

import os

import pytest

from dpfact_flower.machine.access import changeable, changeable_within, not_private

ME = os.geteuid() if hasattr(os, "geteuid") else 0
pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs owners and modes")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own" / "file"
    path.parent.mkdir(mode=0o700)
    path.write_text("x")
    path.chmod(0o600)
    return path


def test_a_file_of_ones_own_is_private(file):
    assert not_private(file, ME) == []
    assert not_private(file.parent, ME) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601])
def test_any_right_of_others_is_a_fault(file, mode):
    file.chmod(mode)
    assert not_private(file, ME) == [f"others have rights to {file}: chmod 600 {file}"]


def test_an_owner_who_is_another_is_a_fault(file):
    (fault,) = [each for each in not_private(file, 61_777) if each.startswith(f"{file} ")]
    assert f"chown 61777 {file}" in fault


def test_a_link_is_a_fault(file):
    link = file.with_name("link")
    link.symlink_to(file)
    assert not_private(link, ME) == [f"{link} is a link: name what it points to"]


def test_a_folder_above_that_others_may_write_to_is_a_fault(file, tmp_path):
    tmp_path.chmod(0o777)
    for found in (not_private(file, ME), changeable(file, {ME})):
        assert found == [f"others can write to {tmp_path}: chmod go-w {tmp_path}"]
    tmp_path.chmod(0o1777)  # there nobody can move what is not theirs
    assert not_private(file, ME) == []


def test_everybody_may_read_what_only_its_owner_may_change(file):
    file.chmod(0o644)
    assert changeable(file, {ME}) == []


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
