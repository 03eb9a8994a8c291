"""The National Hospital Discharge Survey: a made-up file in its layout, and the real file."""

import bz2
import gzip
import re
from dataclasses import replace

import pytest

from dpfact_flower.data.readers.runner import read
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.prose import headline
from dpfact_flower.evaluation.report import write_report
from dpfact_flower.notebook.federated import federate
from tests.commands import dpfact
from tests.data.readers.cells import cells_of

pytestmark = pytest.mark.slow


def line(diagnoses, procedures, *, status="1", place="111", newborn="2", year="10"):
    """Return the line of one discharge; `place` is region, beds and ownership."""
    listed = ("".join(code.ljust(5, "-") for code in diagnoses).ljust(75),
              "".join(code.ljust(4, "-") for code in procedures).ljust(32))  # fmt: skip
    return f"{year}{newborn}119219{status:>3}   71{place}0087206{''.join(listed)}04  778203     "


LINES = [
    line(["4019", "V5862", "038"], ["9915", "741"], place="131"),
    line(["4019", "4019"], ["741", "741"], status="6", place="143"),
    line(["4019"], ["741"], newborn="1"),
    line(["E8859"], [], place="452"),
    line(["4019"], ["9915"], place="452"),
    line(["41401"], ["9915"], status="0", place="452"),
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "NHDS10.PU.txt.bz2"
    path.write_bytes(bz2.compress(("\r\n".join(LINES) + "\r\n").encode()))
    return path


def test_discharges_of_a_made_up_file(file):
    cohort = read("nhds", file)
    small, large, west = "northeast-under-300-beds", "northeast-300-beds-or-more", "west-300-beds"
    assert cells_of(cohort) == {
        (small, "000001", "9915", "4019"): 1, (small, "000001", "9915", "V5862"): 1,
        (small, "000001", "9915", "038"): 1, (small, "000001", "741", "4019"): 1,
        (small, "000001", "741", "V5862"): 1, (small, "000001", "741", "038"): 1,
        (large, "000002", "741", "4019"): 1,
        (f"{west}-or-more", "000005", "9915", "4019"): 1,
        (f"{west}-or-more", "000006", "9915", "41401"): 1,
    }  # fmt: skip
    assert [site.labels["died"].tolist() for site in cohort.sites] == [[1], [0], [0, 0]]
    assert cohort.vocabularies[0].descriptions == (
        "Parenteral infusion of concentrated nutritional substances",
        "Low cervical cesarean section",
    )
    counts = {(where, what): count for where, what, count in cohort.read_report}
    assert counts[file.name, "discharges"] == 6
    assert counts[file.name, "discharges of newborns, left out"] == 1
    assert counts["discharges", "in the tables"] == 5
    assert counts["discharges", "kept"] == 4


def test_sites_by_ownership_and_beds_and_other_packings(file, tmp_path):
    text = bz2.decompress(file.read_bytes())
    (tmp_path / "plain.txt").write_bytes(text)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(text))
    for path in (file, tmp_path / "plain.txt", tmp_path / "packed.gz"):
        cohort = read("nhds", path, by="ownership")
        assert [site.name for site in cohort.sites] == ["government", "nonprofit", "proprietary"]
    beds = [(site.name, len(site)) for site in read("nhds", file, by="beds").sites]
    assert beds == [("200-to-299-beds", 1), ("300-to-499-beds", 1), ("500-or-more-beds", 2)]


@pytest.mark.parametrize(
    "wrong",
    [
        line(["4019"], ["741"], year="09"),
        line(["4019"], ["741"])[:120],
        line(["40.19"], ["741"]),
        line(["4019"], ["741"], place="911"),
        "patient,code",
        "",
    ],
)
def test_another_layout_is_refused(wrong, tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("\n".join([*LINES, wrong, "secret, 4019", ""]))
    with pytest.raises(DataError, match=r"x\.txt: need lines of NHDS.*; 2 are not") as said:
        read("nhds", path)
    assert "secret" not in str(said.value)


def test_what_cannot_be_read_is_named(file, tmp_path):
    with pytest.raises(DataError, match="gone: no such file"):
        read("nhds", tmp_path / "gone")
    for name, content, says in (
        ("empty.txt", b"", "need lines of NHDS"),
        ("cut.bz2", file.read_bytes()[:60], r"cannot be read \(EOFError\)"),
        ("no.bz2", b"10", r"cannot be read \(OSError\)"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{name}: {says}"):
            read("nhds", tmp_path / name)


def test_one_command_says_discharges(file, tmp_path):
    out = tmp_path / "out"
    text = dpfact("data", "nhds", file, "--by", "ownership", "--top", "1x1", "--out", out)
    assert "discharges" in text
    assert "patients ┃" not in text
    cohort = Cohort.load(out)
    assert cohort.row_unit == "discharge"
    assert [len(v) for v in cohort.vocabularies] == [1, 1]
    assert cohort.sites[0][[0]].row_unit == "discharge"


@pytest.mark.nightly
def test_a_runs_promise_is_for_a_discharge(tmp_path):
    made = synthetic(preset("demo", patients=600))
    rows = tuple(replace(site, row_unit="discharge") for site in made.sites)
    run = federate(sites=replace(made, sites=rows), rank=2, epsilon=8.0, out=str(tmp_path / "run"))
    page = write_report(tmp_path / "run").read_text("utf-8")
    told = (*(text for _, text in headline(run.summary)), repr(run))
    for text in (*told, page, (tmp_path / "run" / "summary.json").read_text("utf-8")):
        assert not re.search("(one|a|that|each) patient( in|,|'s record| is in)", text), text
    assert "discharge-level, add or remove one discharge" in page
    assert "finding out whether that discharge is in the data" in page
    assert "discharge-level" in repr(run)
    assert "; replacing a discharge's record: " in dict(headline(run.summary))["privacy"]


def test_the_survey_has_the_discharges_it_is_known_for(ehr_data):
    path = ehr_data / "nhds2010" / "NHDS10.PU.txt.bz2"
    if not path.is_file():
        pytest.skip(f"NHDS 2010 is not in {ehr_data}")
    cohort = read("nhds", path)
    counts = {(where, what): count for where, what, count in cohort.read_report}
    assert counts[path.name, "discharges"] == 151_551
    assert counts[path.name, "discharges of newborns, left out"] == 14_092
    assert cohort.shape == (72_953, 202, 316)
    assert sum(site.nonzeros for site in cohort.summary()) == 959_902
    assert sum(site.labelled.get("died", 0) for site in cohort.summary()) == 1_954
    sizes = [len(site) for site in cohort.sites]
    assert (len(sizes), min(sizes), max(sizes)) == (8, 2_834, 16_723)
    assert all(all(vocabulary.descriptions) for vocabulary in cohort.vocabularies)
