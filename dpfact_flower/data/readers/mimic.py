"""What MIMIC-III and MIMIC-IV have alike: admissions, first stays, and ICD codes by admission."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dpfact_flower.data.databases import FLAG, TIME, Source, Table
from dpfact_flower.data.events import add_events, note
from dpfact_flower.data.readers.steps import label_readmissions
from dpfact_flower.data.site_data import DIED
from dpfact_flower.data.tables import count_rows

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection


class Stays(NamedTuple):
    """Table whose first row of a patient, in the order of time and `tie`, says where they are."""

    table: str
    time: str
    site: str
    tie: str


def load_patients(
    connection: Connection, source: Source, stays: Stays, admissions: str
) -> tuple[str, ...]:
    """Table ``patients``, of everybody with a stay, and which labels they have.

    Labels are ``died``, where any admission has ``hospital_expire_flag`` 1, and, where admissions
    have times, ``readmitted``.
    """
    columns = dict.fromkeys(("subject_id", stays.time, stays.site, stays.tie))
    form = {stays.time: TIME.needed()._replace(right="a time")}
    source.load(connection, "stays", Table(stays.table, (*columns,), forms=form,
                                           where="subject_id IS NOT NULL"))  # fmt: skip
    source.load(
        connection,
        "admissions",
        Table(
            admissions,
            ("subject_id", "hospital_expire_flag"),
            optional=("admittime", "dischtime"),
            forms={"hospital_expire_flag": FLAG, "admittime": TIME, "dischtime": TIME},
            counted={
                "rows without hospital_expire_flag, taken for no death": (
                    "hospital_expire_flag IS NULL"
                )
            },
        ),
    )
    connection.execute(
        f"""CREATE TEMP TABLE patients AS
            SELECT subject_id AS patient, site, coalesce(died, false) AS {DIED}
            FROM (SELECT subject_id, first({stays.site} ORDER BY {stays.time}::TIMESTAMP,
                                           {stays.tie}) AS site
                  FROM stays GROUP BY subject_id)
            LEFT JOIN (SELECT subject_id, bool_or(hospital_expire_flag = '1') AS died
                       FROM admissions GROUP BY subject_id) USING (subject_id)"""
    )
    nowhere = "(SELECT DISTINCT subject_id AS patient FROM admissions)"
    if lost := count_rows(connection, f"(FROM {nowhere} ANTI JOIN patients USING (patient))"):
        note(connection, admissions, f"patients without a row in {stays.table}, left out", lost)
    times = """(SELECT subject_id AS patient, admittime::TIMESTAMP AS begun,
                    dischtime::TIMESTAMP AS ended FROM admissions)"""
    return (DIED, *label_readmissions(connection, times, "patients"))


def load_codes(
    connection: Connection, source: Source, mode: str, table: Table, code: str, where: str = "true"
) -> None:
    """Events of a mode, of a table with subject_id and hadm_id: by admission, for none is dated."""
    source.load(connection, "coded", table)
    add_events(
        connection,
        mode,
        f"""(SELECT subject_id AS patient, hadm_id AS encounter, NULL::BIGINT AS time,
                    {code} AS code FROM coded WHERE {where})""",
        without=("time",),
    )
    connection.execute("DROP TABLE coded")
