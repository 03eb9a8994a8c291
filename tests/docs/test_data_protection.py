"""Each claim on the page for data protection officers names a test, which must exist."""

import ast
import math
import re
from pathlib import Path

import numpy as np
import pytest

from dpfact_flower.privacy.conversions import log_delta_gaussian, mu_for_epsilon, root_of

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


def certainty(epsilon: float, before: float, delta: float = 1e-5) -> int:
    """Return the percentage that an attacker's certainty exceeds with probability delta at most.

    For any x < y, P[loss > y] <= delta(x) / (1 - exp(x - y)). Percentages are rounded up.
    """
    mu = mu_for_epsilon(epsilon, delta)

    def tail(loss: float) -> float:
        lower = np.linspace(max(0.0, loss - 8 * mu), loss, 500, endpoint=False)
        bounds = [math.exp(log_delta_gaussian(mu, x)) / -math.expm1(x - loss) for x in lower]
        return delta - min(bounds)

    odds = before / (1 - before) * math.exp(root_of(tail, epsilon, 2 * epsilon))
    return math.ceil(100 * odds / (1 + odds))


def test_the_certainties_on_the_pages_are_those_that_epsilon_allows() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    for before in (0.5, 0.01):
        known = [certainty(epsilon, before) for epsilon in (1.0, 2.0, 4.0)]
        assert "{} %, {} % and {} % certain".format(*known) in text
    page = (ROOT / "docs" / "explanation" / "privacy.md").read_text(encoding="utf-8")
    row = [f"{certainty(epsilon, 0.5)} %" for epsilon in (0.5, 1.0, 2.0, 4.0)]
    assert f"| certainty, at most | {' | '.join(row)} | 99.99 % |" in page


def test_a_claim_without_a_test_is_noticed() -> None:
    assert not is_there("tests/docs/test_data_protection.py::test_of_another_name")
    assert not is_there("tests/docs/absent.py::test_there_are_claims")
