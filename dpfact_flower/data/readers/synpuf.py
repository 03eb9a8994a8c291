"""CMS DE-SynPUF 2008-2010: one site per sample, from inpatient or outpatient claims.

- An encounter is a claim. A long claim has several rows, segments, and later segments may have
  blank dates: they take the claim's. The time of an event is the day its claim began.
- Diagnoses are ``ICD9_DGNS_CD_*``. The admitting diagnosis is a reason, not a finding, and left
  out. CMS writes ``OTHER`` where it suppressed a rare code; that is kept as a code.
- Procedures of inpatient claims are ``ICD9_PRCDR_CD_*``, where CMS's synthesis left diagnoses and
  other codes behind. Those that have the form of an ICD-9-CM procedure without its dot, three or
  four digits, are kept; that drops a third of the values. Some diagnoses have this form too
  (``4280``): a list of true procedures, `valid_procedures`, drops half. What is both remains
  (``4019``: a lymphatic procedure in name, hypertension in truth); where it is more frequent among
  the diagnoses, it is described as the diagnosis that it is.
- Procedures of outpatient claims are ``HCPCS_CD_*`` as they are. Their CPT descriptions are
  copyrighted: this reader knows codes only.
- The label of inpatient claims is ``readmitted``, by their dates of admission and discharge. The
  beneficiary files have dates of death, but not where somebody died, and are not read. Patients are
  those with a claim.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from dpfact_flower.data.clinical_events import add_events, count, table_of
from dpfact_flower.data.code_names import name_of
from dpfact_flower.data.cooccurrence import MINUTES_A_DAY, Window
from dpfact_flower.data.readers.steps import (
    Options,
    label_readmissions,
    make_cohort,
    reading,
)
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.tables import (
    count_rows,
    find_files,
    load_table,
    read_header,
    refuse_rows,
)
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError, shown

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

MODES = ("procedures", "diagnoses")
TOP = (202, 316)
"""How many codes are kept where nothing else is asked for, as in the paper."""
Care = Literal["inpatient", "outpatient"]

_PROCEDURES = {"inpatient": "icd9_prcdr_cd", "outpatient": "hcpcs_cd"}
_ICD9_PROCEDURE = r"\d{2}\d{1,2}"
_DATES = ("clm_from_dt", "clm_admsn_dt", "nch_bene_dschrg_dt")
"""First day of a claim; and where it is a stay in hospital, of admission and discharge."""


def read(
    folder: str | Path,
    *,
    care: Care = "inpatient",
    window_days: int | None = 30,
    valid_procedures: Vocabulary | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
    drop_last_patient: bool | None = None,
    **options: Unpack[Options],
) -> Cohort:
    """Read DE-SynPUF's claims into one tensor per sample: patients x procedures x diagnoses.

    Parameters
    ----------
    folder : path
        Holds ``DE1_0_2008_to_2010_Inpatient_Claims_Sample_<n>.csv`` or ``..._Outpatient_...``,
        plain or as ``.csv.gz``, in any case.
    window_days : int or None
        Largest distance between the claims' first days; None: the same claim.
    valid_procedures : Vocabulary, optional
        Public list of codes that count as procedures, instead of those that look like them.
    groups : mapping of str to sequence of int, optional
        Samples of each site; default: each sample in the folder is a site, ``sample-<n>``. A
        patient of two samples is at the lower one.
    drop_last_patient : bool, optional
        Leave out the last patient of each file, whose claims may be cut off; default: if the
        file's last line is incomplete. A file cut between two lines does not show it.
    **options
        `Options` of all readers; `top` is `TOP` where it is not given.
    """
    if care not in _PROCEDURES:
        raise SettingsError(f"care: must be one of {', '.join(_PROCEDURES)}; got {shown(care)}")
    window = Window(days=window_days, same_encounter=window_days is None)
    chosen = sorted(number for group in (groups or {}).values() for number in group)
    if len(set(chosen)) < len(chosen):
        raise SettingsError("groups: no sample may be at two sites")
    files = _find_claims(Path(folder), care, chosen)
    asked: Options = {"top": TOP, **options}
    with reading(options) as connection:
        _load_claims(connection, files, care, drop_last_patient)
        _make_events(connection, care, valid_procedures)
        stays = """(SELECT DISTINCT patient, begun::TIMESTAMP AS begun, ended::TIMESTAMP AS ended
                    FROM claims)"""
        inpatient = care == "inpatient"
        labels = label_readmissions(connection, stays, "patients") if inpatient else ()
        for site, numbers in (groups or {}).items():
            own = [f"sample-{number}" for number in numbers]
            connection.execute(
                "UPDATE patients SET site = $site WHERE site IN (SELECT unnest($own))",
                {"site": site, "own": own},
            )
        return make_cohort(connection, f"synpuf-{care}", MODES, window, asked, labels)


def _find_claims(folder: Path, care: Care, chosen: Sequence[int]) -> dict[int, Path]:
    pattern = rf"DE1_0_2008_to_2010_{care}_Claims_Sample_(\d+)"
    found = {int(number): path for number, path in find_files(folder, pattern).items()}
    wanted = chosen or sorted(found)
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
    """Table ``claims``: whose, of which days, with which procedures and diagnoses (lists)."""
    connection.execute(
        """SET preserve_insertion_order = true;  -- the last patient is that of the last line
           CREATE TEMP TABLE claims (sample INTEGER, patient VARCHAR, claim VARCHAR, day DATE,
               begun DATE, ended DATE, procedures VARCHAR[], diagnoses VARCHAR[])"""
    )
    for sample, path in files.items():
        cut = _load_segments(connection, path, care)
        count(connection, path.name, "rows", count_rows(connection, "segments"))
        if cut if drop_last is None else drop_last:
            # A table keeps the file's order.
            connection.execute(
                """DELETE FROM segments
                   WHERE patient = (SELECT patient FROM segments ORDER BY rowid DESC LIMIT 1)"""
            )
            what = "last patient left out, whose claims may be cut off"
            count(connection, path.name, what, 1, warn=True)
        connection.execute(
            f"""INSERT INTO claims
                SELECT {sample}, patient, claim, {", ".join(map(_first, _DATES))},
                    procedures, diagnoses
                FROM segments WHERE patient IS NOT NULL AND claim IS NOT NULL"""
        )
    connection.execute("DROP TABLE segments")


def _first(column: str) -> str:
    """SQL of a date that stands in one of a claim's segments."""
    return f"min(try_strptime({column}, '%Y%m%d')::DATE) OVER (PARTITION BY patient, claim)"


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
        ("desynpuf_id", "clm_id", _DATES[0], *codes["procedures"], *codes["diagnoses"]),
        optional=_DATES[1:],
        select=f"desynpuf_id AS patient, clm_id AS claim, {', '.join(_DATES)}, {lists}",
        may_be_cut=True,
    )
    for column in _DATES:
        wrong = (
            f"NOT regexp_full_match({column}, '\\d{{8}}') OR "
            f"{column} IS NOT NULL AND try_strptime({column}, '%Y%m%d') IS NULL"
        )
        refuse_rows(connection, "segments", wrong, path, column.upper(), "YYYYMMDD or blank")
    return cut


