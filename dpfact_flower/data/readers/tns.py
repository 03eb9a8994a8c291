"""Read a count tensor in FROSTT's text format (``.tns``, http://frostt.io).

The format stores no names, so patients are numbered from 1. Codes are also numbered unless code
lists are given. Patients whose counts are all 0 are left out.
"""

import fileinput
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError, naming, plural
from dpfact_flower.settings import check_name
from dpfact_flower.tensor import Floats, SparseTensor

_MAX_INDEX = np.iinfo(np.int32).max - 1


def read(
    path: str | Path,
    name: str,
    *,
    patients: int = 1,
    modes: Sequence[str] | None = None,
    vocabularies: Sequence[Vocabulary] | None = None,
    parts: int = 1,
) -> Cohort:
    """Read a FROSTT tensor as one site or, for a simulation, as several sites of similar size.

    `path` is a ``.tns`` or ``.tns.gz`` file. Each line holds a cell's indices and count. `patients`
    is the position of the patients' mode, counted from 1. `vocabularies` contains a code list
    for each feature mode. Without code lists, `modes` names the feature modes (default: ``mode-2``,
    ...). If `parts` exceeds 1, patients are assigned in turn to sites ``part-1``, ``part-2``, ...
    """
    check_name("name of site or cohort", name)
    tensor = read_tns(path)
    if not 1 <= patients <= tensor.ndim:
        raise SettingsError(f"patients: need a mode from 1 to {tensor.ndim}, got {patients}")
    order = [patients - 1, *(mode for mode in range(tensor.ndim) if mode != patients - 1)]
    shape = tuple(tensor.shape[mode] for mode in order)
    turned = SparseTensor.from_coo(tensor.indices[:, order], tensor.values, shape)
    codes = _vocabularies(path, [mode + 1 for mode in order[1:]], shape[1:], modes, vocabularies)
    people = np.unique(turned.indices[:, 0])
    if not len(people):
        raise DataError(f"{path}: holds no cell")
    sites = []
    for part in range(parts):
        rows = people[part::parts]
        if len(rows):
            site = f"part-{part + 1}" if parts > 1 else name
            ids = tuple(str(row + 1) for row in rows.tolist())
            sites.append(SiteData(site, turned.select_patients(rows), codes, patients=ids))
    read_report = (
        (Path(path).name, "cells", turned.nnz),
        ("patients", "in the table", shape[0]),
        ("patients", "left out, without a cell", shape[0] - len(people)),
        ("patients", "kept", len(people)),
    )
    return Cohort(name, tuple(sites), read_report=read_report)


def read_tns(path: str | Path) -> SparseTensor:
    """Read a tensor from FROSTT text. Indices start at 1, or at 0 if any index is 0."""
    table = _read_table(Path(path))
    if table.size == 0:
        raise DataError(f"{path}: holds no cell")
    if table.shape[1] < 3:
        raise DataError(f"{path}: need at least 2 indices and a value per line")
    index = table[:, :-1]
    wrong = ~((index >= 0) & (index <= _MAX_INDEX) & (index == np.floor(index))).all(axis=1)
    if wrong.any():
        raise DataError(
            f"{path}: need whole numbers from 0 to {_MAX_INDEX} as indices; cell "
            f"{wrong.argmax() + 1} has others"
        )
    index -= int((index >= 1).all())
    with naming(path):
        return SparseTensor.from_coo(index, table[:, -1], index.max(axis=0) + 1)


def _read_table(path: Path) -> Floats:
    try:
        with (
            fileinput.FileInput(
                path, openhook=fileinput.hook_compressed, encoding="utf-8-sig"
            ) as lines,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", UserWarning)  # `read_tns` refuses an empty file
            return np.loadtxt(lines, comments="#", ndmin=2)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({type(error).__name__})") from None
    except ValueError:  # NumPy's message quotes the cell
        raise DataError(
            f"{path}: each line needs the same count of numbers, and nothing else; line "
            f"{lines.lineno()} differs"
        ) from None


def _vocabularies(
    path: str | Path,
    places: Sequence[int],
    sizes: Sequence[int],
    modes: Sequence[str] | None,
    given: Sequence[Vocabulary] | None,
) -> tuple[Vocabulary, ...]:
    names = [v.name for v in given] if given else modes or [f"mode-{place}" for place in places]
    if len(names) != len(sizes):
        raise SettingsError(f"modes: {path} needs {len(sizes)} feature modes, got {len(names)}")
    lists = given or [
        Vocabulary(name, tuple(map(str, range(1, size + 1))))
        for name, size in zip(names, sizes, strict=True)
    ]
    for place, size, vocabulary in zip(places, sizes, lists, strict=True):
        if len(vocabulary) != size:
            unused = "; if its last codes are unused, add a line with its last index and count 0"
            raise DataError(
                f"{path}: mode {place} has {plural(size, 'code')}, but the list of "
                f"{vocabulary.name} has {len(vocabulary)}{unused * (len(vocabulary) > size)}"
            )
    return tuple(lists)
