"""What people say of a run's phenotypes, names and verdicts: ``names.toml`` in its folder."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w

from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.typed import typed
from dpfact_flower.machine.files import replacing

NAMES = "names.toml"
_LONGEST = 120
_NAMED, _REVIEWED = "phenotypes", "reviewed"
T = TypeVar("T")


@dataclass(frozen=True)
class Review:
    """What a chart review said of a phenotype; see `dpfact_flower.evaluation.review`.

    Attributes
    ----------
    verdict : str
        ``keep`` or ``drop``.
    confirmed, near_confirmed : float or None
        Share of charts that have the phenotype, in tenths: of patients with the highest scores, and
        of those near the threshold. None below ten charts.
    charts, near_charts : int or None
        How many charts that is.
    """

    verdict: Literal["keep", "drop"]
    confirmed: float | None = None
    charts: int | None = None
    near_confirmed: float | None = None
    near_charts: int | None = None


def read_names(folder: Path, rank: int) -> dict[int, str]:
    """Names by phenotype, which counts from 1; none where nobody gave any.

    The file may be written by hand: a table ``[phenotypes]`` of lines such as ``3 = "renal"``.

    Raises
    ------
    DataError
        If it is not readable as TOML, or names what the model does not have.
    """
    return _read(folder, _NAMED, rank, _name)


def read_reviews(folder: Path, rank: int) -> dict[int, Review]:
    """Chart reviews by phenotype; none where nobody reviewed any.

    Raises
    ------
    DataError
        As `read_names`.
    """
    return _read(folder, _REVIEWED, rank, lambda value: typed(Review, value))


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
    _write(folder, names, read_reviews(folder, rank))


def write_review(folder: Path, number: int, review: Review, rank: int) -> None:
    """Note what a chart review said of a phenotype, in the place of an earlier one."""
    _write(folder, read_names(folder, rank), read_reviews(folder, rank) | {number: review})


def _read(folder: Path, title: str, rank: int, parse: Callable[[Any], T]) -> dict[int, T]:
    """One table of the file, by phenotype."""
    path = folder / NAMES
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get(title, {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        raise DataError(f"{path}: not readable as TOML") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: need a table [{title}] with phenotypes' numbers as its keys")
    try:
        return {_number(key, rank): parse(value) for key, value in found.items()}
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _write(folder: Path, names: Mapping[int, str], reviews: Mapping[int, Review]) -> None:
    said = {
        number: {key: value for key, value in asdict(review).items() if value is not None}
        for number, review in reviews.items()
    }
    tables: dict[str, Mapping[int, Any]] = {_NAMED: names, _REVIEWED: said}
    text = {
        title: {str(number): table[number] for number in sorted(table)}
        for title, table in tables.items()
    }
    with replacing(folder / NAMES) as file:
        file.write(tomli_w.dumps(text).encode())


def _number(key: str, rank: int) -> int:
    if not key.isascii() or not key.isdecimal() or not 1 <= int(key[:6]) <= rank:
        raise DataError(f"phenotype: must be a number from 1 to {rank}, got {key[:20]!r}")
    return int(key)


def _name(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if not text or not text.isprintable() or len(text) > _LONGEST:
        raise DataError(f"name: must be one line of at most {_LONGEST} characters")
    return text
