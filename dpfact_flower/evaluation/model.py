"""The global model of a run: phenotypes with their codes and names, and patients fitted to them.

It holds feature factors and nothing of a patient, so it is as public as the run made it: anybody
may have a table of its phenotypes. A table of memberships has a row a patient. It is made from a
site's own data, for that site, and stays there; no privacy guarantee covers it.
"""

from __future__ import annotations

import csv
import html
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, MissingDependencyError, SettingsError
from dpfact_flower.evaluation.membership import (
    column_norms,
    column_shares,
    has_phenotype,
    scores,
)
from dpfact_flower.evaluation.run_folder import (
    SUMMARY,
    read_config,
    read_model,
    read_names,
    read_summary,
)
from dpfact_flower.machine.files import replacing
from dpfact_flower.settings import SolverSettings
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.cp import CPModel, unit_columns

if TYPE_CHECKING:
    from pandas import DataFrame

PATIENT, HAS = "patient", "has"
"""Headings of tables of memberships: patients' identifiers, and the phenotypes that they have."""
_SHOWN_CODES = 3
_FORMULA = ("=", "+", "-", "@", "\t")


@dataclass(frozen=True)
class CodeRow:
    """A code in a phenotype, which counts from 1; its `name` is empty where nobody gave it one.

    `place` 1 has the largest share of its mode. `weight` is the factor's entry, `share` that entry
    over the column's absolute sum, and `lift` the share over the code's mean share in all
    phenotypes: above 1 the code marks this phenotype, near 1 it belongs to everything.
    `false_discovery` is the phenotype's: the chance that other patients lack it, where known.
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
    false_discovery: float | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Memberships:
    """How much of each phenotype each patient of a site has; never for anybody but the site.

    `patients` are the site's own identifiers, or row numbers from 1 where its file has none;
    `names` are those of the R columns of `scores` (`dpfact_flower.evaluation.membership.scores`).
    So many patients are `without` any of the model's codes and score 0, and so many codes of the
    model are `missing` in the site's lists.
    """

    patients: tuple[str, ...]
    names: tuple[str, ...]
    scores: NDArray[np.float64]
    without: int
    missing: int

    def __repr__(self) -> str:
        return f"Memberships({len(self.patients)} patients, {len(self.names)} phenotypes)"

    @property
    def has(self) -> NDArray[np.bool_]:
        """Whether each patient has each phenotype, shape (patients, R): a score above 0.15."""
        return has_phenotype(self.scores)

    def to_frame(self, *, has: bool = False) -> DataFrame:
        """Scores, or who `has` what, as a pandas DataFrame with the patients as its index."""
        values = self.has if has else self.scores
        return pandas().DataFrame(values, index=self.patients, columns=self.names)

    def write(self, path: Path) -> None:
        """Write who has which phenotypes as a CSV file that its owner alone can read."""
        numbers = (";".join(str(r + 1) for r in np.flatnonzero(row)) for row in self.has)
        columns = zip(self.patients, numbers, self.scores.tolist(), strict=True)
        rows = ((name, has, *row) for name, has, row in columns)
        write_csv(path, (PATIENT, HAS, *self.names), rows)


@dataclass(frozen=True, eq=False, repr=False)
class GlobalModel:
    """What all sites of a run share: a factor for each feature mode, float32 and (I_n, R).

    `vocabularies` have the codes of their rows; `names` is what people call a phenotype, by its
    number from 1; `false_discovery` has the chances that other patients lack them, where known.
    """

    factors: Factors
    vocabularies: tuple[Vocabulary, ...]
    nonnegative: bool = True
    names: Mapping[int, str] = field(default_factory=dict)
    false_discovery: tuple[float, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> GlobalModel:
        """The model of a finished run, with the names that it was given."""
        factors, vocabularies = read_model(folder)
        solver = SolverSettings.from_config(read_config(folder)["run-config"])
        names = read_names(folder, factors[0].shape[1]).phenotypes
        known = (folder / SUMMARY).exists()  # a site may have the model alone
        chances = read_summary(folder).false_discovery if known else ()
        return cls(factors, vocabularies, solver.nonnegative, names, chances)

    @property
    def rank(self) -> int:
        """Number of phenotypes R."""
        return int(self.factors[0].shape[1])

    @property
    def headings(self) -> tuple[str, ...]:
        """A name for each phenotype, each once: two of one name get their numbers."""
        numbered = {r: self.names.get(r, f"phenotype_{r}") for r in range(1, self.rank + 1)}
        taken = Counter([PATIENT, HAS, *numbered.values()])
        return tuple(name if taken[name] == 1 else f"{name} ({r})" for r, name in numbered.items())

    def rows(self, *, top: int | None = None) -> tuple[CodeRow, ...]:
        """Every phenotype, code by code; codes of weight zero are left out.

        Of each phenotype and mode the `top` largest codes, 1 or more; or all.
        """
        if top is not None and top < 1:
            raise SettingsError(f"top: must be 1 or more, got {top}")
        return tuple(
            row
            for by_mode in self.codes_by_mode().values()
            for rows in by_mode.values()
            for row in rows[:top]
        )

    def codes_by_mode(self) -> dict[int, dict[str, list[CodeRow]]]:
        """Codes of each phenotype and mode that have some weight, the largest share first."""
        found: dict[int, dict[str, list[CodeRow]]] = {r: {} for r in range(1, self.rank + 1)}
        chances = dict(enumerate(self.false_discovery, start=1))
        for vocabulary, weights in zip(self.vocabularies, self.factors, strict=True):
            factor = weights.astype(np.float64)
            shares = column_shares(factor)
            means = np.abs(shares).mean(axis=1)
            for number, by_mode in found.items():
                weight, share = factor[:, number - 1], shares[:, number - 1]
                order = np.argsort(-np.abs(share), kind="stable")
                by_mode[vocabulary.name] = [
                    CodeRow(
                        number, self.names.get(number, ""), vocabulary.name, place,
                        vocabulary.codes[at], vocabulary.descriptions[at],
                        float(weight[at]), float(share[at]), float(share[at] / means[at]),
                        chances.get(number),
                    )
                    for place, at in enumerate(order[share[order] != 0].tolist(), start=1)
                ]  # fmt: skip
        return found

    def to_frame(self, *, top: int | None = None) -> DataFrame:
        """`rows` as a pandas DataFrame."""
        return pandas().DataFrame(self.rows(top=top), columns=[*CodeRow.__annotations__])

    def memberships(self, site: SiteData) -> Memberships:
        """Fit a site's patients, old or new, to the phenotypes.

        The phenotypes stay as they are, so that scores of all sites mean the same; the site's own
        model (``dpfact site refit``) is another thing. Codes are found by their names: the site's
        lists may be longer than the model's, in another order, and lack some. A `DataError` refuses
        a site of other modes, or without any of the model's codes.
        """
        positions, features = self._shared_codes(site)
        tensor = site.tensor.select_features(positions)
        return Memberships(
            site.patients or tuple(str(row) for row in range(1, tensor.n_patients + 1)),
            self.headings,
            self._fitted(tensor, features),
            tensor.n_patients - len(np.unique(tensor.indices[:, 0])),
            sum(map(len, self.vocabularies)) - sum(map(len, positions)),
        )

    def transform(self, patients: SiteData | SparseTensor) -> NDArray[np.float64]:
        """Scores alone, (patients, R), of a site or of a tensor with the model's own codes."""
        if isinstance(patients, SiteData):
            return self.memberships(patients).scores
        sizes = tuple(map(len, self.factors))
        if patients.feature_shape != sizes:
            raise DataError(
                f"tensor: has {patients.feature_shape} codes, the model {sizes}; a SiteData "
                "has their names, by which they are found"
            )
        return self._fitted(patients, self.factors)

    def with_patients(self, patients: SiteData | SparseTensor) -> CPModel:
        """A CP model of these patients, scaled to norm 1, and the phenotypes, of norm 1 too."""
        wide = (factor.astype(np.float64) for factor in self.factors)
        return CPModel((self.transform(patients), *map(unit_columns, wide)))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(v)} {v.name}" for v in self.vocabularies)
        return f"GlobalModel({self.rank} phenotypes of {sizes})"

    def _repr_html_(self) -> str:
        """A table of the phenotypes' first codes, for notebooks."""

        def cell(rows: Sequence[CodeRow]) -> str:
            texts = (f"{row.description or row.code} ({row.share:.0%})" for row in rows)
            return f"<td>{'<br>'.join(map(html.escape, texts))}</td>"

        modes = (v.name for v in self.vocabularies)
        head = "".join(f"<th>{html.escape(name)}</th>" for name in ("phenotype", *modes))
        lines = (
            f"<tr><th>{html.escape(name)}</th>"
            + "".join(cell(rows[:_SHOWN_CODES]) for rows in by_mode.values())
            + "</tr>"
            for name, by_mode in zip(self.headings, self.codes_by_mode().values(), strict=True)
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"

    def _fitted(self, tensor: SparseTensor, features: Factors) -> NDArray[np.float64]:
        """Scores of a tensor that has the codes of `features`, some of the model's."""
        norms = column_norms(self.factors)
        return scores(tensor, features, nonnegative=self.nonnegative, norms=norms)

    def _shared_codes(self, site: SiteData) -> tuple[list[NDArray[np.int64]], Factors]:
        """Positions in the site's lists of the model's codes, ascending; factors' rows for them."""
        own, wanted = ([v.name for v in lists] for lists in (site.vocabularies, self.vocabularies))
        if own != wanted:
            raise DataError(
                f"site {site.name}: its modes are {', '.join(own)}; the model's are "
                f"{', '.join(wanted)}"
            )
        positions, features = [], []
        for known, factor, codes in zip(
            site.vocabularies, self.factors, self.vocabularies, strict=True
        ):
            pairs = sorted(
                (known.index[code], row)
                for row, code in enumerate(codes.codes)
                if code in known.index
            )
            if not pairs:
                raise DataError(
                    f"site {site.name}: none of the model's {len(codes)} codes of {codes.name} is "
                    "in the site's list; are they of the same code system?"
                )
            at, rows = np.array(pairs).T
            positions.append(at)
            features.append(np.ascontiguousarray(factor[rows]))
        return positions, tuple(features)


def pandas() -> Any:
    """The module; without it a `MissingDependencyError` names the command that installs it."""
    try:
        import pandas  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        raise MissingDependencyError(
            'a DataFrame needs pandas: pip install "dpfact-flower[report]"'
        ) from None
    return pandas


# --- CSV ------------------------------------------------------------------------------------------


def write_phenotype_table(
    path: Path,
    rows: Iterable[CodeRow],
    titles: Mapping[int, str],
    about: Mapping[int, Sequence[str]],
) -> None:
    """Write phenotypes as a CSV file, with their titles by number.

    `about` has by number the body system and the disease group of a phenotype.
    """
    number, *others = (field.name for field in fields(CodeRow))
    lines = (
        (
            row.phenotype, titles[row.phenotype], *(getattr(row, name) for name in others),
            *about[row.phenotype],
        )
        for row in rows
    )  # fmt: skip
    write_csv(path, (number, "title", *others, "body_system", "disease_group"), lines)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file that its owner alone can read, and no cell of it is a formula."""
    if not path.parent.is_dir():
        raise DataError(f"{path}: there is no folder {path.parent}")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in chain([header], rows):
        writer.writerow([f"{v:.6g}" if isinstance(v, float) else _inert(v) for v in row])
    with replacing(path) as file:
        file.write(text.getvalue().encode())


def _inert(value: Any) -> Any:
    """A cell; text that a spreadsheet would take for a formula begins with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
