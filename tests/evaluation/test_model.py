"""Tables for other programs: their content, and a site's own correct and private table."""

import os
import shutil
import stat
from dataclasses import fields, replace

import numpy as np
import pytest

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.evaluation.finished_run import FinishedRun
from dpfact_flower.evaluation.membership import scores
from dpfact_flower.evaluation.model import CodeRow, GlobalModel, write_phenotype_table
from dpfact_flower.evaluation.prose import titles
from dpfact_flower.evaluation.report import cards
from dpfact_flower.evaluation.run_folder import (
    BESIDE,
    SUMMARY,
    Names,
    read_model,
    read_names,
    read_summary,
    write_json,
    write_names,
    write_summary,
)
from dpfact_flower.evaluation.tables import Pair, Replication
from dpfact_flower.runtime.serve import federate_config
from dpfact_flower.tensor import SparseTensor
from tests.commands import dpfact
from tests.evaluation.folders import lines_of, refusal

pytestmark = pytest.mark.slow

RANK = 3


@pytest.fixture(scope="module")
def run(cohort, tmp_path_factory):
    """A finished run on the small cohort."""
    folder = tmp_path_factory.mktemp("export")
    cohort.save(folder / "cohort")
    places = {"data": str(folder / "cohort"), "out": str(folder / "run")}
    return federate_config({"privacy": "none", "rank": RANK, "rounds": 2, **places})


@pytest.fixture(scope="module")
def model(run):
    return GlobalModel.read(run)


@pytest.fixture
def unnamed(run):
    """The run, whose names are removed afterwards."""
    yield run
    (run / "names.toml").unlink(missing_ok=True)


def test_rows_are_the_models_columns_and_top_is_their_head(run, model):
    factors, vocabularies = read_model(run)
    rows = model.rows()
    assert len(rows) == sum(np.count_nonzero(factor) for factor in factors)
    for row in rows:
        mode = [v.name for v in vocabularies].index(row.mode)
        column = factors[mode].astype(float)
        code = vocabularies[mode].codes.index(row.code)
        shares = column / column.sum(axis=0)
        assert row.weight == pytest.approx(column[code, row.phenotype - 1])
        assert row.share == pytest.approx(shares[code, row.phenotype - 1])
        assert row.lift == pytest.approx(shares[code, row.phenotype - 1] / shares[code].mean())
    first = [row for row in rows if row.phenotype == 1 and row.mode == vocabularies[0].name]
    assert [row.place for row in first] == list(range(1, len(first) + 1))
    assert [row.share for row in first] == sorted((row.share for row in first), reverse=True)
    assert model.rows(top=2) == tuple(r for r in model.rows() if r.place <= 2)
    with pytest.raises(SettingsError, match="top: must be 1 or more"):
        model.rows(top=0)


def test_memberships_are_the_scores_of_a_sites_patients_and_frames_have_them(run, model, cohort):
    site = cohort.sites[0]
    found = model.memberships(site)
    np.testing.assert_allclose(found.scores, scores(site.tensor, read_model(run)[0]), atol=1e-6)
    assert (found.without, found.missing) == (0, 0)
    assert found.patients == tuple(map(str, range(1, site.tensor.n_patients + 1)))
    assert list(model.to_frame(top=1)["code"]) == [row.code for row in model.rows(top=1)]
    found = model.memberships(cohort.sites[2])
    np.testing.assert_array_equal(found.to_frame().to_numpy(), found.scores)
    assert found.to_frame(has=True).index.name == "patient"
    assert repr(found) == "Memberships(30 patients, 3 phenotypes)"


def test_codes_are_found_by_name_in_longer_lists_in_another_order(run, model, cohort, tmp_path):
    site = cohort.sites[1]
    turned = [Vocabulary(v.name, ("first", *reversed(v.codes), "last")) for v in site.vocabularies]
    index = site.tensor.indices.copy()
    sizes = np.array(site.tensor.feature_shape)
    index[:, 1:] = sizes - index[:, 1:]
    shape = (site.tensor.n_patients, *(sizes + 2))
    # Cells with a code that the model does not know, and a patient who has no other cells.
    index = np.vstack([index, [[0, 0, 0], [shape[0], 0, 1]]])
    values = np.append(site.tensor.values, [5.0, 1.0])
    names = tuple(f"p{i}" for i in range(shape[0] + 1))
    tensor = SparseTensor.from_coo(index[:, [0, 2, 1]], values, (shape[0] + 1, *shape[:0:-1]))
    other = SiteData("other", tensor, tuple(turned[::-1]), patients=names)
    found = model.memberships(other)
    np.testing.assert_allclose(found.scores[:-1], model.memberships(site).scores, atol=1e-5)
    assert not found.scores[-1].any()
    assert (found.patients, found.without, found.outside) == (names, 1, 2)
    other.save(data := tmp_path / "x.npz")
    said = dpfact("export", run, "--patients", tmp_path / "x.csv", "--data", data)
    assert "cells with a code outside the model's lists, left out: 2\n" in said


