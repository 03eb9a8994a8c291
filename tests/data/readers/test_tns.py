import pytest

from dpfact_flower.data.readers import tns
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError
from tests.data.readers.cells import cells_of

TEXT = "# shape: 2 4 3\n1 1 1 2\n2 1 3 1\n1 3 2 5\n"


def test_patients_of_any_mode(write):
    cohort = tns.read(write("x.tns", TEXT), "north", patients=2)
    assert [v.name for v in cohort.vocabularies] == ["mode-1", "mode-3"]
    assert cells_of(cohort) == {
        ("north", "1", "1", "1"): 2, ("north", "1", "2", "3"): 1, ("north", "3", "1", "2"): 5
    }  # fmt: skip
    assert ("patients", "left out, without a cell", 2) in cohort.read_report


def test_names_lists_and_parts(write):
    lists = (Vocabulary("dx", ("a", "b")), Vocabulary("rx", ("x", "y", "z")))
    cohort = tns.read(write("x.tns", TEXT), "all", patients=2, vocabularies=lists, parts=2)
    assert {site.name: site.patients for site in cohort.sites} == {
        "part-1": ("1", "3")
    }  # fmt: skip
    assert ("part-1", "1", "b", "z") in cells_of(cohort)
    assert [v.name for v in tns.read(write("y.tns", TEXT), "n", modes=("dx", "rx")).vocabularies] \
        == ["dx", "rx"]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"patients": 4}, SettingsError, "patients: need a mode from 1 to 3, got 4"),
        ({"parts": 0}, SettingsError, "parts: need"),
        ({"modes": ("dx",)}, SettingsError, "has 2 beside the patients', got 1"),
        ({"vocabularies": (Vocabulary("dx", ("a",)), Vocabulary("rx", ("x", "y", "z")))},
         DataError, "mode 2 has 4 codes, the list of dx 1"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(options, error, says, write):
    with pytest.raises(error, match=says):
        tns.read(write("x.tns", TEXT), "north", **options)


def test_a_tensor_without_cells_is_refused(write):
    with pytest.raises(DataError, match="holds no cell"):
        tns.read(write("x.tns", "# shape: 2 2 2\n"), "north")
