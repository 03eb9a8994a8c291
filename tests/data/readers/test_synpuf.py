import csv
import gzip
import itertools

import pytest

from dpfact_flower.data.readers.runner import read
from dpfact_flower.errors import DataError, SettingsError
from tests.data.readers.cells import cells_of, described

pytestmark = pytest.mark.slow

INPATIENT = "DE1_0_2008_to_2010_Inpatient_Claims_Sample_{}.csv"
OUTPATIENT = "DE1_0_2008_to_2010_Outpatient_Claims_Sample_{}.csv"
INPATIENT_COLUMNS = (
    "DESYNPUF_ID,CLM_ID,SEGMENT,CLM_FROM_DT,CLM_THRU_DT,ADMTNG_ICD9_DGNS_CD,"
    "ICD9_DGNS_CD_1,ICD9_DGNS_CD_2,ICD9_PRCDR_CD_1,ICD9_PRCDR_CD_2,HCPCS_CD_1"
)
OUTPATIENT_COLUMNS = (
    "DESYNPUF_ID,CLM_ID,SEGMENT,CLM_FROM_DT,ICD9_DGNS_CD_1,ICD9_PRCDR_CD_1,"
    "ADMTNG_ICD9_DGNS_CD,HCPCS_CD_1,HCPCS_CD_2"
)
# A: claim 1 has a second segment without dates; claims 2 and 3 begin 30 and 31 days later. B:
# claims of one day. C: no valid procedure.
ONE = [
    "A,1,1,20081202,20081210,7777,0389,4019,0040,25000,99999",
    "A,1,2,,,,,,3893,,",
    "A,2,1,20090101,20090102,,V4581,,,,",
    "A,3,1,20090102,20090102,,2859,,E8859,V4581,",
    "B,4,1,20080101,20080102,,0389,0389,0040,0040,",
    "B,5,1,20080101,20080102,,4019,,,,",
    "C,6,1,20080101,20080102,,0389,,V4581,00405,",
]
TWO = ["D,7,1,20080101,20080102,,0389,,331,,"]


def text_of(columns, rows, end="\r\n"):
    header = ",".join(f'"{name}"' for name in columns.split(","))
    return "\r\n".join([header, *rows]) + end


@pytest.fixture
def folder(write):
    write(INPATIENT.format(1), text_of(INPATIENT_COLUMNS, ONE))
    return write(INPATIENT.format(2), text_of(INPATIENT_COLUMNS, TWO)).parent


def test_a_diagnosis_among_the_procedures_is_called_one(write):
    rows = [*ONE, "E,8,1,20080101,20080102,,4019,4280,4019,3893,", "F,9,1,20080101,,,4019,,9671,,"]
    folder = write(INPATIENT.format(1), text_of(INPATIENT_COLUMNS, rows)).parent
    named = described(read("synpuf", folder), 0)
    text = "Unspecified essential hypertension (a diagnosis among the procedures)"
    assert named["4019"] == text
    assert named["3893"] == "Venous catheterization, not elsewhere classified"
    assert named["9671"].startswith("Continuous invasive mechanical ventilation")


def ones(patient, *codes):
    """Cells of a patient of the first sample: each procedure with each diagnosis, once."""
    return {("sample-1", patient, *pair): 1 for pair in itertools.product(*codes)}


def test_thirty_days_on_the_first_day_of_the_claim(folder):
    cohort = read("synpuf", folder)
    assert cells_of(cohort) == {
        **ones("A", ("0040", "3893"), ("0389", "4019", "V4581")),
        **ones("B", ("0040",), ("0389", "4019")),
        ("sample-2", "D", "331", "0389"): 1,
    }
    assert cohort.labels == ()


def test_the_same_claim_joins_its_segments(folder):
    assert cells_of(read("synpuf", folder, window_days=None)) == {
        **ones("A", ("0040", "3893"), ("0389", "4019")),
        ("sample-1", "B", "0040", "0389"): 1,
        ("sample-2", "D", "331", "0389"): 1,
    }


def test_a_list_of_valid_procedures(folder):
    valid = ["331", "E8859"]
    assert cells_of(read("synpuf", folder, valid_procedures=valid)) == {
        **ones("A", ("E8859",), ("2859", "V4581")),
        ("sample-2", "D", "331", "0389"): 1,
    }


def test_lower_case_gzipped_files_and_samples(tmp_path):
    for number, rows in ((1, ONE), (10, TWO), (2, ONE)):
        name = INPATIENT.format(number).lower() + ".gz"
        text = text_of(INPATIENT_COLUMNS.lower(), rows)
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    (site,) = read("synpuf", tmp_path, group={"ten": "10"}).sites
    assert (site.name, site.patients) == ("ten", ("D",))


def test_a_patient_of_two_samples_is_at_the_lower_one(write):
    write(INPATIENT.format(1), text_of(INPATIENT_COLUMNS, ONE[:1]))
    second = ["A,8,1,20081203,20081203,,2724,,,,", *TWO]
    folder = write(INPATIENT.format(2), text_of(INPATIENT_COLUMNS, second)).parent
    cohort = read("synpuf", folder)
    assert [site.patients for site in cohort.sites] == [("A",), ("D",)]
    assert ("sample-1", "A", "0040", "2724") in cells_of(cohort)


