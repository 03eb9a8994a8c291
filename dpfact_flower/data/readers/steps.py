"""Common parts of all readers: their options, their tables, and the last step to the cohort.

A reader turns its tables into events, ``patients`` and ``descriptions`` on one connection
(`dpfact_flower.data.cooccurrence`), and passes the connection to `make_cohort`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypedDict

from dpfact_flower.data.clinical_events import count, create_tables, table_of
from dpfact_flower.data.code_names import named
from dpfact_flower.data.cooccurrence import Window, build_cohort, choose_vocabularies
from dpfact_flower.data.roll_up import RollUp, roll_up
from dpfact_flower.data.site_data import PATIENT, Cohort
from dpfact_flower.data.tables import MEMORY, connect, report_progress
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

READMITTED = "readmitted"
_DAYS = 30


class Options(TypedDict, total=False):
    """Options that all readers share.

    `top` is the number of most frequent codes of each mode to keep, or None for all.
    `vocabularies` are public code lists to use instead. Both are in the order of the modes.
    `rolled_up` maps modes to groupings, which replace codes before the choice of `top`. Sites
    with fewer than `min_patients` patients are merged into one site, ``other``. `keep_empty` keeps
    patients without a cell, as empty rows. `memory` is DuckDB's limit before it spills to disk.
    """

    top: Sequence[int | None] | None
    vocabularies: Sequence[Vocabulary] | None
    rolled_up: Mapping[str, RollUp] | None
    min_patients: int
    keep_empty: bool
    memory: str


@contextmanager
def reading(options: Options) -> Iterator[Connection]:
    """Open a connection for a reader, with empty tables to fill."""
    if unknown := options.keys() - Options.__annotations__.keys():
        raise TypeError(f"read() has no option {', '.join(sorted(unknown))}")
    with connect(options.get("memory", MEMORY)) as connection:
        connection.execute("SET preserve_insertion_order = false")
        create_tables(connection)
        yield connection


def make_cohort(
    connection: Connection,
    name: str,
    modes: Sequence[str],
    window: Window,
    options: Options,
    labels: Sequence[str] = (),
    row_unit: str = PATIENT,
) -> Cohort:
    """Roll codes up, choose the vocabularies and count cells, as the last step of every reader."""
    with report_progress(connection, "counting"):
        for mode, how in (options.get("rolled_up") or {}).items():
            roll_up(connection, mode, how)
        given = options.get("vocabularies")
        chosen = choose_vocabularies(connection, modes, options.get("top"), given)
        chosen = tuple(map(named, chosen))
        for vocabulary in given or ():
            _check_codes(connection, vocabulary)
        return build_cohort(
            connection,
            name,
            chosen,
            window,
            labels=labels,
            min_patients=options.get("min_patients", 1),
            keep_empty=options.get("keep_empty", False),
            row_unit=row_unit,
        )


def _check_codes(connection: Connection, vocabulary: Vocabulary) -> None:
    """Count and log the events outside a public list. Refuse a mode without events in the list."""
    mode = vocabulary.name
    ((events, outside, codes),) = connection.execute(
        f"""SELECT sum(uses), coalesce(sum(uses) FILTER (unlisted), 0), count(*) FILTER (unlisted)
            FROM (SELECT uses, code NOT IN (SELECT unnest($codes)) AS unlisted
                  FROM (SELECT code AS key, count(*) AS uses FROM {table_of(mode)} GROUP BY code)
                  JOIN codes USING (key) WHERE mode = $mode)""",
        {"codes": list(vocabulary.codes), "mode": mode},
    ).fetchall()
    if events and outside == events:
        raise DataError(
            f"{mode}: need codes of the list that is given; none of {events} events has one: are "
            "dots and leading zeros written alike?"
        )
    what = "events of codes outside the list, left out"
    count(connection, mode, what, outside, warn=True)
    count(connection, mode, "codes outside the list", codes)


def label_readmissions(connection: Connection, stays: str, patients: str) -> tuple[str, ...]:
    """Add the label ``readmitted`` (within 30 days of discharge) to a table of patients.

    `stays` is SQL of a relation with patient, begun and ended (TIMESTAMP or NULL). Overlapping
    stays and directly consecutive stays count as one. No label is added if no stay has both times.
    """
    dated = f"(FROM {stays} WHERE begun IS NOT NULL AND ended IS NOT NULL)"
    if not connection.execute(f"SELECT 1 FROM {dated} LIMIT 1").fetchall():
        count(connection, "stays", f"tables without both dates: no label {READMITTED}", 1)
        return ()
    connection.execute(
        f"""ALTER TABLE {patients} ADD COLUMN {READMITTED} BOOLEAN DEFAULT false;
            UPDATE {patients} SET {READMITTED} = true WHERE patient IN (
                SELECT patient FROM (
                    SELECT patient, begun, max(ended) OVER (PARTITION BY patient
                        ORDER BY begun, ended ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
                        AS gone
                    FROM {dated})
                WHERE begun > gone AND begun <= gone + INTERVAL {_DAYS} DAYS)"""
    )
    return (READMITTED,)
