"""The objects that names stand for: our own, registered, and from installed packages."""

import sys

import pytest

from dpfact_flower.errors import DataError, MissingDependencyError, SettingsError
from dpfact_flower.machine import registry as module
from dpfact_flower.machine.registry import Registry

GROUP = "dpfact_flower_test_things"


@pytest.fixture
def registry() -> Registry[object]:
    return Registry("thing", GROUP, ours=1)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with two entry points, one of which cannot be imported."""
    (tmp_path / "their_package.py").write_text("theirs = 3")
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{GROUP}]\ntheirs = their_package:theirs\nbroken = not_there:thing\nours = not_there:x\n"
        "lacking = lacking:thing\n"
    )
    text = "from dpfact_flower import errors\nraise errors.MissingDependencyError('needs')"
    (tmp_path / "lacking.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("their_package", None)


def test_ours_and_registered_ones_are_found(registry):
    assert registry.find("ours") == 1
    assert registry.register("mine", 2) == 2
    assert registry.find("mine") == 2
    registry.register("mine", 4)
    assert registry.find("mine") == 4
    assert registry.names() == ["ours", "mine"]
    with pytest.raises(SettingsError, match="'ours' is dpfact-flower's own"):
        registry.register("ours", 2)


def test_things_of_installed_packages_are_imported_when_asked_for(registry, package, monkeypatch):
    assert registry.names() == ["ours", "broken", "lacking", "theirs"]
    with monkeypatch.context() as patch:
        patch.setattr(module, "entry_points", None)  # entry points are searched once
        assert registry.names() == ["ours", "broken", "lacking", "theirs"]
    assert "their_package" not in sys.modules
    assert registry.find("theirs") == 3
    assert registry.find("ours") == 1  # our names cannot be replaced
    with pytest.raises(DataError, match=r"^thing broken: their-package fails to load not_there:"):
        registry.find("broken")
    with pytest.raises(MissingDependencyError, match=r"^needs$"):
        registry.find("lacking")


def test_an_unknown_name_is_refused_with_those_there_are(registry):
    with pytest.raises(SettingsError, match=r"there is no 'x'; there are ours .*entry point"):
        registry.find("x")
