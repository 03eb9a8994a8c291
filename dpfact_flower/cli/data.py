"""`dpfact data`: from EHR tables, or made-up patients, to one file per site."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_type_hints

import typer
from rich.markup import escape
from rich.table import Table

from dpfact_flower.cli.named import (
    read_event_tables,
    read_files,
    read_groups,
    read_labels,
    read_lists,
    read_named,
    read_roll_ups,
    read_top,
)
from dpfact_flower.cli.options import Out, console
from dpfact_flower.cli.talk import progress
from dpfact_flower.cli.used import Force, refuse_used

if TYPE_CHECKING:
    from dpfact_flower.data.readers.steps import Options
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
Codes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=FILE",
        help="Public code list of a mode (.json, .csv, or one code per line); for all or none.",
    ),
]
Rolled = Annotated[
    list[str] | None,
    typer.Option(
        "--roll-up",
        metavar="[NAME=]HOW",
        help="Replace a mode's codes (default: of diagnoses) by groups: icd3, chapter, ccs, first2 "
        "(so many characters), or a file of code and group.",
    ),
]
Memory = Annotated[str, typer.Option(help="What DuckDB may use before it spills to disk.")]
Least = Annotated[
    int, typer.Option(help="Sites with fewer patients are merged into one, named other.", min=1)
]
Drugs = Annotated[bool, typer.Option("--drugs", help="Add a mode of drugs.")]


class Asked(NamedTuple):
    """What every reader's command is asked, and how it is by default."""

    out: Out
    top: Top = "0"
    codes: Codes = None
    rolled_up: Rolled = None
    min_patients: Least = 1
    memory: Memory = "2GB"
    force: Force = False

    def options(self, modes: Sequence[str], default: str = "diagnoses") -> Options:
        """As readers take them; `default` is the mode of a roll-up without a name."""
        found: Options = {
            "vocabularies": read_lists(self.codes, modes),
            "rolled_up": read_roll_ups(self.rolled_up, modes, default),
            "min_patients": self.min_patients,
            "memory": self.memory,
        }
        if self.top:
            found["top"] = None if self.top == "0" else read_top(self.top)
        return found


Read = Callable[..., "Cohort"]


def _reader(**defaults: Any) -> Callable[[Read], Read]:
    """Make a command of a function that reads a cohort: its own options, and those of `Asked`.

    Parameters
    ----------
    **defaults
        Of fields of `Asked`, where they are others.
    """

    def register(read: Read) -> Read:
        hints = get_type_hints(read, localns={"Cohort": Any}, include_extras=True)
        own = [p for p in inspect.signature(read).parameters.values() if p.name != "asked"]
        shared = get_type_hints(Asked, include_extras=True)

        def command(**given: Any) -> None:
            asked = Asked(**{name: given.pop(name) for name in Asked._fields})
            _save(lambda: read(**given, asked=asked), asked.out, force=asked.force)

        parameters = [
            *(p.replace(kind=p.KEYWORD_ONLY, annotation=hints[p.name]) for p in own),
            *(
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, annotation=shared[name],
                    default=(Asked._field_defaults | defaults).get(name, inspect.Parameter.empty),
                )
                for name in Asked._fields
            ),
        ]  # fmt: skip
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        command.__doc__ = read.__doc__
        data_app.command(read.__name__.removeprefix("data_"))(command)
        return read

    return register


@data_app.command("synthetic")
def data_synthetic(
    out: Out,
    preset: Annotated[str, typer.Argument()] = "demo",
    force: Force = False,
) -> None:
    """Make an EHR with planted phenotypes, some shared by all sites, some at one site only.

    PRESET is demo, demo-icu, paper-synthetic, paper-mimic, paper-icu or paper-cms.
    """
    from dpfact_flower.data import synthetic

    settings = synthetic.preset(preset)
    _save(lambda: synthetic.synthetic(settings), out, force=force)


@_reader(top="202x316")
def data_mimic3(folder: Tables, asked: Asked) -> Cohort:
    """MIMIC-III, full or demo: one site per care unit of the first ICU stay.

    FOLDER holds its tables, .csv or .csv.gz.
    """
    from dpfact_flower.data.readers import mimic3

    return mimic3.read(folder, **asked.options(mimic3.MODES))


@_reader(top="")
def data_mimic4(
    folder: Tables,
    asked: Asked,
    by: Annotated[
        Literal["careunit", "service"] | None,
        typer.Option(help="What a site is; default: care units, or services where icu is missing."),
    ] = None,
    drugs: Drugs = False,
) -> Cohort:
    """MIMIC-IV, full or demo: one site per first care unit, or per service.

    FOLDER holds hosp and icu, .csv or .csv.gz; without icu, and without --by, sites are services.
    ICD-9 and ICD-10 are kept apart. Without --top, 202 procedures, 316 diagnoses and 200 drugs are
    kept, the most frequent.
    """
    from dpfact_flower.data.readers import mimic4

    modes = (*mimic4.MODES, mimic4.DRUGS) if drugs else mimic4.MODES
    return mimic4.read(folder, site_of=by, drugs=drugs, **asked.options(modes))


