"""Chart reviews: the chosen patients, the sheet's content, and reading completed sheets."""

import csv
import json
import os
import stat

import numpy as np
import pytest

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.evaluation.membership import LEADING, LEAST_SCORE
from dpfact_flower.evaluation.model import GlobalModel
from dpfact_flower.evaluation.report import write_report
from dpfact_flower.evaluation.review import Tally, apply_verdicts, read_sheet, write_sheet
from dpfact_flower.evaluation.run_folder import Names, Review, read_model, read_names, write_names
from dpfact_flower.tensor.sparse import as_tensor
from tests.commands import dpfact
from tests.evaluation.folders import lines_of, refusal, run_folder

pytestmark = pytest.mark.slow

RANK, NUMBER, PATIENTS = 5, 3, 80


@pytest.fixture
def run(tmp_path):
    return run_folder(tmp_path / "run", rank=RANK)


def patients_of(run, most):
    """Make patients with increasing scores of one phenotype, up to `most`, and unrelated codes."""
    factors, vocabularies = read_model(run)
    unit = [factor / np.linalg.norm(factor, axis=0) for factor in factors]
    rng = np.random.default_rng(5)
    pattern = np.outer(unit[0][:, NUMBER - 1], unit[1][:, NUMBER - 1])
    share = np.minimum(np.linspace(0, most, PATIENTS), 1)[:, None, None] ** 3
    other = rng.random((PATIENTS, *pattern.shape)) < 0.02
    dense = share * pattern + (1 - share) * other / np.sqrt(other.sum((1, 2), keepdims=True))
    dense[dense < 0.01] = 0
    patients = tuple(f"00{7000 + n}" for n in rng.permutation(PATIENTS).tolist())
    return SiteData("here", as_tensor(dense), vocabularies, patients=patients)


@pytest.fixture
def site(run):
    return patients_of(run, 1.0)


@pytest.fixture
def sheet(run, site, tmp_path):
    return write_sheet(run, site, NUMBER, tmp_path / "review", patients=20, seed=1)


def key_of(sheet):
    return json.loads(sheet.with_suffix(".key.json").read_text())


