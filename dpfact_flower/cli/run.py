"""`dpfact run`, `simulate`, `report`, `compare`: a whole run, and what it leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from dpfact_flower.cli.options import (
    APP_FOLDER,
    FlowerApp,
    Out,
    Set,
    check_app,
    console,
    run_config,
)
from dpfact_flower.cli.used import Force, refuse_used
from dpfact_flower.errors import SettingsError

# What each command needs is imported inside it: `dpfact --help` must not wait for numba.
# ruff: noqa: PLC0415


NOTHING_LEARNED = 3
"""Exit code of a run that was carried out as asked, and whose phenotypes explain nothing."""

Data = Annotated[str, typer.Option(help="Folder that dpfact data wrote, or synthetic:PRESET.")]


def run(
    out: Out,
    data: Data = "synthetic:demo",
    settings: Set = None,
    flower_app: FlowerApp = APP_FOLDER,
    force: Force = False,
) -> None:
    """Run in this process, as many sites at a time as there are threads; no Ray, no SuperLink."""
    from dpfact_flower.runtime.federate import federate

    _refuse_finished(out, settings, force=force)
    _finish(federate(run_config(flower_app, settings, data=data, out=str(out))))


def simulate(
    out: Out,
    data: Data = "synthetic:demo",
    settings: Set = None,
    flower_app: FlowerApp = APP_FOLDER,
    cpus: Annotated[int, typer.Option(help="Processors for each virtual client.", min=1)] = 1,
    force: Force = False,
) -> None:
    """Run in Flower's simulation (`flwr run`), with a SuperLink that is stopped at the end."""
    from dpfact_flower.runtime.config import RunConfig, prepare_data
    from dpfact_flower.runtime.superlink import local_superlink

    check_app(flower_app)
    _refuse_finished(out, settings, force=force)
    config = run_config(flower_app, settings, data=data, out=str(out))
    places = RunConfig.read(config).app
    sites = len(prepare_data(places))
    if sites == 0:
        raise SettingsError("data: a simulation needs data")
    # A SuperLink resolves relative paths against a folder of its own.
    config["out"] = str(places.run_folder)
    if places.state_dir:
        config["state-dir"] = str(places.sites_folder)
    if not places.synthetic_preset:
        config["data"] = str(places.cohort_folder)
    federation = f"num-supernodes={sites} client-resources-num-cpus={cpus}"
    with local_superlink(places.sites_folder / "flwr", simulation=True) as superlink:
        superlink.run(flower_app, config, federation_config=federation)
    _finish(places.run_folder)


def report(
    folder: Annotated[Path, typer.Argument()],
    beside: Annotated[
        list[Path] | None,
        typer.Option(help="Another finished run to look for the phenotypes in; may be repeated."),
    ] = None,
) -> None:
    """Rewrite report.html from the files in a finished run's folder.

    With --beside, the report says of each phenotype whether it is found again in other runs: with
    other noise, without noise, at another epsilon. What was found is kept in beside.json.
    """
    from dpfact_flower.evaluation.beside import beside as matched
    from dpfact_flower.evaluation.beside import write_beside
    from dpfact_flower.evaluation.report import write_report

    if beside:
        write_beside(folder, matched(folder, beside))
    console.print("report:", escape(str(write_report(folder))), soft_wrap=True)


def compare(
    folders: Annotated[list[Path], typer.Argument()],
    out: Annotated[
        Path | None, typer.Option(help="A page to write, too: all that, and matched phenotypes.")
    ] = None,
) -> None:
    """Print a Markdown table of several finished runs, one row per folder.

    With --out compare.html, also write a page: epsilon against quality, the phenotypes of the first
    run in each of the others, and the table.
    """
    from dpfact_flower.evaluation.comparison import comparison
    from dpfact_flower.evaluation.comparison_page import write_comparison

    # Not through rich, which would wrap the rows.
    typer.echo(comparison(folders))
    if out is not None:
        console.print("page:", escape(str(write_comparison(folders, out))), soft_wrap=True)


def _refuse_finished(out: Path, settings: list[str] | None, *, force: bool) -> None:
    """Refuse a finished run's folder; one that is to be continued is the server's to look at."""
    from dpfact_flower.evaluation.run_folder import SUMMARY

    refuse_used(out, SUMMARY, "a finished run", force=force or "resume=true" in (settings or ()))


def _finish(folder: Path) -> None:
    """Show a run in a few lines, and where the rest is."""
    from dpfact_flower.evaluation.headline import headline
    from dpfact_flower.evaluation.run_folder import REPORT, SUMMARY, read_summary

    lines, summary = Table.grid(padding=(0, 2)), read_summary(folder)
    for label, text in headline(summary):
        lines.add_row(f"[bold]{label}[/bold]", escape(text))
    console.print(lines)
    for name in (SUMMARY, REPORT):
        if (folder / name).exists():
            console.print(escape(str(folder / name)), soft_wrap=True)
    if summary.measured and summary.measured.explains_nothing:
        raise typer.Exit(NOTHING_LEARNED)