def test_a_record_has_none_of_the_codes_that_a_sites_lists_lack(model, cohort, run):
    site = cohort.sites[0]
    fewer = site.select_codes([np.arange(4, dtype=np.int32), np.arange(12, dtype=np.int32)])
    found, (index, values) = model.memberships(fewer), (site.tensor.indices, site.tensor.values)
    assert found.missing == 5
    kept = index[:, 1] < 4
    lacking = SparseTensor.from_coo(index[kept], values[kept], site.tensor.shape)
    np.testing.assert_allclose(found.scores, scores(lacking, read_model(run)[0]), atol=1e-6)
    odd = Vocabulary("procedures", tuple(f"x{i}" for i in range(9)))
    foreign = SiteData("foreign", site.tensor, (odd, site.vocabularies[1]))
    with pytest.raises(DataError, match=r"none of the model's 9 procedures codes"):
        model.memberships(foreign)
    renamed = Vocabulary("drugs", site.vocabularies[0].codes)
    with pytest.raises(DataError, match="its modes are drugs, diagnoses; the model's"):
        model.memberships(SiteData("foreign", site.tensor, (renamed, site.vocabularies[1])))


def test_names_stand_in_both_tables_and_the_report(unnamed, cohort, tmp_path):
    name = 'renal, "ESRD" é'
    assert "warning" not in dpfact("label", unnamed, 2, name)
    assert f"warning: 2 phenotypes are called {name}" in dpfact("label", unnamed, 3, name)
    dpfact("label", unnamed, 3, "")
    assert "2 · renal, " in (unnamed / "report.html").read_text()
    public, own, data = tmp_path / "p.csv", tmp_path / "m.csv", tmp_path / "s.npz"
    cohort.sites[0].save(data)
    arguments = ("--phenotypes", public, "--patients", own, "--data", data)
    assert "No privacy guarantee covers it" in dpfact("export", unnamed, *arguments)
    rows = lines_of(public)
    assert {row["name"] for row in rows if row["phenotype"] == "2"} == {name}
    shown = titles(GlobalModel.read(unnamed))
    assert [row["title"] for row in rows] == [shown[int(row["phenotype"])] for row in rows]
    assert shown[1] != shown[2] == name
    patients = lines_of(own)
    assert list(patients[0]) == ["patient", "has", "phenotype_1", name, "phenotype_3"]
    written = [[float(x) for x in list(row.values())[2:]] for row in patients]
    expected = GlobalModel.read(unnamed).memberships(cohort.sites[0]).scores
    np.testing.assert_allclose(written, expected, rtol=1e-5)
    assert stat.S_IMODE(os.stat(own).st_mode) == 0o600


def test_who_has_what_stands_beside_the_patient_and_is_counted(run, cohort, tmp_path):
    """The patients include one without a cell, who has no phenotype."""
    site, own, data = cohort.sites[0], tmp_path / "m.csv", tmp_path / "s.npz"
    wide = (site.tensor.n_patients + 1, *site.tensor.feature_shape)
    tensor = SparseTensor.from_coo(site.tensor.indices, site.tensor.values, wide)
    replace(site, tensor=tensor).save(data)
    said = dpfact("export", run, "--patients", own, "--data", data)
    rows = lines_of(own)
    found = [[r for r in "123" if float(row[f"phenotype_{r}"]) > 0.15] for row in rows]
    assert [row["has"] for row in rows] == [";".join(own) for own in found]
    assert {len(own) for own in found} >= {0, 1, 2}
    some = sum(map(bool, found))
    assert f"{own}: patients with at least one phenotype: {some} of 41\n" in said
    assert "patients who have no cell with the model's codes: 1\n" in said
    assert not [words for words in ("not in the data's lists", "left out") if words in said]


def test_a_cohort_is_exported_site_after_site(run, cohort, cohort_folder, tmp_path):
    own = tmp_path / "m.csv"
    cohort.save(tmp_path / "cohort")
    said = dpfact("export", run, "--patients", own, "--data", tmp_path / "cohort")
    assert f" of {len(cohort)}\n" in said
    assert "who have no cell" not in said
    rows = lines_of(own)
    at = [row.pop("site") for row in rows]
    assert at == [site.name for site in cohort.sites for _ in range(len(site))]
    last = cohort.sites[-1]
    dpfact("export", run, "--patients", own, "--data", cohort_folder / f"{last.name}.npz")
    assert rows[-len(last) :] == lines_of(own)


