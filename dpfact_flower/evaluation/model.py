"""Define a run's global model, and compute patients' scores for the model's phenotypes.

In privacy mode ``patient``, the model is differentially private. Scores contain no noise, so a
table of a site's scores (a membership table) must stay at the site.
"""

from __future__ import annotations

import csv
import html
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, SettingsError, plural
from dpfact_flower.evaluation import run_folder
from dpfact_flower.evaluation.membership import column_shares, has_phenotype, scores
from dpfact_flower.evaluation.page import library
from dpfact_flower.machine.files import replacing
from dpfact_flower.settings import SolverSettings
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.cp import CPModel, unit_columns

if TYPE_CHECKING:
    from pandas import DataFrame

SITE, PATIENT, HAS = "site", "patient", "has"
"""Column headings of a membership table: a patient's site, identifier and phenotypes."""
_SHOWN_CODES = 3
_FORMULA = ("=", "+", "-", "@", "\t")


@dataclass(frozen=True)
class CodeRow:
    """A code in a phenotype. Phenotype numbers start at 1. Some phenotypes have a `name`.

    `place` ranks the mode's codes by absolute `share` (1: largest). `weight` is the code's entry
    in the factor matrix. `share` is `weight` divided by the sum of the phenotype's absolute weights
    in the mode. `lift` is `share` divided by the code's mean absolute share over all phenotypes.
    `false_discovery` is the estimated probability that a fit to other patients lacks the phenotype.
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
    """The scores of one site's patients for each phenotype. Scores must not leave the site.

    `patients` lists the patients' identifiers or, if there are none, row numbers that start at 1.
    `scores` has shape (patients, phenotypes). `without` counts the patients who have none of the
    model's codes. Their scores are 0. `missing` counts the model's codes that the site lacks, and
    `outside` counts the site's cells with a code that the model lacks.
    """

    patients: tuple[str, ...]
    names: tuple[str, ...]
    scores: NDArray[np.float64]
    without: int
    missing: int
    outside: int

    def __repr__(self) -> str:
        rows, columns = plural(len(self.patients), "patient"), plural(len(self.names), "phenotype")
        return f"Memberships({rows}, {columns})"

    @property
    def has(self) -> NDArray[np.bool_]:
        """A mask of the scores with an absolute value above 0.15, shape (patients, phenotypes)."""
        return has_phenotype(self.scores)

    def to_frame(self, *, has: bool = False) -> DataFrame:
        """Return scores, or the mask if `has` is true, as a pandas DataFrame indexed by patient."""
        values = self.has if has else self.scores
        frame = library("pandas").DataFrame(values, index=self.patients, columns=self.names)
        return frame.rename_axis(PATIENT)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield each patient's identifier, phenotype numbers (such as ``1;4``) and scores."""
        numbers = (";".join(str(r + 1) for r in np.flatnonzero(row)) for row in self.has)
        return zip(self.patients, numbers, *self.scores.T.tolist(), strict=True)


def write_memberships(path: Path, by_site: Mapping[str, Memberships], *, cohort: bool) -> None:
    """Write a table of memberships, readable only by its owner. `cohort` adds a site column."""
    names = (SITE, PATIENT, HAS, *next(iter(by_site.values())).names)
    rows = ((site, *row) for site, found in by_site.items() for row in found.rows())
    first = 0 if cohort else 1
    write_csv(path, names[first:], (row[first:] for row in rows))


