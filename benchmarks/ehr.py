"""Read made-up tables as large as those of MIMIC-III, MIMIC-IV and eICU in bounded memory.

``python -m benchmarks.ehr mimic3 [--scale 1] [--memory 500MB] [--drugs] [--keep FOLDER]``

The tables are those that the readers need, with the columns and row counts that PhysioNet
publishes. The tables contain random codes (a few of them frequent), blanks and repeated rows. Those
of MIMIC-IV contain both ICD versions, and rows without a version. No real patient's data is used.
For comparison, the program also prints the speed of a plain DuckDB scan, which reads every field of
the same files in its own process.
"""

import argparse
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.processes import child


class Made(NamedTuple):
    """A table: its row count at full size, and SQL for each column, given the row's number ``i``.

    A number such as ``<46520>`` counts patients or stays, and is scaled with the tables.
    """

    rows: int
    columns: dict[str, str]


def _blank(names: str, value: str = "NULL") -> dict[str, str]:
    return dict.fromkeys(names.split(), value)


def _draw(stream: int) -> str:
    """Return SQL for a row's random number in [0, 1). A repeated row has the same number."""
    return f"(hash(i, {stream}) % 1000003 / 1000003)"


def _code(count: int, form: str = "{}") -> str:
    """Return SQL for one of `count` codes. The first are frequent. One row in fifty has no code."""
    number = f"lpad(floor({count} * pow({_draw(1)}, 3))::INTEGER::VARCHAR, 5, '0')"
    return f"CASE WHEN {_draw(2)} > 0.02 THEN {form.format(number)} END"


def _time(days: str, first: str = "2110-01-01") -> str:
    return f"TIMESTAMP '{first}' + to_seconds((({days}) * 86400)::BIGINT)"


def _stay(patients: int, stays: int) -> dict[str, str]:
    """Return SQL for a row's patient and admission, derived from a random stay with number k."""
    k, p = f"(hash(i, 7) % <{stays}>)", f"<{patients}>"
    return {"p": f"{k} % {p}", "h": f"{k} % {p} * 10 + {k} // {p}"}


_IN_3, _IN_4, _IN_E = _stay(46_520, 58_976), _stay(364_627, 546_028), _stay(139_367, 200_859)
_OWN_3 = {"p": "i % <46520>", "h": "i % <46520> * 10 + i // <46520>"}
_OWN_4 = {"p": "i % <364627>", "h": "i % <364627> * 10 + i // <364627>"}
_ADMITTED, _LEFT = _time("i * 0.37 % 30000"), _time("i * 0.37 % 30000 + 1 + i % 9")
_FLAG = "(hash(i) % 10 = 0)::INTEGER"
_UNIT = "['MICU','SICU','CCU','CSRU','TSICU'][(i % 5)::INTEGER + 1]"
_VERSION = f"CASE WHEN {_draw(3)} < 0.45 THEN '9' WHEN {_draw(3)} < 0.99 THEN '10' END"
_PATH = "['pulmonary','renal','cardiovascular'][(hash(i) % 3)::INTEGER + 1]"

