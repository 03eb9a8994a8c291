"""The `dpfact` command: prepare data, plan, run, report, audit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dpfact_flower.cli_audit import audit
from dpfact_flower.cli_ledger import ledger_app
from dpfact_flower.cli_options import (
    APP_FOLDER,
    FlowerApp,
    Set,
    app_config,
    check_app,
    read_sizes,
    run_config,
)
from dpfact_flower.cli_plan import budget, plan
from dpfact_flower.errors import DPFactError, SettingsError
from dpfact_flower.settings import (
    AppSettings,
    PrivacySettings,
    RunSettings,
    SiteSettings,
    SolverSettings,
    describe,
)

if TYPE_CHECKING:
    from dpfact_flower.data.site_data import Cohort

# What each command needs is imported inside it: `dpfact --help` must not wait for numba.
# ruff: noqa: PLC0415

# Arguments are explained in the commands' own texts: Flower asks for Typer below 0.21, which loses
# an argument's help with click 8.5.

app = typer.Typer(
    name="dpfact",
    help="Federated, differentially private computational phenotyping with Flower.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Turn EHR tables into one file a site.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(ledger_app, name="ledger")
for command in (plan, budget, audit):
    app.command()(command)
_console = Console()


def _folder(text: str) -> Path:
    """A folder to write; what cannot be one is refused before hours of work, not after."""
    path = Path(text).expanduser()
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not text.strip() or not nearest.is_dir():
        raise typer.BadParameter(f"need a folder, got {text!r}")
    return path


Out = Annotated[
    Path,
    typer.Option("--out", "-o", parser=_folder, metavar="FOLDER", help="Folder to write."),
]
Tables = Annotated[Path, typer.Argument()]
Top = Annotated[
    str, typer.Option(help="Most frequent codes of each mode to keep, as 202x316; 0 keeps all.")
]
Window = Annotated[
    int, typer.Option(help="Days within which codes co-occur; 0 is the same encounter.", min=0)
]
Data = Annotated[str, typer.Option(help="Folder that dpfact data wrote, or synthetic:PRESET.")]


class SiteOf(StrEnum):
    """How eICU is split into sites."""

    region = "region"
    unittype = "unittype"
    hospital = "hospital"


class Claims(StrEnum):
    """Which SynPUF claims are read."""

    inpatient = "inpatient"
    outpatient = "outpatient"


@data_app.command("synthetic")
def data_synthetic(
    out: Out,
    preset: Annotated[str, typer.Argument()] = "demo",
) -> None:
    """Make an EHR with planted phenotypes, some shared by all sites, some at one only.

    PRESET is demo, demo-icu, paper-synthetic, paper-mimic, paper-icu or paper-cms.
    """
    from dpfact_flower.data import synthetic

    _save(synthetic.synthetic(synthetic.preset(preset)), out)


@data_app.command("mimic3")
def data_mimic3(folder: Tables, out: Out, top: Top = "202x316") -> None:
    """MIMIC-III, full or demo: one site a care unit of the first ICU stay.

    FOLDER holds its tables, .csv or .csv.gz.
    """
    from dpfact_flower.data import mimic3

    _save(mimic3.read(folder, top=_top(top)), out)


@data_app.command("eicu")
def data_eicu(
    folder: Tables, out: Out, by: SiteOf = SiteOf.region, top: Top = "0x0", window: Window = 30
) -> None:
    """Make sites of eICU, full or demo: treatments x ICD-9 diagnoses, by region, unit or hospital.

    FOLDER holds its tables, .csv or .csv.gz. Sites with fewer than 20 patients are merged into one,
    named other.
    """
    from dpfact_flower.data import eicu

    _save(eicu.read(folder, site_of=by.value, top=_top(top), window_days=window or None), out)


@data_app.command("synpuf")
def data_synpuf(
    folder: Tables,
    out: Out,
    claims: Claims = Claims.inpatient,
    top: Top = "202x316",
    window: Window = 30,
    valid_procedures: Annotated[
        Path | None,
        typer.Option(help="List of valid ICD-9 procedures; about half of the values are others."),
    ] = None,
    drop_last_patient: Annotated[
        bool, typer.Option(help="For a file that was cut off: its last patient is incomplete.")
    ] = False,
) -> None:
    """CMS DE-SynPUF claims: one site a sample.

    FOLDER holds their files, .csv or .csv.gz.
    """
    from dpfact_flower.data import synpuf
    from dpfact_flower.data.vocabulary import load_codes

    cohort = synpuf.read(
        folder,
        care=claims.value,
        top=_top(top),
        window_days=window or None,
        valid_procedures=load_codes(valid_procedures, "procedures") if valid_procedures else None,
        drop_last_patient=drop_last_patient or None,
    )
    _save(cohort, out)


@data_app.command("events")
def data_events(
    out: Out,
    mode: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=FILE",
            help="A feature mode and its table (.csv, .csv.gz, .parquet); two or more.",
        ),
    ],
    name: Annotated[
        str, typer.Option(help="Public name of the site; with --sites, name of the whole.")
    ],
    codes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="Public code list of a mode (.json, .csv, or a code a line); for all or none.",
        ),
    ] = None,
    window: Window = 30,
    labels: Annotated[
        Path | None, typer.Option(help="Table of patient and died (0, 1: death in hospital).")
    ] = None,
    sites: Annotated[
        Path | None, typer.Option(help="Table of patient and site: for a simulation.")
    ] = None,
    top: Annotated[
        str, typer.Option(help="Without --codes: most frequent codes of each mode, as 202x316.")
    ] = "",
    patient: Annotated[str, typer.Option(help="Column of the patient.")] = "patient",
    code: Annotated[str, typer.Option(help="Column of the code.")] = "code",
    time: Annotated[str, typer.Option(help="Column of the date or time.")] = "time",
    encounter: Annotated[str, typer.Option(help="Column of the encounter.")] = "encounter",
    description: Annotated[
        str, typer.Option(help="Column of a code's description, if any.")
    ] = "description",
) -> None:
    """Any EHR, from one table a feature mode: a row an event.

    A hospital makes its own file, NAME.npz, with the code lists that all sites
    agreed on:

    \b
      dpfact data events --name north --out /srv/dpfact \\
        --mode procedures=procedures.csv --codes procedures=procedures.json \\
        --mode diagnoses=diagnoses.csv --codes diagnoses=diagnoses.json

    \b
      procedures.csv            diagnoses.csv
      patient,time,code         patient,time,code
      17,2024-03-01,3605        17,2024-03-05 09:30,41401

    Codes at most --window days apart occur together: here once, in one cell.
    With --window 0 those of one encounter do, and the tables need a column
    encounter in place of time. A table may have both; a code then counts once
    for each encounter and time. The same row twice counts once.

    For a simulation on open data, --sites splits the patients into sites, and
    --codes may be left out.
    """  # noqa: D301 - \b, a backspace, keeps lines as they are
    from dpfact_flower.data import events
    from dpfact_flower.data.vocabulary import load_codes

    tables, lists = _named_files("--mode", mode), _named_files("--codes", codes)
    if lists and lists.keys() != tables.keys():
        raise SettingsError(
            f"--codes: need a list for each of {', '.join(tables)}, got {', '.join(lists)}"
        )
    cohort = events.read(
        tables,
        name,
        columns=events.Columns(patient, code, time, encounter, description),
        window_days=window or None,
        sites=sites,
        labels=labels,
        top=_top(top) if top else None,
        vocabularies=[load_codes(lists[mode], mode) for mode in tables] if lists else None,
    )
    _save(cohort, out)


@data_app.command("show")
def data_show(
    folder: Annotated[Path, typer.Argument()],
) -> None:
    """Sites of a folder that dpfact data wrote: patients, non-zeros, deaths."""
    from dpfact_flower.data.site_data import Cohort

    _show(Cohort.load(folder))


@app.command()
def run(
    out: Out,
    data: Data = "synthetic:demo",
    settings: Set = None,
    flower_app: FlowerApp = APP_FOLDER,
) -> None:
    """Run in this process, as many sites at a time as there are threads: no Ray, no SuperLink."""
    from dpfact_flower.federate import federate

    _finish(federate(run_config(flower_app, settings, data=data, out=str(out))))


@app.command()
def simulate(
    out: Out,
    data: Data = "synthetic:demo",
    settings: Set = None,
    flower_app: FlowerApp = APP_FOLDER,
    cpus: Annotated[int, typer.Option(help="Processors for each virtual client.", min=1)] = 1,
) -> None:
    """Run in Flower's simulation (`flwr run`), with a SuperLink that is stopped at the end."""
    from dpfact_flower.serve import RunConfig, prepare_data
    from dpfact_flower.superlink import local_superlink

    check_app(flower_app)
    config = run_config(flower_app, settings, data=data, out=str(out))
    places = RunConfig.read(config).app
    cohort = prepare_data(places)
    if cohort is None:
        raise SettingsError("data: a simulation needs data")
    # A SuperLink resolves relative paths against a folder of its own.
    config["out"] = str(places.run_folder)
    if places.state_dir:
        config["state-dir"] = str(places.sites_folder)
    if not places.synthetic_preset:
        config["data"] = str(places.cohort_folder)
    federation = f"num-supernodes={len(cohort.sites)} client-resources-num-cpus={cpus}"
    with local_superlink(places.sites_folder / "flwr", simulation=True) as superlink:
        superlink.run(flower_app, config, federation_config=federation)
    _finish(places.run_folder)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument()],
) -> None:
    """Write report.html anew from the files of a finished run's folder."""
    from dpfact_flower.evaluation.report import write_report

    _console.print("report:", escape(str(write_report(folder))), soft_wrap=True)


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument()],
) -> None:
    """Print a Markdown table of several finished runs, a row each folder."""
    from dpfact_flower.evaluation.comparison import comparison

    # Not through rich, which would wrap the rows.
    typer.echo(comparison(folders))