def test_outpatient_procedures_are_hcpcs(write):
    rows = [
        "A,1,1,20080101,0389,0040,7777,G0283,99213",
        "A,1,2,,,,,0851,",
        "B,2,1,20080101,OTHER,,,,",
    ]
    folder = write(OUTPATIENT.format(1), text_of(OUTPATIENT_COLUMNS, rows)).parent
    found = cells_of(read("synpuf", folder, claims="outpatient"))
    assert found == ones("A", ("0851", "99213", "G0283"), ("0389",))


def test_the_last_patient_can_be_left_out_of_a_file_cut_between_lines(folder):
    options = {"group": {"one": "1"}, "drop_last_patient": True, "keep_empty": True}
    (site,) = read("synpuf", folder, **options).sites
    assert site.patients == ("A", "B")


def test_a_claim_without_any_date_counts_in_its_own_claim_alone(write):
    rows = ["A,1,2,,,,0389,,0040,,", "A,2,1,20080101,20080101,,4019,,3893,,"]
    folder = write(INPATIENT.format(1), text_of(INPATIENT_COLUMNS, rows)).parent
    dated = {("sample-1", "A", "3893", "4019"): 1}
    assert cells_of(read("synpuf", folder)) == dated
    undated = {("sample-1", "A", "0040", "0389"): 1}
    assert cells_of(read("synpuf", folder, window_days=None)) == dated | undated


def test_a_second_download_is_of_the_same_sample(folder):
    expected = cells_of(read("synpuf", folder))
    name = INPATIENT.format("1 (1)")
    (folder / name).write_text(text_of(INPATIENT_COLUMNS, ONE))
    assert cells_of(read("synpuf", folder)) == expected


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"claims": "carrier"}, SettingsError, "claims: must be one of inpatient, outpatient"),
        ({"window_days": 1.0}, SettingsError, "window days"),
        ({"group": {"x": "1,7"}}, DataError, r"lacks sample 7: need DE1_0_.*_N\.csv"),
        ({"group": {"x": "1,1"}}, DataError, "--group: samples must be at one site each"),
        ({"claims": "outpatient"}, DataError, r"lacks the table DE1_0.*Outpatient_Claims"),
    ],
)
def test_options_are_checked(options, error, message, folder):
    with pytest.raises(error, match=message):
        read("synpuf", folder, **options)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ICD9_PRCDR_CD_", "PROCEDURE", "lacks the column\\(s\\) icd9_prcdr_cd_1"),
        ('"CLM_ID"', '"CLAIM"', "lacks the column.*clm_id; it has"),
        ("20090101", "2009101", "clm_from_dt must be a date like .*; 1 row"),
        ("20090101", "20090230", "clm_from_dt must be a date like .*; 1 row"),
        ("A,2,1,20090101,20090102,,V4581,,,,", "secret", "row 4"),
    ],
)
def test_a_malformed_file_is_named_and_not_quoted(old, new, message, folder):
    path = folder / INPATIENT.format(1)
    path.write_bytes(path.read_bytes().replace(old.encode(), new.encode()))
    with pytest.raises(DataError, match=message) as caught:
        read("synpuf", folder)
    assert path.name in str(caught.value)
    assert "secret" not in str(caught.value)


def test_real_inpatient_samples(ehr_data):
    with (ehr_data / "mimic3_demo" / "D_ICD_PROCEDURES.csv").open() as file:
        codes = [row["icd9_code"] for row in csv.DictReader(file)]
    folder = ehr_data / "synpuf" / "inpatient"
    cohort = read("synpuf", folder, valid_procedures=codes, keep_empty=True)
    assert [line.site for line in cohort.summary()] == [f"sample-{n}" for n in range(1, 6)]
    patients = [line.patients for line in cohort.summary()]
    assert patients == [3268, 3255, 3195, 3241, 3222]  # "about 3,250"
    assert [len(v) for v in cohort.vocabularies] == [202, 316]
    assert all("died" not in line.labelled for line in cohort.summary())
    assert set(cohort.vocabularies[0].codes) <= set(codes)


def test_real_outpatient_file_that_was_cut_between_two_lines(ehr_data):
    folder = ehr_data / "synpuf" / "outpatient_partial"
    options = {"claims": "outpatient", "top": (None, None), "keep_empty": True}
    (whole,) = read("synpuf", folder, **options).sites
    (site,) = read("synpuf", folder, drop_last_patient=True, **options).sites
    assert len(whole.patients) == 1198
    assert set(whole.patients) - set(site.patients) == {"286D3555B1415C68"}
    # The data's own figure, 230,935, counts rows with their own date. It leaves out later segments,
    # which are read here with their claim's date, and keeps the last patient.
    assert whole.tensor.nnz == 232_013
    assert site.tensor.nnz == 231_792
