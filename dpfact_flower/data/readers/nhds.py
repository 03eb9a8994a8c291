"""National Hospital Discharge Survey 2010, the public-use file of CDC's NCHS: one row a discharge.

- A line has fixed columns: whether a newborn, how the patient left, region, beds and ownership of
  the hospital, up to 15 diagnoses and 8 procedures of ICD-9-CM, without the dot and filled with
  ``-``.
- There is no patient's identifier: whoever came twice is two rows, and the noise of patient mode
  protects a discharge. An identifier is the number of the line.
- The file names no hospital. Sites are regions, each in two by the hospitals' beds, or kinds of
  owners.
- Newborns are left out. The window is the discharge.

The data are for statistical use alone; nobody may try to identify a patient or a hospital.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from dpfact_flower.data.cooccurrence import Window
from dpfact_flower.data.events import add_events, note
from dpfact_flower.data.readers.steps import Options, check_choice, make_cohort, reading
from dpfact_flower.data.site_data import DIED, Cohort
from dpfact_flower.data.tables import count_rows, load_table
from dpfact_flower.errors import DataError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

MODES = ("procedures", "diagnoses")
TOP = (202, 316)
"""How many codes are kept where nothing else is asked for, as in the paper."""
DISCHARGE = "discharge"
SiteOf = Literal["region", "ownership"]

_LINE = re.compile(r"10[12][\d ]{14}[1-4][1-5][1-3][\d ]{7}[\dVE -]{107}")
"""Of 2010, from whose survey on there are 15 diagnoses."""
_NEWBORN = "line[3] = '1'"
_DIED = "line[12] = '6'"
_SITE = {
    "region": """['northeast', 'midwest', 'south', 'west'][line[18]::INTEGER]
                 || if(line[19] < '4', '-under-300-beds', '-300-beds-or-more')""",
    "ownership": "['proprietary', 'government', 'nonprofit'][line[20]::INTEGER]",
}
_CODES = {"procedures": (103, 4, 8), "diagnoses": (28, 5, 15)}
"""First column, width and number of fields, from 1."""


def read(file: str | Path, *, site_of: SiteOf = "region", **options: Unpack[Options]) -> Cohort:
    """Read NHDS's file into one tensor per site: discharges x procedures x diagnoses.

    Parameters
    ----------
    file : path
        ``NHDS10.PU.txt``, plain, or packed as ``.bz2`` or ``.gz``.
    site_of : {"region", "ownership"}
        What a site is: of region, each in two, below 300 beds and from 300 on.
    **options
        `Options` of all readers; `top` is `TOP` where it is not given.

    Returns
    -------
    Cohort
        Of discharges. Label ``died``: 1 where the discharge status is 6.

    Raises
    ------
    DataError, SettingsError, MissingDependencyError
        As all readers: `dpfact_flower.data.readers.steps`.
    """
    check_choice("site-of", site_of, get_args(SiteOf))
    asked: Options = {"top": TOP, **options}
    with reading(options) as connection:
        _load_discharges(connection, Path(file))
        connection.execute(
            f"""CREATE TEMP TABLE patients AS
                SELECT number AS patient, {_SITE[site_of]} AS site, {_DIED} AS {DIED}
                FROM discharges"""
        )
        for mode, (first, width, fields) in _CODES.items():
            starts = range(first, first + width * fields, width)
            listed = ", ".join(f"substr(line, {start}, {width})" for start in starts)
            codes = f"unnest([{listed}])"
            add_events(
                connection,
                mode,
                f"""(SELECT number AS patient, number AS encounter, NULL::BIGINT AS time,
                        nullif(trim(replace({codes}, '-', '')), '') AS code FROM discharges)""",
                without=("time",),
            )
        return make_cohort(connection, "nhds", MODES, Window(), asked, (DIED,), DISCHARGE)


def _load_discharges(connection: Connection, path: Path) -> None:
    """Table ``discharges``: number and text of each line that is no newborn's."""
    ((spill,),) = connection.execute("SELECT current_setting('temp_directory')").fetchall()
    with tempfile.TemporaryDirectory(dir=spill) as folder:
        copy = Path(folder) / f"{path.name}.csv"
        _copy_lines(path, copy)
        load_table(connection, "discharges", copy, ("number", "line"))
    note(connection, path.name, "discharges", count_rows(connection, "discharges"))
    note(connection, path.name, "discharges of newborns, left out",
         count_rows(connection, "discharges", _NEWBORN))  # fmt: skip
    connection.execute(f"DELETE FROM discharges WHERE {_NEWBORN}")


def _copy_lines(path: Path, copy: Path) -> None:
    """Write a table of the file's lines and their numbers, which DuckDB can read."""
    packed: dict[str, Callable[..., Any]] = {".bz2": bz2.open, ".gz": gzip.open}
    number = wrong = 0
    try:
        with (
            packed.get(path.suffix.lower(), open)(path, "rt", encoding="latin-1") as lines,
            copy.open("w", encoding="utf-8", newline="") as table,
        ):
            rows = csv.writer(table)
            rows.writerow(("number", "line"))
            for number, line in enumerate(lines, start=1):
                wrong += not _LINE.match(line)
                rows.writerow((f"{number:06d}", line.rstrip()))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, EOFError) as error:
        raise DataError(
            f"{path}: cannot be read ({type(error).__name__}); is it cut off, or not packed as its "
            "name says?"
        ) from None
    if wrong or not number:
        raise DataError(
            f"{path}: need lines as NHDS's public-use file of 2010 has them; {wrong} line(s) are "
            "not"
        )
