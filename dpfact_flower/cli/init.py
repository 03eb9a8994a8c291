"""`dpfact init`: a Flower project of your own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import tomli_w
import typer
from rich.markup import escape

from dpfact_flower.cli.options import APP_FOLDER, Set, app_config, assigned, check_app, console
from dpfact_flower.errors import SettingsError
from dpfact_flower.settings import Scalar

# Imports are inside the command, because `dpfact --help` must not wait for SciPy.
# ruff: noqa: PLC0415

FILES = (
    ".dockerignore", ".gitignore", "Dockerfile", "LICENSE", "README.md", "pyproject.toml",
    "dpfact_app/__init__.py", "dpfact_app/client_app.py", "dpfact_app/server_app.py",
)  # fmt: skip
"""The files of the installed Flower App."""
_NAME, _PUBLISHER = "dpfact-app", "dpfact-flower"
"""Name and publisher of the installed app."""
_FLOWER_NAME = r"[A-Za-z][A-Za-z0-9-]{0,31}"
"""Names that Flower accepts for a project."""


def init(
    folder: Annotated[Path, typer.Argument()],
    settings: Set = None,
    publisher: Annotated[
        str, typer.Option(help="Your Flower account, needed to publish the project.")
    ] = "your-name",
) -> None:
    """Write a Flower project of your own: code, settings, README, Dockerfile.

    FOLDER must be new or empty, and its name becomes the project's name. The settings that you
    give, such as -s epsilon=2 -s rank=30, go into the project's pyproject.toml. The project's
    README says how to run it.
    """
    from dpfact_flower.runtime.config import RunConfig

    folder = folder.expanduser()
    name = folder.absolute().name
    for what, text in (("FOLDER", name), ("--publisher", publisher)):
        if not re.fullmatch(_FLOWER_NAME, text):
            raise SettingsError(
                f"{what}: need a letter, then letters, digits and hyphens, at most 32 characters; "
                f"got {text!r}"
            )
    if folder.is_dir() and any(folder.iterdir()):
        raise SettingsError(f"FOLDER: {folder} is not empty; name another")
    check_app(APP_FOLDER)
    given = assigned(settings)
    checked = RunConfig.read({**app_config(APP_FOLDER), **given}).write()
    changes = {key: checked[key] for key in given}
    for file in FILES:
        text = (APP_FOLDER / file).read_text(encoding="utf-8").replace(_NAME, name)
        if file == "pyproject.toml":
            text = _with(text.replace(f'"{_PUBLISHER}"', f'"{publisher}"'), changes)
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    console.print(escape(str(folder / "README.md")), "says how to run it", soft_wrap=True)


def _with(text: str, changes: Mapping[str, Scalar]) -> str:
    """Return a ``pyproject.toml`` with changed values in its run config.

    The run config has a line for every key.
    """
    lines = []
    for line in text.splitlines(keepends=True):
        key = line.partition(" = ")[0]
        lines.append(tomli_w.dumps({key: changes[key]}) if key in changes else line)
    return "".join(lines)
