"""What a run found, as tables for other programs: phenotypes for anybody, memberships for a site.

A table of phenotypes comes from the model alone: it is as public as the model. A table of
memberships has a row a patient: it is made at the hospital, from the hospital's own file, and stays
there. No privacy guarantee covers it.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, MissingDependencyError, SettingsError
from dpfact_flower.evaluation.names import read_names
from dpfact_flower.evaluation.run_folder import read_config, read_model
from dpfact_flower.machine.files import replacing
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver.patients import fitted_patients
from dpfact_flower.tensor import Factors

if TYPE_CHECKING:
    from pandas import DataFrame

_PATIENT = "patient"


@dataclass(frozen=True)
class CodeRow:
    """A code in a phenotype.

    Attributes
    ----------
    phenotype : int
        From 1.
    name : str
        What people call the phenotype; empty where nobody has named it.
    mode : str
    place : int
        From 1: the largest share of the mode in this phenotype is first.
    code, description : str
    weight : float
        The factor's entry.
    share : float
        Of the column's absolute sum.
    lift : float
        `share` over the code's mean share in all phenotypes: above 1 it marks this phenotype, near
        1 it belongs to everything.
    """

    phenotype: int
    name: str
    mode: str
    place: int
    code: str
    description: str
    weight: float
    share: float
    lift: float


def phenotype_rows(folder: Path, *, top: int | None = None) -> tuple[CodeRow, ...]:
    """Every phenotype of a finished run, code by code; codes of weight zero are left out.

    Parameters
    ----------
    folder : Path
        The run's.
    top : int, optional
        So many codes a phenotype and mode, the largest; without it all.

    Raises
    ------
    DataError
        If the folder is not that of a finished run.
    SettingsError
        If `top` is below 1.
    """
    if top is not None and top < 1:
        raise SettingsError(f"top: must be 1 or more, got {top}")
    factors, vocabularies = read_model(folder)
    rank = factors[0].shape[1]
    names = read_names(folder, rank)
    columns = [_Columns.of(*pair) for pair in zip(factors, vocabularies, strict=True)]
    return tuple(
        row
        for component in range(rank)
        for mode in columns
        for row in mode.rows(component, names.get(component + 1, ""), top)
    )


@dataclass(frozen=True, eq=False)
class _Columns:
    """A mode's factor, and its columns as shares."""

    vocabulary: Vocabulary
    factor: NDArray[np.float64]
    shares: NDArray[np.float64]

    @classmethod
    def of(cls, factor: NDArray[np.float32], vocabulary: Vocabulary) -> _Columns:
        wide = factor.astype(np.float64)
        sums = np.abs(wide).sum(axis=0)
        return cls(vocabulary, wide, wide / np.where(sums > 0, sums, 1.0))

    def rows(self, component: int, name: str, top: int | None) -> Iterable[CodeRow]:
        shares = self.shares[:, component]
        means = np.abs(self.shares).mean(axis=1)
        order = np.argsort(-np.abs(shares), kind="stable")[:top]
        for place, code in enumerate(order[shares[order] != 0].tolist(), start=1):
            yield CodeRow(
                component + 1, name, self.vocabulary.name, place,
                self.vocabulary.codes[code], self.vocabulary.descriptions[code],
                float(self.factor[code, component]), float(shares[code]),
                float(shares[code] / means[code]),
            )  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Memberships:
    """How much of each phenotype each patient of a site has; never for anybody but the site.

    Attributes
    ----------
    patients : tuple of str
        The site's own identifiers; row numbers from 1 where the site's file has none.
    names : tuple of str, length R
        Of the columns: what people call a phenotype, else ``phenotype_3``.
    scores : ndarray of float64, shape (patients, R)
        Least squares of the patient's cells on the model, whose feature columns have norm 1.
    without : int
        Patients who have none of the model's codes in all modes together: their scores are 0.
    missing : int
        Codes of the model that the site's lists do not have.
    """

    patients: tuple[str, ...]
    names: tuple[str, ...]
    scores: NDArray[np.float64]
    without: int
    missing: int

    def __repr__(self) -> str:
        return f"Memberships({len(self.patients)} patients, {len(self.names)} phenotypes)"

    def to_frame(self) -> DataFrame:
        """As a pandas DataFrame, patients as its index."""
        return _pandas().DataFrame(self.scores, index=self.patients, columns=self.names)


