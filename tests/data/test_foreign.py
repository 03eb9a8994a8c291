"""Files as other programs write them: each is read, or refused in one line that says what to do."""

import bz2
import gzip
import logging

import pytest

from dpfact_flower.data.readers import event_tables as events
from dpfact_flower.data.tables import Dialect
from dpfact_flower.errors import DataError
from tests.data.readers.cells import cells_of

P = b"patient,time,code\n1,2024-01-01,3605\n2,2024-01-02,40\n"
D = "patient,time,code\n1,2024-01-05,41401\n2,2024-01-06,4019\n"
CELLS = {("north", "1", "3605", "41401"): 1, ("north", "2", "40", "4019"): 1}

READ = {
    "a byte order mark": ("d.csv", b"\xef\xbb\xbf" + D.encode()),
    "a byte order mark before a quoted header": (
        "d.csv", b"\xef\xbb\xbf" + D.replace("patient", '"patient"').encode()
    ),
    "CRLF": ("d.csv", D.replace("\n", "\r\n").encode()),
    "no newline at the end": ("d.csv", D.rstrip().encode()),
    "columns in another case and order": (
        "d.csv", b"CODE;Time;PATIENT\n41401;2024-01-05;1\n4019;2024-01-06;2\n"
    ),
    "a trailing delimiter": ("d.csv", D.replace("\n", ",\n").encode()),
    "Excel's line of the separator": (
        "d.csv", ("sep=;\n" + D.replace(",", ";")).replace("\n", "\r\n").encode()
    ),
    "everything quoted, with blanks": (
        "d.csv", b'"patient" ,"time","code"\n" 1","2024-01-05 ","41401"\n"2","2024-01-06","4019"\n'
    ),
    "a quoted newline in a column that is not read": (
        "d.csv", b'patient,note,time,code\n1,"two\nlines, and ""quotes""",2024-01-05,41401\n'
        b"2,,2024-01-06,4019\n"
    ),
    "a newline in the header": (
        "d.csv", b'patient,"free\ntext",time,code\n1,,2024-01-05,41401\n2,,2024-01-06,4019\n'
    ),
    "gzip in two parts": (
        "d.csv.gz", gzip.compress(D[:30].encode()) + gzip.compress(D[30:].encode())
    ),
    "a decimal comma in the seconds": (
        "d.csv", D.replace("2024-01-05", '"2024-01-05 10:00:00,25"').encode()
    ),
    "thousands separators in a column that is not read": (
        "d.csv", D.replace("code", 'code,"cost"').replace("41401", '41401,"1,234.50"')
        .replace("4019", "4019,0").encode()
    ),
}  # fmt: skip
REFUSED = {
    "zstd": ("d.csv.zst", b"\x28\xb5\x2f\xfd" + bytes(20), "save a workbook or packed file"),
    "bzip2": ("d.csv.bz2", bz2.compress(D.encode()), "save a workbook or packed file"),
    "an Excel workbook": ("d.csv", b"PK\x03\x04" + bytes(30), "save a workbook or packed file"),
    "big-endian UTF-16": ("d.csv", ("\ufeff" + D).encode("utf-16-be"), "--encoding latin-1, or u"),
    "UTF-16": ("d.csv", D.encode("utf-16"), r"is not utf-8; name its encoding \(--encoding lat"),
    "mixed forms of dates": (
        "d.csv", D.replace("2024-01-06", "06/01/2024").encode(),
        "column time must be a date or time as 2024-05-31.*1 row",
    ),
    "files put one behind the other, header and all": (
        "d.csv", (D + D).encode(), "column time must be a date or time as 2024-05-31.*1 row"
    ),
    "a title above the header": (
        "d.csv", b"Report of May 2024\n" + D.encode(), "lacks the column.*nor any other"
    ),
    "an error of Excel in place of a code": (
        "d.csv", D.replace("4019", "#N/A").encode(), "column code must be printable text.*1 row"
    ),
    "Windows' quotes": (
        "d.csv", D.replace("4019", "x").encode().replace(b"x", b"\x93x\x94"),
        r"text that is not UTF-8 \(another: --encoding\); the first is row 3",
    ),
    "a quote that is not closed": ("d.csv", D.replace("4019", '"4019').encode(), "an open quote"),
}  # fmt: skip


def read(tmp_path, name, content, dialect=None):
    (tmp_path / "p.csv").write_bytes(P)
    (tmp_path / name).write_bytes(content)
    tables = {"procedures": tmp_path / "p.csv", "diagnoses": tmp_path / name}
    return events.read(tables, "north", dialect=dialect)


@pytest.mark.parametrize("what", READ)
def test_it_is_read(what, tmp_path):
    assert cells_of(read(tmp_path, *READ[what])) == CELLS


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_in_one_line(what, tmp_path, caplog):
    name, content, says = REFUSED[what]
    with caplog.at_level(logging.DEBUG), pytest.raises(DataError, match=says) as caught:
        read(tmp_path, name, content)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "4019" not in str(caught.value) + caplog.text


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_read_where_it_is_named(encoding, tmp_path):
    (tmp_path / "p.csv").write_bytes(P)
    (tmp_path / "d.csv").write_bytes(("\ufeff" + D).encode(encoding))
    table = events.EventTable([tmp_path / "d.csv"], dialect=Dialect(encoding="utf-16"))
    tables = {"procedures": tmp_path / "p.csv", "diagnoses": table}
    assert cells_of(events.read(tables, "north")) == CELLS
    (tmp_path / "d.csv").write_bytes(("\ufeff" + D).encode(encoding)[:-1])
    with pytest.raises(DataError, match=r"d\.csv: not readable as CSV .*is it cut off"):
        events.read(tables, "north")
