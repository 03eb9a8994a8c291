"""Small made-up tables of the published schemas, read by the readers and counted by SQL."""

import duckdb
import pytest

from benchmarks.ehr import SCHEMAS, make
from dpfact_flower.data.readers.runner import read
from dpfact_flower.errors import DataError

pytestmark = pytest.mark.nightly

CODES = {"mimic3": "DIAGNOSES_ICD", "mimic4": "hosp/diagnoses_icd", "eicu": "diagnosis"}
SCALE = 0.002


@pytest.fixture(scope="module", params=SCHEMAS)
def made(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, make(request.param, folder, SCALE)


def test_every_row_is_read_in_little_memory(made):
    kind, folder, rows = made
    cohort = read(kind, folder, memory="64MB", keep_empty=True)
    counts = {(where, what): count for where, what, count in cohort.read_report}
    table = CODES[kind]
    name = table.rpartition("/")[2]
    assert counts[name, "rows"] == rows[table] > SCHEMAS[kind][table].rows * SCALE
    blank = next(count for (where, what), count in counts.items()
                 if where == name and "without a code" in what)  # fmt: skip
    column = {"mimic3": "ICD9_CODE", "mimic4": "icd_code", "eicu": "icd9code"}[kind]
    ((expected,),) = duckdb.sql(
        f"SELECT count(*) FROM read_csv('{folder / table}.csv', all_varchar=true) "
        f"WHERE {column} IS NULL"
    ).fetchall()
    assert blank == expected > 0
    assert sum(site.tensor.nnz for site in cohort.sites) > 0


def test_a_broken_row_is_named(made):
    kind, folder, rows = made
    path = folder / f"{CODES[kind]}.csv"
    text = path.read_text()
    path.write_text(f"{text}1,secret\n")
    with pytest.raises(DataError, match=rf"the first is row {rows[CODES[kind]] + 2}") as caught:
        read(kind, folder)
    path.write_text(text)
    assert "secret" not in str(caught.value)
