"""CMS DE-SynPUF 2008-2010: one site per sample, from inpatient or outpatient claims.

- An encounter is a claim. A long claim has several rows, segments, and later segments may have
  blank dates: they take the claim's. The time of an event is the day its claim began.
- Diagnoses are ``ICD9_DGNS_CD_*``. The admitting diagnosis is a reason, not a finding, and left
  out. CMS writes ``OTHER`` where it suppressed a rare code; that is kept as a code.
- Procedures of inpatient claims are ``ICD9_PRCDR_CD_*``, where CMS's synthesis left diagnoses and
  other codes behind. Those that have the form of an ICD-9-CM procedure without its dot, three or
  four digits, are kept; that drops a third of the values. Some diagnoses have this form too
  (``4280``): a list of true procedures, `valid_procedures`, drops half. What is both remains
  ambiguous (``4019``: a lymphatic procedure in name, hypertension in truth).
- Procedures of outpatient claims are ``HCPCS_CD_*`` as they are. Their CPT descriptions are
  copyrighted: this reader knows codes only.
- There is no label: the beneficiary files have dates of death, but not where somebody died, and
  are not read. Patients are those with a claim.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from dpfact_flower.data.cooccurrence import (
    MINUTES_A_DAY,
    Window,
    build_cohort,
    choose_vocabularies,
)
from dpfact_flower.data.events import add_events, note
from dpfact_flower.data.roll_up import RollUp, roll_up
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.tables import (
    MEMORY,
    connect,
    count_rows,
    find_files,
    load_table,
    read_header,
    refuse_rows,
)
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

logger = logging.getLogger(__name__)

MODES = ("procedures", "diagnoses")
Care = Literal["inpatient", "outpatient"]

_PROCEDURES = {"inpatient": "icd9_prcdr_cd", "outpatient": "hcpcs_cd"}
_ICD9_PROCEDURE = r"\d{2}\d{1,2}"


def read(
    folder: str | Path,
    *,
    care: Care = "inpatient",
    samples: Sequence[int] | None = None,
    window_days: int | None = 30,
    top: Sequence[int | None] | None = (202, 316),
    vocabularies: Sequence[Vocabulary] | None = None,
    valid_procedures: Vocabulary | None = None,
    rolled_up: Mapping[str, RollUp] | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
    drop_last_patient: bool | None = None,
    keep_empty: bool = False,
    memory: str = MEMORY,
) -> Cohort:
    """Read DE-SynPUF's claims into one tensor per sample: patients x procedures x diagnoses.

    Parameters
    ----------
    folder : path
        Holds ``DE1_0_2008_to_2010_Inpatient_Claims_Sample_<n>.csv`` or ``..._Outpatient_...``,
        plain or as ``.csv.gz``, in any case.
    care : {"inpatient", "outpatient"}
        Which claims.
    samples : sequence of int, optional
        Numbers of the samples; default: all in the folder.
    window_days : int or None
        Largest distance between the claims' first days; None: the same claim.
    top : sequence of (int or None), or None
        How many of the most frequent procedures and diagnoses to keep, None for all. This looks
        at patients: see `dpfact_flower.data.vocabulary.by_frequency`.
    vocabularies : sequence of Vocabulary, optional
        ``procedures`` and ``diagnoses`` as given instead.
    valid_procedures : Vocabulary, optional
        Public list of codes that count as procedures, instead of those that look like them.
    rolled_up : mapping of str to RollUp, optional
        By mode: what codes are replaced by (`dpfact_flower.data.roll_up`).
    groups : mapping of str to sequence of int, optional
        Samples of each site; default: each sample is a site of its own.
    drop_last_patient : bool, optional
        Leave out the last patient of each file, whose claims may be cut off; default: if the
        file's last line is incomplete. A file cut between two lines does not show it.
    keep_empty : bool
        Keep patients without a cell as empty rows.
    memory : str
        What DuckDB may use before it spills to disk.

    Returns
    -------
    Cohort
        Sites ``sample-<n>``, or as grouped, without labels. A patient of two samples is at the
        lower one.

    Raises
    ------
    DataError
        Naming the file that is missing, the column it lacks, or the column that is malformed.
    SettingsError
        If an option cannot be used.
    MissingDependencyError
        If DuckDB is not installed.
    """
    if care not in get_args(Care):
        raise SettingsError(f"care: must be one of {', '.join(get_args(Care))}; got {care!r}")
    window = Window(days=window_days, same_encounter=window_days is None)
    if groups is not None:
        if samples is not None:
            raise SettingsError("samples: are given by the groups")
        samples = sorted(number for group in groups.values() for number in group)
        if len(set(samples)) < len(samples):
            raise SettingsError("groups: no sample may be at two sites")
    files = _find_claims(Path(folder), care, samples)
    with connect(memory) as connection:
        _load_claims(connection, files, care, drop_last_patient)
        _make_events(connection, care, valid_procedures)
        for site, numbers in (groups or {}).items():
            own = [f"sample-{number}" for number in numbers]
            connection.execute(
                "UPDATE patients SET site = $site WHERE site IN (SELECT unnest($own))",
                {"site": site, "own": own},
            )
        for mode, how in (rolled_up or {}).items():
            roll_up(connection, mode, how)
        return build_cohort(
            connection,
            f"synpuf-{care}",
            choose_vocabularies(connection, MODES, top, vocabularies),
            window,
            labels=False,
            keep_empty=keep_empty,
        )


def _find_claims(folder: Path, care: Care, samples: Sequence[int] | None) -> dict[int, Path]:
    pattern = rf"DE1_0_2008_to_2010_{care}_Claims_Sample_(\d+)"
    found = {int(number): path for number, path in find_files(folder, pattern).items()}
    wanted = sorted(found) if samples is None else list(samples)
    missing = [number for number in wanted if number not in found]
    if missing or not wanted:
        raise DataError(
            f"{folder}: lacks {care} claims, samples {missing or 'of any number'}; tried "
            f"DE1_0_2008_to_2010_{care.title()}_Claims_Sample_<n>.csv and .csv.gz in upper and "
            f"lower case, found samples {sorted(found)}"
        )
    return {number: found[number] for number in wanted}


def _load_claims(
    connection: Connection, files: dict[int, Path], care: Care, drop_last: bool | None
) -> None:
    """Table ``claims``: sample, patient, claim, day (DATE), procedures and diagnoses (lists)."""
    connection.execute(
        """CREATE TEMP TABLE claims (sample INTEGER, patient VARCHAR, claim VARCHAR, day DATE,
                                     procedures VARCHAR[], diagnoses VARCHAR[])"""
    )
    for sample, path in files.items():
        cut = _load_segments(connection, path, care)
        note(connection, path.name, "rows", count_rows(connection, "segments"))
        if cut if drop_last is None else drop_last:
            _drop_last_patient(connection, path)
        connection.execute(
            f"""INSERT INTO claims
                SELECT {sample}, patient, claim,
                    min(try_strptime(clm_from_dt, '%Y%m%d')::DATE)
                        OVER (PARTITION BY patient, claim),
                    procedures, diagnoses
                FROM segments WHERE patient IS NOT NULL AND claim IS NOT NULL"""
        )
    connection.execute("DROP TABLE segments")


def _load_segments(connection: Connection, path: Path, care: Care) -> bool:
    """Table ``segments`` of one file; whether its last line was cut off."""
    header = read_header(path)
    codes = {
        "procedures": _numbered(path, header, _PROCEDURES[care]),
        "diagnoses": _numbered(path, header, "icd9_dgns_cd"),
    }
    lists = ", ".join(  # list_distinct also leaves out the many blanks
        f"list_distinct([{', '.join(columns)}]) AS {mode}" for mode, columns in codes.items()
    )
    cut = load_table(
        connection,
        "segments",
        path,
        ("desynpuf_id", "clm_id", "clm_from_dt", *codes["procedures"], *codes["diagnoses"]),
        select=f"desynpuf_id AS patient, clm_id AS claim, clm_from_dt, {lists}",
        may_be_cut=True,
    )
    bad = (
        "NOT regexp_full_match(clm_from_dt, '\\d{8}') OR "
        "(clm_from_dt IS NOT NULL AND try_strptime(clm_from_dt, '%Y%m%d') IS NULL)"
    )
    refuse_rows(connection, "segments", bad, path, "CLM_FROM_DT", "YYYYMMDD or blank")
    return cut


def _numbered(path: Path, header: list[str], stem: str) -> list[str]:
    columns = [name for name in header if re.fullmatch(rf"{stem}_\d+", name)]
    if not columns:
        raise DataError(f"{path}: lacks the columns {stem}_1, {stem}_2, ...; it has {header}")
    return columns


def _drop_last_patient(connection: Connection, path: Path) -> None:
    """Remove from ``segments`` the patient of its last row; a table keeps the file's order."""
    connection.execute(
        """DELETE FROM segments
           WHERE patient = (SELECT patient FROM segments ORDER BY rowid DESC LIMIT 1)"""
    )
    note(connection, path.name, "last patient left out, whose claims may be cut off", 1)
    logger.warning("%s: the last patient is left out, whose claims may be cut off", path.name)


