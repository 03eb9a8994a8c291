"""Parsing of the options of `dpfact data` that have the form ``NAME=...``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpfact_flower.errors import SettingsError

if TYPE_CHECKING:
    from dpfact_flower.data.readers.event_tables import Columns, EventTable, LabelTable
    from dpfact_flower.data.tables import Dialect
    from dpfact_flower.data.vocabulary import Vocabulary


def read_named(option: str, values: Sequence[str] | None) -> dict[str, str]:
    """Return the values of ``NAME=...`` by name, in the order given."""
    found: dict[str, str] = {}
    for value in values or ():
        name, _, given = value.partition("=")
        if not name or not given:
            raise SettingsError(f"{option}: need NAME=FILE, got {value!r}")
        if name in found:
            raise SettingsError(f"{option}: {name} is given twice")
        found[name] = given
    return found


def read_lists(values: Sequence[str] | None, modes: Sequence[str]) -> list[Vocabulary] | None:
    """Return the code lists of all modes, in the order of `modes`, or None if no list is given."""
    from dpfact_flower.data.vocabulary import load_codes

    lists = read_named("--codes", values)
    if not lists:
        return None
    if lists.keys() != set(modes):
        raise SettingsError(
            f"--codes: need a list for each of {', '.join(modes)}, got {', '.join(lists)}"
        )
    return [load_codes(Path(lists[mode]), mode) for mode in modes]


def read_roll_ups(
    values: Sequence[str] | None, modes: Sequence[str], default: str = "diagnoses"
) -> dict[str, str]:
    """Return how each mode is rolled up. A value without a name is for the mode `default`."""
    given = [value if value.partition("=")[2] else f"{default}={value}" for value in values or ()]
    found = read_named("--roll-up", given)
    if unknown := found.keys() - set(modes):
        raise SettingsError(
            f"--roll-up: no mode is named {', '.join(sorted(unknown))}; there are "
            f"{', '.join(modes)}: write NAME=HOW"
        )
    return found


def _with_keys(text: str, keys: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Split ``FILE,KEY=VALUE,...`` into its parts, at those commas that precede a known key."""
    first, *others = re.split(rf",(?=(?:{'|'.join(keys)})=)", text)
    pairs = (other.partition("=") for other in others)
    return first, {key: value for key, _, value in pairs}


def read_event_tables(
    values: Sequence[str], columns: Columns, dialect: Dialect, time_format: str
) -> dict[str, EventTable]:
    """Return the event tables by mode, each with its own columns."""
    from dataclasses import replace

    from dpfact_flower.data.readers.event_tables import EventTable

    tables = {}
    for mode, text in read_named("--mode", values).items():
        pattern, own = _with_keys(text, [*columns.names, "time-format"])
        form = own.pop("time-format", time_format)
        path = Path(pattern)
        files = [path]
        if not path.exists() and any(mark in path.name for mark in "*?["):
            files = sorted(path.parent.glob(path.name))
            if not files:
                raise SettingsError(f"--mode: no file of {mode} is named {pattern}")
        tables[mode] = EventTable(files, replace(columns, **own), dialect, form)
    return tables


def read_labels(died: Path | None, others: Sequence[str] | None) -> dict[str, LabelTable]:
    """Return the table of each label, by name."""
    from dpfact_flower.data.readers.event_tables import LabelTable

    found = {} if died is None else {"died": LabelTable(died)}
    for name, given in read_named("--label", others).items():
        if name in found:
            raise SettingsError("--label: --labels already gives the table of died")
        file, own = _with_keys(given, ["column", "patient", "missing"])
        found[name] = LabelTable(file, **own)
    return found