def _numbered(path: Path, header: list[str], stem: str) -> list[str]:
    columns = [name for name in header if re.fullmatch(rf"{stem}_\d+", name)]
    if not columns:
        raise DataError(f"{path}: lacks the columns {stem}_1, {stem}_2, ...; it has {header}")
    return columns


def _make_events(connection: Connection, care: Care, valid_procedures: Vocabulary | None) -> None:
    connection.execute(
        """CREATE TEMP TABLE patients AS
           SELECT patient, 'sample-' || min(sample) AS site
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
        count(connection, mode, "values", values)
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
        invalid = values - count_rows(connection, "listed")
        count(connection, mode, "values that are no valid procedure, left out", invalid)
        add_events(connection, mode, "listed")
    connection.execute("DROP TABLE listed")
    if care == "inpatient":
        _describe_diagnoses(connection)


def _describe_diagnoses(connection: Connection) -> None:
    """Descriptions of what is a diagnosis, although it is among the procedures."""
    uses = "(SELECT code AS key, count(*) AS uses FROM {} GROUP BY code)"
    procedures, diagnoses = (uses.format(table_of(mode)) for mode in MODES)
    found = connection.execute(
        f"""SELECT c.code FROM {procedures} p JOIN {diagnoses} d USING (key)
            JOIN codes c USING (key) WHERE c.mode = 'procedures' AND d.uses > p.uses"""
    ).fetchall()
    for (code,) in found:
        if name := name_of("icd9cm", code, exact=True):
            text = f"{name} (a diagnosis among the procedures)"
            connection.execute("INSERT INTO descriptions VALUES ('procedures', ?, ?)", [code, text])
