"""Parse JSON and NumPy's array formats from untrusted files and messages."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import DataError

if TYPE_CHECKING:
    from pydantic import ValidationError

T = TypeVar("T")
_MOST = 20
"""Maximum number of missing keys, and of wrong values, that a single error lists."""


def from_json(text: str | bytes) -> Any:
    """Parse JSON. Raise a ValueError for text that is invalid or too deeply nested."""
    try:
        return json.loads(text)
    except RecursionError:  # not a ValueError; a thousand nested brackets raise it
        raise ValueError("nested too deeply") from None


def parse_as(kind: type[T], content: object, unnamed: Collection[str] = ()) -> T:
    """Build a dataclass and its nested dataclasses from parsed JSON, with strict type checks.

    Unknown keys are ignored. Error messages do not name the fields in `unnamed`.
    """
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - slow to import

    try:
        # Validate JSON text, because only then does strict validation accept a list for a tuple.
        return TypeAdapter(kind).validate_json(json.dumps(content, allow_nan=False), strict=True)
    except ValidationError as error:
        raise DataError(_one_line(error, unnamed)) from None
    except ValueError:
        raise DataError("has a number that is not finite, which JSON cannot express") from None


def to_json(value: object, without: Collection[str] = ()) -> bytes:
    """Return a dataclass as JSON for `parse_as`, without the fields in `without`."""
    from pydantic import TypeAdapter  # noqa: PLC0415 - slow to import

    return TypeAdapter(type(value)).dump_json(value, exclude={*without})


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


def read_npy(file: IO[bytes]) -> NDArray[Any]:
    """Return an array that `numpy.save` wrote. Raise a DataError if the file has no valid array.

    Only bytes that were read occupy memory, so a false size in the header cannot exhaust it.
    """
    try:
        array = np.lib.format.read_array(file, allow_pickle=False)
        if array.dtype.names is not None or not array.dtype.itemsize or file.read(1):
            raise ValueError("records, values without bytes, or more bytes than the header says")
        return array
    except Exception as error:  # NumPy, its tokeniser and zlib raise different errors
        raise DataError(f"not an array in .npy format ({type(error).__name__})") from None


def load_npz(
    path: str | Path, names: Sequence[str], *, others: bool = True
) -> dict[str, NDArray[Any]]:
    """Read the arrays in `names` from an .npz file and, if `others` is true, all other arrays."""
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                name = member.removesuffix(".npy")
                if others or name in names:
                    with archive.open(member) as file:
                        arrays[name] = read_npy(file)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder; name one of its .npz files") from None
    except PermissionError:
        raise DataError(f"{path}: this user may not read it") from None
    except Exception as error:  # zipfile and zlib raise different errors for damaged files
        raise DataError(
            f"{path}: not a readable .npz file ({type(error).__name__}); restore it from a copy, "
            "or make it again"
        ) from None
    if missing := [name for name in names if name not in arrays]:
        raise DataError(f"{path}: lacks the array(s) {', '.join(missing)}; it has {sorted(arrays)}")
    return arrays
