"""`dpfact init`: a Flower project of your own."""

from __future__ import annotations

import re
from typing import Annotated

import tomli_w
from typer import Option

from dpfact_flower.cli.options import APP_FOLDER, Folder, Set, app_config, assigned, check_app, say
from dpfact_flower.errors import SettingsError

FILES = (
    ".dockerignore", ".gitignore", "Dockerfile", "LICENSE", "README.md", "pyproject.toml",
    "dpfact_app/__init__.py", "dpfact_app/client_app.py", "dpfact_app/server_app.py",
)  # fmt: skip
"""The files of the installed Flower App, which is dpfact-app of the publisher dpfact-flower."""


def init(
    folder: Folder,
    settings: Set = None,
    publisher: Annotated[str, Option(help="Your Flower account, to publish it.")] = "your-name",
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
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,31}", text):  # Flower's own rule
            raise SettingsError(
                f"{what}: need a letter, then letters, digits and hyphens, at most 32 characters; "
                f"got {text!r}"
            )
    if folder.is_dir() and any(folder.iterdir()):
        raise SettingsError(f"FOLDER: {folder} is not empty; name another")
    check_app(APP_FOLDER)
    given = assigned(settings)
    checked = RunConfig.read({**app_config(APP_FOLDER), **given}).write()
    for file in FILES:
        text = (APP_FOLDER / file).read_text(encoding="utf-8").replace("dpfact-app", name)
        if file == "pyproject.toml":
            text = text.replace('"dpfact-flower"', f'"{publisher}"')
            for key in given:  # the run config has a line for every key
                line = tomli_w.dumps({key: checked[key]}).strip().replace("\\", r"\\")
                text = re.sub(rf"^{key} = .*$", line, text, flags=re.M)
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    say(f"{folder / 'README.md'} says how to run it")
