import gzip

import pytest

from dpfact_flower.data.readers.runner import read
from dpfact_flower.errors import DataError
from tests.data.readers.cells import cells_of, described

pytestmark = pytest.mark.slow

# The published columns of MIMIC-IV 3.1, in order. Only columns that are read have content.
COLUMNS = {
    "hosp/patients": "subject_id,gender,anchor_age,anchor_year,anchor_year_group,dod",
    "hosp/admissions": "subject_id,hadm_id,admittime,dischtime,deathtime,admission_type,"
    "admit_provider_id,admission_location,discharge_location,insurance,language,marital_status,"
    "race,edregtime,edouttime,hospital_expire_flag",
    "hosp/diagnoses_icd": "subject_id,hadm_id,seq_num,icd_code,icd_version",
    "hosp/procedures_icd": "subject_id,hadm_id,seq_num,chartdate,icd_code,icd_version",
    "hosp/prescriptions": "subject_id,hadm_id,pharmacy_id,poe_id,poe_seq,order_provider_id,"
    "starttime,stoptime,drug_type,drug,formulary_drug_cd,gsn,ndc,prod_strength,form_rx,"
    "dose_val_rx,dose_unit_rx,form_val_disp,form_unit_disp,doses_per_24_hrs,route",
    "hosp/d_icd_diagnoses": "icd_code,icd_version,long_title",
    "hosp/d_icd_procedures": "icd_code,icd_version,long_title",
    "hosp/services": "subject_id,hadm_id,transfertime,prev_service,curr_service",
    "icu/icustays": "subject_id,hadm_id,stay_id,first_careunit,last_careunit,intime,outtime,los",
}
MICU, CVICU = "Medical Intensive Care Unit (MICU)", "Cardiac Vascular Intensive Care Unit (CVICU)"
# Patient 1: CVICU, then MICU. Patient 2: MICU, dies. Patient 3: no ICU stay. Patient 4: no
# procedure. One text is a code of both versions: E8889.
ROWS = {
    "hosp/patients": ["1,F,52,2180,2014 - 2016,2180-09-09"],
    "hosp/admissions": [
        "1,10,2180-05-06 22:23:00,2180-05-07 17:15:00,,URGENT,P1,,HOME,Other,ENGLISH,,WHITE,,,0",
        "1,11,2181-05-06 22:23:00,2181-05-07 17:15:00,,EW EMER.,P1,,HOME,Other,ENGLISH,,WHITE,,,0",
        "2,20,2180-05-06 22:23:00,,,URGENT,P1,,DIED,Other,?,,UNKNOWN,,,1",
        "2,20,2180-05-06 22:23:00,,,URGENT,P1,,DIED,Other,?,,UNKNOWN,,,1",
        "3,30,2180-05-06 22:23:00,,,URGENT,P1,,,Other,?,,UNKNOWN,,,0",
        "4,40,2180-05-06 22:23:00,,,URGENT,P1,,,Other,?,,UNKNOWN,,,",
    ],
    "hosp/diagnoses_icd": [
        "1,10,1,4019   ,9", "1,10,2,E8889,9", "1,10,3,,9", "1,11,1,I10,10", "1,11,2,E8889,10",
        "2,20,1,I10,10", "2,20,1,I10,10", "2,20,2,0389,", "3,30,1,4019,9", "4,40,1,I10,10",
    ],
    "hosp/procedures_icd": [
        "1,10,1,2180-05-06,0040,9", "1,11,1,2181-05-07,02HV33Z,10", "2,20,1,,02HV33Z,10",
        "3,30,1,2180-05-07,40,9",
    ],
    "hosp/prescriptions": [
        "1,10,1,,,,,,MAIN,Furosemide,,,,,,,,,,,IV", "1,10,2,,,,,,BASE,5% Dextrose,,,,,,,,,,,IV",
        '2,20,3,,,,,,MAIN,"FUROSEMIDE ",,,,,,,,,,,IV', "2,20,4,,,,,,MAIN,,,,,,,,,,,,IV",
    ],
    "hosp/d_icd_diagnoses": [
        "4019,9,Unspecified essential hypertension", "I10,10,Essential (primary) hypertension",
        'E8889,9,"Fall, unspecified"', 'E8889,10,"Metabolic disorder, unspecified"',
    ],
    "hosp/d_icd_procedures": ["0040,9,Procedure on single vessel", "02HV33Z,10,Infusion device"],
    "hosp/services": [
        "1,10,2180-05-06 22:25:00,,CSURG", "2,20,2180-05-06 22:25:00,,MED",
        "3,30,2180-05-06 22:25:00,,MED", "4,40,2180-05-06 22:25:00,,",
    ],
    "icu/icustays": [
        f"1,11,102,{MICU},{MICU},2181-05-06 23:00:00,2181-05-07 10:00:00,0.4",
        f"1,10,101,{CVICU},{CVICU},2180-05-06 23:00:00,2180-05-07 10:00:00,0.4",
        f"2,20,103,{MICU},{MICU},2180-05-06 23:00:00,,",
        f"4,40,104,{MICU},{MICU},2180-05-06 23:00:00,,",
    ],
}  # fmt: skip


def write_tables(folder, rows=ROWS):
    for table, lines in rows.items():
        path = folder / f"{table}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("\n".join([COLUMNS[table], *lines, ""]).encode()))


@pytest.fixture
def folder(tmp_path):
    write_tables(tmp_path)
    return tmp_path