def test_no_two_columns_have_one_name(unnamed, cohort):
    for number, name in enumerate(("süd", "süd", "patient"), start=1):
        write_names(unnamed, Names({number: name}))
    found = GlobalModel.read(unnamed).memberships(cohort.sites[0])
    assert found.names == ("süd (1)", "süd (2)", "patient (3)")
    write_names(unnamed, Names({3: "süd (1)"}))
    found = GlobalModel.read(unnamed).memberships(cohort.sites[0])
    assert found.names == ("süd (1) (1)", "süd (2)", "süd (1) (3)")
    write_names(unnamed, Names({1: "has"}))
    assert GlobalModel.read(unnamed).memberships(cohort.sites[0]).names[0] == "has (1)"


def test_names_are_given_changed_and_taken_away(unnamed):
    write_names(unnamed, Names({3: "a", 1: "b"}))
    write_names(unnamed, Names({3: " c "}))
    assert read_names(unnamed, RANK).phenotypes == {1: "b", 3: "c"}
    write_names(unnamed, Names({1: ""}))
    assert read_names(unnamed, RANK).phenotypes == {3: "c"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[phenotypes]\n4 = "x"', "a number from 1 to 3, got 4"),
        ('[phenotypes]\nx = "x"', r"names\.toml: phenotypes\.x.* must be a valid integer"),
        ("[phenotypes]\n1 = 2", r"phenotypes\.1 must be a valid string"),
        ('[phenotypes]\n1 = "a\\nb"', "one line of at most 120"),
        ("phenotypes = 1", "phenotypes must be an object"),
        ("1 = ", "not readable as TOML"),
    ],
)
def test_names_written_by_hand_are_checked(unnamed, text, says):
    (unnamed / "names.toml").write_text(text)
    with pytest.raises(DataError, match=says):
        read_names(unnamed, RANK)


def test_what_is_missing_is_said(run, tmp_path):
    assert "say what to write" in refusal("export", run)
    assert "belong together" in refusal("export", run, "--patients", "x.csv")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        dpfact("export", run, "--phenotypes", tmp_path / "none" / "x.csv")
    assert "no such file" in refusal("export", tmp_path, "--phenotypes", "x.csv")


@pytest.mark.parametrize("begin", list("=+-@\t"))
def test_no_text_is_a_formula_to_a_spreadsheet(tmp_path, begin):
    """A code's description comes from a user's tables, and `=HYPERLINK(...)` would be executed."""
    text, target = f"{begin}1+1", tmp_path / "x.csv"
    row = CodeRow(**{
        field.name: text if field.type == "str" else -0.5 if field.type == "float" else 1
        for field in fields(CodeRow)
    })  # fmt: skip
    write_phenotype_table(target, [row], {1: "renal"}, {1: ["", "renal", ""]})
    (cells,) = map(dict.values, lines_of(target))
    assert f"'{text}" in cells
    assert text not in cells
    assert "-0.5" in cells


def test_tables_and_cards_say_how_likely_a_phenotype_is_real(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    known = (0.02, 0.3, 0.9)
    write_summary(folder, replace(read_summary(folder), false_discovery=known))
    found = FinishedRun.read(folder)
    shown = cards(found)
    own = ["likely real", "uncertain", "doubtful"]
    assert [card["certainty"] for card in shown] == [[word] for word in own]
    written = dpfact("export", folder, "--phenotypes", tmp_path / "x.csv")
    assert "doubtful: phenotype(s) 3\n" in written
    words = {row["phenotype"]: row["certainty"] for row in lines_of(tmp_path / "x.csv")}
    assert words == {"1": "likely real", "2": "uncertain", "3": "doubtful"}
    assert all("Not checked" not in card["text"] for card in shown)
    repeat = Replication("again", "", 3, (Pair(1, 1, 0.9, 0.7, 0.8),))  # its model has one pattern
    compared = cards(replace(found, replications=(repeat,)))
    both = zip(["stable", "not found", "not found"], own, strict=True)
    assert [card["certainty"] for card in compared] == [*map(list, both)]
    write_json(folder / BESIDE, (repeat,))
    written = dpfact("export", folder, "--phenotypes", tmp_path / "y.csv")
    assert "doubtful or not found again: phenotype(s) 2, 3\n" in written
    assert "as public as the model and the runs beside it\n" in written
    assert lines_of(tmp_path / "y.csv")[-1]["certainty"] == "not found, doubtful"
    for line in lines_of(tmp_path / "x.csv"):
        assert float(line["false_discovery"]) == known[int(line["phenotype"]) - 1]
    dpfact("export", run, "--phenotypes", tmp_path / "codes.csv")
    assert {line["false_discovery"] for line in lines_of(tmp_path / "codes.csv")} == {""}
    (folder / SUMMARY).unlink()  # a site has only the model
    assert GlobalModel.read(folder).false_discovery == ()
