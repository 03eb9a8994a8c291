"""The survey: its page, its key, and the scoring of answers."""

import csv
import json
import stat
from itertools import combinations

import pytest

from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.evaluation.model import GlobalModel
from dpfact_flower.evaluation.run_folder import read_model, write_model
from dpfact_flower.evaluation.survey import read_survey, write_survey
from tests.commands import dpfact
from tests.evaluation.folders import lines_of, refusal, run_folder

pytestmark = pytest.mark.slow

RANK = 24


@pytest.fixture
def run(tmp_path):
    return run_folder(tmp_path / "run", rank=RANK, codes=34)


@pytest.fixture
def sheet(run, tmp_path):
    return write_survey(run, tmp_path / "survey", seed=1)


def key_of(sheet):
    return json.loads(sheet.with_name("survey.key.json").read_text())["items"]


def leading(run):
    """Return the five codes with the largest weights, by phenotype and mode."""
    return {
        number: {mode: [row.code for row in rows[:5]] for mode, rows in by_mode.items()}
        for number, by_mode in GlobalModel.read(run).codes_by_mode().items()
    }


def codes(item):
    return {mode: [code for code, _ in rows] for mode, rows in item["codes"].items()}


def truth(item):
    return "real" if item["kind"] == "real" else "made-up"


def answered(sheet, name, answer):
    """Write a reader's copy of the sheet. `answer` gives the answer to each item in the key."""
    path = sheet.with_name(name)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["item", "answer", "comment"])
        for number, item in enumerate(key_of(sheet), start=1):
            writer.writerow([number, answer(number, item), ""])
    return path


def test_half_are_the_models_phenotypes_and_each_occurs_once_in_random_order(run, sheet, tmp_path):
    items, own = key_of(sheet), leading(run)
    kinds = [item["kind"] for item in items]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "real": 10, "other mode": 5, "other code": 5,
    }  # fmt: skip
    assert len({item["phenotype"] for item in items}) == 20
    for item in items:
        assert (codes(item) == own[item["phenotype"]]) == (item["kind"] == "real")
    kinds = [truth(item) for item in items]
    assert kinds not in (sorted(kinds), sorted(kinds, reverse=True))
    (tmp_path / "again").mkdir()
    again = write_survey(run, tmp_path / "again" / "survey", seed=1)
    assert again.with_suffix(".html").read_text() == sheet.with_suffix(".html").read_text()


def test_made_up_lists_are_two_phenotypes_in_one_and_no_list_stands_twice(run, sheet):
    own = leading(run)
    items = [item for item in key_of(sheet) if item["kind"] == "other mode"]
    for item in items:
        assert codes(item)["procedures"] == own[item["phenotype"]]["procedures"]
        assert codes(item)["diagnoses"] == own[item["other"]]["diagnoses"]
        assert item["other"] != item["phenotype"]
        for real in own.values():  # none could be taken for a phenotype of the model
            assert min(len({*codes(item)[mode]} & {*real[mode]}) for mode in real) <= 1
    assert {item["other"] for item in items} == {item["phenotype"] for item in items}
    for one, two in combinations(key_of(sheet), 2):
        assert codes(one)["diagnoses"] != codes(two)["diagnoses"]


def test_lists_are_exchanged_only_beside_others_and_in_a_long_mode(run, tmp_path):
    factors, lists = read_model(run)
    for few in "FM", "ABCDEF":  # of six codes, any two lists share four
        (folder := tmp_path / few).mkdir()
        write_model(run, (*factors, factors[0][: len(few)] + 1), (*lists, Vocabulary("x", [*few])))
        sheet, own = write_survey(run, folder / "survey", seed=1), leading(run)
        kinds = [item["kind"] for item in key_of(sheet)]
        assert (kinds.count("real"), "other mode" in kinds) == (10, True)
        for item in key_of(sheet):
            real, shown = own[item["phenotype"]], codes(item)
            others = [mode for mode in real if {*shown[mode]} != {*real[mode]}]
            assert len(others) == (item["kind"] != "real")
            assert item["kind"] != "other mode" or others == ["diagnoses"]
    write_model(run, factors[:1], lists[:1])
    (tmp_path / "one").mkdir()
    kinds = [item["kind"] for item in key_of(write_survey(run, tmp_path / "one/survey", seed=1))]
    assert (kinds.count("real"), kinds.count("other code")) == (10, 10)


