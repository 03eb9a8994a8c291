"""Forty mistakes with `dpfact data`, and the page that shows what is said to most."""

import re
from pathlib import Path

import pytest

from tests.cli.mistakes import MISTAKES, Mistake, said

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "data-mistakes.md"
ROWS = dict(re.findall(r"^\| (.+?) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_a_mistake_gets_one_line_that_says_the_way_out(mistake):
    line = said(mistake)
    assert line == ROWS.get(mistake.what, line).replace("\\|", "|")
    assert "\n" not in line
    assert len(line) > 10
    for value in ("4019", "41401", "E11", "Müller"):
        assert value not in line


def test_the_page_has_no_other_rows():
    rows = [what for what in ROWS if what not in ("mistake", "---")]
    assert rows == [m.what for m in MISTAKES if m.what in ROWS]
    assert len(rows) >= 25
    assert len(MISTAKES) >= 40


def test_without_a_mistake_the_same_command_succeeds():
    assert said(Mistake("none")) == ""