SCHEMAS: dict[str, dict[str, Made]] = {
    "mimic3": {
        "ICUSTAYS": Made(61_532, {
            "ROW_ID": "i", "SUBJECT_ID": _OWN_3["p"], "HADM_ID": _OWN_3["h"], "ICUSTAY_ID": "i",
            "DBSOURCE": "'carevue'", "FIRST_CAREUNIT": _UNIT, "LAST_CAREUNIT": _UNIT,
            **_blank("FIRST_WARDID LAST_WARDID", "52"), "INTIME": _ADMITTED, "OUTTIME": _LEFT,
            "LOS": "3.2"}),
        "ADMISSIONS": Made(58_976, {
            "ROW_ID": "i", "SUBJECT_ID": _OWN_3["p"], "HADM_ID": _OWN_3["h"],
            "ADMITTIME": _ADMITTED, "DISCHTIME": _LEFT,
            **_blank("DEATHTIME ADMISSION_TYPE ADMISSION_LOCATION DISCHARGE_LOCATION INSURANCE "
                     "LANGUAGE RELIGION MARITAL_STATUS ETHNICITY EDREGTIME EDOUTTIME DIAGNOSIS"),
            "HOSPITAL_EXPIRE_FLAG": _FLAG, "HAS_CHARTEVENTS_DATA": "1"}),
        "DIAGNOSES_ICD": Made(651_047, {
            "ROW_ID": "i", "SUBJECT_ID": _IN_3["p"], "HADM_ID": _IN_3["h"], "SEQ_NUM": "i % 20",
            "ICD9_CODE": _code(6_984)}),
        "PROCEDURES_ICD": Made(240_095, {
            "ROW_ID": "i", "SUBJECT_ID": _IN_3["p"], "HADM_ID": _IN_3["h"], "SEQ_NUM": "i % 9",
            "ICD9_CODE": _code(2_009)}),
        **{f"D_ICD_{table}": Made(rows, {
            "ROW_ID": "i", "ICD9_CODE": "lpad(i::VARCHAR, 5, '0')", "SHORT_TITLE": "'short'",
            "LONG_TITLE": "'A title, with a comma, no. ' || i"})
           for table, rows in (("DIAGNOSES", 14_567), ("PROCEDURES", 3_882))},
    },
    "mimic4": {
        "icu/icustays": Made(94_458, {
            "subject_id": "i % <65366>", "hadm_id": "i % <65366> * 10", "stay_id": "i",
            "first_careunit": _UNIT, "last_careunit": _UNIT, "intime": _ADMITTED, "outtime": _LEFT,
            "los": "3.2"}),
        "hosp/admissions": Made(546_028, {
            "subject_id": _OWN_4["p"], "hadm_id": _OWN_4["h"], "admittime": _ADMITTED,
            "dischtime": _LEFT,
            **_blank("deathtime admission_type admit_provider_id admission_location "
                     "discharge_location insurance language marital_status race edregtime "
                     "edouttime"),
            "hospital_expire_flag": _FLAG}),
        "hosp/diagnoses_icd": Made(6_364_488, {
            "subject_id": _IN_4["p"], "hadm_id": _IN_4["h"], "seq_num": "i % 39",
            "icd_code": _code(28_000), "icd_version": _VERSION}),
        "hosp/procedures_icd": Made(859_655, {
            "subject_id": _IN_4["p"], "hadm_id": _IN_4["h"], "seq_num": "i % 9",
            "chartdate": _ADMITTED, "icd_code": _code(14_000), "icd_version": _VERSION}),
        "hosp/prescriptions": Made(20_292_611, {
            "subject_id": _IN_4["p"], "hadm_id": _IN_4["h"],
            **_blank("pharmacy_id poe_id poe_seq order_provider_id", "'19796602-27'"),
            "starttime": _ADMITTED, "stoptime": _LEFT,
            "drug_type": "['MAIN','MAIN','MAIN','BASE','ADDITIVE'][(i % 5)::INTEGER + 1]",
            "drug": _code(9_000, "'Drug ' || {}"),
            **_blank("formulary_drug_cd gsn ndc prod_strength form_rx dose_val_rx dose_unit_rx "
                     "form_val_disp form_unit_disp doses_per_24_hrs route", "'5mg'")}),
        **{f"hosp/d_icd_{table}": Made(rows, {
            "icd_code": "lpad((i // 2)::VARCHAR, 5, '0')", "icd_version": "9 + i % 2",
            "long_title": "'A title, with a comma, no. ' || i"})
           for table, rows in (("diagnoses", 112_107), ("procedures", 86_423))},
    },
    "eicu": {
        "patient": Made(200_859, {
            "patientunitstayid": "i",
            "patienthealthsystemstayid": "i % <166355>", "gender": "'Female'", "age": "'> 89'",
            "ethnicity": "''", "hospitalid": "i % 208", "wardid": "1",
            **_blank("apacheadmissiondx admissionheight hospitaladmittime24"),
            "hospitaladmitoffset": "-(i % 2000)",
            **_blank("hospitaladmitsource hospitaldischargetime24 hospitaldischargeoffset "
                     "hospitaldischargelocation"),
            "hospitaldischargeyear": "2014 + i % 2",
            "hospitaldischargestatus": "CASE i % 20 WHEN 0 THEN 'Expired' WHEN 1 THEN NULL "
                                       "ELSE 'Alive' END",
            "unittype": _UNIT,
            **_blank("unitadmittime24 unitadmitsource unitvisitnumber unitstaytype "
                     "admissionweight dischargeweight unitdischargetime24 unitdischargeoffset "
                     "unitdischargelocation unitdischargestatus"),
            "uniquepid": "'002-' || (i % <139367>)"}),
        "hospital": Made(208, {
            "hospitalid": "i", "numbedscategory": "'<100'", "teachingstatus": "'f'",
            "region": "['Midwest','South','West',NULL,'Northeast'][(i % 5)::INTEGER + 1]"}),
        "treatment": Made(3_688_745, {
            "treatmentid": "i", "patientunitstayid": "hash(i, 7) % <200859>",
            "treatmentoffset": f"({_draw(4)} * 9000)::INTEGER",
            "treatmentstring": f"{_PATH} || '|' || " + _code(900, "{} || '|' || (i % 7)"),
            "activeupondischarge": "'False'"}),
        "diagnosis": Made(2_710_672, {
            "diagnosisid": "i", "patientunitstayid": "hash(i, 7) % <200859>",
            "activeupondischarge": "'True'", "diagnosisoffset": f"({_draw(4)} * 9000)::INTEGER",
            "diagnosisstring": f"{_PATH} || '|disease ' || (i % 900)",
            "icd9code": _code(900, "substr({0}, 3) || '.9, I' || substr({0}, 4)"),
            "diagnosispriority": "'Major'"}),
    },
}  # fmt: skip
"""MIMIC-III 1.4, MIMIC-IV 3.1 and eICU 2.0."""
_REPEATED = 0.01
"""Share of rows that occur twice in a table."""


