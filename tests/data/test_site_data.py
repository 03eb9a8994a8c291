import dataclasses
import json

import numpy as np
import pytest

from dpfact_flower.data.site_data import Cohort, SiteData, Truth, open_site
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError
from dpfact_flower.tensor import SparseTensor
from tests.bits import assert_bits

VOCABULARIES = (Vocabulary("procedures", ("0040", "40")), Vocabulary("diagnoses", ("a", "b", "ü")))
OTHER = (VOCABULARIES[0], Vocabulary("diagnoses", ("b", "a", "ü")))
TRUTH = Truth((np.eye(2), np.eye(3)[:, :2]), np.array([[True, False], [True, True]]))


def make_site(name: str = "north", **changes: object) -> SiteData:
    fields = {
        "tensor": SparseTensor.from_coo([[0, 0, 2], [2, 1, 0]], [3, 1], (3, 2, 3)),
        "vocabularies": VOCABULARIES,
        "labels": np.array([0, 1, 1]),
        "patients": ("p-007", "07", "7"),
    }
    return SiteData(name, **(fields | changes))


def assert_equal(found: SiteData, expected: SiteData) -> None:
    assert found.tensor.fingerprint() == expected.tensor.fingerprint()
    for name in ("name", "vocabularies", "patients", "row_unit"):
        assert getattr(found, name) == getattr(expected, name)
    assert list(found.labels) == list(expected.labels)
    for name, values in found.labels.items():
        assert values.dtype == np.int8
        np.testing.assert_array_equal(values, expected.labels[name])


SEVERAL = {"readmitted": np.array([0, 0, 1]), "died": np.array([0, 1, 1])}
ONE_MODE = {"tensor": SparseTensor.from_coo([[0, 1]], [2], (3, 2)),
            "vocabularies": VOCABULARIES[:1]}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"labels": None}, {"labels": SEVERAL}, {"patients": None},
                                     {"row_unit": "discharge"}, ONE_MODE])  # fmt: skip
def test_site_round_trip(changes, tmp_path):
    site = make_site(**changes)
    site.save(tmp_path / "site.npz")
    assert_equal(SiteData.load(tmp_path / "site.npz"), site)


def test_labels_cannot_be_changed_from_outside():
    labels = np.array([0, 1, 1], np.int8)
    site = make_site(labels=labels)
    labels[0] = 1
    assert site.labels["died"][0] == 0
    with pytest.raises(ValueError, match="read-only"):
        site.labels["died"][0] = 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a/b"}, "site name"),
        ({"name": "x" * 65}, "site name"),
        ({"tensor": np.zeros((3, 2, 3))}, "must be a SparseTensor"),
        ({"vocabularies": VOCABULARIES[:1]}, r"need vocabularies of .*got \(2,\)"),
        ({"vocabularies": VOCABULARIES[::-1]}, r"of \(2, 3\) codes, got \(3, 2\)"),
        ({"vocabularies": ("x", "y")}, "Vocabulary objects"),
        ({"vocabularies": VOCABULARIES[:1] * 2, "tensor": SparseTensor.from_coo([], [], (3, 2, 2))},
         "distinct names"),
        ({"labels": np.array([0, 1])}, r"labels must have shape \(3,\)"),
        ({"labels": np.array([0, 1, 2])}, "labels must be 1 or 0; died has others"),
        ({"labels": np.array([0, 1, np.nan])}, "labels must be 1 or 0; died has others"),
        ({"labels": np.array(["0", "1", "1"])}, "labels must be 1 or 0; died has others"),
        ({"patients": ("1", "2")}, "each of 3 patients, got 2"),
        ({"patients": ("secret", "secret", "3")}, "a distinct identifier"),
        ({"patients": ("secret", "", "3")}, "printable text"),
        ({"patients": ("secret", 2, 3)}, "printable text"),
    ],
)  # fmt: skip
def test_site_refuses_without_a_patients_value(changes, message):
    with pytest.raises(DataError, match=message) as caught:
        make_site(**({"name": "north"} | changes))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["secret/1", "secret " * 20])
@pytest.mark.parametrize("key", ["name", "row_unit"])
def test_load_quotes_no_name_that_is_none(key, name, tmp_path):
    path = tmp_path / "site.npz"
    make_site().save(path)
    with np.load(path) as archive:
        arrays = dict(archive) | {key: np.array(name)}
    np.savez(path, **arrays)
    for load in (SiteData.load, lambda path: open_site(path).read()):
        with pytest.raises(DataError, match=rf"site\.npz: {key}: must be at most 64") as caught:
            load(path)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("lost", ["name", "indices", "vocabularies"])
def test_load_names_the_array_that_is_missing(lost, tmp_path):
    path = tmp_path / "site.npz"
    make_site().save(path)
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files if name != lost}
    scalars = arrays | {lost: 1, "patients": 1}
    for given, says in (arrays, rf"lacks the array\(s\) {lost}"), (scalars, ".*not iterable"):
        np.savez(path, **given)
        with pytest.raises(DataError, match=rf"site\.npz: {says}"):
            SiteData.load(path)


def test_reprs_hold_no_patient():
    site = make_site()
    for text in (repr(site), str(site), repr(Cohort("c", (site,))), repr(TRUTH)):
        assert "p-007" not in text
    assert repr(site) == "SiteData('north', SparseTensor(shape=(3, 2, 3), nnz=2))"


