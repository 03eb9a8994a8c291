"""JSON that may hold anything: a value or a ValueError."""

import pytest

from dpfact_flower.machine.parsed import from_json


def test_json_is_read():
    assert from_json('{"a": [1, null]}') == {"a": [1, None]}
    assert from_json(b"[1.5]") == [1.5]


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"a":' * 100_000, b"\xff", "9" * 5000], ids=lambda t: t[:4]
)
def test_anything_else_is_a_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
        from_json(text)
