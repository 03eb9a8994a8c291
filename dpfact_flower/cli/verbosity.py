"""How much a command says: results alone, progress, or the whole log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, TaskID

if TYPE_CHECKING:
    from dpfact_flower.machine.logs import ProgressCallback

_chosen: set[str] = set()
"""What this command was asked for: `verbose`, `quiet`."""


def _note(parameter: typer.CallbackParam, value: bool) -> bool:
    if value:
        _chosen.add(str(parameter.name))
    return value


Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", callback=_note, help="Show the whole log, Flower's too."),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", callback=_note, help="Show no progress, only results.")
]


def reset() -> None:
    """As at the start of a command: a process may run several."""
    _chosen.clear()


def is_verbose() -> bool:
    """Whether the whole log is wanted."""
    return "verbose" in _chosen


@contextmanager
def progress() -> Iterator[ProgressCallback]:
    """A bar with the time left for each piece of work that is told of, on standard error.

    Nothing is drawn where that is no terminal, or the log or silence was asked for.
    """
    console = Console(stderr=True)
    hidden = bool(_chosen) or not console.is_terminal
    with Progress(console=console, transient=True, disable=hidden) as bars:
        tasks: dict[str, TaskID] = {}

        def watch(name: str, share: float) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=1.0)
            bars.update(tasks[name], completed=share)

        yield watch


def echo_json(content: Any) -> None:
    """Print JSON for another program; not through rich, which would wrap the lines."""
    typer.echo(json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False))
