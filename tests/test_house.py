"""The rules for imports in docs/explanation/architecture.md.

Imports are read from the code, including those inside functions and for type checkers.
"""

import ast
import functools
import importlib
import re
from pathlib import Path

import pytest

import dpfact_flower

PACKAGE = Path(dpfact_flower.__file__).parent
ROOT = PACKAGE.parent
LAYERS = (
    {"errors"},
    {"settings", "machine"},
    {"tensor"},
    {"solver", "data", "privacy"},
    {"estimation", "wire"},
    {"site", "server"},
    {"collect"},
    {"connected"},
    {"secure_rounds", "dispatcher"},
    {"client_app", "strategy", "legacy"},
    {"evaluation"},
    {"audit", "runtime"},
    {"server_app", "cli", "notebook"},
    {"__main__"},
)
"""Folders and interface modules, lowest first. Each may import only from lower layers."""
INTERFACES = {
    "client_app", "collect", "connected", "dispatcher", "legacy", "secure_rounds", "server_app",
    "strategy",
}  # fmt: skip
FLOWER = {"wire/records.py", "machine/logs.py"}
"""Modules that may import Flower, in addition to the interface modules and `runtime`."""


MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in PACKAGE.rglob("*.py")
    if path != PACKAGE / "__init__.py"
}
"""The path of every module but the package itself, by its dotted name below it."""


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> set[str]:
    """Return the dotted names of everything that a file imports."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own_modules(path: Path) -> set[str]:
    """Return the modules of this package that a file imports."""
    found = set()
    for name in imported(path):
        own = name.removeprefix("dpfact_flower.")
        while own != name and own:
            if own in MODULES or f"{own}.__init__" in MODULES:
                found.add(own if own in MODULES else f"{own}.__init__")
                break
            own = own.rpartition(".")[0]
        assert not name.startswith("dpfact_flower.") or own, f"{path}: {name} is no module"
    return found


def layer_of(module: str) -> int:
    folder = module.split(".", maxsplit=1)[0]
    (layer,) = [number for number, folders in enumerate(LAYERS) if folder in folders]
    return layer


def faults(path: Path, module: str) -> list[str]:
    """Return a file's imports from higher layers, or from another folder in the same layer."""
    folder = module.split(".", maxsplit=1)[0]
    return [
        f"{module} imports {other}"
        for other in own_modules(path)
        if other.split(".")[0] != folder and layer_of(other) >= layer_of(module)
    ]


def test_imports_go_down():
    assert [fault for module, path in MODULES.items() for fault in faults(path, module)] == []


def test_only_interface_modules_import_flower():
    allowed = INTERFACES | {"runtime"}
    elsewhere = [
        path for module, path in MODULES.items()
        if module.split(".")[0] not in allowed
        and path.relative_to(PACKAGE).as_posix() not in FLOWER
        and any(name.split(".")[0] == "flwr" for name in imported(path))
    ]  # fmt: skip
    assert elsewhere == []


def test_no_two_modules_import_each_other():
    """Check cycles within a folder; `test_imports_go_down` excludes cycles between folders."""
    needs = {module: own_modules(path) - {module} for module, path in MODULES.items()}
    while free := {module for module, others in needs.items() if not others}:
        needs = {module: others - free for module, others in needs.items() if module not in free}
    assert needs == {}


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("tensor.sparse", "from dpfact_flower.solver import solve"),
        ("solver.psgd", "from dpfact_flower.privacy.release import Release"),
        ("site.answer", "from dpfact_flower.server.coordinator import Coordinator"),
        ("machine.files", "def f():\n    import dpfact_flower.tensor.sparse"),
    ],
)
def test_an_import_that_is_turned_round_is_noticed(tmp_path, folder, line):
    path = tmp_path / "module.py"
    path.write_text(line)
    assert len(faults(path, folder)) == 1


def test_a_release_is_made_in_privacy_alone():
    """Only functions in `privacy` call the class."""
    for module, path in MODULES.items():
        if not module.startswith("privacy."):
            called = [node.func for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
            names = [getattr(func, "id", getattr(func, "attr", None)) for func in called]
            assert "Release" not in names, module


def test_type_checkers_find_every_public_name():
    """They do not evaluate `__all__`, so it must be a literal."""
    named = {each.targets[0].id: each.value for each in parsed(PACKAGE / "__init__.py").body
             if isinstance(each, ast.Assign)}  # fmt: skip
    assert ast.literal_eval(named["__all__"]) == [*ast.literal_eval(named["_HOMES"])]


def test_an_init_holds_names_and_no_code():
    for path in PACKAGE.rglob("__init__.py"):
        if path.parent != PACKAGE:
            assert all(
                isinstance(node, (ast.ImportFrom, ast.Assign))  # names and `__all__`
                or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
                for node in parsed(path).body
            ), path


def test_annotations_are_evaluated_late_only_where_one_refers_forward():
    """The reference is to the enclosing class, or to a name that only type checkers import."""
    for path in MODULES.values():
        if "from __future__ import annotations" in (text := path.read_text(encoding="utf-8")):
            classes = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef)]
            assert "TYPE_CHECKING" in text or any(
                isinstance(node, ast.Name) and node.id == own.name
                for own in classes
                for node in ast.walk(own)
            ), path


def test_what_a_text_names_is_there():
    """Check dotted names and paths of code in docs and docstrings."""
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *PACKAGE.rglob("*.py")]
    for folder in ("simulation", "benchmarks", "laboratory", "tests"):
        texts += (ROOT / folder).rglob("*.py")
    gone = []
    for text in texts:
        content = text.read_text(encoding="utf-8")
        names = set(re.findall(r"\bdpfact_flower(?:\.\w+)+", content))
        gone += [(text, name) for name in names if not there(name)]
        for path in re.findall(r"`([\w./-]+/[\w-]+\.py)", content):
            places = (ROOT / path, PACKAGE / path, text.parent / path)
            gone += [] if any(place.exists() for place in places) else [(text, path)]
    assert gone == []


@functools.cache
def there(name: str) -> bool:
    """Return whether a dotted name exists, perhaps with a file extension or a logger's name."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False