def test_the_exchanged_code_leads_another_phenotype_and_is_far_down_in_its_own(run, sheet):
    own, all_codes = leading(run), GlobalModel.read(run).codes_by_mode()
    for item in key_of(sheet):
        if item["kind"] == "other code":
            mine = own[item["phenotype"]]
            ((mode, new),) = [
                (mode, new)
                for mode, found in codes(item).items()
                for old, new in zip(mine[mode], found, strict=True)
                if old != new
            ]
            assert new in own[item["other"]][mode]
            alike = [real[mode] for real in own.values() if len({*real[mode]} & {*mine[mode]}) > 1]
            assert not any(new in real for real in alike)
            order = [row.code for row in all_codes[item["phenotype"]][mode]]
            assert new not in order[: len(order) // 2]


def test_the_page_shows_all_codes_and_nothing_of_which_are_real(sheet):
    page = sheet.with_suffix(".html").read_text(encoding="utf-8")
    _, *articles = page.split('<article class="item">')
    for item, article in zip(key_of(sheet), articles, strict=True):
        places = [article.index(f">{code}<") for rows in codes(item).values() for code in rows]
        assert places == sorted(places)
    text = page[page.index("<body>") :].lower()
    for word in ("phenotype", "other mode", "other code", "seed", "digest"):
        assert word not in text
    assert {(row["answer"], row["comment"]) for row in lines_of(sheet)} == {("", "")}
    assert [row["item"] for row in lines_of(sheet)] == [str(n) for n in range(1, 21)]
    for part in (".csv", ".html", ".key.json"):
        assert stat.S_IMODE(sheet.with_name("survey" + part).stat().st_mode) == 0o600


def test_answers_are_scored(run, sheet):
    """Kappa by hand: observed agreement .9, expected .5 (half of items and answers are real)."""
    real = [n for n, item in enumerate(key_of(sheet), start=1) if item["kind"] == "real"]
    made = [n for n, item in enumerate(key_of(sheet), start=1) if item["kind"] == "other code"]
    wrong = {real[0], made[0]}
    ann = answered(sheet, "ann.csv", lambda n, item: truth(item) if n not in wrong else
                   {"real": "made-up", "made-up": "real"}[truth(item)])  # fmt: skip
    ben = answered(sheet, "ben.csv", lambda n, item: "Real" if n > 2 else "unsure")
    said = dpfact("survey", run, "--out", sheet.with_suffix(""), "--read", ann, "--read", ben)
    first, second, both = said.splitlines()
    assert first == (
        "ann.csv: 18 of 20 right, 90 % (95 % interval 70 to 97 %; guessing 50 %); kappa 0.80; "
        "9 of 10 phenotypes of the model, 5 of 5 two phenotypes in one, 4 of 5 one code exchanged"
    )
    right = sum(item["kind"] == "real" for item in key_of(sheet)[2:])
    assert second.startswith(f"ben.csv: {right} of 20 right")
    assert both.startswith("ann.csv and ben.csv: kappa ")
    assert both.endswith(" over 20 items")


def test_an_item_without_an_answer_is_left_out(run, sheet):
    key = sheet.with_name("survey.key.json")
    some = answered(sheet, "some.csv", lambda n, item: truth(item) if n <= 8 else "")
    none = answered(sheet, "none.csv", lambda n, item: "")
    found = [str(answers) for answers in read_survey(run, key, [some, none])]
    assert found[0].startswith("some.csv: 8 of 8 right, 100 %")
    assert found[0].endswith(", 12 unanswered")
    assert found[1] == "none.csv: no item is answered"
    same = answered(sheet, "same.csv", lambda n, item: "real" if item["kind"] == "real" else "")
    assert "kappa undefined" in str(read_survey(run, key, [same])[0])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("1,perhaps,", "line 2: answer must be real, made-up, unsure or empty"),
        ("21,real,", "line 2: item must be a number, 1 to 20"),
        ("3,real,\n3,real,", "line 3: this item is listed twice"),
    ],
)
def test_answers_that_cannot_be_used_are_refused_in_a_line(run, sheet, line, says):
    wrong = sheet.with_name("wrong.csv")
    wrong.write_text(f"item,answer,comment\n{line}\n")
    with pytest.raises(DataError, match=says):
        read_survey(run, sheet.with_name("survey.key.json"), [wrong])


def test_what_cannot_be_a_survey_is_refused(run, sheet, tmp_path):
    with pytest.raises(SettingsError, match="--items: must be 8 or more, got 7"):
        write_survey(run, tmp_path / "x", items=7)
    few = run_folder(tmp_path / "few", rank=5)
    with pytest.raises(DataError, match="needs 8 phenotypes with codes, not 5"):
        write_survey(few, tmp_path / "x")
    said = refusal("survey", few, "--out", tmp_path / "survey", "--read", sheet)
    assert "belongs to a run other than" in said
