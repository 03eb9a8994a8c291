import gzip
import logging

import pytest

from dpfact_flower.data.readers.runner import read
from dpfact_flower.errors import DataError

# Patient 1: NICU first, then SICU. Patient 2: MICU, dies in the second admission. Patient 3: has no
# procedure. Patient 4: two MICU stays that begin together. Patient 5: never in an ICU.
TABLES = {
    "icustays": "row_id,subject_id,hadm_id,icustay_id,first_careunit,intime\n"
    "1,1,11,101,SICU,2101-01-02 00:00:00\n"
    "2,1,10,102,NICU,2100-12-31 23:59:59\n"
    "3,2,20,103,MICU,2110-05-05 01:00:00\n"
    "4,3,30,104,MICU,2110-05-05 01:00:00\n"
    "5,4,40,105,,2110-05-05 01:00:00\n",
    "admissions": "row_id,subject_id,hadm_id,hospital_expire_flag\n"
    "1,1,10,0\n2,1,11,0\n3,2,20,0\n4,2,21,1\n5,3,30,1\n6,4,40,0\n7,5,50,1\n",
    "procedures_icd": "row_id,subject_id,hadm_id,seq_num,icd9_code\n"
    "1,1,10,1,0040\n2,1,10,2,40\n3,1,10,3,0040\n4,1,11,1,0040\n"
    "5,2,20,1,0040\n6,4,40,1, 0040 \n7,5,50,1,0040\n8,2,20,2,\n",
    "diagnoses_icd": "row_id,subject_id,hadm_id,seq_num,icd9_code\n"
    "1,1,10,1,4019\n2,1,11,1,4019\n3,1,11,2,0389\n4,2,21,1,0389\n"
    "5,2,20,1,0389\n6,3,30,1,4019\n7,4,40,1,40\n8,5,50,1,4019\n",
    "d_icd_procedures": "row_id,icd9_code,short_title,long_title\n"
    '1,0040,short,"Procedure, one vessel"\n2,9999,unused,Unused\n',
    "d_icd_diagnoses": "row_id,icd9_code,short_title,long_title\n"
    "1,4019,HTN,Hypertension\n2,0040,x,Of another table\n3,0389,s,\n",
}


@pytest.fixture(params=["demo", "full", "gzip"])
def folder(request, tmp_path):
    for name, text in TABLES.items():
        if request.param == "demo":
            (tmp_path / f"{name}.csv").write_text(text)
        elif request.param == "full":  # a header in upper case and quoted
            header, rows = text.split("\n", 1)
            quoted = ",".join(f'"{column}"' for column in header.upper().split(","))
            whole = f"{quoted}\n{rows}".replace("\n", "\r\n")
            (tmp_path / f"{name.upper()}.csv").write_bytes(whole.encode())
        else:
            (tmp_path / f"{name.upper()}.csv.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


def test_tensors_of_a_hand_made_folder(folder):
    cohort = read("mimic3", folder)
    assert "PROCEDURES_ICD: rows with short codes, which may lack leading zeros: 1" in repr(cohort)
    assert "procedures: repeated events, each counted once: 1" in repr(cohort)
    procedures, diagnoses = cohort.vocabularies
    assert (procedures.name, diagnoses.name) == ("procedures", "diagnoses")
    assert procedures.codes == ("0040", "40")
    assert diagnoses.codes == ("0389", "4019", "40")  # the first two are equally frequent
    assert procedures.descriptions == ("Procedure, one vessel", "")
    assert diagnoses.descriptions == ("", "Hypertension", "")
    found = {
        site.name: (site.patients, site.labels["died"].tolist(), site.tensor.to_dense().tolist())
        for site in cohort.sites
    }
    assert found == {
        # admission 10: 0040 and 40 with 4019; admission 11: 0040 with 4019 and 0389
        "NICU": (("1",), [0], [[[1, 2, 0], [0, 1, 0]]]),
        "MICU": (("2",), [1], [[[1, 0, 0], [0, 0, 0]]]),
        "unknown": (("4",), [0], [[[0, 0, 1], [0, 0, 0]]]),
    }


@pytest.mark.parametrize("folder", ["demo"], indirect=True)
def test_descriptions_are_not_needed(folder, caplog):
    (folder / "d_icd_diagnoses.csv").unlink()
    with caplog.at_level(logging.WARNING):
        cohort = read("mimic3", folder)
    assert cohort.vocabularies[1].descriptions == ("", "", "")
    assert "D_ICD_DIAGNOSES" in caplog.text


@pytest.mark.parametrize("folder", ["demo"], indirect=True)
def test_missing_admissions_and_codes_that_became_fractions_are_said(folder, caplog):
    (folder / "admissions.csv").write_text(TABLES["admissions"].replace(",1,1", ",9,1"))
    assert read("mimic3", folder).sites
    assert "ADMISSIONS: patients who are not in it, labelled 0: 1" in caplog.text
    path = folder / "procedures_icd.csv"
    path.write_text(TABLES["procedures_icd"].replace("0040", "66.0"))
    with pytest.raises(DataError, match=r"PROCEDURES_ICD: column icd9_code must .* \.0 .*; 6 are"):
        read("mimic3", folder)


def test_logs_hold_no_patient(tmp_path, caplog):
    ids = {"1": "patient-one", "2": "patient-two"}
    for name, text in TABLES.items():
        header, *lines = (line.split(",") for line in text.splitlines())
        if "subject_id" in header:
            lines = [[line[0], ids.get(line[1], line[1]), *line[2:]] for line in lines]
            text = "\n".join(",".join(line) for line in [header, *lines])  # noqa: PLW2901
        (tmp_path / f"{name}.csv").write_text(text)
    with caplog.at_level(logging.DEBUG):
        cohort = read("mimic3", tmp_path)
    assert cohort.sites[0].patients == ("patient-two",)
    assert "patient-" not in caplog.text


def test_demo_has_the_patients_and_cells_it_is_known_for(ehr_data):
    everybody = read("mimic3", ehr_data / "mimic3_demo", top=(None, None), keep_empty=True)
    lines = everybody.summary()
    assert {line.site: line.patients for line in lines} == {
        "MICU": 54, "SICU": 20, "CCU": 12, "TSICU": 8, "CSRU": 6
    }  # fmt: skip
    assert sum(line.labelled["died"] for line in lines) == 40
    assert sum(line.nonzeros for line in lines) == 7133
    assert [len(v) for v in everybody.vocabularies] == [164, 581]
    assert [v.descriptions.count("") for v in everybody.vocabularies] == [0, 0]
    # 34 and 71 rows have a code with a leading zero; these are the codes
    assert [sum(c.startswith("0") for c in v.codes) for v in everybody.vocabularies] == [20, 27]
    with_cells = read("mimic3", ehr_data / "mimic3_demo", top=(None, None)).summary()
    assert sum(line.nonzeros for line in with_cells) == 7133
    assert sum(line.patients for line in with_cells) == 88
