"""Build the `dpfact` command from its subcommands, and report errors."""

import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import click
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand

from dpfact_flower.cli import options as opt
from dpfact_flower.cli.centre import centre_app, status, submit, superlink
from dpfact_flower.cli.data import data_app
from dpfact_flower.cli.options import console, say
from dpfact_flower.cli.privacy import audit, ledger_app, plan
from dpfact_flower.cli.results import compare, export, label, report, review, survey
from dpfact_flower.cli.run import demo, init, run, simulate
from dpfact_flower.cli.site import keys_app, site_app
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

_SETTINGS: dict[str, type[Settings]] = {
    "Where (run config)": AppSettings,
    "Run (run config)": RunSettings,
    "Solver (run config)": SolverSettings,
    "Privacy (run config)": PrivacySettings,
    "Site (node config of a SuperNode)": SiteSettings,
}


def settings(flower_app: opt.FlowerApp = opt.APP_FOLDER) -> None:
    """Show every setting with its default, range and meaning.

    The tables show the library's defaults. Runs and dpfact audit use the defaults in the Flower
    App's config. A last line lists any settings for which the App has another default.
    """
    chosen, others = opt.app_config(flower_app), []
    for title, kind in _SETTINGS.items():
        table = Table("setting", "default", "allowed", "meaning", title=title, title_justify="left")
        for row in describe(kind):
            table.add_row(row.key, str(row.default), row.allowed, row.help)
            if chosen.get(row.key, row.default) != row.default:
                others.append(f"{row.key} = {chosen[row.key]}")
        console.print(table)
    if others:
        say(f"The Flower App in {flower_app} has different defaults: {', '.join(others)}")


class _Command(TyperCommand):
    """A command that suggests ``-s epsilon=VALUE`` to a user who writes ``--epsilon 4``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            key = error.option_name.lstrip("-")
            keys = {row.key for kind in _SETTINGS.values() for row in describe(kind)}
            if key not in keys or "settings" not in {param.name for param in self.params}:
                raise
            hint = f"{error.message} It is a setting: write -s {key}=VALUE."
            raise click.UsageError(hint, ctx) from None


app = typer.Typer(name="dpfact", no_args_is_help=True, pretty_exceptions_enable=False)
_PANELS: dict[str, tuple[Callable[..., None] | typer.Typer, ...]] = {
    "Runs": (demo, run, simulate),
    "Results": (report, compare, export, label, review, survey),
    "Before a run": (plan, init, settings, data_app),
    "Privacy": (audit, ledger_app, keys_app),
    "Deployment": (submit, status, centre_app, site_app),
}
for panel, commands in _PANELS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel)
        else:
            app.command(cls=_Command, rich_help_panel=panel)(command)
app.command(rich_help_panel="Deployment", **opt.PASSED_ON)(superlink)


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
    """Learn phenotypes from patients of several hospitals, with Flower and differential privacy.

    Start with dpfact demo. To see a command's help, add --help, as in dpfact run --help.
    """


def main() -> None:
    """Run the command line. On a `DPFactError` or `OSError`, print one line and exit with 2."""
    try:
        app()
    except (DPFactError, OSError) as error:
        kind = error.code if isinstance(error, DPFactError) else "file"
        text = f"[red]error[/red] ({kind}): {escape(str(error))}"
        Console(stderr=True).print(text, soft_wrap=True)
        sys.exit(2)