def fill(sheet, verdict, decision="", comment="", **dialect):
    """Fill in a sheet. `verdict` gives the verdict on each chart in the key, by number from 0."""
    rows = lines_of(sheet)
    for row, chart in zip(rows[1:], key_of(sheet)["charts"], strict=False):
        row["verdict"] = verdict(chart)
    rows[-1] |= {"verdict": decision, "comment": comment}
    encoding = dialect.pop("encoding", "utf-8")
    with sheet.open("w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]], **dialect)
        writer.writeheader()
        writer.writerows(rows)


def confirm_highest(chart):
    return "no" if chart["near"] else "yes"


def test_half_have_the_highest_scores_and_half_lie_on_both_sides_of_the_threshold(run, site, sheet):
    found = GlobalModel.read(run).memberships(site).scores[:, NUMBER - 1]
    scores = dict(zip(site.patients, found, strict=True))
    ordered = sorted(scores, key=scores.get, reverse=True)
    has = [name for name in ordered if scores[name] > LEAST_SCORE]
    assert 20 < len(has) < PATIENTS - 20
    charts = key_of(sheet)["charts"]
    assert {chart["patient"] for chart in charts if not chart["near"]} == set(ordered[:10])
    around = {*has[-5:], *ordered[len(has) : len(has) + 5]}
    assert {chart["patient"] for chart in charts if chart["near"]} == around
    assert all(chart["score"] == pytest.approx(scores[chart["patient"]], abs=1e-4)
               for chart in charts)  # fmt: skip


def test_the_files_are_private_and_two_show_neither_score_nor_group(run, site, sheet, tmp_path):
    charts = key_of(sheet)["charts"]
    assert [row["patient"] for row in lines_of(sheet)[1:-1]] == [c["patient"] for c in charts]
    assert {(row["verdict"], row["comment"]) for row in lines_of(sheet)} == {("", "")}
    page = sheet.with_suffix(".html").read_text(encoding="utf-8")
    shown = sheet.read_text() + page[page.index("<body>") :]
    for chart in charts:
        assert f"{chart['score']:.2f}" not in shown
    for word in ("highest", "threshold", "near"):
        assert word not in shown
    groups = [chart["near"] for chart in charts]
    assert groups not in (sorted(groups), sorted(groups, reverse=True))
    again, other = (write_sheet(run, site, NUMBER, tmp_path / f"{n}", seed=n) for n in (1, 2))
    assert again.read_bytes() == sheet.read_bytes()
    assert {c["patient"] for c in key_of(other)["charts"]} == {c["patient"] for c in charts}
    assert key_of(other)["charts"] != charts
    for path in (sheet, sheet.with_suffix(".html"), sheet.with_suffix(".key.json")):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        text = path.read_text(encoding="utf-8").lower()
        assert "about individual patients: keep this" in text
        assert "guarantee covers it" in text


def test_equal_scores_are_taken_by_chance(run, tmp_path):
    """The choice does not depend on the order of the file, which may be the order of admission."""
    site = patients_of(run, 1.5)  # a third of them have equal scores
    sheets = [write_sheet(run, site, NUMBER, tmp_path / str(n), seed=n) for n in range(2)]
    taken = [{c["patient"] for c in key_of(sheet)["charts"] if not c["near"]} for sheet in sheets]
    assert taken[0] != taken[1]


def test_the_page_has_the_phenotypes_leading_codes_and_each_patients_own(run, site, sheet):
    page = sheet.with_suffix(".html").read_text(encoding="utf-8")
    head, *charts = page.split('<article class="chart">')
    factors, vocabularies = read_model(run)
    for vocabulary, factor in zip(vocabularies, factors, strict=True):
        column = factor[:, NUMBER - 1]
        for code, weight in zip(vocabulary.codes, column, strict=True):
            assert (f"<b>{code}</b>" in head) == (weight >= LEADING * column.max())
    names = [chart["patient"] for chart in key_of(sheet)["charts"]]
    for name, text in zip(names, charts, strict=True):
        assert f"<h3>{name} " in text
        dense = site.tensor[[site.patients.index(name)]].to_dense()[0]
        for mode, vocabulary in enumerate(vocabularies):
            weights = dense.sum(axis=1 - mode)
            order = np.argsort(-weights, kind="stable")[: np.count_nonzero(weights)]
            shown = (f"<b>{vocabulary.codes[at]}</b> <u>Meanings ›</u> What" for at in order)
            places = [*map(text.index, shown)]
            assert places == sorted(places)
        assert text.count("<b>") == sum(np.count_nonzero(dense.sum(axis=a)) for a in (0, 1))


def test_a_sheet_that_is_read_back_counts_and_notes_only_a_decision(run, sheet):
    write_report(run)
    fill(sheet, confirm_highest)
    assert "No decision yet" in dpfact("review", run, "--read", sheet)
    assert not (run / "names.toml").exists()
    fill(sheet, lambda _: "", "drop")
    assert "shares" not in dpfact("review", run, "--read", sheet)
    fill(sheet, confirm_highest, "Name", "renal failure")
    said = dpfact("review", run, "--read", sheet)
    # Wilson, 10 of 10 and 0 of 10, as in Brown, Cai and DasGupta (2001).
    assert "10 of 10 charts confirmed: 100 % (95 % interval 72 to 100 %)" in said
    assert "0 of 10 charts confirmed: 0 % (95 % interval 0 to 28 %)" in said
    assert read_names(run, RANK).phenotypes == {NUMBER: "renal failure"}
    assert read_names(run, RANK).reviewed == {NUMBER: Review("keep", 1.0, 10, 0.0, 10)}
    assert "renal failure" in (run / "report.html").read_text()


def test_who_is_unsure_does_not_confirm_and_who_was_not_read_does_not_count(run, sheet):
    left = iter([""] * 2 + ["unsure"] * 3 + ["yes"] * 5)
    fill(sheet, lambda chart: "yes" if chart["near"] else next(left), "drop")
    found = read_sheet(run, sheet)
    assert found.highest == Tally(yes=5, no=0, unsure=3)
    assert (found.highest.charts, found.near.charts) == (8, 10)
    apply_verdicts(run, found)
    assert read_names(run, RANK).reviewed == {NUMBER: Review("drop", None, None, 1.0, 10)}
    said = dpfact("review", run, "--read", sheet)
    assert "recorded shares" in said
    assert "5 of 8 charts confirmed; 3 unsure; too few for a percentage (needs 10)" in said


def test_the_runs_folder_learns_shares_in_tenths_and_no_patient(run, site, tmp_path):
    sheet = write_sheet(run, site, NUMBER, tmp_path / "more", patients=24, seed=1)
    left = iter(["no"] + ["yes"] * 11)
    fill(sheet, lambda chart: "unsure" if chart["near"] else next(left), "keep")
    apply_verdicts(run, read_sheet(run, sheet))
    assert read_names(run, RANK).reviewed[NUMBER].confirmed == 0.9  # of 11 / 12
    written = (run / "names.toml").read_text()
    assert not any(name in written for name in site.patients)


def test_names_are_checked_and_names_and_reviews_leave_each_other_alone(run, sheet):
    for name, says in (("", "column comment"), ("x" * 121, "one line of at most 120")):
        fill(sheet, confirm_highest, "name", name)
        with pytest.raises(DataError, match=says):
            apply_verdicts(run, read_sheet(run, sheet))
        assert not (run / "names.toml").exists()
    write_names(run, Names({1: "a"}))
    fill(sheet, confirm_highest, "keep")
    apply_verdicts(run, read_sheet(run, sheet))
    write_names(run, Names({2: "b"}))
    assert read_names(run, RANK).phenotypes == {1: "a", 2: "b"}
    assert read_names(run, RANK).reviewed[NUMBER].verdict == "keep"
    (run / "names.toml").write_text('[reviewed.3]\nverdict = "perhaps"')
    says = r"names\.toml: reviewed\.3\.verdict must be 'keep' or 'drop'"
    with pytest.raises(DataError, match=says):
        read_names(run, RANK)


def test_what_a_spreadsheet_makes_of_the_file_is_read(run, sheet):
    """The file has semicolons, another encoding, identifiers without zeros, and empty lines."""
    fill(sheet, confirm_highest, "name", "süß\xa0;lich", lineterminator="\r")
    assert read_sheet(run, sheet).name == "süß ;lich"
    fill(sheet, confirm_highest, "name", "süßlich", delimiter=";", encoding="cp1252")
    text = sheet.read_bytes().replace(b";00", b";") + b";;;\r\n"
    sheet.write_bytes(text)
    found = read_sheet(run, sheet)
    assert (found.highest.yes, found.near.no) == (10, 10)
    assert found.name == "süßlich"
    sheet.write_bytes("\ufeff".encode() + text.decode("cp1252").encode())
    assert read_sheet(run, sheet) == found


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace("verdict", "answer"), "lacks the column verdict"),
        (lambda text: "", "lacks the column chart"),
        (lambda text: text.replace("1,00", "1,99"), r"line 3: the original sheet has no"),
        (lambda text: text.replace("\n2,", "\n-2,"), r"line 4: the original sheet has no"),
        (lambda text: text.replace("\n2,", "\n1,"), r"line 4: this chart is listed twice"),
        (lambda text: text.replace(",yes", ",surely", 1), "verdict must be no, unsure, yes or"),
        (lambda text: text.replace(",keep", ",yes"), "line 23: verdict must be drop, keep, name"),
    ],
)
def test_a_sheet_that_cannot_be_used_is_refused_in_a_line(run, sheet, change, says):
    fill(sheet, lambda chart: "yes", "keep", lineterminator="\n")
    text = sheet.read_text()
    sheet.write_text(change(text))
    assert sheet.read_text() != text
    with pytest.raises(DataError, match=says) as caught:
        read_sheet(run, sheet)
    assert "\n" not in str(caught.value)
    assert not any(word in str(caught.value) for word in ("surely", "007", "997"))