def test_a_folder_as_physionet_has_it(folder):
    cohort = read("mimic4", folder)
    assert cells_of(cohort) == {
        ("Cardiac-Vascular-Intensive-Care-Unit-CVICU-", "1", *pair): 1
        for pair in (
            ("icd9:0040", "icd9:4019"), ("icd9:0040", "icd9:E8889"),
            ("icd10:02HV33Z", "icd10:I10"), ("icd10:02HV33Z", "icd10:E8889"),
        )
    } | {("Medical-Intensive-Care-Unit-MICU-", "2", "icd10:02HV33Z", "icd10:I10"): 1}  # fmt: skip
    assert described(cohort, 1)["icd9:E8889"] == "Fall, unspecified"
    assert described(cohort, 1)["icd10:E8889"] == "Metabolic disorder, unspecified"
    assert [site.labels["died"].tolist() for site in cohort.sites] == [[0], [1]]
    assert [site.labels["readmitted"].tolist() for site in cohort.sites] == [[0], [0]]


@pytest.mark.parametrize(
    ("leaves", "comes", "back"),
    [
        ("2180-05-07 17:15:00", "2180-06-06 17:15:00", 1),  # 30 days to the minute
        ("2180-05-07 17:15:00", "2180-06-06 17:15:01", 0),
        ("2180-05-07 17:15:00", "2180-05-07 17:15:00", 0),  # a transfer
        ("", "2180-05-08 00:00:00", 0),
    ],
)
def test_who_comes_back_within_thirty_days_is_readmitted(leaves, comes, back, tmp_path):
    rows = ROWS | {
        "hosp/admissions": [
            f"1,10,2180-05-06 22:23:00,{leaves}{',' * 12}0",
            f"1,11,{comes},2181-05-07 17:15:00{',' * 12}0",
            "2,20,2180-05-06 22:23:00,2180-05-07 00:00:00" + "," * 12 + "1",
        ]
    }
    write_tables(tmp_path, rows)
    sites = read("mimic4", tmp_path).sites
    assert [site.labels["readmitted"].tolist() for site in sites] == [[back], [0]]


def test_what_is_left_out_is_counted(folder):
    counts = {(where, what): count for where, what, count in read("mimic4", folder).read_report}
    assert counts["diagnoses_icd", "rows"] == 10
    assert counts["diagnoses_icd", "rows without a code or a patient, left out"] == 1
    assert counts["diagnoses_icd", "rows whose icd_version is neither 9 nor 10, left out"] == 1
    assert counts["procedures_icd", "rows with short codes, which may lack leading zeros"] == 1
    assert counts["admissions", "rows without hospital_expire_flag, counted as no death"] == 1
    assert counts["admissions", "patients without a care unit or service, left out"] == 1
    assert counts["patients", "left out, since no window holds a code of each mode"] == 1
    assert counts["patients", "kept"] == 2
    assert counts["readmitted", "stays that lack a date, left out"] == 4


def test_sites_by_service(folder):
    cohort = read("mimic4", folder, by="service", keep_empty=True)
    assert {site.name: site.patients for site in cohort.sites} == {
        "CSURG": ("1",), "MED": ("2", "3"), "unknown": ("4",)
    }  # fmt: skip


def test_drugs_are_a_third_mode(folder):
    cohort = read("mimic4", folder, drugs=True)
    assert cohort.vocabularies[2].codes == ("furosemide",)
    assert ("1", "icd9:0040", "icd9:4019", "furosemide") in {cell[1:] for cell in cells_of(cohort)}
    counts = {what: count for where, what, count in cohort.read_report if where == "prescriptions"}
    assert counts["rows of drug_type BASE or ADDITIVE, left out"] == 1
    assert counts["rows without a drug or a patient, left out"] == 1


def test_version_1_in_upper_case_with_dotted_codes_and_more_columns(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    for table, lines in ROWS.items():
        part, _, name = table.upper().partition("/")
        there = other / ("CORE" if name == "ADMISSIONS" else part) / f"{name}.csv"
        there.parent.mkdir(exist_ok=True)
        header = f"ROW_ID,{COLUMNS[table].upper()},note"
        text = "\n".join([header, *(f"7,{line},x" for line in lines)])
        for code in ("4019", "E8889", "02HV33Z") if "ICD" in name else ():
            text = text.replace(code, f"{code[:3]}.{code[3:]}")
        there.write_text(text + "\n")
    one, two = read("mimic4", folder, drugs=True), read("mimic4", other, drugs=True)
    assert cells_of(one) == cells_of(two)
    assert one.vocabularies == two.vocabularies
    assert one.labels == two.labels == ("died", "readmitted")


def test_without_icu_sites_are_services_and_that_is_said(folder):
    (folder / "icu" / "icustays.csv.gz").unlink()
    (folder / "icu").rmdir()
    cohort = read("mimic4", folder)
    assert [site.name for site in cohort.sites] == ["CSURG", "MED"]
    assert ("icustays", "tables missing: sites are services", 1) in cohort.read_report
    with pytest.raises(DataError, match="lacks the table icustays"):
        read("mimic4", folder, by="careunit")


def test_a_missing_table_and_what_is_malformed_are_named(folder):
    write_tables(folder, {"hosp/procedures_icd": ["1,10,1,,3605.0,9", "1,10,2,,66.0,9"]})
    with pytest.raises(DataError, match=r"procedures_icd: column icd_code must .* \.0 .*; 2 are"):
        read("mimic4", folder)
    write_tables(folder)
    (folder / "hosp" / "d_icd_diagnoses.csv.gz").unlink()
    assert "Unspecified fall" in read("mimic4", folder).vocabularies[1].descriptions
    (folder / "icu" / "icustays.csv.gz").unlink()
    (folder / "hosp" / "services.csv.gz").unlink()
    says = r"lacks the table icustays; tried icustays\.csv.*, here and in hosp, icu"
    with pytest.raises(DataError, match=says):
        read("mimic4", folder)
