"""Forty mistakes with `dpfact data`, and the page that shows most of the error messages."""

import gzip
import json
import os
import re
import shlex
import tempfile
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpfact_flower.cli.main import app
from dpfact_flower.errors import DPFactError

P = "patient,time,code\n1,2024-01-01,3605\n2,2024-01-02,40\n3,2024-01-03,3605\n"
D = "patient,time,code\n1,2024-01-05,41401\n2,2024-01-06,4019\n3,2024-01-07,4019\n"
FILES: dict[str, bytes] = {
    "p.csv": P.encode(),
    "d.csv": D.encode(),
    "sites.csv": b"patient,site\n1,north\n2,south\n3,south\n",
    "labels.csv": b"patient,died\n1,0\n2,1\n3,0\n",
    "p.json": b'["3605", "40"]',
    "d.json": b'["4019", "41401"]',
    "used/cohort.json": json.dumps(
        {"name": "old", "sites": [], "vocabularies": {}, "truth": False, "read_report": []}
    ).encode(),
}
EVENTS = "events --name north --out out --mode procedures=p.csv --mode diagnoses=d.csv"


@dataclass(frozen=True)
class Mistake:
    """A short description of a mistake, with the files and the command's arguments."""

    what: str
    command: str = EVENTS
    files: dict[str, bytes] = field(default_factory=dict)


def d(text: str) -> dict[str, bytes]:
    """Return other diagnoses."""
    return {"d.csv": text.encode()}


MISTAKES = (
    # files
    Mistake("missing file", EVENTS.replace("d.csv", "dx.csv")),
    Mistake("empty file", files=d("")),
    Mistake("header without rows", files=d("patient,time,code\n")),
    Mistake("no header", files=d("1,2024-01-05,41401\n")),
    Mistake("data in the first row, no header", files=d("P1,d,E11\n")),
    Mistake("other column name", files=d(D.replace("code", "icd10"))),
    Mistake("two columns with one name", files=d(D.replace("time", "code"))),
    Mistake("other delimiter", EVENTS + " --delimiter ;"),
    Mistake("delimiter of two characters", EVENTS + " --delimiter ,,"),
    Mistake("too many fields in a row", files=d(D + "3,2024-01-09,4019,x\n")),
    Mistake("open quote", files=d(D + '3,2024-01-09,"4019\n')),
    Mistake("file in Latin-1", files={"d.csv": D.encode() + b"3,2024-01-09,M\xfcller\n"}),
    Mistake("unknown encoding", EVENTS + " --encoding cp1252"),
    Mistake("uncompressed file named .gz",
            EVENTS.replace("d.csv", "d.csv.gz"), {"d.csv.gz": D.encode()}),
    Mistake("truncated gzip file", EVENTS.replace("d.csv", "d.csv.gz"),
            {"d.csv.gz": gzip.compress((D * 20000).encode(), mtime=0)[:2000]}),
    Mistake("not a Parquet file", EVENTS.replace("d.csv", "d.parquet"),
            {"d.parquet": D.encode()}),
    # the files' contents
    Mistake("missing code", files=d(D + "3,2024-01-09,\n")),
    Mistake("NaN as patient", files=d(D + "nan,2024-01-09,4019\n")),
    Mistake("other date format", files=d(D.replace("2024-01-05", "05.01.2024"))),
    Mistake("impossible date", files=d(D.replace("2024-01-05", "2024-02-30"))),
    Mistake("UTC offsets in some rows only",
            files=d(D.replace("2024-01-05", "2024-01-05 10:00+02:00"))),
    Mistake("time format without a year", EVENTS + " --time-format %d.%m."),
    Mistake("no times", files=d("patient,time,code\n1,,41401\n2,,4019\n")),
    Mistake("patients written in two ways", files=d(D.replace("\n1,", "\nP1,").replace(
        "\n2,", "\nP2,").replace("\n3,", "\nP3,"))),
    Mistake("no events within the window", files=d(D.replace("2024", "2029"))),
    # codes, sites and labels
    Mistake("other code format than the list",
            EVENTS + " --codes procedures=p.json --codes diagnoses=d.json",
            d("patient,time,code\n1,2024-01-05,414.01\n2,2024-01-06,401.9\n")),
    Mistake("code list for one mode only", EVENTS + " --codes diagnoses=d.json"),
    Mistake("number of codes for one mode only", EVENTS + " --top 100"),
    Mistake("patient at two sites", EVENTS + " --sites sites.csv",
            {"sites.csv": FILES["sites.csv"] + b"1,south\n"}),
    Mistake("two sites with similar names", EVENTS + " --sites sites.csv",
            {"sites.csv": "patient,site\n1,süd\n2,sud\n3,sud\n".encode()}),
    Mistake("label other than 0 or 1", EVENTS + " --labels labels.csv",
            {"labels.csv": FILES["labels.csv"].replace(b"2,1", b"2,2")}),
    Mistake("patients without a label", EVENTS + " --labels labels.csv",
            {"labels.csv": FILES["labels.csv"].replace(b"2,1\n", b"")}),
    Mistake("missing label column", EVENTS + " --label readmitted=labels.csv"),
    Mistake("unknown roll-up", EVENTS + " --roll-up icd4"),
    Mistake("roll-up of a missing mode", EVENTS + " --roll-up drugs=first3"),
    Mistake("roll-up of other codes", EVENTS + " --roll-up diagnoses=chapter",
            {"d.csv": D.replace("4019", "x-ray").replace("41401", "scan").encode()}),
    Mistake("roll-up of diagnoses for procedures", EVENTS + " --roll-up procedures=icd3"),
    # the command
    Mistake("only one mode", "events --name north --out out --mode diagnoses=d.csv"),
    Mistake("invalid site name", EVENTS.replace("--name north", "--name St.\\ Mary's")),
    Mistake("folder in use", EVENTS.replace("--out out", "--out used")),
    Mistake("folder without MIMIC-IV's tables", "mimic4 . --out out"),
    Mistake("missing folder", "mimic3 gone --out out"),
    Mistake("not a database", "omop d.csv --name north --out out"),
    Mistake("memory without a unit", EVENTS + " --memory 2"),
)  # fmt: skip


def said(mistake: Mistake) -> str:
    """Return the command's error in a folder with only the files, or "" if it succeeds."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for name, content in (FILES | mistake.files).items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_bytes(content)
        arguments = shlex.split(mistake.command.replace("Mary's", "Mary\\'s"))
        result = CliRunner().invoke(app, ["data", *arguments])
        left = sorted(os.listdir())
    if result.exception is None:
        return ""
    if not isinstance(result.exception, DPFactError):
        raise result.exception
    assert "out" not in left, "a mistake leaves nothing behind"
    return str(result.exception)


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "data-mistakes.md"
ROWS = dict(re.findall(r"^\| (.+?) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_a_mistake_gets_one_line_that_says_the_way_out(mistake):
    line = said(mistake)
    assert line == ROWS.get(mistake.what, line).replace("\\|", "|")
    assert "\n" not in line
    assert len(line) > 10
    for value in ("4019", "41401", "E11", "Müller"):
        assert value not in line


def test_the_page_has_no_other_rows():
    rows = [what for what in ROWS if what not in ("mistake", "---")]
    assert rows == [m.what for m in MISTAKES if m.what in ROWS]
    assert len(rows) >= 25
    assert len(MISTAKES) >= 40


def test_without_a_mistake_the_same_command_succeeds():
    assert said(Mistake("none")) == ""
