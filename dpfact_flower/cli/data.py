"""Define the commands of `dpfact data`, which write one data file per site."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option
from typer.core import TyperGroup

from dpfact_flower.cli import options as opt
from dpfact_flower.cli.options import console, progress, say
from dpfact_flower.data.readers import event_tables, runner, tns
from dpfact_flower.data.readers.event_tables import Columns, EventTable, LabelTable
from dpfact_flower.data.site_data import COHORT, Cohort, cohort_files
from dpfact_flower.data.tables import ENCODINGS, MEMORY, Dialect
from dpfact_flower.data.vocabulary import Vocabulary, load_codes
from dpfact_flower.errors import SettingsError, plural

_TOP = "Keep the N most frequent codes per mode, e.g. 202x316; 0: all."
Top = Annotated[str, Option(help=_TOP)]
Days = Annotated[
    int, Option("--window", help="Days within which codes co-occur; 0: same encounter.", min=0)
]
CodeLists = Annotated[
    list[str] | None,
    Option(
        metavar="NAME=FILE",
        help="Public code list of a mode (.json, .csv or a code per line). Give all lists or none.",
    ),
]
Rolled = Annotated[
    list[str] | None,
    Option(
        "--roll-up",
        metavar="[NAME=]HOW",
        help="Replace a mode's codes (default: diagnoses; OMOP: conditions) with groups: icd3, "
        "chapter, ccs, first2 (the first two characters), or a file of codes and groups.",
    ),
]
Name = Annotated[str, Option(help="Public name of the site, or of a cohort of several sites.")]
Memory = Annotated[str, Option(help="Memory that DuckDB may use before it spills to disk.")]
Least = Annotated[
    int, Option(help="Merge sites with fewer patients, which reveals that they are small.", min=1)
]


def _options(
    modes: Sequence[str], top: str, codes: list[str] | None, rolled_up: list[str] | None,
    min_patients: int, memory: str, default: str = "diagnoses",
) -> dict[str, Any]:  # fmt: skip
    """Return a reader's options. A roll-up without a mode's name is for the mode `default`."""
    rolled = [how if how.partition("=")[2] else f"{default}={how}" for how in rolled_up or ()]
    options: dict[str, Any] = {
        "vocabularies": _read_lists(codes, modes),
        "rolled_up": _read_named("--roll-up", rolled),
        "min_patients": min_patients,
        "memory": memory,
    }
    if top:
        sizes = None if top == "0" else opt.read_sizes("--top", top)
        options["top"] = sizes and tuple(size or None for size in sizes)  # 0 keeps all
    return options


def _command_of(reader: runner.Script) -> Callable[..., None]:
    def command(out: Path, force: bool, **given: Any) -> None:
        names = "top", "codes", "rolled_up", "min_patients", "memory"
        shared = {name: given.pop(name) for name in names}
        given |= {name: _option_value(name, option, given[name])
                  for name, option in reader.options.items()}  # fmt: skip
        modes = reader.chosen(given)
        default = "diagnoses" if "diagnoses" in modes else modes[min(1, len(modes) - 1)]
        options = _options(modes, **shared, default=default)
        _save(lambda: runner.read(reader, **given, **options), out, force=force)

    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, kind, default in _parameters(reader)
    ]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__name__, command.__doc__ = reader.name, reader.help
    return command


def _option_value(name: str, option: runner.Option, given: Any) -> Any:
    if isinstance(option.default, dict):
        return _read_named(f"--{name}", given) or option.default
    if isinstance(option.default, list) and given:
        return [*load_codes(given, name).codes]
    return option.default if given is None else given


def _parameters(reader: runner.Script) -> Iterator[tuple[str, Any, Any]]:
    yield "source", Annotated[str, Argument()], Parameter.empty
    if reader.named:
        yield "name", Name, Parameter.empty
    if reader.source == "tables":
        yield "schema", Annotated[str, Option(help="Schema of the tables in a database.")], ""
    for name, option in reader.options.items():
        kind: Any = type(option.default)
        flags = [f"--{name.replace('_', '-')}"] if kind is bool else []
        least, shape = (1 if kind is int else None), ("NAME=VALUE" if kind is dict else None)
        asked = {dict: list[str], list: Path}.get(kind, kind)
        asked = Literal[tuple(option.choices)] if option.choices else asked
        usual = option.default if kind in (bool, int, str) and option.default != "" else None
        shown = Option(*flags, help=option.help, min=least, metavar=shape)
        yield name, Annotated[asked | None, shown], usual
    if reader.window != "encounter":
        yield "window_days", Days, 30
    has_sizes = any(reader.modes.values()) and not reader.options.keys() & reader.modes
    sizes = "x".join(map(str, reader.modes.values())) if has_sizes else ""
    yield "out", opt.Out, Parameter.empty
    yield "top", Annotated[str, Option(help=_TOP, show_default=sizes or False)], ""
    yield "codes", CodeLists, None
    yield "rolled_up", Rolled, None
    yield "min_patients", Least, reader.min_patients
    yield "memory", Memory, MEMORY
    yield "force", opt.Force, False


class _Readers(TyperGroup):
    """A command group in which every reader script, given by name or path, is a command."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*runner.scripts.names(), *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = cmd_name in runner.scripts.names() or cmd_name.lower().endswith(".sql")
        if cmd_name in self.commands or not known:
            return super().get_command(ctx, cmd_name)
        alone = typer.Typer(add_completion=False)
        alone.command(cmd_name)(_command_of(runner.find_script(cmd_name)))
        return typer.main.get_command(alone)