@dataclass(frozen=True, eq=False, repr=False)
class GlobalModel:
    """A run's global model. Each factor is a float32 array of shape (codes, phenotypes).

    There is one factor and one vocabulary per feature mode. `names` maps phenotypes' numbers, which
    start at 1, to names that people chose. For `false_discovery`, see `CodeRow`.
    """

    factors: Factors
    vocabularies: tuple[Vocabulary, ...]
    nonnegative: bool = True
    names: Mapping[int, str] = field(default_factory=dict)
    false_discovery: tuple[float, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> GlobalModel:
        """Read a finished run's model, and the names that people gave to the phenotypes."""
        factors, vocabularies = run_folder.read_model(folder)
        solver = SolverSettings.from_config(run_folder.read_config(folder)["run-config"])
        names = run_folder.read_names(folder, factors[0].shape[1]).phenotypes
        known = (folder / run_folder.SUMMARY).exists()  # a site may have only the model
        chances = run_folder.read_summary(folder).false_discovery if known else ()
        return cls(factors, vocabularies, solver.nonnegative, names, chances)

    @property
    def rank(self) -> int:
        """Number of phenotypes, R."""
        return int(self.factors[0].shape[1])

    @property
    def modes(self) -> tuple[str, ...]:
        """Names of the feature modes."""
        return tuple(vocabulary.name for vocabulary in self.vocabularies)

    @property
    def headings(self) -> tuple[str, ...]:
        """A unique heading for each phenotype: the name, with a number appended if names clash."""
        numbered = {r: self.names.get(r, f"phenotype_{r}") for r in range(1, self.rank + 1)}
        return tuple(unique(numbered, SITE, PATIENT, HAS).values())

    def rows(self, *, top: int | None = None) -> tuple[CodeRow, ...]:
        """Return each phenotype's codes with non-zero weights, at most `top` codes per mode."""
        if top is not None and top < 1:
            raise SettingsError(f"top: must be 1 or more, got {top}")
        lists = (rows for by_mode in self.codes_by_mode().values() for rows in by_mode.values())
        return tuple(row for rows in lists for row in rows[:top])

    def codes_by_mode(self) -> dict[int, dict[str, list[CodeRow]]]:
        """List codes with non-zero weights by phenotype and mode, largest absolute share first."""
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
        """Return `rows` as a pandas DataFrame."""
        return library("pandas").DataFrame(self.rows(top=top), columns=[*CodeRow.__annotations__])

    def memberships(self, site: SiteData) -> Memberships:
        """Return the scores of a site's patients, who need not have taken part in the run.

        To fit the phenotypes themselves to a site, use ``dpfact site refit``. A site's code lists
        may be in any order and may contain other codes. Each list must contain some of the model's
        codes. Missing codes count as absent from all records, and lower the scores.
        """
        if not isinstance(site, SiteData):
            raise DataError(
                "memberships: need a SiteData, such as read_events(frame).sites[0]; got "
                f"{type(site).__name__}"
            )
        tensor, missing = self._recoded(site)
        return Memberships(
            site.patients or tuple(str(row) for row in range(1, tensor.n_patients + 1)),
            self.headings,
            scores(tensor, self.factors, nonnegative=self.nonnegative),
            tensor.n_patients - len(np.unique(tensor.indices[:, 0])),
            missing,
            site.tensor.nnz - tensor.nnz,
        )

    def with_patients(self, site: SiteData) -> CPModel:
        """Return a CP model: the site's scores, and feature factors with columns of norm 1."""
        wide = (factor.astype(np.float64) for factor in self.factors)
        return CPModel((self.memberships(site).scores, *map(unit_columns, wide)))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(v)} {v.name}" for v in self.vocabularies)
        return f"GlobalModel({plural(self.rank, 'phenotype')} of {sizes})"

    def _repr_html_(self) -> str:
        def cell(rows: Sequence[CodeRow]) -> str:
            texts = (f"{row.description or row.code} ({row.share:.0%})" for row in rows)
            return f"<td>{'<br>'.join(map(html.escape, texts))}</td>"

        head = "".join(f"<th>{html.escape(name)}</th>" for name in ("phenotype", *self.modes))
        lines = []
        for name, by_mode in zip(self.headings, self.codes_by_mode().values(), strict=True):
            cells = "".join(cell(rows[:_SHOWN_CODES]) for rows in by_mode.values())
            lines.append(f"<tr><th>{html.escape(name)}</th>{cells}</tr>")
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"

    def _recoded(self, site: SiteData) -> tuple[SparseTensor, int]:
        """Index the site's tensor by the model's codes, and count the codes that the site lacks."""
        own = [vocabulary.name for vocabulary in site.vocabularies]
        if sorted(own) != sorted(self.modes):
            raise DataError(
                f"site {site.name}: its modes are {', '.join(own)}; the model's are "
                f"{', '.join(self.modes)}"
            )
        tensor, missing = site.tensor, 0
        indices, inside = tensor.indices.copy(), np.ones(tensor.nnz, np.bool_)
        for mode, codes in enumerate(self.vocabularies, start=1):
            at = own.index(codes.name)
            known = site.vocabularies[at].codes
            positions = np.array([codes.index.get(code, -1) for code in known])
            if (positions < 0).all():
                raise DataError(
                    f"site {site.name}: the site's list has none of the model's {len(codes)} "
                    f"{codes.name} codes; do both use the same code system?"
                )
            missing += len(codes) - int((positions >= 0).sum())
            indices[:, mode] = positions[tensor.indices[:, 1 + at]]
            inside &= indices[:, mode] >= 0
        shape = (tensor.n_patients, *map(len, self.vocabularies))
        return SparseTensor.from_coo(indices[inside], tensor.values[inside], shape), missing


def unique(names: Mapping[int, str], *reserved: str) -> dict[int, str]:
    """Append numbers to names that clash, until all names are different."""
    result = dict(names)
    while max((uses := Counter([*reserved, *result.values()])).values()) > 1:
        result = {n: f"{name} ({n})" if uses[name] > 1 else name for n, name in result.items()}
    return result


def write_phenotype_table(
    path: Path,
    rows: Iterable[CodeRow],
    titles: Mapping[int, str],
    about: Mapping[int, Sequence[str]],
) -> None:
    """Write a CSV table of phenotypes with titles, certainty, body systems and disease groups."""
    number, *others = (field.name for field in fields(CodeRow))
    header = (number, "title", *others, "certainty", "body_system", "disease_group")
    numbered = ((row.phenotype, astuple(row)[1:]) for row in rows)
    write_csv(path, header, ((n, titles[n], *values, *about[n]) for n, values in numbered))


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file readable only by its owner. Text that looks like a formula is escaped."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in chain([header], rows):
        writer.writerow(map(_cell, row))
    with replacing(path) as file:
        file.write(text.getvalue().encode())


def _cell(value: Any) -> Any:
    """Return a cell's content, with an apostrophe before text that looks like a formula."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
