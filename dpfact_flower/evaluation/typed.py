"""Values of a run folder's JSON files as dataclasses; what does not fit is named by its key."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from dpfact_flower.errors import DataError

T = TypeVar("T")
_MOST = 20
"""Keys of a kind that one error names."""


def typed(kind: type[T], content: object, unnamed: Collection[str] = ()) -> T:
    """Make a dataclass, with those inside it, of what was read from JSON.

    A type is what JSON has: no text is taken for a number, no number for a boolean. A whole number
    is a float too. Keys that the dataclass does not know are left alone: a newer version may add
    some.

    Parameters
    ----------
    kind : type
        A dataclass.
    content : object
        As `json.loads` gives it.
    unnamed : collection of str
        Fields that are no keys of the file, so that no error names them.

    Raises
    ------
    DataError
        Naming the keys that are missing, and those whose values are not what they must be; or
        saying that there is NaN or infinity, which JSON does not have.
    """
    try:
        # Strictly, since only from JSON pydantic takes a list for a tuple without taking more.
        text = json.dumps(content, allow_nan=False)
        return TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        found = [
            (".".join(str(key) for key in fault["loc"] if key not in unnamed), fault)
            for fault in error.errors(include_url=False)
        ]
    except ValueError:
        raise DataError("has a number that is not finite, which JSON does not have") from None
    missing = [key for key, fault in found if fault["type"] == "missing"]
    wrong = [_must_be(key, fault["msg"]) for key, fault in found if fault["type"] != "missing"]
    raise DataError("; ".join([lacks(missing)] * bool(missing) + wrong[:_MOST]))


def lacks(keys: Iterable[str]) -> str:
    """What an error says about a file without these keys, each named once."""
    return f"lacks {', '.join([*dict.fromkeys(keys)][:_MOST])}"


def _must_be(key: str, complaint: str) -> str:
    """The library's words behind the key; none where it is the whole that is wrong."""
    return f"{key} {complaint.replace('Input should be', 'must be', 1)}".strip()
