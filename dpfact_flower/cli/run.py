"""Define the commands `dpfact run`, `simulate`, `demo` and `init`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import tomli_w
import typer
from rich.markup import escape
from rich.table import Table
from typer import Option

from dpfact_flower.cli import options as opt
from dpfact_flower.cli.options import console, echo_json, progress, say
from dpfact_flower.errors import MissingDependencyError, SettingsError
from dpfact_flower.machine.logs import ProgressCallback, flower_quiet
from dpfact_flower.runtime.superlink import followed, local_superlink
from dpfact_flower.server.history import CHECKPOINT

NOTHING_LEARNED = 3
"""Exit code for a finished run whose phenotypes explain nothing."""

Data = Annotated[
    str | None,
    Option(
        help="Folder that dpfact data wrote, or synthetic:PRESET.",
        show_default="the Flower App's: synthetic:demo",
    ),
]


def run(
    out: opt.Out,
    data: Data = None,
    settings: opt.Set = None,
    flower_app: opt.FlowerApp = opt.APP_FOLDER,
    force: opt.Force = False,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run a whole federation in one process, without Ray and without a SuperLink.

    Sites compute in parallel threads. The exit code is 3 if the phenotypes explain nothing. For
    example: dpfact run --data data/eicu --out runs/eicu -s rank=20 -s epsilon=4
    """
    opt.refuse_finished(out, settings, force=force)
    with _running(out, hidden=verbose or quiet) as watch:
        config = opt.run_config(flower_app, settings, data=data, out=str(out))
        from dpfact_flower.runtime.serve import federate_config

        watch("starting", 1.0)
        with flower_quiet(not verbose):
            folder = federate_config(config, watch=watch)
    _finish(folder, as_json)


def simulate(
    out: opt.Out,
    data: Data = None,
    settings: opt.Set = None,
    flower_app: opt.FlowerApp = opt.APP_FOLDER,
    cpus: Annotated[int, Option(help="Processors per virtual client.", min=1)] = 1,
    force: opt.Force = False,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run a whole federation in Flower's simulation, which needs Ray.

    Call flwr run with a temporary SuperLink. Except for noise, dpfact run gives the same result.
    """
    opt.refuse_finished(out, settings, force=force)
    if find_spec("ray") is None:
        raise MissingDependencyError(
            'Flower\'s simulation needs Ray: pip install "dpfact-flower[simulation]"; dpfact run '
            "gives the same result in one process"
        )
    with _running(out, hidden=verbose or quiet) as watch:
        from dpfact_flower.runtime.config import RunConfig, prepare_data

        config = opt.run_config(flower_app, settings, data=data, out=str(out))
        places = RunConfig.read(config).app
        with flower_quiet(not verbose):
            sites = len(prepare_data(places))
        if sites == 0:
            raise SettingsError("data: a simulation needs data")
        # A SuperLink resolves relative paths against its own folder.
        config["out"] = str(places.run_folder)
        if places.state_dir:
            config["state-dir"] = str(places.sites_folder)
        if not places.synthetic_preset:
            config["data"] = str(places.cohort_folder)
        federation = f"num-supernodes={sites} client-resources-num-cpus={cpus}"
        following = nullcontext() if verbose else followed(watch, partial(typer.echo, err=True))
        home = places.sites_folder / "flwr"
        with local_superlink(home, simulation=True) as superlink, following as log:
            watch("starting", 1.0)
            superlink.run(flower_app, config, federation_config=federation, log=log)
    _finish(places.run_folder, as_json)


def demo(
    out: opt.Out = Path("runs/demo"),
    force: opt.Force = False,
    as_json: opt.AsJson = False,
    verbose: opt.Verbose = False,
    quiet: opt.Quiet = False,
) -> None:
    """Start here: simulate a run with six made-up hospitals and differential privacy.

    The command needs no preparation, replaces an earlier demo, and prints the report's path.
    """
    from dpfact_flower.evaluation.run_folder import SUMMARY, read_summary

    force = force or ((out / SUMMARY).exists() and read_summary(out).name == "demo")
    simulate(out, "synthetic:demo", force=force, as_json=as_json, verbose=verbose, quiet=quiet)


@contextmanager
def _running(out: Path, *, hidden: bool) -> Iterator[ProgressCallback]:
    """Show progress. On Ctrl-C, say whether the run can be resumed, and exit with code 130."""
    try:
        with progress(hidden=hidden) as watch:
            watch("starting", 0.0)
            yield watch
    except KeyboardInterrupt:
        kept = "the same command with -s resume=true continues the run"
        kept = kept if (out / CHECKPOINT).exists() else "no round had ended, so nothing was kept"
        typer.echo(f"stopped: {kept}", err=True)
        raise typer.Exit(130) from None


def _finish(folder: Path, as_json: bool) -> None:
    """Print a run's headline figures and file paths, or the run's summary as JSON."""
    from dpfact_flower.evaluation.prose import headline
    from dpfact_flower.evaluation.run_folder import REPORT, SUMMARY, read_summary

    summary = read_summary(folder)
    if as_json:
        echo_json(summary.to_dict())
    else:
        lines = Table.grid(padding=(0, 2))
        for label, text in headline(summary):
            lines.add_row(f"[bold]{label}[/bold]", escape(text))
        console.print(lines)
        for name in (SUMMARY, REPORT):
            if (folder / name).exists():
                say(str(folder / name))
    if summary.measured and summary.measured.is_uninformative:
        raise typer.Exit(NOTHING_LEARNED)


FILES = (
    ".dockerignore", ".gitignore", "Dockerfile", "LICENSE", "README.md", "pyproject.toml",
    "dpfact_app/__init__.py", "dpfact_app/client_app.py", "dpfact_app/server_app.py",
)  # fmt: skip
"""The files of the installed Flower App, dpfact-app by the publisher dpfact-flower."""


def init(
    folder: opt.Folder,
    settings: opt.Set = None,
    publisher: Annotated[str, Option(help="Your Flower account, for publishing.")] = "your-name",
) -> None:
    """Create your own Flower project: code, settings, README, Dockerfile.

    FOLDER must be new or empty. The project gets the name of FOLDER. Settings such as -s epsilon=2
    -s rank=30 are written into the project's pyproject.toml. To run the project, read its README.
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
        raise SettingsError(f"FOLDER: {folder} is not empty; name another folder")
    given = opt.parse_assignments(settings)
    checked = RunConfig.read(opt.run_config(opt.APP_FOLDER, settings)).write()
    for file in FILES:
        text = (opt.APP_FOLDER / file).read_text(encoding="utf-8").replace("dpfact-app", name)
        if file == "pyproject.toml":
            text = text.replace('"dpfact-flower"', f'"{publisher}"')
            for key in given:  # the run config has a line for every key
                line = tomli_w.dumps({key: checked[key]}).strip().replace("\\", r"\\")
                text = re.sub(rf"^{key} = .*$", line, text, flags=re.M)
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    say(f"{folder / 'README.md'} explains how to run the project")
