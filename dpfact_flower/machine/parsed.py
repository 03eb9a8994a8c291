"""JSON from an untrusted file, parsed to plain values or to a dataclass."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeVar

from dpfact_flower.errors import DataError

if TYPE_CHECKING:
    from pydantic import ValidationError

T = TypeVar("T")
_MOST = 20
"""Largest number of missing keys, and of wrong values, that one error names."""


def from_json(text: str | bytes) -> Any:
    """Parse JSON; raise a ValueError for text that is invalid or too deeply nested."""
    try:
        return json.loads(text)
    except RecursionError:  # not a ValueError; a thousand brackets are enough
        raise ValueError("nested too deeply") from None


def parse_as(kind: type[T], content: object, unnamed: Collection[str] = ()) -> T:
    """Make a dataclass, and the dataclasses in its fields, from parsed JSON, with strict types.

    Unknown keys are ignored. Errors omit the names in `unnamed`, which are not keys of the file.
    """
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - slow to import

    try:
        # Through JSON, because strict validation accepts a list for a tuple in JSON only.
        text = json.dumps(content, allow_nan=False)
        return TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise DataError(_one_line(error, unnamed)) from None
    except ValueError:
        raise DataError("has a number that is not finite, which JSON does not have") from None


def _one_line(error: ValidationError, unnamed: Collection[str]) -> str:
    missing, wrong = [], []
    for fault in error.errors(include_url=False):
        key = ".".join(str(part) for part in fault["loc"] if part not in unnamed)
        if fault["type"] == "missing":
            missing.append(key)
        else:
            wrong.append(f"{key} {fault['msg'].replace('Input should be', 'must be', 1)}".strip())
    lacks = [f"lacks {', '.join([*dict.fromkeys(missing)][:_MOST])}"] if missing else []
    return "; ".join(lacks + wrong[:_MOST])
