"""The `dpfact` command as a whole: its subcommands, and its handling of errors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dpfact_flower.cli.audit import audit
from dpfact_flower.cli.centre import centre_app
from dpfact_flower.cli.data import data_app
from dpfact_flower.cli.deployment import status, submit, superlink
from dpfact_flower.cli.export import export, label, review
from dpfact_flower.cli.init import init
from dpfact_flower.cli.keys import keys_app
from dpfact_flower.cli.ledger import ledger_app
from dpfact_flower.cli.options import (
    APP_FOLDER,
    PASSED_ON,
    AsJson,
    FlowerApp,
    app_config,
    console,
    echo_json,
)
from dpfact_flower.cli.plan import budget, plan
from dpfact_flower.cli.run import compare, demo, report, run, simulate
from dpfact_flower.cli.site import site_app
from dpfact_flower.cli.survey import survey
from dpfact_flower.errors import DPFactError
from dpfact_flower.settings import (
    AppSettings,
    PrivacySettings,
    RunSettings,
    Settings,
    SiteSettings,
    SolverSettings,
    describe,
)

# Imports are inside the commands, because `dpfact --help` must not wait for numba.

# The commands' own texts explain their arguments, because Flower requires Typer below 0.21, which
# loses an argument's help with click 8.5.

_SETTINGS: dict[str, type[Settings]] = {
    "Where (run config)": AppSettings,
    "Run (run config)": RunSettings,
    "Solver (run config)": SolverSettings,
    "Privacy (run config)": PrivacySettings,
    "Site (node config of a SuperNode)": SiteSettings,
}

app = typer.Typer(
    name="dpfact",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_RUNS, _RESULTS, _BEFORE, _PRIVACY = "Runs", "Results", "Before a run", "Privacy"
_DEPLOYMENT = "Deployment"
_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    _RUNS: (demo, run, simulate),
    _RESULTS: (report, compare, export, label, review, survey),
    _BEFORE: (plan, init),
    _PRIVACY: (budget, audit),
    _DEPLOYMENT: (submit, status),
}
for panel, commands in _PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.command(context_settings=PASSED_ON, add_help_option=False, rich_help_panel=_DEPLOYMENT)(
    superlink
)
app.add_typer(data_app, name="data", rich_help_panel=_BEFORE)
app.add_typer(ledger_app, name="ledger", rich_help_panel=_PRIVACY)
app.add_typer(keys_app, name="keys", rich_help_panel=_PRIVACY)
app.add_typer(centre_app, name="centre", rich_help_panel=_DEPLOYMENT)
app.add_typer(site_app, name="site", rich_help_panel=_DEPLOYMENT)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"dpfact-flower {version('dpfact-flower')} (flwr {version('flwr')})")
        raise typer.Exit


@app.callback()
def every_command(
    asked: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Learn phenotypes from several hospitals' patients, with Flower and differential privacy.

    Start with: dpfact demo. For the help of a command: dpfact run --help
    """


@app.command(rich_help_panel=_BEFORE)
def settings(flower_app: FlowerApp = APP_FOLDER, as_json: AsJson = False) -> None:
    """Show every setting with its default, range and meaning.

    The defaults are the library's. dpfact run and dpfact simulate use the Flower App's config, and
    the defaults that differ there are listed at the end.
    """
    chosen = app_config(flower_app)
    if as_json:
        echo_json([row._asdict() for kind in _SETTINGS.values() for row in describe(kind)])
        return
    others: list[str] = []
    for title, kind in _SETTINGS.items():
        table = Table("setting", "default", "allowed", "meaning", title=title, title_justify="left")
        for row in describe(kind):
            table.add_row(row.key, str(row.default), row.allowed, row.help)
            if chosen.get(row.key, row.default) != row.default:
                others.append(f"{row.key} = {chosen[row.key]}")
        console.print(table)
    if others:
        text = f"The Flower App in {flower_app} has other defaults: {', '.join(others)}"
        console.print(escape(text), soft_wrap=True)


def main() -> None:
    """Run the command line. Our own errors and file errors give one line and exit code 2."""
    try:
        app()
    except (DPFactError, OSError) as error:
        kind = error.code if isinstance(error, DPFactError) else "file"
        Console(stderr=True).print(
            f"[red]error[/red] ({kind}):", escape(str(error)), soft_wrap=True
        )
        sys.exit(2)