def test_a_sheet_of_another_run_or_without_its_key_is_refused(run, sheet, tmp_path):
    other = run_folder(tmp_path / "other", rank=RANK, seed=3)
    with pytest.raises(DataError, match="belongs to a run other than"):
        read_sheet(other, sheet)
    with pytest.raises(DataError, match=r"none\.key\.json: no such file"):
        read_sheet(run, tmp_path / "none.csv")
    sheet.with_suffix(".key.json").write_text("{}")
    with pytest.raises(DataError, match=r"review\.key\.json: lacks model, phenotype, charts"):
        read_sheet(run, sheet)
    sheet.unlink()
    with pytest.raises(DataError, match=r"\.key\.json: lacks|review\.csv: No such file"):
        read_sheet(run, sheet)


def test_a_sheet_that_cannot_be_made_leaves_nothing(run, site, tmp_path):
    (tmp_path / "site.csv").touch()
    before = sorted(tmp_path.iterdir())
    for number, out, patients, error, says in (
        (0, "x", 20, SettingsError, "--phenotype: must be 1 to 5, got 0"),
        (6, "x", 20, SettingsError, "--phenotype: must be 1 to 5, got 6"),
        (NUMBER, "none/x", 20, FileNotFoundError, "there is no folder"),
        (NUMBER, "run/x", 20, SettingsError, "--out: is in the run's folder"),
        (NUMBER, "site", 20, SettingsError, r"--out: .*site\.csv exists"),
        (NUMBER, "x", 3, SettingsError, "--patients: must be 4 or more, got 3"),
        (NUMBER, "x", 160, DataError, r"--patients: 160 is too many: .* ask for \d+ or fewer"),
    ):
        with pytest.raises(error, match=says):
            write_sheet(run, site, number, tmp_path / out, patients=patients)
    assert sorted(tmp_path.iterdir()) == before
    assert not list(run.glob("x*"))


def test_the_command_makes_a_sheet_beside_where_it_is_run(run, site, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    site.save(tmp_path / "site.npz")
    made = ["review", str(run), "--data", "site.npz", "--phenotype", str(NUMBER)]
    said = dpfact(*made, "--patients", 12, "--seed", 4)
    assert "No privacy guarantee covers them: keep them here" in said
    files = {path.name.removeprefix(f"review-{NUMBER}") for path in tmp_path.glob("review*")}
    assert files == {".csv", ".html", ".key.json"}
    assert len(key_of(tmp_path / f"review-{NUMBER}.csv")["charts"]) == 12
    for wrong in (made[:4], [*made, "--read", "x.csv"], made[:2]):
        assert "give --data SITE.npz and --phenotype" in refusal(*wrong)
