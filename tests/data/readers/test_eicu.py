import pytest

from dpfact_flower.data.readers.runner import read
from dpfact_flower.errors import DataError
from tests.data.readers.cells import cells_of_site, described

pytestmark = pytest.mark.slow

# Patient A: hospital stay 1 has two unit stays, 11 (MICU, 2000 minutes after admission to the
# hospital) and 12 (Med-Surg, 100 minutes after it, hence the first); Then comes stay 2 in another
# hospital and region, in which A dies. Patient B: a hospital without region, discharge status
# blank. Patient C: nothing in the tensor.
PATIENT = (
    "patientunitstayid,patienthealthsystemstayid,uniquepid,hospitalid,unittype,"
    "hospitaladmitoffset,hospitaldischargestatus,hospitaldischargeyear,age\n"
    "11,1,A,56,MICU,-2000,Alive,2014,> 89\n"
    "12,1,A,56,Med-Surg ICU,-100,Alive,2014,> 89\n"
    "13,2,A,57,MICU,0,Expired,2015,> 89\n"
    '14,3,B,58,MICU,50,"",2014,40\n'
    "15,4,C,56,MICU,0,Expired,2014,40\n"
)
HOSPITAL = "hospitalid,numbedscategory,region\n56,<100,Midwest\n57,,South\n58,,\n"
TREATMENT = (
    "treatmentid,patientunitstayid,treatmentoffset,treatmentstring,activeupondischarge\n"
    "1,12,0,pulmonary|ventilation|oxygen therapy|mask,False\n"
    "2,12,0,pulmonary|ventilation|oxygen therapy|prongs,False\n"
    "3,11,5,pulmonary|ventilation|oxygen therapy,False\n"
    "4,13,5,renal|dialysis,False\n"
    "5,14,0,renal|dialysis,False\n"
    "6,14,0,,False\n"
)
DIAGNOSIS = (
    "diagnosisid,patientunitstayid,activeupondischarge,diagnosisoffset,diagnosisstring,icd9code\n"
    '1,12,False,0,cardiovascular|hypertension,"401.9, I10"\n'
    '2,12,False,0,cardiovascular|hypertension,"401.9, I10"\n'
    "10,12,False,1905,pulmonary|failure,518.81\n"
    "3,13,False,43205,renal|late,584.9\n"
    "4,13,False,43206,renal|too late,V45.11\n"
    "5,14,False,-10,renal|first,584.9\n"
    "6,14,False,-5,renal|first,584.9\n"
    '7,14,False,0,blank,""\n'
    "8,14,False,0,ICD-10 only,N17.9\n"
    '9,14,False,0,listed,"038.9, E980.2, 995.92, R65.20, E87.1, 1234, 401.123"\n'
)


@pytest.fixture
def folder(write):
    write("patient.csv", PATIENT)
    write("hospital.csv", HOSPITAL)
    write("treatment.csv", TREATMENT)
    return write("diagnosis.csv", DIAGNOSIS).parent


OXYGEN = "pulmonary|ventilation|oxygen therapy"
CELLS_OF_A = {
    ("A", OXYGEN, "401.9"): 2, ("A", OXYGEN, "518.81"): 2, ("A", "renal|dialysis", "584.9"): 1
}  # fmt: skip


def test_tensors_of_a_hand_made_folder(folder):
    cohort = read("eicu", folder, min_patients=1)
    midwest, unknown = cohort.sites
    assert (midwest.name, unknown.name) == ("Midwest", "unknown")
    # By the hospital's clock: oxygen at minutes 100 (two leaves cut to one event) and 2005, 401.9
    # at 100 and 518.81 at 2005. Second stay: 584.9 exactly 30 days after the treatment, V45.11 a
    # minute later still.
    assert cells_of_site(midwest) == CELLS_OF_A
    assert midwest.labels["died"].tolist() == [1]
    of_b = {"584.9": 2, "038.9": 1, "E980.2": 1, "995.92": 1}
    assert cells_of_site(unknown) == {("B", "renal|dialysis", code): n for code, n in of_b.items()}
    assert unknown.labels["died"].tolist() == [0]
    assert ("treatment", "rows without a treatment, left out", 1) in cohort.read_report


def test_codes_describe_themselves_or_by_their_most_frequent_path(folder):
    cohort = read("eicu", folder)
    treatments, _ = cohort.vocabularies
    assert treatments.name == "treatments"
    assert treatments.descriptions == treatments.codes
    assert described(cohort, 1)["584.9"] == "renal|first"
    assert described(cohort, 1)["401.9"] == "cardiovascular|hypertension"


@pytest.mark.parametrize(
    ("level", "codes"),
    [
        (1, {"pulmonary", "renal"}),
        (2, {"pulmonary|ventilation", "renal|dialysis"}),
        (9, {OXYGEN, f"{OXYGEN}|mask", f"{OXYGEN}|prongs", "renal|dialysis"}),
    ],
)
def test_treatments_are_cut(level, codes, folder):
    assert set(read("eicu", folder, treatment_level=level).vocabularies[0].codes) == codes


def test_the_window_may_be_the_whole_hospital_stay_but_never_more(folder):
    midwest = read("eicu", folder, window_days=None, min_patients=1).sites[0]
    assert cells_of_site(midwest) == CELLS_OF_A | {("A", "renal|dialysis", "V45.11"): 1}


def test_a_window_within_a_stay_uses_the_hospitals_clock(folder):
    midwest = read("eicu", folder, window_days=1, min_patients=1).sites[0]
    # 518.81 and the second oxygen are at one time in the hospital, 1900 minutes apart in the units
    assert cells_of_site(midwest) == {("A", OXYGEN, "401.9"): 1, ("A", OXYGEN, "518.81"): 1}


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("unittype", ["MICU", "Med-Surg-ICU"]),
        ("hospital", ["hospital-56", "hospital-58"]),
        ("region", ["Midwest", "unknown"]),
    ],
)
def test_a_patient_is_at_the_site_of_the_first_unit_stay(place, names, folder):
    cohort = read("eicu", folder, by=place, min_patients=1)
    sites = {site.name: site.patients for site in cohort.sites}
    assert sorted(sites) == names
    assert sites[names[0]] == (("B",) if place == "unittype" else ("A",))


def test_small_sites_are_merged(folder):
    (other,) = read("eicu", folder, by="hospital").sites
    assert (other.name, other.patients) == ("other", ("A", "B"))
    assert other.labels["died"].tolist() == [1, 0]


def test_the_hospital_table_is_needed_for_regions_alone(folder):
    (folder / "hospital.csv").unlink()
    assert len(read("eicu", folder, by="unittype", min_patients=1).sites) == 2
    with pytest.raises(DataError, match=r"tried hospital\.csv"):
        read("eicu", folder)


def test_demo_regions(ehr_data):
    cohort = read("eicu", ehr_data / "eicu_demo", keep_empty=True)
    lines = {line.site: line for line in cohort.summary()}
    assert sum(line.patients for line in lines.values()) == 1841
    # A patient of two regions is assigned to the first one. The data's own list counts the seven
    # such patients twice: 618, 537, 384, 180, 129.
    listed = {"Midwest": 618, "South": 537, "West": 384, "unknown": 180, "Northeast": 129}
    surplus = {name: listed[name] - lines[name].patients for name in listed}
    assert sum(surplus.values()) == sum(listed.values()) - 1841
    assert all(0 <= count <= 3 for count in surplus.values())
    # 182 hospital stays end in death; one patient has two of these
    assert sum(line.labelled["died"] for line in lines.values()) == 181
