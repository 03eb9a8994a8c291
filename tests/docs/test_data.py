"""docs/how-to/data.md: its unchanged commands, on small files of every kind."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpfact_flower.data.site_data import Cohort
from tests.commands import dpfact
from tests.data.readers import test_mimic3
from tests.data.readers.test_event_tables import DIAGNOSES, PROCEDURES
from tests.data.readers.test_meds import write_meds
from tests.data.readers.test_mimic4 import write_tables
from tests.data.readers.test_omop import TABLES
from tests.data.readers.test_tns import TEXT

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "data.md").read_text(encoding="utf-8")
COMMANDS = [
    command.replace("\\\n", " ")
    for command in [
        *re.findall(r"^    dpfact ((?:.*\\\n)*.*)$", PAGE, re.MULTILINE),
        *re.findall(r"\| `dpfact (data [^`.]*?)`", PAGE),
    ]
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small tables with the names that the page uses."""
    return write_sources(tmp_path_factory.mktemp("page"))


def write_sources(home):
    """Write the tables, some of which docs/tutorial.md uses too (`tests/docs/test_pages.py`)."""
    write_tables(home / "mimic-iv")
    (home / "mimic3").mkdir()
    for table, text in test_mimic3.TABLES.items():
        (home / "mimic3" / f"{table}.csv").write_text(text)
    (home / "cdm").mkdir()
    for table, (header, rows) in TABLES.items():
        (home / "cdm" / f"{table}.csv").write_text("\n".join([header, *rows, ""]))
    (home / "counts.tns").write_text(TEXT)
    write_meds(home / "meds")
    (home / "procedures.csv").write_text(PROCEDURES)
    (home / "diagnoses.csv").write_text(DIAGNOSES)
    latin = {
        "rx_1.csv": "Fallnr;Präparat;Beginn\n1;Ä;01.02.2024 10:00\n",
        "rx_2.csv": "Fallnr;Präparat;Beginn\n2;B;01.02.2024 10:00\n",
        "dx.csv": "Fallnr;ICD;Datum\n1;I10;02.02.2024 00:00\n2;I10;02.02.2024 00:00\n",
        "stays.csv": "Fallnr;wieder\n1;yes\n",
    }
    for name, text in latin.items():
        (home / name).write_text(text, encoding="latin-1")
    return home


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split(" --")[0])
def test_the_commands_run_as_they_stand(command, folder, request, monkeypatch):
    if "postgresql://" in command:  # tests/data/readers/test_omop.py has a server
        command = command.replace("postgresql://reader@localhost/cdm --schema cdm", "cdm")
    monkeypatch.chdir(folder)
    for name, place in (("synpuf", "synpuf/inpatient"), ("eicu", "eicu_demo")):
        if f"data {name}" in command:
            there = request.getfixturevalue("ehr_data") / place
            command = command.replace(f"{name} {name}", f"{name} {there}")
    words = shlex.split(command)
    dpfact(*words)
    assert Cohort.load(words[words.index("--out") + 1]).read_report


def test_the_wide_table_is_melted_into_a_row_per_code():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    rows = [
        ("1", "a", "31.01.2024", "I21", "8-837", 70), ("1", "b", "02.12.2024", "i21", None, 70),
        ("2", "c", "05.02.2024", None, "5-361", 65), ("2", "d", "06.02.2024", "I50 ", None, 65),
        ("3", "e", "05.02.2024", "I50", None, 80),
    ]  # fmt: skip
    columns = ["mrn", "visit", "datum", "icd10", "ops_code", "age"]
    names: dict[str, object] = {"df": pd.DataFrame(rows, columns=columns)}
    exec(block, names)
    cohort = names["cohort"]
    assert isinstance(cohort, Cohort)
    (site,) = cohort.sites
    assert [(v.name, v.codes) for v in site.vocabularies] == [
        ("icd10", ("I50", "I21", "i21")), ("ops_code", ("5-361", "8-837")),
    ]  # fmt: skip
    assert site.patients == ("1", "2")  # the third has no procedure
    np.testing.assert_array_equal(site.tensor.indices, [[0, 1, 1], [1, 0, 0]])
