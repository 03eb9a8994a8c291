"""Names that people give to a run's phenotypes: ``names.toml`` in its folder."""

from __future__ import annotations

import tomllib
from pathlib import Path

import tomli_w

from dpfact_flower.errors import DataError
from dpfact_flower.machine.files import replacing

NAMES = "names.toml"
_LONGEST = 120
_TABLE = "phenotypes"


def read_names(folder: Path, rank: int) -> dict[int, str]:
    """Names by phenotype, which counts from 1; none where nobody gave any.

    The file may be written by hand: a table ``[phenotypes]`` of lines such as ``3 = "renal"``.

    Raises
    ------
    DataError
        If it is not readable as TOML, or names what the model does not have.
    """
    path = folder / NAMES
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get(_TABLE, {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        raise DataError(f"{path}: not readable as TOML") from None
    if not isinstance(found, dict):
        raise DataError(f'{path}: need a table [{_TABLE}] of lines such as 3 = "renal"')
    try:
        return {_number(key, rank): _name(value) for key, value in found.items()}
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def write_name(folder: Path, number: int, name: str, rank: int) -> None:
    """Name a phenotype, or with an empty name take its name away.

    Raises
    ------
    DataError
        If the model has no such phenotype, or the name is not one line of text.
    """
    names = read_names(folder, rank)
    names.pop(_number(str(number), rank), None)
    if name.strip():
        names[number] = _name(name)
    table = {str(key): names[key] for key in sorted(names)}
    with replacing(folder / NAMES) as file:
        file.write(tomli_w.dumps({_TABLE: table}).encode())


def _number(key: str, rank: int) -> int:
    if not key.isascii() or not key.isdecimal() or not 1 <= int(key[:6]) <= rank:
        raise DataError(f"phenotype: must be a number from 1 to {rank}, got {key[:20]!r}")
    return int(key)


def _name(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if not text or not text.isprintable() or len(text) > _LONGEST:
        raise DataError(f"name: must be one line of at most {_LONGEST} characters")
    return text