def test_a_simulation_of_many_sites_reads_each_file_once(tmp_path):
    Cohort("many", tuple(make_site(f"s{number}") for number in range(20))).save(tmp_path)
    sites = Cohort.load(tmp_path).sites
    assert all(open_site(tmp_path / f"{site.name}.npz").read() is site for site in sites)


@pytest.mark.parametrize("truth", [None, TRUTH])
def test_cohort_round_trip(truth, tmp_path):
    cohort = Cohort("pair", (make_site("north"), make_site("south", labels=None)), truth)
    cohort.save(tmp_path / "out")
    found = Cohort.load(tmp_path / "out")
    assert found.name == "pair"
    for one, other in zip(found.sites, cohort.sites, strict=True):
        assert_equal(one, other)
    assert (found.truth is None) is (truth is None)
    if truth is not None:
        assert_bits([*found.truth.factors, found.truth.usage], [*truth.factors, truth.usage])


def test_selected_codes_keep_their_cells_descriptions_and_patients():
    cohort = Cohort("pair", (make_site("north"), make_site("south")))
    kept = [np.array([1]), np.array([0, 2])]
    found = cohort.select_codes(kept)
    assert [v.codes for v in found.vocabularies] == [("40",), ("a", "ü")]
    for one, other in zip(found.sites, cohort.sites, strict=True):
        expected = other.tensor.to_dense()[:, [1]][:, :, [0, 2]]
        np.testing.assert_array_equal(one.tensor.to_dense(), expected)
        assert (one.name, one.patients) == (other.name, other.patients)
        np.testing.assert_equal(dict(one.labels), dict(other.labels))
    assert cohort.select_codes([]) is cohort
    assert cohort.sites[0].select_codes([]) is cohort.sites[0]


def test_of_the_truth_the_phenotypes_are_left_that_have_a_code_in_every_mode():
    B = np.array([[0.6, 0.0, 1.0], [0.8, 1.0, 0.0]])
    C = np.array([[0.8, 0.6, 0.0], [0.6, 0.0, 0.0], [0.0, 0.8, 1.0]])
    truth = Truth((B, C), np.array([[True, False, True], [True, True, False]]))
    left = truth.select_codes([np.array([1]), np.array([0, 1])])
    np.testing.assert_allclose(left.factors[0], [[1, 1]])
    np.testing.assert_allclose(left.factors[1], [[0.8, 1], [0.6, 0]])
    np.testing.assert_array_equal(left.usage, [[True, False], [True, True]])
    assert truth.select_codes([np.array([0]), np.array([1])]).usage.tolist() == [[True], [True]]
    assert TRUTH.select_codes([np.array([0]), np.array([2])]) is None
    cohort = Cohort("pair", (make_site("north"), make_site("south")), TRUTH)
    assert cohort.select_codes([np.array([0]), np.array([2])]).truth is None


def test_cohort_folder_holds_what_it_says(tmp_path):
    Cohort("pair", (make_site("north"), make_site("south")), TRUTH).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cohort.json", "diagnoses.vocabulary.json", "north.npz", "procedures.vocabulary.json",
        "south.npz", "truth.npz",
    ]  # fmt: skip
    assert Vocabulary.load(tmp_path / "diagnoses.vocabulary.json") == VOCABULARIES[1]


def test_a_cohort_not_written_to_its_end_is_not_taken_for_the_one_before(tmp_path, monkeypatch):
    Cohort("c", (make_site("north"), make_site("south"))).save(tmp_path)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Vocabulary, "save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Cohort("c", (make_site("north"), make_site("south", labels=None))).save(tmp_path)
    assert SiteData.load(tmp_path / "south.npz").labels == {}
    with pytest.raises(DataError, match="no such file"):
        Cohort.load(tmp_path)


def test_cohort_summary():
    cohort = Cohort("pair", (make_site("north"), make_site("south", labels=None)))
    assert cohort.summary() == (("north", 3, 2, {"died": 2}), ("south", 3, 2, {}))


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        ((), "at least one site"),
        ((make_site("a"), make_site("A")), "more than their case"),
        ((make_site("Truth"),), "would overwrite a file"),
        ((make_site("a"), make_site("b", vocabularies=OTHER)), "vocabularies of site b differ"),
    ],
)
def test_cohort_refuses(sites, message):
    with pytest.raises(DataError, match=message):
        Cohort("c", sites)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sites": ["north", "gone"]}, r"gone\.npz: no such file"),
        ({"sites": ["../north"]}, "site name"),
        ({"vocabularies": {"procedures": "0", "diagnoses": "0"}}, "vocabularies are not those"),
        ({"truth": True}, r"truth\.npz: no such file"),
        ({"sites": "north"}, "cohort.json: sites must be"),
    ],
)
def test_cohort_load_refuses(change, message, tmp_path):
    Cohort("c", (make_site(),)).save(tmp_path)
    file = tmp_path / "cohort.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DataError, match=message):
        Cohort.load(tmp_path)


def test_descriptions_may_differ_between_sites():
    undescribed = tuple(dataclasses.replace(v, descriptions=()) for v in VOCABULARIES)
    Cohort("c", (make_site("a"), make_site("b", vocabularies=undescribed)))