data_app = typer.Typer(
    name="data",
    help="Turn EHR tables into one file per site. To use your own script: "
    "dpfact data READER.sql SOURCE.",
    no_args_is_help=True,
    cls=_Readers,
)


@data_app.command("synthetic")
def data_synthetic(
    out: opt.Out, preset: Annotated[str, Argument()] = "demo", force: opt.Force = False
) -> None:
    """Generate artificial EHR data with planted phenotypes, some of which exist at only one site.

    PRESET is demo, demo-icu, paper-synthetic, paper-mimic, paper-icu or paper-cms.
    """
    from dpfact_flower.data import synthetic

    settings = synthetic.preset(preset)
    _save(lambda: synthetic.synthetic(settings), out, force=force)


@data_app.command("tns")
def data_tns(
    file: Annotated[Path, Argument()],
    out: opt.Out,
    name: Name,
    patients: Annotated[int, Option(help="Position of the patient mode (1, 2, ...).", min=1)] = 1,
    modes: Annotated[str, Option(help="The other modes' names, as in procedures,diagnoses.")] = "",
    codes: CodeLists = None,
    parts: Annotated[int, Option(help="Number of sites, for a simulation.", min=1)] = 1,
    force: opt.Force = False,
) -> None:
    """Read a FROSTT tensor (.tns or .tns.gz) as one site or, with --parts, as several sites.

    Index 1 means the first code in a mode's --codes list. By default, the codes are 1, 2, ...
    """
    names = [part.strip() for part in modes.split(",")] if modes else None
    lists = _read_lists(codes, names or [*_read_named("--codes", codes)])

    def read() -> Cohort:
        return tns.read(file, name, patients=patients, modes=names, vocabularies=lists, parts=parts)

    _save(read, out, force=force)


@data_app.command("events")
def data_events(
    out: opt.Out,
    mode: Annotated[
        list[str],
        Option(
            metavar="NAME=FILE[,COLUMN=NAME]",
            help="A feature mode and its table (.csv, .csv.gz, .parquet, or a pattern such as "
            "rx_*.csv). Give two or more modes. Name the table's columns with patient=, code=, "
            "time=, encounter=, description=. Give the format of times with time-format=.",
        ),
    ],
    name: Name,
    window_days: Days = 30,
    labels: Annotated[
        Path | None, Option(help="Table with columns patient and died (in hospital: 1, else 0).")
    ] = None,
    label: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=FILE[,KEY=VALUE]",
            help="A label and its table; may be repeated. Name the columns with column= "
            "(default: NAME) and patient=. With missing=0, patients not in the table get label 0.",
        ),
    ] = None,
    sites: Annotated[
        str,
        Option(
            metavar="FILE[,COLUMN=NAME]",
            help="Table of patient and site, for simulations. Name other columns: patient=, site=.",
        ),
    ] = "",
    patient: Annotated[str, Option(help="Name of the patient column.")] = "patient",
    code: Annotated[str, Option(help="Name of the code column.")] = "code",
    time: Annotated[str, Option(help="Name of the date or time column.")] = "time",
    encounter: Annotated[str, Option(help="Name of the encounter column.")] = "encounter",
    description: Annotated[str, Option(help="Name of the description column.")] = "description",
    time_format: Annotated[
        str, Option(help="Format of times, e.g. %d.%m.%Y %H:%M (default: ISO 8601).")
    ] = "",
    delimiter: Annotated[
        str, Option(help="CSV delimiter (default: the most frequent of , ; | \\t in line 1).")
    ] = "",
    encoding: Annotated[str, Option(help=f"CSV encoding: {', '.join(ENCODINGS)}.")] = "utf-8",
    top: Top = "",
    codes: CodeLists = None,
    rolled_up: Rolled = None,
    min_patients: Least = 1,
    memory: Memory = MEMORY,
    force: opt.Force = False,
) -> None:
    """Read event tables of any origin: one table per feature mode, with one row per event.

    Each hospital makes its own file, NAME.npz, with the agreed code lists:

    \b
      dpfact data events --name north --out /srv/dpfact \\
        --mode procedures=procedures.csv --codes procedures=procedures.json \\
        --mode diagnoses=diagnoses.csv --codes diagnoses=diagnoses.json

    \b
      procedures.csv            diagnoses.csv
      patient,time,code         patient,time,code
      17,2024-03-01,3605        17,2024-03-05 09:30,41401

    Two codes co-occur if they are at most --window days apart. With --window 0,
    codes in the same encounter co-occur, and tables need an encounter column
    instead of a time column. If a table has both an encounter and a time column,
    a code counts once per encounter and time. A repeated row counts once.

    For a simulation on open data, --sites splits the patients into sites, and
    --codes may be omitted.
    """  # noqa: D301 - \b, a backspace, keeps lines as they are
    columns = Columns(patient, code, time, encounter, description)
    dialect = Dialect(delimiter, encoding)
    tables = _read_event_tables(mode, columns, dialect, time_format)
    file, site_columns = _with_keys(sites, ["patient", "site"])
    table = LabelTable(Path(file), site_columns.get("site", ""), site_columns.get("patient", ""))
    options = _options([*tables], top, codes, rolled_up, min_patients, memory)
    _save(
        lambda: event_tables.read(
            tables, name, columns=columns, window_days=window_days,
            sites=table if sites else None, labels=_read_labels(labels, label), dialect=dialect,
            **options,
        ),
        out,
        force=force,
    )  # fmt: skip


