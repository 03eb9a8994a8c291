import duckdb
import pytest

from dpfact_flower.data.readers.runner import read
from dpfact_flower.errors import DataError
from tests.data.readers.cells import cells_of

ROWS = """(VALUES
    (1::BIGINT, NULL::TIMESTAMP, 'GENDER//F', NULL::FLOAT),
    (1, TIMESTAMP '2180-05-06 10:00:59', 'DIAGNOSIS//ICD//9//4019', NULL),
    (1, TIMESTAMP '2180-05-06 10:00:10', 'DIAGNOSIS//ICD//9//4019', NULL),
    (1, TIMESTAMP '2180-05-07 00:00:00', 'PROCEDURE//ICD//10//02HV33Z', NULL),
    (1, NULL, 'DIAGNOSIS//ICD//10//I10', NULL),
    (1, TIMESTAMP '2180-05-06 10:00:00', 'LAB//50912', 1.5),
    (2, TIMESTAMP '2180-05-06 10:00:00', 'DIAGNOSIS//ICD10CM//I10', NULL)
) AS t(subject_id, time, code, numeric_value)"""


def write_meds(folder):
    """Write two shards and the descriptions in the layout of MEDS 0.3."""
    for part, ids in (("train", "= 1"), ("held_out", "= 2")):
        (folder / "data" / part).mkdir(parents=True)
        path = folder / "data" / part / "0.parquet"
        duckdb.sql(f"SELECT * FROM {ROWS} WHERE subject_id {ids}").write_parquet(str(path))
    (folder / "metadata").mkdir()
    duckdb.sql(
        "SELECT 'DIAGNOSIS//ICD//9//4019' AS code, 'Hypertension' AS description, "
        "['a']::VARCHAR[] AS parent_codes"
    ).write_parquet(str(folder / "metadata" / "codes.parquet"))


@pytest.fixture
def folder(tmp_path):
    write_meds(tmp_path)
    return tmp_path


def test_shards_make_one_site(folder, caplog):
    cohort = read("meds", folder, name="north")
    assert "no privacy guarantee covers" in caplog.text
    assert cells_of(cohort) == {("north", "1", "icd10:02HV33Z", "icd9:4019"): 1}
    diagnoses = cohort.vocabularies[1]
    assert diagnoses.codes == ("icd10:I10", "icd9:4019")
    assert diagnoses.descriptions == ("Essential (primary) hypertension", "Hypertension")
    assert cohort.sites[0].labels == {}
    assert ("data", "rows without a time, left out", 1) in cohort.read_report


def test_modes_by_prefixes_and_groups(folder):
    cohort = read("meds", folder, name="north", mode={"labs": "LAB//", "dx": "DIAGNOSIS//"},
                  rolled_up={"dx": "icd3"})  # fmt: skip
    assert cells_of(cohort) == {("north", "1", "50912", "icd9:401"): 1}


def test_what_cannot_be_read_is_named(folder, tmp_path):
    with pytest.raises(DataError, match="the tables hold no rx of these patients"):
        read("meds", folder, name="north", mode={"rx": "RX//", "dx": "DIAGNOSIS//"})
    with pytest.raises(DataError, match="lacks the table data"):
        read("meds", tmp_path / "metadata", name="north")