@_reader()
def data_omop(
    source: Annotated[str, typer.Argument()],
    asked: Asked,
    name: Annotated[
        str, typer.Option(help="Public name of the site; with --by, of the whole cohort.")
    ],
    schema: Annotated[str, typer.Option(help="Of the tables in a database.")] = "",
    by: Annotated[
        Literal["none", "person", "visit"],
        typer.Option(help="Whose care site a site is; none: the whole CDM is one."),
    ] = "none",
    drugs: Drugs = False,
    window: Window = 30,
) -> Cohort:
    """OMOP CDM 5.3 or 5.4: procedures x conditions, and ingredients of drugs with --drugs.

    SOURCE is a folder of .csv, .csv.gz or .parquet, a DuckDB or SQLite file, or
    postgresql://user@host/database. A site is the whole CDM, or with --by the
    care site of the person or of the first visit.
    """
    from dpfact_flower.data.readers import omop

    modes = (*omop.MODES, omop.DRUGS) if drugs else omop.MODES
    return omop.read(
        source, name, schema=schema, site_of=by, drugs=drugs, window_days=window or None,
        **asked.options(modes, default="conditions"),
    )  # fmt: skip


@_reader()
def data_meds(
    folder: Tables,
    asked: Asked,
    name: Annotated[str, typer.Option(help="Public name of the site.")],
    mode: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PREFIX",
            help="A mode, and how its codes begin; default: procedures=PROCEDURE// and "
            "diagnoses=DIAGNOSIS//.",
        ),
    ] = None,
    window: Annotated[int, typer.Option(help="Days within which codes co-occur.", min=0)] = 30,
) -> Cohort:
    """MEDS, the Medical Event Data Standard: one site, without labels.

    FOLDER holds data and metadata.
    """
    from dpfact_flower.data.readers import meds

    modes = read_named("--mode", mode) or meds.MODES
    return meds.read(folder, name, modes=modes, window_days=window, **asked.options([*modes]))


@data_app.command("tns")
def data_tns(
    file: Tables,
    out: Out,
    name: Annotated[
        str, typer.Option(help="Public name of the site; with --parts, of the whole cohort.")
    ],
    patients: Annotated[int, typer.Option(help="Which mode is the patients', from 1.", min=1)] = 1,
    modes: Annotated[
        str, typer.Option(help="Names of the other modes, as procedures,diagnoses.")
    ] = "",
    codes: Codes = None,
    parts: Annotated[
        int, typer.Option(help="Sites to split the patients into, for a simulation.", min=1)
    ] = 1,
    force: Force = False,
) -> None:
    """A FROSTT tensor (.tns or .tns.gz), as one site.

    Codes are those of --codes, by position, or numbers from 1.
    """
    from dpfact_flower.data.readers import tns

    names = [part.strip() for part in modes.split(",")] if modes else None
    lists = read_lists(codes, names or [*read_files("--codes", codes)])
    _save(
        lambda: tns.read(
            file, name, patients=patients, modes=names, vocabularies=lists, parts=parts
        ),
        out,
        force=force,
    )


@_reader(min_patients=20)
def data_eicu(
    folder: Tables,
    asked: Asked,
    by: Annotated[
        Literal["region", "unittype", "hospital"], typer.Option(help="What a site is.")
    ] = "region",
    window: Window = 30,
) -> Cohort:
    """Make sites of eICU, full or demo: treatments x ICD-9 diagnoses, by region, unit or hospital.

    FOLDER holds its tables, .csv or .csv.gz.
    """
    from dpfact_flower.data.readers import eicu

    return eicu.read(folder, site_of=by, window_days=window or None, **asked.options(eicu.MODES))


@_reader(top="202x316")
def data_synpuf(
    folder: Tables,
    asked: Asked,
    claims: Annotated[
        Literal["inpatient", "outpatient"], typer.Option(help="Which claims are read.")
    ] = "inpatient",
    window: Window = 30,
    valid_procedures: Annotated[
        Path | None,
        typer.Option(help="List of valid ICD-9 procedures; about half of the values are others."),
    ] = None,
    drop_last_patient: Annotated[
        bool, typer.Option(help="For a file that was cut off: its last patient is incomplete.")
    ] = False,
    group: Annotated[
        list[str] | None,
        typer.Option(metavar="SITE=1,2,3", help="Samples of a site; default: one site a sample."),
    ] = None,
) -> Cohort:
    """CMS DE-SynPUF claims: one site per sample, or per --group of samples.

    FOLDER holds their files, .csv or .csv.gz.
    """
    from dpfact_flower.data.readers import synpuf
    from dpfact_flower.data.vocabulary import load_codes

    valid = load_codes(valid_procedures, "procedures") if valid_procedures else None
    return synpuf.read(
        folder, care=claims, window_days=window or None, valid_procedures=valid,
        groups=read_groups(group), drop_last_patient=drop_last_patient or None,
        **asked.options(synpuf.MODES),
    )  # fmt: skip


