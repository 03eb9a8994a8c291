"""Store all patients' events in one DuckDB database, in the same format for every EHR system.

For each feature mode, a reader supplies a table or query with one row per event. The columns
``patient``, ``encounter`` and ``code`` contain text. The column ``time`` contains minutes (BIGINT).

`add_events` stores each distinct event once, and replaces identifiers and codes with 64-bit hashes.
The tables ``people`` and ``codes`` map patient identifiers and codes to hashes. If two patients or
two codes have the same hash, reading fails. Encounter identifiers are not kept.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpfact_flower.data.tables import MEMORY, connect, count_rows, literal, quoted
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that all readers share.

    `top` contains the number of codes to keep in each mode (None: all codes). The most frequent
    codes are kept. `vocabularies` contains public code lists, to be used instead of `top`. `top`
    and `vocabularies` follow the order of the modes. `rolled_up` maps modes to groupings of codes.
    Codes are grouped before `top` is applied. Sites with fewer than `min_patients` patients are
    merged into the site ``other``. If `keep_empty` is true, patients without co-occurring codes are
    kept as empty rows. `memory` limits the memory that DuckDB uses before it spills to disk.
    """

    top: Sequence[int | None] | None = None
    vocabularies: Sequence[Vocabulary] | None = None
    rolled_up: Mapping[str, str | Path] | None = None
    min_patients: int = 1
    keep_empty: bool = False
    memory: str = MEMORY

    def __post_init__(self) -> None:
        if type(self.min_patients) is not int or self.min_patients < 1:
            least = f"need an integer of at least 1, got {self.min_patients!r}"
            raise SettingsError(f"min-patients: {least}")
        lists = self.vocabularies or ()
        if not isinstance(lists, Sequence) or not all(isinstance(v, Vocabulary) for v in lists):
            raise DataError("vocabularies: need a list, as in [Vocabulary('dx', codes), ...]")
        if self.vocabularies is not None and self.top is not None:
            raise SettingsError("top: cannot be combined with vocabularies")


@contextmanager
def reading(options: Options, modes: Collection[str]) -> Iterator[Connection]:
    """Check the modes' names, and open a connection with empty tables for a reader to fill."""
    if len({mode.lower() for mode in modes}) < len(modes):
        raise SettingsError(f"modes: names must differ by more than case; got {', '.join(modes)}")
    if unknown := (options.rolled_up or {}).keys() - set(modes):
        raise SettingsError(
            f"roll-up: no mode is named {', '.join(sorted(unknown))}; the modes are "
            f"{', '.join(modes)}; write MODE=HOW"
        )
    with connect(options.memory) as connection:
        connection.execute(
            """SET preserve_insertion_order = false;
               CREATE TEMP TABLE read_report (place VARCHAR, what VARCHAR, number BIGINT);
               CREATE TEMP TABLE people (patient VARCHAR, key UBIGINT);
               CREATE TEMP TABLE codes (mode VARCHAR, code VARCHAR, key UBIGINT);
               CREATE TEMP TABLE descriptions (mode VARCHAR, code VARCHAR, description VARCHAR);
               CREATE TEMP TABLE labelled (name VARCHAR, patient VARCHAR)"""
        )
        yield connection


def count(
    connection: Connection, place: str, what: str, number: int, *, warn: bool = False
) -> None:
    """If `number` is not 0, log the number and add it to the table ``read_report``."""
    if number:
        connection.execute("INSERT INTO read_report VALUES (?, ?, ?)", [place, what, number])
        logger.log(logging.WARNING if warn else logging.INFO, "%s: %s: %d", place, what, number)


def read_report(connection: Connection) -> tuple[tuple[str, str, int], ...]:
    """Return the tuples (place, what, number) that `count` has stored, the oldest first."""
    return tuple(connection.execute("SELECT * FROM read_report ORDER BY rowid").fetchall())


def table_of(mode: str) -> str:
    """Return the SQL name of a mode's event table (columns patient, encounter, time, code)."""
    return quoted(f"events of {mode}")


