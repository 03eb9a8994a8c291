"""What errors quote: short, on one line, whatever it is."""

import pytest

from dpfact_flower.errors import shown
from dpfact_flower.settings import SolverSettings


class Sulking:
    def __repr__(self):
        raise RuntimeError("no")


def test_a_short_value_is_shown_as_in_code():
    assert shown("a") == "'a'"
    assert shown(1.5) == "1.5"
    assert shown((1, "b")) == "(1, 'b')"
    assert shown("M\u00fcnchen") == "'M\u00fcnchen'"


@pytest.mark.parametrize(
    "value",
    ["x" * 100_000, b"\xff" * 100_000, ["y" * 100_000] * 9, list(range(10**6)), 10**5000,
     "line\nline", "\u202e\ud800\x00", Sulking(), {"a": "z" * 1000}],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_any_value_is_a_short_printable_line(value):
    text = shown(value)
    assert len(text) <= 83
    assert text.isprintable()


@pytest.mark.parametrize("key", ["solver", "rank", "nonnegative", "eta"])
def test_no_setting_quotes_a_long_value_whole(key):
    with pytest.raises(ValueError, match=key) as error:
        SolverSettings.from_config({key: "x" * 100_000})
    assert len(str(error.value)) < 300
