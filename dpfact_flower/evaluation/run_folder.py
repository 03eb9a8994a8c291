"""Read and write a run folder's files, none of which contains an individual patient's data.

``config.toml`` contains the settings and software versions. ``names.toml`` contains names and chart
reviews of phenotypes. `dpfact_flower.server` writes ``history.jsonl`` and ``checkpoint.npz``.
"""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import tomli_w
from numpy.typing import NDArray

from dpfact_flower.data.code_names import named
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, naming, shown
from dpfact_flower.evaluation.summary import Summary
from dpfact_flower.evaluation.tables import Replication, SharedPhenotypes
from dpfact_flower.machine.files import replacing
from dpfact_flower.machine.parsed import from_json, load_npz, parse_as
from dpfact_flower.settings import Scalar

T = TypeVar("T")
SUMMARY = "summary.json"
MODEL = "global_model.npz"
CONFIG = "config.toml"
PHENOTYPES = "phenotypes.json"
REPORT = "report.html"
NAMES = "names.toml"
BESIDE = "beside.json"
_LONGEST_NAME = 120


def write_model(
    folder: Path, factors: Sequence[NDArray[np.float32]], vocabularies: Sequence[Vocabulary]
) -> None:
    """Write ``global_model.npz``, with arrays NAME, NAME_codes and NAME_text for each mode NAME."""
    arrays: dict[str, Any] = {"modes": np.array([v.name for v in vocabularies])}
    for factor, vocabulary in zip(factors, vocabularies, strict=True):
        arrays[vocabulary.name] = factor
        arrays[f"{vocabulary.name}_codes"] = np.array(vocabulary.codes)
        arrays[f"{vocabulary.name}_text"] = np.array(vocabulary.descriptions)
    with replacing(folder / MODEL) as file:
        np.savez_compressed(file, **arrays)


def read_model(folder: Path) -> tuple[tuple[NDArray[np.float32], ...], tuple[Vocabulary, ...]]:
    """Read the feature factors and vocabularies that `write_model` wrote."""
    path = folder / MODEL
    if not path.exists():
        raise DataError(f"{path}: no such file; is this the folder of a finished run?")
    arrays = load_npz(path, ["modes"])
    with naming(path):
        try:
            vocabularies = tuple(
                named(Vocabulary(n, arrays[f"{n}_codes"].tolist(), arrays[f"{n}_text"].tolist()))
                for n in np.atleast_1d(arrays["modes"]).tolist()
            )
            factors = tuple(arrays[v.name] for v in vocabularies)
        except KeyError as error:
            raise DataError(f"lacks the array {shown(error.args[0])}") from None
        for factor, vocabulary in zip(factors, vocabularies, strict=True):
            wanted = (len(vocabulary), *factors[0].shape[1:])
            if factor.dtype != np.float32 or factor.ndim != 2 or factor.shape != wanted:
                raise DataError(
                    f"the array {vocabulary.name} must be float32, with a row for each code and as "
                    f"many columns as the first array; it is {factor.dtype}, {factor.shape}"
                )
            if not np.isfinite(factor).all():
                raise DataError(f"the array {vocabulary.name} has values that are not finite")
    return factors, vocabularies


def write_summary(folder: Path, summary: Summary) -> None:
    """Write ``summary.json``."""
    write_json(folder / SUMMARY, summary.to_dict())


def read_summary(folder: Path) -> Summary:
    """Read ``summary.json``."""
    return read_json_as(folder / SUMMARY, Summary.from_dict)


def read_phenotypes(folder: Path) -> SharedPhenotypes:
    """Read ``phenotypes.json``."""
    return read_json_as(folder / PHENOTYPES, partial(parse_as, SharedPhenotypes))


def read_replications(folder: Path, rank: int) -> tuple[Replication, ...]:
    """Read ``beside.json``, a list of matches with other runs. Return () if the file is missing."""
    path = folder / BESIDE
    if not path.exists():
        return ()
    runs = read_json_as(path, partial(parse_as, tuple[Replication, ...]))
    if any(run.rank != rank for run in runs):
        raise DataError(f"{path}: belongs to another model; write it again: dpfact report --beside")
    return runs


