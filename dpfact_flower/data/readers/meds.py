"""MEDS, the Medical Event Data Standard 0.3 and 0.4: one site, modes by the beginning of the code.

- A mode is what begins with a prefix, such as ``DIAGNOSIS//``; the rest is the code. What goes on
  with a version of ICD, as ``ICD//10//I10`` or ``ICD9CM//4019``, becomes ``icd10:I10``.
- MEDS knows no encounters: the window is in days. Rows without a time, static facts, are in none.
- It says when somebody died, not where: there is no label.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from dpfact_flower.data.clinical_events import add_events, count
from dpfact_flower.data.cooccurrence import Window
from dpfact_flower.data.readers.steps import Options, make_cohort, reading
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.tables import count_rows, literal, load_table
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.settings import check_name

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

MODES = {"procedures": "PROCEDURE//", "diagnoses": "DIAGNOSIS//"}
"""Prefix of each mode, where nothing else is asked for."""
_ICD = r"^ICD(?://|[_ -])?(9|10)(?:[_ -]?(?:CM|PCS|PROC))?//"


def read(
    folder: str | Path,
    name: str,
    *,
    modes: Mapping[str, str] | None = None,
    window_days: int = 30,
    **options: Unpack[Options],
) -> Cohort:
    """Read a MEDS data set into the tensor of one site, without labels.

    Parameters
    ----------
    folder : path
        Holds ``data`` with Parquet files at any depth, and ``metadata/codes.parquet`` for
        descriptions.
    name : str
        Of the site.
    modes : mapping of str to str, optional
        Prefix of each mode, in the tensor's order; default `MODES`.
    window_days : int
        Largest distance in time between the events of a cell.
    **options
        `Options` of all readers.
    """
    modes = dict(modes or MODES)
    if not all(modes.values()):
        raise SettingsError("modes: need a prefix for each, such as DIAGNOSIS//")
    for what in (name, *modes):
        check_name("name of site or mode", what)
    files = sorted((Path(folder) / "data").rglob("*.parquet"))
    if not files:
        raise DataError(f"{folder}: lacks Parquet files in data/; need a folder as MEDS has it")
    with reading(options) as connection:
        for path in files:
            _load_measurements(connection, path, modes)
        _describe(connection, Path(folder) / "metadata" / "codes.parquet", modes)
        connection.execute(
            "CREATE TEMP TABLE patients AS SELECT patient, $name AS site FROM people",
            {"name": name},
        )
        window = Window(days=window_days, same_encounter=False)
        return make_cohort(connection, name, list(modes), window, options)


def _load_measurements(connection: Connection, path: Path, modes: Mapping[str, str]) -> None:
    columns = ("subject_id", "time", "code")
    wanted = " OR ".join(map(_begins, modes.values()))
    load_table(connection, "measured", path, columns, where=wanted)
    count(connection, path.name, "rows of these modes", count_rows(connection, "measured"))
    timeless = count_rows(connection, "measured", "time IS NULL")
    count(connection, path.name, "rows without a time, in no window", timeless)
    for mode, prefix in modes.items():
        add_events(
            connection,
            mode,
            f"""(SELECT subject_id AS patient, NULL::VARCHAR AS encounter, {_code(prefix)} AS code,
                        epoch_us(date_trunc('minute', time::TIMESTAMP)) // 60000000 AS time
                 FROM measured WHERE {_begins(prefix)})""",
        )
    connection.execute("DROP TABLE measured")


def _describe(connection: Connection, path: Path, modes: Mapping[str, str]) -> None:
    if not path.is_file():
        count(connection, "codes", "tables missing: codes have the package's own names", 1)
        return
    load_table(connection, "titles", path, ("code",), optional=("description",))
    for mode, prefix in modes.items():
        connection.execute(
            f"""INSERT INTO descriptions
                SELECT $mode, {_code(prefix)} AS named, min(description) FROM titles
                WHERE {_begins(prefix)} AND description IS NOT NULL AND named IS NOT NULL
                GROUP BY named""",
            {"mode": mode},
        )


def _begins(prefix: str) -> str:
    return f"starts_with(code, {literal(prefix)})"


def _code(prefix: str) -> str:
    """SQL of a code without its prefix, and with the version of ICD as elsewhere."""
    bare = f"nullif(trim(code[{len(prefix) + 1}:]), '')"
    return rf"regexp_replace({bare}, '{_ICD}', 'icd\1:')"
