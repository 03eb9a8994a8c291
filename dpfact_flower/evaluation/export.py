"""What a run found, as tables for other programs: phenotypes for anybody, memberships for a site.

A table of phenotypes comes from the model alone: it is as public as the model. A table of
memberships has a row a patient: it is made at the hospital, from the hospital's own file, and stays
there. No privacy guarantee covers it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.model import HAS, PATIENT, CodeRow, GlobalModel, Memberships
from dpfact_flower.machine.files import replacing

_FORMULA = ("=", "+", "-", "@", "\t")

if TYPE_CHECKING:
    from pandas import DataFrame

CHART_COLUMNS = ("chart", "patient", "verdict", "comment")
"""Of a chart review's sheet."""


def phenotype_rows(folder: Path, *, top: int | None = None) -> tuple[CodeRow, ...]:
    """Every phenotype of a finished run, code by code; see `GlobalModel.rows`."""
    return GlobalModel.read(folder).rows(top=top)


def phenotype_frame(folder: Path, *, top: int | None = None) -> DataFrame:
    """`phenotype_rows` as a pandas DataFrame."""
    return GlobalModel.read(folder).to_frame(top=top)


def memberships(folder: Path, site: SiteData) -> Memberships:
    """A site's patients fitted to the phenotypes of a finished run; see `GlobalModel`."""
    return GlobalModel.read(folder).memberships(site)


def write_phenotype_table(path: Path, rows: Iterable[CodeRow], titles: Mapping[int, str]) -> None:
    """Write phenotypes as a CSV file, with their titles by number."""
    number, *others = (field.name for field in fields(CodeRow))
    _write(
        path,
        (number, "title", *others),
        ((row.phenotype, titles[row.phenotype], *(getattr(row, name) for name in others))
         for row in rows),
    )  # fmt: skip


def write_memberships(path: Path, found: Memberships) -> None:
    """Write who has which phenotypes as a CSV file that its owner alone can read."""
    numbers = (";".join(str(r + 1) for r in np.flatnonzero(row)) for row in found.has)
    columns = zip(found.patients, numbers, found.scores.tolist(), strict=True)
    _write(path, (PATIENT, HAS, *found.names), ((name, has, *row) for name, has, row in columns))


def write_charts(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write a chart review's sheet as a CSV file that its owner alone can read."""
    _write(path, CHART_COLUMNS, rows)


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    if not path.parent.is_dir():
        raise DataError(f"{path}: there is no folder {path.parent}")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in chain([header], rows):
        writer.writerow([f"{v:.6g}" if isinstance(v, float) else _inert(v) for v in row])
    with replacing(path) as file:
        file.write(text.getvalue().encode())


def _inert(value: Any) -> Any:
    """A cell; text that a spreadsheet would take for a formula begins with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
