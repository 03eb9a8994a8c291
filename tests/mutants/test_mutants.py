"""Which mutants are drawn, which tests they meet, and that explanations are not out of date."""

from pathlib import Path

import pytest

from tests.mutants.explained import EXPLAINED
from tests.mutants.sample import sample, says_the_same
from tests.mutants.trial import all_tests, other_tests, own_tests

ROOT = Path(__file__).resolve().parents[2]
MODULE = '''
def f(x: int | None, *, y: int = 2) -> bool:
    """At least 1."""
    _logger.info("%d", x + 1)
    return x > 1
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("x: int | None", "x: int & None", True),
        ("x + 1)", "x - 1)", True),
        ("def f", "@compiled()\ndef f", True),
        ("None, *,", "None, /,", True),
        ("return x", "return not not", True),
        ("y: int = 2", "y: int = 3", False),
        ("x > 1", "x >= 1", False),
        ("def f", "@cache\ndef f", False),
    ],
    ids=[
        "annotation",
        "log line",
        "compiled",
        "marker",
        "no program",
        "default",
        "comparison",
        "decorator",
    ],
)
def test_mutants_that_differ_in_nothing_that_runs_are_known(old, new, same):
    mutated = MODULE.replace(old, new)
    assert mutated != MODULE
    assert says_the_same(MODULE, mutated) is same


def test_a_sample_is_of_different_places_and_its_seed_gives_it_again(tmp_path, monkeypatch):
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    one, places = sample(tmp_path, [Path("room")], 10, 0)
    assert one == sample(tmp_path, [Path("room")], 10, 0)[0]
    # The default, the comparison and its number; annotation, `*` and log line give none.
    assert [mutant.line for mutant in one] == [2, 5, 5]
    assert one[1].before == "return x > 1"
    assert places == 7
    assert len(sample(tmp_path, [Path("room")], 1, 0)[0]) == 1


@pytest.mark.parametrize("module", ["privacy/noise.py", "privacy/ledger/book.py", "site/answer.py"])
def test_a_mutant_meets_the_tests_of_its_room_first_and_then_all_others(module, monkeypatch):
    monkeypatch.chdir(ROOT)
    path = Path("dpfact_flower") / module
    own, others = own_tests(path), other_tests(path)
    room = Path("tests") / Path(module).parent
    assert own
    assert all(test.parent == room for test in own)
    named = room / f"test_{path.stem}.py"
    assert own[0] == named or not named.exists()
    assert {*own, *others} == {*all_tests()}
    assert not {*own} & {*others}


@pytest.mark.parametrize("known", EXPLAINED, ids=lambda known: known.before[:40])
def test_what_is_explained_is_there(known):
    text = (ROOT / "dpfact_flower" / known.path).read_text(encoding="utf-8")
    assert known.before in {line.strip() for line in text.splitlines()}
