"""The command line as `sphinx_click` reads it, and a page for each of its commands."""

import shutil
from pathlib import Path
from typing import Any

import click
import typer

from dpfact_flower.cli import app

FOLDER = Path(__file__).parent / "commands"
"""The pages; made anew at each build."""


def commands() -> dict[tuple[str, ...], click.Command]:
    """All commands and groups by their words, such as ("dpfact", "data", "mimic4")."""
    found: dict[tuple[str, ...], click.Command] = {("dpfact",): typer.main.get_command(app)}
    for words in (todo := list(found)):
        if isinstance(group := found[words], click.Group):
            context = click.Context(group)
            below = {(*words, name): group.get_command(context, name)
                     for name in group.list_commands(context)}  # fmt: skip
            found |= {words: command for words, command in below.items() if command is not None}
            todo += below
    return found


COMMANDS = commands()
for _command in COMMANDS.values():
    for _option in _command.params:
        if isinstance(_option, click.Option) and _option.is_flag:
            _option.show_default = False  # every flag is off unless given


def write_pages() -> None:
    """Write the pages."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for words in COMMANDS:
        (FOLDER / f"{'-'.join(words)}.rst").write_text(_page(words), encoding="utf-8")


def _page(words: tuple[str, ...]) -> str:
    """A command's help; of a group also its commands, as links."""
    title = " ".join(words)
    lines = [f".. click:: commands:{_name(words)}", f"   :prog: {title}", "   :nested: none", ""]
    below = [each for each in COMMANDS if each[:-1] == words]
    if below:
        lines += [".. list-table::", ""]
        for each in below:
            lines.append(f"   * - :doc:`{' '.join(each)} <{'-'.join(each)}>`")
            lines.append(f"     - {COMMANDS[each].get_short_help_str(1000)}")
        lines += ["", ".. toctree::", "   :hidden:", ""]
        lines += [f"   {'-'.join(each)}" for each in below]
    return "\n".join([*lines, ""])


def _name(words: tuple[str, ...]) -> str:
    return "_".join(words).replace("-", "_")


def __getattr__(name: str) -> Any:
    """`sphinx_click` asks for a command by an attribute."""
    try:
        return next(command for words, command in COMMANDS.items() if _name(words) == name)
    except StopIteration:
        raise AttributeError(name) from None