@_reader(top="202x316")
def data_nhds(
    file: Tables,
    asked: Asked,
    by: Annotated[
        Literal["region", "ownership"],
        typer.Option(help="What a site is; region: each in two, under 300 beds or more."),
    ] = "region",
) -> Cohort:
    """National Hospital Discharge Survey 2010: a row is a discharge, newborns are left out.

    FILE is NHDS10.PU.txt, plain or packed as .bz2 or .gz.
    """
    from dpfact_flower.data.readers import nhds

    return nhds.read(file, site_of=by, **asked.options(nhds.MODES))


@_reader(top="")
def data_events(
    asked: Asked,
    mode: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=FILE[,COLUMN=NAME]",
            help="A feature mode and its table (.csv, .csv.gz, .parquet, or a pattern such as "
            "rx_*.csv); two or more. Columns of its own as patient=, code=, time=, encounter=, "
            "description=.",
        ),
    ],
    name: Annotated[
        str, typer.Option(help="Public name of the site; with --sites, of the whole cohort.")
    ],
    window: Window = 30,
    labels: Annotated[
        Path | None, typer.Option(help="Table of patient and died (0, or 1: death in hospital).")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE[,KEY=VALUE]",
            help="A label, in the column NAME, or in column=; missing=0 labels patients who are "
            "not in the table; patient= names their column. May be repeated.",
        ),
    ] = None,
    sites: Annotated[
        Path | None, typer.Option(help="Table of patient and site, for a simulation.")
    ] = None,
    patient: Annotated[str, typer.Option(help="Column of the patient.")] = "patient",
    code: Annotated[str, typer.Option(help="Column of the code.")] = "code",
    time: Annotated[str, typer.Option(help="Column of the date or time.")] = "time",
    encounter: Annotated[str, typer.Option(help="Column of the encounter.")] = "encounter",
    description: Annotated[
        str, typer.Option(help="Column of a code's description, if any.")
    ] = "description",
    time_format: Annotated[
        str, typer.Option(help="How times are written, as %d.%m.%Y %H:%M; default: ISO 8601.")
    ] = "",
    delimiter: Annotated[
        str, typer.Option(help="Of CSV; default: what the first line has most of: , ; | or \\t.")
    ] = "",
    encoding: Annotated[str, typer.Option(help="Of CSV: utf-8, latin-1 or utf-16.")] = "utf-8",
) -> Cohort:
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
    from dpfact_flower.data.tables import Dialect

    columns = event_tables.Columns(patient, code, time, encounter, description)
    dialect = Dialect(delimiter, encoding)
    tables = read_event_tables(mode, columns, dialect, time_format)
    return event_tables.read(
        tables, name, columns=columns, window_days=window or None, sites=sites,
        labels=read_labels(labels, label), dialect=dialect, **asked.options([*tables]),
    )  # fmt: skip


@data_app.command("show")
def data_show(
    folder: Annotated[Path, typer.Argument()],
) -> None:
    """Sites of a folder that dpfact data wrote, and what was read, kept and left out."""
    from dpfact_flower.data.site_data import Cohort

    _show(Cohort.load(folder))


def _save(make: Callable[[], Cohort], out: Path, *, force: bool) -> None:
    """Make a cohort and write it, unless the folder holds another one; say what was done."""
    from dpfact_flower.data.progress import watched
    from dpfact_flower.data.site_data import COHORT, remove_cohort

    used = refuse_used(out, COHORT, "a cohort", force=force)
    with progress() as watch, watched(watch):
        cohort = make()
        out.mkdir(parents=True, exist_ok=True)
        if used:
            remove_cohort(out)
        cohort.save(out, watch=watch)
    _show(cohort)
    console.print("written to", escape(str(out)), soft_wrap=True)


def _show(cohort: Cohort) -> None:
    if cohort.account:
        counts = Table("where", "what", "count", title="read, kept and left out")
        for where, what, count in cohort.account:
            counts.add_row(escape(where), escape(what), f"{count:,}")
        console.print(counts)
    labels = cohort.labels
    table = Table(
        "site", f"{cohort.row_unit}s", "non-zeros", *(f"{escape(name)} is 1" for name in labels),
        title=cohort.name,
    )  # fmt: skip
    for row in cohort.summary():
        numbers = (f"{row.labelled[name]:,}" if name in row.labelled else "-" for name in labels)
        table.add_row(row.site, f"{row.patients:,}", f"{row.nonzeros:,}", *numbers)
    console.print(table)
    if not labels:
        console.print("no labels")
    for vocabulary in cohort.vocabularies:
        console.print(escape(f"{vocabulary.name}: {len(vocabulary):,} codes"), soft_wrap=True)