def make(kind: str, folder: Path, scale: float, *, drugs: bool = False) -> dict[str, int]:
    """Write a schema's tables as reproducible CSV files, and return each table's row count."""
    import duckdb  # noqa: PLC0415 - sets up threads

    rows = {}
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        for table, made in SCHEMAS[kind].items():
            if table.endswith("prescriptions") and not drugs:
                continue
            count = made.rows if made.rows < 1000 else max(round(made.rows * scale), 1)
            path = folder / f"{table}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            columns = ", ".join(f"{sql} AS {name}" for name, sql in made.columns.items())
            columns = re.sub(
                r"<(\d+)>", lambda number: str(max(round(int(number[1]) * scale), 1)), columns
            )
            repeated = int(count * _REPEATED) if count >= 1000 else 0
            connection.execute(
                f"""COPY (SELECT {columns}
                          FROM (FROM range({count}) UNION ALL FROM range({repeated})) r(i))
                    TO '{path}' (HEADER)"""
            )
            rows[table] = count + repeated
    return rows


def main() -> None:
    """Make, scan and read the tables, and print the speeds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ehr", description=__doc__)
    parser.add_argument("kind", choices=SCHEMAS)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is the full size")
    parser.add_argument("--memory", default="500MB", help="memory limit of DuckDB")
    parser.add_argument("--drugs", action="store_true", help="read MIMIC-IV's prescriptions too")
    parser.add_argument("--keep", type=Path, help="keep the tables in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        rows = make(options.kind, folder, options.scale, drugs=options.drugs)
        total, size = sum(rows.values()), sum(p.stat().st_size for p in folder.rglob("*.csv"))
        print(f"{options.kind}: {total:,} rows, {size / 1e6:,.0f} MB of CSV", flush=True)
        scanned = child("scan_all", str(folder))
        read = child("read_ehr", options.kind, str(folder), options.memory, str(options.drugs))
    for name, run in (("plain scan", scanned), ("read", read)):
        print(
            f"{name:<10} {run['seconds']:7.1f} s, CPU {run['cpu']:7.1f} s, "
            f"{total / run['seconds']:12,.0f} rows a second"
        )
    print(
        f"scan / read {scanned['seconds'] / read['seconds']:.3f}, of CPU "
        f"{scanned['cpu'] / read['cpu']:.3f}; peak memory {read['peak'] / 1e6:,.0f} MB, of it "
        f"{read['before'] / 1e6:,.0f} MB before reading; {read['patients']:,} patients, "
        f"{read['cells']:,} cells"
    )


if __name__ == "__main__":
    main()
