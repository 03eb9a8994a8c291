"""Sheets that people fill in: CSV files about a run, with a key that readers must not see."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.evaluation.run_folder import MODEL

NOTE = "note"
"""Content of the first column in a line that explains the sheet."""


def check_place(folder: Path, files: Sequence[Path]) -> None:
    """Refuse files in the run's `folder`, which others may read, and existing files."""
    place = files[0].resolve().parent
    if not place.is_dir():
        raise SettingsError(f"--out: there is no folder {files[0].parent}")
    if place.is_relative_to(folder.resolve()):
        raise SettingsError("--out: is in the run's folder, which others may read; write elsewhere")
    for file in files:
        if file.exists():
            raise SettingsError(f"--out: {file} exists, perhaps with verdicts; name another file")


def digest(folder: Path) -> str:
    """Return the digest of a run's model."""
    return hashlib.sha256((folder / MODEL).read_bytes()).hexdigest()


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
    head = text.partition("\n")[0]
    file = io.StringIO(text, newline="")
    reader = csv.DictReader(file, delimiter=";" if ";" in head else ",")
    try:
        if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
            raise DataError(f"{sheet}: lacks the column {missing[0]}; need {', '.join(columns)}")
        for row in reader:
            cells = {name: (row[name] or "").strip() for name in columns}
            if any(cells.values()) and cells[columns[0]] != NOTE:
                yield reader.line_num, cells
    except csv.Error:
        raise DataError(f"{sheet}: not readable as CSV") from None