def add_events(connection: Connection, mode: str, source: str) -> int:
    """Add events to a mode, and return the number of new events.

    `source` is an SQL subquery that selects events. Rows without a patient or a code are ignored.
    """
    connection.execute(
        f"""CREATE TEMP TABLE IF NOT EXISTS {table_of(mode)}
            (patient UBIGINT, encounter UBIGINT, time BIGINT, code UBIGINT)"""
    )
    known = count_rows(connection, table_of(mode))
    fresh = f"""SELECT DISTINCT hash(patient) AS patient,
                    if(encounter IS NULL, NULL, hash(encounter)) AS encounter, time,
                    hash(code) AS code
                FROM {source} WHERE patient IS NOT NULL AND code IS NOT NULL"""
    if known:
        fresh = f"({fresh}) EXCEPT FROM {table_of(mode)}"
    connection.execute(f"INSERT INTO {table_of(mode)} {fresh}")
    connection.execute(
        f"""INSERT INTO people SELECT patient, hash(patient) FROM
                (SELECT DISTINCT patient FROM {source} WHERE code IS NOT NULL)
            WHERE patient IS NOT NULL AND patient NOT IN (SELECT patient FROM people)"""
    )
    connection.execute(
        f"""INSERT INTO codes SELECT $mode, code, hash(code) FROM
                (SELECT DISTINCT code FROM {source} WHERE patient IS NOT NULL)
            WHERE code IS NOT NULL AND code NOT IN (SELECT code FROM codes WHERE mode = $mode)""",
        {"mode": mode},
    )
    return count_rows(connection, table_of(mode)) - known


def refuse_equal_hashes(connection: Connection) -> None:
    """Raise an error if two patients, or two codes in one mode, have the same hash."""
    for table, mode in (("people", "''"), ("codes", "mode")):
        if count_rows(connection, table) > count_rows(
            connection, f"(SELECT DISTINCT {mode}, key FROM {table})"
        ):
            raise DataError(
                f"two of the {table} have the same hash, which is very rare; add a letter to all "
                "of them"
            )


def replace_codes(
    connection: Connection,
    mode: str,
    members: Mapping[str, Sequence[str]],
    texts: Mapping[str, str],
) -> tuple[int, int]:
    """Replace a mode's codes with groups of codes. Drop codes that are in no group.

    `members` maps groups to codes, and `texts` maps groups to descriptions. A code may be in
    several groups. Identical events are merged. Return the numbers of dropped events and codes.
    """
    pairs = [(code, group) for group, codes in members.items() for code in codes]
    connection.execute(
        """CREATE OR REPLACE TEMP TABLE grouping AS
           SELECT hash(unnest($codes::VARCHAR[])) AS code, hash(unnest($groups::VARCHAR[])) AS kind
        """,
        {"codes": [code for code, _ in pairs], "groups": [group for _, group in pairs]},
    )
    lost = "code NOT IN (SELECT code FROM grouping)"
    events = count_rows(connection, table_of(mode), lost)
    known = f"(SELECT key AS code FROM codes WHERE mode = {literal(mode)})"
    lost_codes = count_rows(connection, known, lost)
    connection.execute(
        f"""CREATE OR REPLACE TEMP TABLE {table_of(mode)} AS
            SELECT DISTINCT patient, encounter, time, kind AS code
            FROM {table_of(mode)} JOIN grouping USING (code)"""
    )
    for table, values in (("codes", "hash(code)"), ("descriptions", "text")):
        connection.execute(f"DELETE FROM {table} WHERE mode = {literal(mode)}")
        connection.execute(
            f"""INSERT INTO {table} SELECT $mode, code, {values} FROM
                (SELECT unnest($codes::VARCHAR[]) AS code, unnest($texts::VARCHAR[]) AS text)""",
            {"mode": mode, "codes": list(texts), "texts": list(texts.values())},
        )
    return events, lost_codes