@app.command()
def settings(flower_app: FlowerApp = APP_FOLDER) -> None:
    """Every setting with its default, range and meaning.

    The defaults are the library's. What the Flower App's config has in place of them, as dpfact run
    and dpfact simulate do, is named at the end.
    """
    chosen = app_config(flower_app)
    others: list[str] = []
    for title, kind in (
        ("Where (run config)", AppSettings),
        ("Run (run config)", RunSettings),
        ("Solver (run config)", SolverSettings),
        ("Privacy (run config)", PrivacySettings),
        ("Site (node config of a SuperNode)", SiteSettings),
    ):
        table = Table("setting", "default", "allowed", "meaning", title=title, title_justify="left")
        for row in describe(kind):
            table.add_row(row.key, str(row.default), row.allowed, row.help)
            if chosen.get(row.key, row.default) != row.default:
                others.append(f"{row.key} = {chosen[row.key]}")
        _console.print(table)
    if others:
        text = f"The Flower App in {flower_app} has other defaults: {', '.join(others)}"
        _console.print(escape(text), soft_wrap=True)


def main() -> None:
    """Run the command line; errors of ours, and of files, are one line and exit code 2."""
    try:
        app()
    except (DPFactError, OSError) as error:
        kind = error.code if isinstance(error, DPFactError) else "file"
        Console(stderr=True).print(
            f"[red]error[/red] ({kind}):", escape(str(error)), soft_wrap=True
        )
        sys.exit(2)