def write_config(folder: Path, config: Mapping[str, Scalar], versions: Mapping[str, str]) -> None:
    """Write the complete run config and the software versions to ``config.toml``."""
    text = tomli_w.dumps({"run-config": dict(config), "versions": dict(versions)})
    with replacing(folder / CONFIG) as file:
        file.write(text.encode())


def read_config(folder: Path) -> dict[str, Any]:
    """Read the tables ``run-config`` and ``versions`` from ``config.toml``."""
    path = folder / CONFIG
    config: dict[str, Any] = _parsed(path, tomllib.loads, "TOML")
    missing = [t for t in ("run-config", "versions") if not isinstance(config.get(t), dict)]
    if missing:
        raise DataError(f"{path}: lacks {', '.join(missing)}")
    return config


@dataclass(frozen=True)
class Review:
    """A chart review's decision about a phenotype; see `dpfact_flower.evaluation.review`.

    `charts` counts the charts of patients with the highest scores. `confirmed` is the rounded share
    of these charts that confirm the phenotype. `near_charts` and `near_confirmed` are the number
    and share for scores near the threshold. Values from fewer than ten charts are None.
    """

    verdict: Literal["keep", "drop"]
    confirmed: float | None = None
    charts: int | None = None
    near_confirmed: float | None = None
    near_charts: int | None = None


@dataclass(frozen=True)
class Names:
    """The content of ``names.toml``: names and chart reviews, by phenotype number."""

    phenotypes: dict[int, str] = field(default_factory=dict)
    reviewed: dict[int, Review] = field(default_factory=dict)


def read_names(folder: Path, rank: int) -> Names:
    """Read ``names.toml``, or return an empty `Names` if the file does not exist.

    Users may also write ``names.toml``, with lines such as ``3 = "renal"`` below ``[phenotypes]``.
    """
    path = folder / NAMES
    if not path.exists():
        return Names()
    content = _parsed(path, tomllib.loads, "TOML")
    with naming(path):
        return checked_names(parse_as(Names, content), rank)


def write_names(folder: Path, new: Names) -> None:
    """Add names and reviews to ``names.toml``. An empty name removes a phenotype's earlier name."""

    def known(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:  # TOML does not have None
        return {name: value for name, value in fields if value is not None}

    rank = read_model(folder)[0][0].shape[1]
    old = read_names(folder, rank)
    names = Names(old.phenotypes | new.phenotypes, old.reviewed | new.reviewed)
    tables = asdict(checked_names(names, rank), dict_factory=known)
    text = {title: {str(n): own[n] for n in sorted(own)} for title, own in tables.items()}
    with replacing(folder / NAMES) as file:
        file.write(tomli_w.dumps(text).encode())


def checked_names(names: Names, rank: int) -> Names:
    """Return `names` without empty names. Raise an error for an invalid name or number."""
    for number in (*names.phenotypes, *names.reviewed):
        if number not in range(1, rank + 1):
            raise DataError(f"phenotype: must be a number from 1 to {rank}, got {number!r}")
    for name in names.phenotypes.values():
        if not isinstance(name, str) or len(name) > _LONGEST_NAME or not name.strip().isprintable():
            raise DataError(f"name: need one line of at most {_LONGEST_NAME} printable characters")
    bare = {number: name.strip() for number, name in names.phenotypes.items()}
    return replace(names, phenotypes={number: name for number, name in bare.items() if name})


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON, with dataclasses as objects."""
    text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False, default=asdict)
    with replacing(path) as file:
        file.write(text.encode())


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return _parsed(path, from_json, "JSON")


def read_json_as(path: Path, parse: Callable[[object], T]) -> T:
    """Read a JSON file with the parser `parse`. Error messages include the file's path."""
    content = read_json(path)
    with naming(path):
        return parse(content)


def _parsed(path: Path, parse: Callable[[str], Any], kind: str) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; is this the folder of a finished run?") from None
    except (OSError, ValueError, RecursionError):
        raise DataError(f"{path}: not readable as {kind}") from None
