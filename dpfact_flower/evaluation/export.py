"""What a run found, as tables for other programs: phenotypes for anybody, memberships for a site.

A table of phenotypes comes from the model alone: it is as public as the model. A table of
memberships has a row a patient: it is made at the hospital, from the hospital's own file, and stays
there. No privacy guarantee covers it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.model import PATIENT, CodeRow, GlobalModel, Memberships
from dpfact_flower.machine.files import replacing

if TYPE_CHECKING:
    from pandas import DataFrame


def phenotype_rows(folder: Path, *, top: int | None = None) -> tuple[CodeRow, ...]:
    """Every phenotype of a finished run, code by code; see `GlobalModel.rows`."""
    return GlobalModel.read(folder).rows(top=top)


def phenotype_frame(folder: Path, *, top: int | None = None) -> DataFrame:
    """`phenotype_rows` as a pandas DataFrame."""
    return GlobalModel.read(folder).to_frame(top=top)


def memberships(folder: Path, site: SiteData) -> Memberships:
    """A site's patients fitted to the phenotypes of a finished run; see `GlobalModel`."""
    return GlobalModel.read(folder).memberships(site)


def write_phenotype_table(path: Path, rows: Iterable[CodeRow]) -> None:
    """Write phenotypes as a CSV file."""
    _write(path, _columns(), ([getattr(row, name) for name in _columns()] for row in rows))


def write_memberships(path: Path, found: Memberships) -> None:
    """Write memberships as a CSV file that its owner alone can read."""
    rows = ((name, *row) for name, row in zip(found.patients, found.scores.tolist(), strict=True))
    _write(path, (PATIENT, *found.names), rows)


def _columns() -> tuple[str, ...]:
    return tuple(field.name for field in fields(CodeRow))


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    if not path.parent.is_dir():
        raise DataError(f"{path}: there is no folder {path.parent}")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in chain([header], rows):
        writer.writerow([f"{v:.6g}" if isinstance(v, float) else v for v in row])
    with replacing(path) as file:
        file.write(text.getvalue().encode())
