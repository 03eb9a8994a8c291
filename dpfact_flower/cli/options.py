"""Define and parse the options that several `dpfact` subcommands share.

A command's docstring also explains the arguments. Flower requires Typer below 0.21, which shows no
help for arguments if click 8.5 is installed.
"""

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from typer import Argument, Option

from dpfact_flower.errors import SettingsError, naming, shown
from dpfact_flower.machine.logs import ProgressCallback
from dpfact_flower.settings import AppSettings, Scalar

PASSED_ON: dict[str, Any] = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
    "add_help_option": False,
}
"""Typer settings for a command that passes its options on to one of Flower's commands."""
_PACKAGE = Path(__file__).parents[1]
_INSTALLED, _BESIDE = _PACKAGE / "flower_app", _PACKAGE.parent / "simulation" / "dpfact-app"
APP_FOLDER = _BESIDE if _BESIDE.is_dir() and not _INSTALLED.is_dir() else _INSTALLED
"""Folder of the Flower App: in the installed package or, failing that, in the repository."""

console = Console()


def _folder(given: str | Path) -> Path:
    """Return the path of an output folder. Raise an error if the path cannot be a folder."""
    with naming(f"need a folder, got {str(given)!r}", RuntimeError):
        path = Path(given).expanduser()
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not str(given).strip() or not nearest.is_dir():
        raise typer.BadParameter(f"need a folder, got {str(given)!r}")
    return path


Set = Annotated[
    list[str] | None,
    Option("--set", "-s", metavar="KEY=VALUE", help="A setting; repeatable. See dpfact settings."),
]
FlowerApp = Annotated[
    Path,
    Option(
        "--app",
        help="Folder of the Flower App whose config provides the defaults.",
        show_default="the installed app",
    ),
]
Out = Annotated[
    Path, Option("--out", "-o", parser=_folder, metavar="FOLDER", help="Folder to write to.")
]
AsJson = Annotated[bool, Option("--json", help="Print JSON instead of tables.")]
Force = Annotated[bool, Option("--force", help="Replace earlier results in the folder.")]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Show the whole log, including Flower's.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Show only results, no progress.")]
Folder = Annotated[Path, Argument()]
Run = Annotated[Path, Argument(metavar="RUN")]
Seed = Annotated[int | None, Option(help="Seed of random choices (default: none).", min=0)]
Config = Annotated[Path, Option(help="The site's settings: NAME.toml from dpfact site init.")]
Home = Annotated[Path, Option(help="Permanent folder for all files. The default needs root.")]
HOME = Path("/srv/dpfact")
Port = Annotated[int, Option(help="Local port of the SuperLink or SuperNode.", min=1, max=65535)]


def read_sizes(option: str, text: str) -> tuple[int, ...]:
    """Parse the number of codes in each feature mode, from text such as ``202x316``."""
    if not re.fullmatch(r"[0-9]{1,30}(x[0-9]{1,30})*", text.lower()):
        raise SettingsError(f"{option}: need numbers of codes, such as 202x316, got {text!r}")
    return tuple(int(size) for size in text.lower().split("x"))


def parse_assignments(
    texts: Sequence[str] | None, options: Collection[str] = ()
) -> dict[str, Scalar]:
    """Parse ``--set`` values into a config. Values are in TOML format, but strings need no quotes.

    Refuse a setting in `options`, because the command has its own option for this setting.
    """
    config: dict[str, Scalar] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise SettingsError(f"--set: need key=value, got {shown(text)}")
        parsed = _scalar(value.strip())
        if not isinstance(parsed, (bool, int, float, str)):
            raise SettingsError(f"{key.strip()}: need a single value, got {shown(value)}")
        config[key.strip()] = parsed
    if twice := sorted(config.keys() & set(options)):
        raise SettingsError(f"--set: {twice[0]} is an option of this command: use --{twice[0]}")
    return config


def _scalar(text: str) -> object:
    """Parse a string as a TOML value. Bare words, paths and dates remain strings."""
    if "#" in text and not text.startswith(('"', "'")):
        return text
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except (ValueError, RecursionError):  # not TOML, too many digits or too many brackets
        return text
    return text if isinstance(value, (date, time)) else value


def run_config(
    flower_app: Path, settings: Sequence[str] | None, **options: Scalar | None
) -> dict[str, Scalar]:
    """Merge a Flower App's defaults, ``--set`` and the command's `options` into a run config.

    An option that is None does not override the default. For synthetic data, the setting ``rank``
    defaults to the number of planted phenotypes.
    """
    from dpfact_flower.data.synthetic import preset

    given = parse_assignments(settings, options)
    chosen = {key: value for key, value in options.items() if value is not None}
    defaults = app_config(flower_app)
    if "data" in chosen and (name := AppSettings.from_config(chosen).synthetic_preset):
        defaults["rank"] = preset(name).phenotypes
    return {**defaults, **given, **chosen}


def app_config(flower_app: Path) -> dict[str, Scalar]:
    """Return a Flower App's config. Raise an error if the folder contains no Flower App."""
    file = flower_app / "pyproject.toml"
    if not file.exists():
        raise SettingsError(f"--app: {flower_app} is not a Flower App: it has no pyproject.toml")
    try:
        return dict(tomllib.loads(file.read_text("utf-8"))["tool"]["flwr"]["app"].get("config", {}))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise SettingsError(f"--app: {file} is not TOML with a table tool.flwr.app") from None


def refuse_overwrite(folder: Path, file: str, what: str, *, force: bool) -> bool:
    """Refuse to replace a folder's `file` unless `force` is set. Return whether `file` exists."""
    used = (folder / file).exists()
    if used and not force:
        raise SettingsError(
            f"--out: {folder} holds {what} already; name another folder, or replace it with --force"
        )
    return used


def refuse_finished(out: Path, settings: Sequence[str] | None, *, force: bool) -> None:
    """Refuse to replace a finished run unless `force` is set or `settings` has ``resume=true``."""
    from dpfact_flower.evaluation.run_folder import SUMMARY

    force = force or parse_assignments(settings).get("resume") is True
    refuse_overwrite(out, SUMMARY, "a finished run", force=force)


@contextmanager
def progress(*, hidden: bool = False) -> Iterator[ProgressCallback]:
    """Yield a callback that shows a progress bar per task, if standard error is a terminal."""
    console = Console(stderr=True)
    hidden = hidden or not console.is_terminal
    with Progress(console=console, transient=True, disable=hidden) as bars:
        tasks: dict[str, TaskID] = {}

        def watch(name: str, share: float) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=None)  # animated until progress is known
            bars.update(tasks[name], completed=share, total=1.0 if share else None)

        yield watch


def echo_json(content: Any) -> None:
    """Print JSON without Rich, which would wrap long lines."""
    typer.echo(json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False))


def say(text: str) -> None:
    """Print text unchanged, without markup, colours or line wrapping."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
