import gzip

import pytest

from dpfact_flower.data.readers import tns
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.tensor import SparseTensor
from tests.data.readers.cells import cells_of
from tests.tensor.test_sparse import GOOD, assert_same, refused

TEXT = "1 1 1 2\n2 1 3 1\n1 3 2 5\n"


def test_patients_of_any_mode(write):
    cohort = tns.read(write("x.tns", TEXT), "north", patients=2)
    assert [v.name for v in cohort.vocabularies] == ["mode-1", "mode-3"]
    assert cells_of(cohort) == {
        ("north", "1", "1", "1"): 2, ("north", "1", "2", "3"): 1, ("north", "3", "1", "2"): 5
    }  # fmt: skip
    assert ("patients", "left out, without a cell", 1) in cohort.read_report


def test_names_lists_and_parts(write):
    lists = (Vocabulary("dx", ("a", "b")), Vocabulary("rx", ("x", "y", "z")))
    cohort = tns.read(write("x.tns", TEXT), "all", patients=2, vocabularies=lists, parts=2)
    assert [site.patients for site in cohort.sites] == [("1",), ("3",)]  # 2 has no cell
    assert ("part-1", "1", "b", "z") in cells_of(cohort)
    named = tns.read(write("y.tns", TEXT), "n", modes=("dx", "rx"))
    assert [vocabulary.name for vocabulary in named.vocabularies] == ["dx", "rx"]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"patients": 4}, SettingsError, "patients: need a mode from 1 to 3, got 4"),
        ({"modes": ("dx",)}, SettingsError, "needs 2 feature modes, got 1"),
        ({"modes": ("id", "dx", "rx")}, SettingsError, "needs 2 feature modes, got 3"),
        ({"vocabularies": (Vocabulary("dx", ("a",)), Vocabulary("rx", ("x", "y")))},
         DataError, "mode 1 has 2 codes, but the list of dx has 1$"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(options, error, says, write):
    with pytest.raises(error, match=says):
        tns.read(write("x.tns", TEXT), "north", **{"patients": 2, **options})
    lists = Vocabulary("dx", ("a", "b", "c")), Vocabulary("rx", ("x", "y", "z"))
    with pytest.raises(DataError, match=r"of dx has 3; .*unused, add a line with"):
        tns.read(write("x.tns", TEXT), "north", patients=2, vocabularies=lists)
    assert tns.read(write("y.tns", TEXT + "3 1 1 0\n"), "n", patients=2, vocabularies=lists).shape


PLAIN = "1 1 1\n2 2 2\n3 2 3\n"
SAME_AS_PLAIN = {
    "plain": PLAIN,
    "comments and empty lines": "# from somewhere\n\n1 1 1\n# so\n\n2 2 2\n3 2 3 # yes\n\n",
    "scientific": "1 1 1e0\n2e0 2 20e-1\n3 2 0.3E+1\n",
    "zero-based": "0 0 1\n1 1 2\n2 1 3\n",
    "a byte order mark": "\ufeff" + PLAIN,
    "tabs, blanks and no last newline": "  1\t1   1 \n2 2\t2\r\n3 2 3",
    "duplicates and zeros": "1 1 1\n3 2 1\n2 2 2\n3 2 2\n1 2 0\n",
}


@pytest.mark.parametrize("text", SAME_AS_PLAIN.values(), ids=SAME_AS_PLAIN)
@pytest.mark.parametrize("name", ["t.tns", "t.tns.gz"])
def test_tns_as_people_write_it(tmp_path, text, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert_same(tns.read_tns(path), SparseTensor.from_coo(*GOOD))


BAD_TNS = {
    "empty": ("holds no cell", ""),
    "comments alone": ("holds no cell", "# a\n# b\n"),
    "ragged": ("line 3 differs", "# c\n1 1 1\n2 987654\n"),
    "text": (
        "each line needs the same count of numbers, and nothing else; line 2 differs",
        "1 1 1\n2 987654x 2\n",
    ),
    "two columns": ("at least 2 indices and a value", "1 987654\n"),
    **{
        f"index {what}": ("as indices; cell 2 has others", f"# c\n1 1 1\n{what} 1 2\n")
        for what in ("nan", "inf", "987654.5", "9876540000", "-987654")
    },
    "value negative": ("values: must be non-negative", "1 1 1\n1 2 -987654\n"),
    "value beyond float32": ("values: must be finite", "1 1 987654e40\n"),
    "binary": ("cannot be read (UnicodeDecodeError)", bytes(range(256))),
    "zeros": ("line 1 differs", bytes(100)),
}


@pytest.mark.parametrize(("says", "text"), BAD_TNS.values(), ids=BAD_TNS)
def test_a_bad_tns_is_refused_by_its_name(tmp_path, says, text):
    path = tmp_path / "t.tns"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    message = refused(tns.read_tns, path)
    assert message.startswith(f"{path}: ")
    assert says in message


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    path = tmp_path / "t.tns.gz"
    whole = gzip.compress("".join(f"{n} {n % 9 + 1} {n}\n" for n in range(1, 2000)).encode())
    for content in (b"", whole[:5], whole[: len(whole) // 2], whole[:-1], b"1 1 987654\n"):
        path.write_bytes(content)
        assert str(path) in refused(tns.read_tns, path)
    assert refused(tns.read_tns, tmp_path / "none") == f"{tmp_path / 'none'}: no such file"
    assert refused(tns.read_tns, tmp_path).startswith(f"{tmp_path}: ")
