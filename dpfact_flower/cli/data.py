"""`dpfact data`: from EHR tables, or made-up patients, to one file per site."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_type_hints

import typer
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from dpfact_flower.cli.option_parsing import (
    read_event_tables,
    read_files,
    read_groups,
    read_labels,
    read_lists,
    read_named,
    read_roll_ups,
    read_top,
)
from dpfact_flower.cli.options import Force, Out, console, refuse_overwrite
from dpfact_flower.cli.verbosity import progress

if TYPE_CHECKING:
    from dpfact_flower.data.readers.script import Script
    from dpfact_flower.data.readers.steps import Options
    from dpfact_flower.data.site_data import Cohort

# What each command needs is imported inside it: `dpfact --help` must not wait for numba.
# ruff: noqa: PLC0415


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


def _command(
    read: Callable[..., Cohort], name: str, help_: str, own: Iterable[Parameter], **defaults: Any
) -> Callable[..., None]:
    """Command of a function that reads a cohort: its own options, and those of `Asked`.

    `defaults` are of fields of `Asked`, where they are others.
    """
    shared, usual = get_type_hints(Asked, include_extras=True), Asked._field_defaults | defaults

    def command(**given: Any) -> None:
        asked = Asked(**{field: given.pop(field) for field in Asked._fields})
        _save(lambda: read(**given, asked=asked), asked.out, force=asked.force)

    parameters = [
        *(parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own),
        *(
            Parameter(field, Parameter.KEYWORD_ONLY, annotation=shared[field],
                      default=usual.get(field, Parameter.empty))
            for field in Asked._fields
        ),
    ]  # fmt: skip
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__name__, command.__doc__ = name, help_
    return command


def _reader(**defaults: Any) -> Callable[[Callable[..., Cohort]], Callable[..., Cohort]]:
    """Register the command of a function, with its parameters beside `asked` as options."""

    def register(read: Callable[..., Cohort]) -> Callable[..., Cohort]:
        hints = get_type_hints(read, localns={"Cohort": Any}, include_extras=True)
        own = [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in signature(read).parameters.values()
            if parameter.name != "asked"
        ]
        name = read.__name__.removeprefix("data_")
        data_app.command(name)(_command(read, name, read.__doc__ or "", own, **defaults))
        return read

    return register


def _script_command(script: Script) -> Callable[..., None]:
    """Command of a reader that is a script."""

    def read(source: str, asked: Asked, schema: str = "", **given: Any) -> Cohort:
        from dpfact_flower.data.readers import runner

        own: dict[str, Any] = {}
        for name, option in script.options.items():
            value = given.pop(name)
            if isinstance(option.default, dict):
                value = read_named(f"--{name}", value)
            own[name] = value or option.default
        modes = script.chosen(own)
        if "window" in given:
            days = given.pop("window")
            given["window_days"] = days if script.window == "days alone" else days or None
        default = "diagnoses" if "diagnoses" in modes else modes[min(1, len(modes) - 1)]
        return runner.read(script, source, schema=schema, **given, **own,
                           **asked.options(modes, default))  # fmt: skip

    own: list[Parameter] = []

    def ask(name: str, kind: Any, default: Any = Parameter.empty) -> None:
        own.append(Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default))

    ask("source", Annotated[str, typer.Argument()])
    if script.named:
        ask("name", Annotated[str, typer.Option(help="Public name of the site, or of all sites.")])
    if script.source == "tables":
        ask("schema", Annotated[str, typer.Option(help="Of the tables in a database.")], "")
    for name, option in script.options.items():
        kind: Any = Literal[tuple(option.choices)] if option.choices else type(option.default)
        flags = [f"--{name.replace('_', '-')}"] if kind is bool else []
        least, shape = (1 if kind is int else None), ("NAME=VALUE" if kind is dict else None)
        shown = typer.Option(*flags, help=option.help, min=least, metavar=shape)
        usual = option.default if kind is not dict and option.default != "" else None
        ask(name, Annotated[(list[str] if kind is dict else kind) | None, shown], usual)
    if script.window != "encounter":
        ask("window", Window, 30)
    sizes = "x".join(map(str, script.modes.values()))
    top = "" if script.options.keys() & script.modes else sizes
    return _command(read, script.name, script.help, own, top=top, min_patients=script.min_patients)


class _Readers(TyperGroup):
    """Also readers that are scripts: ours, an installed package's, or a file."""

    def list_commands(self, ctx: Any) -> list[str]:
        from dpfact_flower.data.readers.script import script_names

        return [*script_names(), *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from dpfact_flower.data.readers.script import find_script

        script = None if cmd_name in self.commands else find_script(cmd_name)
        if script is None:
            return super().get_command(ctx, cmd_name)
        alone = typer.Typer()
        alone.command(cmd_name)(_script_command(script))
        return typer.main.get_command(alone)


data_app = typer.Typer(
    help="Turn EHR tables into one file per site; a script of your own too: "
    "dpfact data READER.sql SOURCE.",
    no_args_is_help=True,
    cls=_Readers,
)


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

    used = refuse_overwrite(out, COHORT, "a cohort", force=force)
    with progress() as watch, watched(watch):
        cohort = make()
        out.mkdir(parents=True, exist_ok=True)
        if used:
            remove_cohort(out)
        cohort.save(out, watch=watch)
    _show(cohort)
    console.print("written to", escape(str(out)), soft_wrap=True)


def _show(cohort: Cohort) -> None:
    if cohort.read_report:
        counts = Table("where", "what", "count", title="read, kept and left out")
        for where, what, count in cohort.read_report:
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
