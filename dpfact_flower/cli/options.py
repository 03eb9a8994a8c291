"""Options that several subcommands of `dpfact` share, and functions that read them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, TaskID

from dpfact_flower.errors import SettingsError
from dpfact_flower.settings import AppSettings, Scalar, parse_assignments

if TYPE_CHECKING:
    from dpfact_flower.machine.logs import ProgressCallback

Set = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="A setting, key=value; may be repeated. See dpfact settings."),
]
FlowerApp = Annotated[
    Path,
    typer.Option(
        "--app",
        help="The Flower App's folder; its config holds the defaults.",
        show_default="the one that is installed",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show the whole log, Flower's too.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only results.")]
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of a command that passes its options on to one of Flower's commands."""
_PACKAGE = Path(__file__).parents[1]
_INSTALLED, _BESIDE = _PACKAGE / "flower_app", _PACKAGE.parent / "simulation" / "dpfact-app"
APP_FOLDER = _BESIDE if _BESIDE.is_dir() and not _INSTALLED.is_dir() else _INSTALLED
"""Folder of the Flower App: the installed package's copy or, without it, the repository's."""

console = Console()
"""Standard output, for every command."""

_SIZES = re.compile(r"\d{1,30}(x\d{1,30})*", re.ASCII | re.IGNORECASE)
_TABLE = ("tool", "flwr", "app", "config")


def read_sizes(option: str, text: str) -> tuple[int, ...]:
    """Return the numbers of codes, one per feature mode, from a text such as ``202x316``."""
    if not _SIZES.fullmatch(text):
        raise SettingsError(
            f"{option}: need a number of codes per mode, such as 202x316, got {text!r}"
        )
    return tuple(int(size) for size in text.lower().split("x"))


def assigned(settings: Sequence[str] | None, options: Collection[str] = ()) -> dict[str, Scalar]:
    """Return the settings of ``--set``. Refuse settings that are `options` of the command."""
    given = parse_assignments(settings or ())
    twice = sorted(given.keys() & set(options))
    if twice:
        raise SettingsError(f"--set: {twice[0]} is an option of this command: use --{twice[0]}")
    return given


def run_config(
    flower_app: Path, settings: Sequence[str] | None, **options: Scalar | None
) -> dict[str, Scalar]:
    """Return a run config from a Flower App's defaults, ``--set``, and options named like settings.

    Without an app every setting has the library's default. An option that is None keeps its
    default. For a synthetic EHR that is given by name, the default rank is the number of planted
    phenotypes.
    """
    from dpfact_flower.data.synthetic import preset  # noqa: PLC0415 - SciPy is slow to import

    given = assigned(settings, options)
    chosen = {key: value for key, value in options.items() if value is not None}
    defaults = app_config(flower_app)
    if "data" in chosen and (name := AppSettings.from_config(chosen).synthetic_preset):
        defaults["rank"] = preset(name).phenotypes
    return {**defaults, **given, **chosen}


def check_app(flower_app: Path) -> None:
    """Refuse a folder without a Flower App."""
    if not (flower_app / "pyproject.toml").exists():
        raise SettingsError(f"--app: {flower_app} is no Flower App: it has no pyproject.toml")


def app_config(flower_app: Path) -> dict[str, Scalar]:
    """Return the config of a Flower App, or an empty config if the default folder has no app."""
    file = flower_app / "pyproject.toml"
    if not file.exists() and flower_app == APP_FOLDER:
        return {}
    check_app(flower_app)
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise SettingsError(f"--app: {file} is not readable as TOML") from None
    for key in _TABLE:
        found = found.get(key, {})
        if not isinstance(found, dict):
            raise SettingsError(f"--app: {file}: {'.'.join(_TABLE)} must be a table")
    return found


def _folder(given: str | Path) -> Path:
    """Return a folder to write to, and refuse a bad path before hours of work, not after."""
    text = str(given)  # a default is already a path
    path = Path(text).expanduser()
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not text.strip() or not nearest.is_dir():
        raise typer.BadParameter(f"need a folder, got {text!r}")
    return path


Out = Annotated[
    Path,
    typer.Option("--out", "-o", parser=_folder, metavar="FOLDER", help="Folder to write to."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what the folder holds.")]


def refuse_overwrite(folder: Path, file: str, what: str, *, force: bool) -> bool:
    """Return whether a folder holds `what`, and refuse such a folder without `force`.

    `file` is the file that is written last.
    """
    used = (folder / file).exists()
    if used and not force:
        raise SettingsError(
            f"--out: {folder} holds {what} already; name another folder, or replace it with --force"
        )
    return used


@contextmanager
def progress(*, hidden: bool = False) -> Iterator[ProgressCallback]:
    """Show a bar with the remaining time for each reported task, on standard error.

    Nothing is drawn if standard error is not a terminal.
    """
    console = Console(stderr=True)
    hidden = hidden or not console.is_terminal
    with Progress(console=console, transient=True, disable=hidden) as bars:
        tasks: dict[str, TaskID] = {}

        def watch(name: str, share: float) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=1.0)
            bars.update(tasks[name], completed=share)

        yield watch


def echo_json(content: Any) -> None:
    """Print JSON for another program, without rich, which would wrap the lines."""
    typer.echo(json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False))
