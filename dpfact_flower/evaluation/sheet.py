"""Sheets that people fill in: CSV files about a run, with a key that readers must not see."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.evaluation.page import check_libraries
from dpfact_flower.evaluation.run_folder import MODEL, read_json_as
from dpfact_flower.machine.parsed import parse_as

NOTE = "note"
"""Content of the first column in a line that explains the sheet."""
KEY = ".key.json"


@dataclass(frozen=True)
class SheetKey:
    """The part of every key that names its run: the digest of the model."""

    model: str


K = TypeVar("K", bound=SheetKey)


def new_files(folder: Path, out: Path) -> list[Path]:
    """Return ``OUT.csv`` to fill in, ``OUT.html`` to read and ``OUT.key.json``.

    Files in the run's `folder`, which others may read, and existing files are refused.
    """
    check_libraries()
    files = [out.with_name(out.name + part) for part in (".csv", ".html", KEY)]
    place = out.resolve().parent
    if not place.is_dir():
        raise SettingsError(f"--out: there is no folder {out.parent}")
    if place.is_relative_to(folder.resolve()):
        raise SettingsError("--out: is in the run's folder, which others may read; write elsewhere")
    for file in files:
        if file.exists():
            raise SettingsError(f"--out: {file} exists, perhaps with verdicts; name another file")
    return files


def digest(folder: Path) -> str:
    """Return the digest of a run's model."""
    return hashlib.sha256((folder / MODEL).read_bytes()).hexdigest()


def read_key(path: Path, kind: type[K], folder: Path) -> K:
    """Read the key of a sheet about the run in `folder`."""
    if not path.exists():
        raise DataError(f"{path}: no such file; it was written with the sheet (see --out)")
    key = read_json_as(path, lambda content: parse_as(kind, content))
    if key.model != digest(folder):
        raise DataError(f"{path}: was made from another run than {folder}")
    return key


def filled_lines(sheet: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number and cells of each filled line, in any CSV format that spreadsheets write."""
    try:
        content = sheet.read_bytes()
    except OSError as error:
        raise DataError(f"{sheet}: {error.strerror}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252", "replace")
    delimiter = ";" if ";" in text.partition("\n")[0] else ","
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
            raise DataError(f"{sheet}: lacks the column {missing[0]}; need {', '.join(columns)}")
        for row in reader:
            cells = {name: (row[name] or "").strip() for name in columns}
            if any(cells.values()) and cells[columns[0]] != NOTE:
                yield reader.line_num, cells
    except csv.Error:
        raise DataError(f"{sheet}: not readable as CSV") from None