def _top(text: str) -> tuple[int | None, ...]:
    """How many codes of each mode to keep; 0 is all."""
    return tuple(size or None for size in read_sizes("--top", text))


def _named_files(option: str, values: Sequence[str] | None) -> dict[str, Path]:
    """Files by name from ``NAME=FILE``, in their order."""
    files: dict[str, Path] = {}
    for value in values or ():
        name, _, file = value.partition("=")
        if not name or not file:
            raise SettingsError(f"{option}: need NAME=FILE, got {value!r}")
        if name in files:
            raise SettingsError(f"{option}: {name} is given twice")
        files[name] = Path(file)
    return files


def _save(cohort: Cohort, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    cohort.save(out)
    _show(cohort)
    _console.print("written to", escape(str(out)), soft_wrap=True)


def _show(cohort: Cohort) -> None:
    table = Table("site", "patients", "non-zeros", "deaths", title=cohort.name)
    for row in cohort.summary():
        table.add_row(row.site, f"{row.patients:,}", f"{row.nonzeros:,}", _count(row.deaths))
    _console.print(table)


def _count(deaths: int | None) -> str:
    return "no labels" if deaths is None else str(deaths)


def _finish(folder: Path) -> None:
    """Show a run in a few lines, and where the rest is."""
    from dpfact_flower.evaluation.headline import headline
    from dpfact_flower.run_folder import REPORT, SUMMARY, read_summary

    lines = Table.grid(padding=(0, 2))
    for label, text in headline(read_summary(folder)):
        lines.add_row(f"[bold]{label}[/bold]", escape(text))
    _console.print(lines)
    for name in (SUMMARY, REPORT):
        if (folder / name).exists():
            _console.print(escape(str(folder / name)), soft_wrap=True)