@data_app.command("show")
def data_show(folder: opt.Folder) -> None:
    """Show a cohort's sites, and how many records were read, kept and left out."""
    _show(Cohort.load(folder))


def _save(make: Callable[[], Cohort], out: Path, *, force: bool) -> None:
    """Write the cohort that `make` returns, and show it. Replace files only if `force` is set."""
    used = opt.refuse_overwrite(out, COHORT, "a cohort", force=force)
    old = cohort_files(out) if used else []
    with progress() as watch:
        watch("reading", 0.0)
        cohort = make()
        watch("reading", 1.0)
        for file in [f"{site.name}.npz" for site in cohort.sites]:
            opt.refuse_overwrite(out, file, file, force=force)
        watch("writing", 0.0)
        for path in old:
            path.unlink(missing_ok=True)
        cohort.save(out)
    _show(cohort)
    say(f"written to {out}")


def _show(cohort: Cohort) -> None:
    if cohort.read_report:
        counts = Table("where", "what", "count", title="read, kept and left out")
        for where, what, count in cohort.read_report:
            counts.add_row(escape(where), escape(what), f"{count:,}")
        console.print(counts)
    labels = cohort.labels
    ones = (f"{escape(name)} is 1" for name in labels)
    table = Table("site", f"{cohort.row_unit}s", "non-zeros", *ones, title=cohort.name)
    for row in cohort.summary():
        numbers = (f"{row.labelled[name]:,}" if name in row.labelled else "-" for name in labels)
        table.add_row(row.site, f"{row.patients:,}", f"{row.nonzeros:,}", *numbers)
    console.print(table)
    if not labels:
        say("no labels")
    for vocabulary in cohort.vocabularies:
        say(f"{vocabulary.name}: {plural(len(vocabulary), 'code')}")


def _read_named(option: str, values: Sequence[str] | None) -> dict[str, str]:
    named: dict[str, str] = {}
    for value in values or ():
        name, _, given = value.partition("=")
        if not name or not given:
            raise SettingsError(f"{option}: need NAME=FILE, got {value!r}")
        if name in named:
            raise SettingsError(f"{option}: {name} is given twice")
        named[name] = given
    return named


def _read_lists(values: Sequence[str] | None, modes: Sequence[str]) -> list[Vocabulary] | None:
    """Return the code lists of all modes, in the order of `modes`, or None if no list is given."""
    lists = _read_named("--codes", values)
    if not lists:
        return None
    if lists.keys() != set(modes):
        raise SettingsError(
            f"--codes: need a list for each of {', '.join(modes)}, got {', '.join(lists)}"
        )
    return [load_codes(Path(lists[mode]), mode) for mode in modes]


def _with_keys(text: str, keys: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Split ``FILE,KEY=VALUE,...`` at each comma that precedes one of `keys`."""
    first, *others = re.split(rf",(?=(?:{'|'.join(keys)})=)", text)
    pairs = (other.partition("=") for other in others)
    return first, {key: value for key, _, value in pairs}


def _read_event_tables(
    values: Sequence[str], columns: Columns, dialect: Dialect, time_format: str
) -> dict[str, EventTable]:
    tables = {}
    for mode, text in _read_named("--mode", values).items():
        pattern, keys = _with_keys(text, [*columns.names, "time-format"])
        form = keys.pop("time-format", time_format)
        path = Path(pattern)
        files = [path]
        if not path.exists() and any(mark in path.name for mark in "*?["):
            files = sorted(path.parent.glob(path.name))
            if not files:
                raise SettingsError(f"--mode: no file of {mode} is named {pattern}")
        tables[mode] = EventTable(files, replace(columns, **keys), dialect, form)
    return tables


def _read_labels(died: Path | None, others: Sequence[str] | None) -> dict[str, LabelTable]:
    labels = {} if died is None else {"died": LabelTable(died)}
    for name, given in _read_named("--label", others).items():
        if name in labels:
            raise SettingsError("--label: --labels already gives the table of died")
        file, keys = _with_keys(given, ["column", "patient", "missing"])
        labels[name] = LabelTable(Path(file), **keys)
    return labels
