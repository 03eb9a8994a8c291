"""The global model of a run: phenotypes with their codes and names, and patients fitted to them.

It holds feature factors and nothing of a patient, so it is as public as the run made it. What it
says of patients (`GlobalModel.memberships`) is made from a site's own data, for that site.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, MissingDependencyError, SettingsError
from dpfact_flower.evaluation.membership import column_norms, has_phenotype, scores
from dpfact_flower.evaluation.names import read_names
from dpfact_flower.evaluation.run_folder import read_config, read_model
from dpfact_flower.settings import SolverSettings
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.cp import CPModel, unit_columns

if TYPE_CHECKING:
    from pandas import DataFrame

PATIENT = "patient"
"""Heading of the patients' identifiers in tables of memberships."""
HAS = "has"
"""Heading of the phenotypes that a patient has, in those tables."""
_SHOWN_CODES = 3


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
        As `dpfact_flower.evaluation.membership.scores`: 0 is nothing of a phenotype, 1 all.
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

    @property
    def has(self) -> NDArray[np.bool_]:
        """Whether each patient has each phenotype, shape (patients, R): a score above 0.15."""
        return has_phenotype(self.scores)

    def to_frame(self, *, has: bool = False) -> DataFrame:
        """Scores, or who `has` what, as a pandas DataFrame with the patients as its index."""
        values = self.has if has else self.scores
        return pandas().DataFrame(values, index=self.patients, columns=self.names)


@dataclass(frozen=True, eq=False, repr=False)
class GlobalModel:
    """What all sites of a run share.

    Attributes
    ----------
    factors : tuple of ndarray of float32, each (I_n, R)
        One per feature mode.
    vocabularies : tuple of Vocabulary
        Their rows' codes.
    nonnegative : bool
    names : mapping of int to str
        What people call a phenotype, by its number from 1.
    """

    factors: Factors
    vocabularies: tuple[Vocabulary, ...]
    nonnegative: bool = True
    names: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> GlobalModel:
        """The model of a finished run, with the names that it was given.

        Raises
        ------
        DataError
            If the folder is not that of a finished run.
        """
        factors, vocabularies = read_model(folder)
        solver = SolverSettings.from_config(read_config(folder)["run-config"])
        names = read_names(folder, factors[0].shape[1])
        return cls(factors, vocabularies, solver.nonnegative, names)

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

        Parameters
        ----------
        top : int, optional
            So many codes a phenotype and mode, the largest; without it all.

        Raises
        ------
        SettingsError
            If `top` is below 1.
        """
        if top is not None and top < 1:
            raise SettingsError(f"top: must be 1 or more, got {top}")
        pairs = zip(self.factors, self.vocabularies, strict=True)
        columns = [_Columns.of(*pair) for pair in pairs]
        return tuple(
            row
            for component in range(self.rank)
            for mode in columns
            for row in mode.rows(component, self.names.get(component + 1, ""), top)
        )

    def to_frame(self, *, top: int | None = None) -> DataFrame:
        """`rows` as a pandas DataFrame."""
        return pandas().DataFrame(self.rows(top=top), columns=[*CodeRow.__annotations__])

    def memberships(self, site: SiteData) -> Memberships:
        """Fit a site's patients, old or new, to the phenotypes.

        The phenotypes stay as they are, so that scores of all sites mean the same; the site's own
        model (``dpfact site refit``) is another thing. Codes are found by their names: the site's
        lists may be longer than the model's, in another order, and lack some.

        Raises
        ------
        DataError
            If the site's modes are not the model's, or share no code with them.
        """
        positions, features, missing = self._shared_codes(site)
        tensor = site.tensor.select_features(positions)
        return Memberships(
            site.patients or tuple(str(row) for row in range(1, tensor.n_patients + 1)),
            self.headings,
            self._fitted(tensor, features),
            tensor.n_patients - len(np.unique(tensor.indices[:, 0])),
            missing,
        )

    def transform(self, patients: SiteData | SparseTensor) -> NDArray[np.float64]:
        """Scores alone, shape (patients, R), of a site or of a tensor with the model's own codes.

        Raises
        ------
        DataError
            As `memberships`; or if the tensor's sizes are not the model's.
        """
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
        found: dict[tuple[int, str], list[str]] = {}
        for row in self.rows(top=_SHOWN_CODES):
            text = f"{row.description or row.code} ({row.share:.0%})"
            found.setdefault((row.phenotype, row.mode), []).append(html.escape(text))
        modes = [v.name for v in self.vocabularies]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in ("phenotype", *modes))
        lines = [
            f"<tr><th>{html.escape(name)}</th>"
            + "".join(f"<td>{'<br>'.join(found.get((r, mode), []))}</td>" for mode in modes)
            + "</tr>"
            for r, name in enumerate(self.headings, start=1)
        ]
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"

    def _fitted(self, tensor: SparseTensor, features: Factors) -> NDArray[np.float64]:
        """Scores of a tensor that has the codes of `features`, some of the model's."""
        norms = column_norms(self.factors)
        return scores(tensor, features, nonnegative=self.nonnegative, norms=norms)

    def _shared_codes(self, site: SiteData) -> tuple[list[NDArray[np.int64]], Factors, int]:
        """Positions in the site's lists of the model's codes, factors' rows for them, the rest."""
        own, wanted = ([v.name for v in lists] for lists in (site.vocabularies, self.vocabularies))
        if own != wanted:
            raise DataError(
                f"site {site.name}: its modes are {', '.join(own)}; the model's are "
                f"{', '.join(wanted)}"
            )
        found = [
            _shared(site.name, *mode)
            for mode in zip(site.vocabularies, self.factors, self.vocabularies, strict=True)
        ]
        missing = sum(map(len, self.vocabularies)) - sum(len(at) for at, _ in found)
        return [at for at, _ in found], tuple(rows for _, rows in found), missing


def pandas() -> Any:
    """The module, or what to do without it.

    Raises
    ------
    MissingDependencyError
        Naming the command that installs it.
    """
    try:
        import pandas  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        raise MissingDependencyError(
            'a DataFrame needs pandas: pip install "dpfact-flower[report]"'
        ) from None
    return pandas


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


def _shared(
    site: str, known: Vocabulary, factor: NDArray[np.float32], model: Vocabulary
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Positions of one mode in the site's list, ascending, and the factor's rows for them."""
    pairs: Sequence[tuple[int, int]] = sorted(
        (known.index[code], row) for row, code in enumerate(model.codes) if code in known.index
    )
    if not pairs:
        raise DataError(
            f"site {site}: none of the model's {len(model)} codes of {model.name} is in the "
            "site's list; are they of the same code system?"
        )
    at, row = np.array(pairs).T
    return at, np.ascontiguousarray(factor[row])
