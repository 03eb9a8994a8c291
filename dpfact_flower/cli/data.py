"""`dpfact data`: from EHR tables, or made-up patients, to one file per site."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from dpfact_flower.cli.options import Out, console, read_sizes
from dpfact_flower.errors import SettingsError

if TYPE_CHECKING:
    from dpfact_flower.data.site_data import Cohort

# What each command needs is imported inside it: `dpfact --help` must not wait for numba.
# ruff: noqa: PLC0415


data_app = typer.Typer(help="Turn EHR tables into one file per site.", no_args_is_help=True)
Tables = Annotated[Path, typer.Argument()]
Top = Annotated[
    str,
    typer.Option(help="How many of each mode's most frequent codes to keep, as 202x316; 0: all."),
]
Window = Annotated[
    int, typer.Option(help="Days within which codes co-occur; 0 means the same encounter.", min=0)
]


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
    """Make an EHR with planted phenotypes, some shared by all sites, some at one site only.

    PRESET is demo, demo-icu, paper-synthetic, paper-mimic, paper-icu or paper-cms.
    """
    from dpfact_flower.data import synthetic

    _save(synthetic.synthetic(synthetic.preset(preset)), out)


@data_app.command("mimic3")
def data_mimic3(folder: Tables, out: Out, top: Top = "202x316") -> None:
    """MIMIC-III, full or demo: one site per care unit of the first ICU stay.

    FOLDER holds its tables, .csv or .csv.gz.
    """
    from dpfact_flower.data.readers import mimic3

    _save(mimic3.read(folder, top=_top(top)), out)


@data_app.command("eicu")
def data_eicu(
    folder: Tables, out: Out, by: SiteOf = SiteOf.region, top: Top = "0x0", window: Window = 30
) -> None:
    """Make sites of eICU, full or demo: treatments x ICD-9 diagnoses, by region, unit or hospital.

    FOLDER holds its tables, .csv or .csv.gz. Sites with fewer than 20 patients are merged into one,
    named other.
    """
    from dpfact_flower.data.readers import eicu

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
    """CMS DE-SynPUF claims: one site per sample.

    FOLDER holds their files, .csv or .csv.gz.
    """
    from dpfact_flower.data.readers import synpuf
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
        str, typer.Option(help="Public name of the site; with --sites, of the whole cohort.")
    ],
    codes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="Public code list of a mode (.json, .csv, or one code per line); for all or none.",
        ),
    ] = None,
    window: Window = 30,
    labels: Annotated[
        Path | None, typer.Option(help="Table of patient and died (0, or 1: death in hospital).")
    ] = None,
    sites: Annotated[
        Path | None, typer.Option(help="Table of patient and site, for a simulation.")
    ] = None,
    top: Annotated[
        str,
        typer.Option(help="Without --codes: how many of each mode's most frequent codes to keep."),
    ] = "",
    patient: Annotated[str, typer.Option(help="Column of the patient.")] = "patient",
    code: Annotated[str, typer.Option(help="Column of the code.")] = "code",
    time: Annotated[str, typer.Option(help="Column of the date or time.")] = "time",
    encounter: Annotated[str, typer.Option(help="Column of the encounter.")] = "encounter",
    description: Annotated[
        str, typer.Option(help="Column of a code's description, if any.")
    ] = "description",
) -> None:
    """Any EHR, from one table per feature mode, one row per event.

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
    With --window 0, codes of one encounter do, and the tables need a column
    encounter in place of time. A table may have both; a code then counts once
    for each encounter and time. A repeated row counts once.

    For a simulation on open data, --sites splits the patients into sites, and
    --codes may be omitted.
    """  # noqa: D301 - \b, a backspace, keeps lines as they are
    from dpfact_flower.data.readers import event_tables
    from dpfact_flower.data.vocabulary import load_codes

    tables, lists = _named_files("--mode", mode), _named_files("--codes", codes)
    if lists and lists.keys() != tables.keys():
        raise SettingsError(
            f"--codes: need a list for each of {', '.join(tables)}, got {', '.join(lists)}"
        )
    cohort = event_tables.read(
        tables,
        name,
        columns=event_tables.Columns(patient, code, time, encounter, description),
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


def _top(text: str) -> tuple[int | None, ...]:
    """How many codes of each mode to keep; 0 is all."""
    return tuple(size or None for size in read_sizes("--top", text))


def _named_files(option: str, values: Sequence[str] | None) -> dict[str, Path]:
    """Files by name from ``NAME=FILE``, in the order given."""
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
    console.print("written to", escape(str(out)), soft_wrap=True)


def _show(cohort: Cohort) -> None:
    table = Table("site", "patients", "non-zeros", "deaths", title=cohort.name)
    for row in cohort.summary():
        table.add_row(row.site, f"{row.patients:,}", f"{row.nonzeros:,}", _count(row.deaths))
    console.print(table)


def _count(deaths: int | None) -> str:
    return "no labels" if deaths is None else str(deaths)