def _make_events(connection: Connection, care: Care, valid_procedures: Vocabulary | None) -> None:
    connection.execute(
        """CREATE TEMP TABLE patients AS
           SELECT patient, 'sample-' || min(sample) AS site, NULL::BOOLEAN AS died
           FROM claims GROUP BY patient"""
    )
    for mode in MODES:
        connection.execute(
            f"""CREATE OR REPLACE TEMP TABLE listed AS
                SELECT patient, claim AS encounter,
                    (day - DATE '1970-01-01') * {MINUTES_A_DAY} AS time, unnest({mode}) AS code
                FROM claims"""
        )
        values = count_rows(connection, "listed")
        note(connection, mode, "values", values)
        if mode == "procedures" and valid_procedures is not None:
            connection.execute(
                "DELETE FROM listed WHERE code NOT IN (SELECT unnest($valid))",
                {"valid": list(valid_procedures.codes)},
            )
        elif mode == "procedures" and care == "inpatient":
            connection.execute(
                "DELETE FROM listed WHERE NOT regexp_full_match(code, $form)",
                {"form": _ICD9_PROCEDURE},
            )
        if invalid := values - count_rows(connection, "listed"):
            note(connection, mode, "values that are no valid procedure, left out", invalid)
        add_events(connection, mode, "listed")
    connection.execute("DROP TABLE listed")
    connection.execute(
        "CREATE TEMP TABLE descriptions (mode VARCHAR, code VARCHAR, description VARCHAR)"
    )