def memberships(folder: Path, site: SiteData) -> Memberships:
    """Fit a site's patients, old or new, to the phenotypes of a finished run.

    The phenotypes stay as they are, so that scores of all sites mean the same; the site's own
    model (``dpfact site refit``) is another thing. Codes are found by their names: the site's lists
    may be longer than the model's, in another order, and lack some.

    Parameters
    ----------
    folder : Path
        The run's: `global_model.npz` and `config.toml` are read.
    site : SiteData

    Raises
    ------
    DataError
        If the site's modes are not the model's, or share no code with them.
    """
    factors, vocabularies = read_model(folder)
    settings = SolverSettings.from_config(read_config(folder)["run-config"])
    rank = factors[0].shape[1]
    positions, features, missing = _shared_codes(site, factors, vocabularies)
    tensor = site.tensor.select_features(positions)
    if settings.scale == "patient":
        tensor = tensor.scaled_to_unit_patients()
    found = fitted_patients(tensor, features, nonnegative=settings.nonnegative)
    norms = np.prod(
        [np.linalg.norm(factor.astype(np.float64), axis=0) for factor in factors], axis=0
    )
    given = read_names(folder, rank)
    return Memberships(
        site.patients or tuple(str(row) for row in range(1, tensor.n_patients + 1)),
        _headings(given, rank),
        found * norms,
        tensor.n_patients - len(np.unique(tensor.indices[:, 0])),
        missing,
    )


def _headings(names: Mapping[int, str], rank: int) -> tuple[str, ...]:
    """Of the columns, each once: two phenotypes of one name get their numbers."""
    numbered = {r: names.get(r, f"phenotype_{r}") for r in range(1, rank + 1)}
    taken = Counter([_PATIENT, *numbered.values()])
    return tuple(name if taken[name] == 1 else f"{name} ({r})" for r, name in numbered.items())


def _shared_codes(
    site: SiteData, factors: Factors, vocabularies: Sequence[Vocabulary]
) -> tuple[list[NDArray[np.int64]], Factors, int]:
    """Positions in the site's lists of the model's codes, the factors' rows for them, the rest."""
    own, wanted = ([v.name for v in lists] for lists in (site.vocabularies, vocabularies))
    if own != wanted:
        raise DataError(
            f"site {site.name}: its modes are {', '.join(own)}; the model's are {', '.join(wanted)}"
        )
    positions, rows, missing = [], [], 0
    for known, factor, model in zip(site.vocabularies, factors, vocabularies, strict=True):
        pairs = sorted(
            (known.index[code], row) for row, code in enumerate(model.codes) if code in known.index
        )
        if not pairs:
            raise DataError(
                f"site {site.name}: none of the model's {len(model)} codes of {model.name} is in "
                "the site's list; are they of the same code system?"
            )
        at, row = np.array(pairs).T
        positions.append(at)
        rows.append(np.ascontiguousarray(factor[row]))
        missing += len(model) - len(pairs)
    return positions, tuple(rows), missing


def phenotype_frame(folder: Path, *, top: int | None = None) -> DataFrame:
    """`phenotype_rows` as a pandas DataFrame."""
    return _pandas().DataFrame(phenotype_rows(folder, top=top), columns=_columns())


def write_phenotype_table(path: Path, rows: Iterable[CodeRow]) -> None:
    """Write phenotypes as a CSV file."""
    _write(path, _columns(), ([getattr(row, name) for name in _columns()] for row in rows))


def write_memberships(path: Path, found: Memberships) -> None:
    """Write memberships as a CSV file that its owner alone can read."""
    rows = ((name, *row) for name, row in zip(found.patients, found.scores.tolist(), strict=True))
    _write(path, (_PATIENT, *found.names), rows)


def _columns() -> tuple[str, ...]:
    return tuple(field.name for field in fields(CodeRow))


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    if not path.parent.is_dir():
        raise DataError(f"{path}: there is no folder {path.parent}")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in chain([header], rows):
        writer.writerow([f"{v:.6g}" if isinstance(v, float) else v for v in row])
    with replacing(path) as file:
        file.write(text.getvalue().encode())


def _pandas() -> Any:
    try:
        import pandas  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        raise MissingDependencyError(
            'a DataFrame needs pandas: pip install "dpfact-flower[report]"'
        ) from None
    return pandas
