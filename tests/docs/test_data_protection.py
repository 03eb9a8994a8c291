"""Each claim on the page for data protection officers names a test, which must exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "data-protection.md"
RISKS = re.search(
    r"^## Risks.*?\n\|.*?\n\|[-|]*\n(.*?)\n\n", PAGE.read_text(encoding="utf-8"), re.M | re.S
)
ROWS = RISKS[1].splitlines() if RISKS else []


def is_there(claim: str) -> bool:
    """Return whether a file has the test that a claim names."""
    path, _, name = claim.partition("::")
    file = ROOT / path
    tests = ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else []
    return any(isinstance(each, ast.FunctionDef) and each.name == name for each in tests)


def test_there_are_claims() -> None:
    assert len(ROWS) > 15


@pytest.mark.parametrize("row", ROWS)
def test_the_test_that_a_claim_names_is_there(row: str) -> None:
    (claim,) = re.findall(r"`(tests/[\w/]+\.py::test_\w+)` \|$", row)
    assert is_there(claim), claim


def test_a_claim_without_a_test_is_noticed() -> None:
    assert not is_there("tests/docs/test_data_protection.py::test_of_another_name")
    assert not is_there("tests/docs/absent.py::test_there_are_claims")
