"""Hold the data of one hospital (`SiteData`) or, in simulations, of several (`Cohort`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, naming, plural
from dpfact_flower.machine.files import replacing
from dpfact_flower.machine.parsed import from_json, load_npz, parse_as
from dpfact_flower.settings import check_name
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.tensor.sparse import patient_rows

_TRUTH = "truth"
PATIENT = "patient"
DIED = "died"
"""Label of patients who died in hospital."""
COHORT = "cohort.json"
_LABEL = "label "
"""Prefix of the names of label arrays in a site's file."""


@dataclass(frozen=True, eq=False, repr=False)
class SiteData:
    """All data of one hospital. The data never leaves the hospital.

    `tensor`, of shape (patients, codes of mode 1, ...), says how often each patient has each
    combination of codes. `vocabularies` contains one vocabulary per mode, with distinct names.
    `labels` maps names to 0/1 arrays of shape (patients,). A single array given as `labels` becomes
    the label ``died``. `patients` contains a distinct identifier for each patient. `row_unit` is
    what a row represents: a patient, or a discharge if patients are not identified.
    """

    name: str
    tensor: SparseTensor
    vocabularies: tuple[Vocabulary, ...]
    labels: Mapping[str, NDArray[np.int8]] = field(default_factory=dict)
    patients: tuple[str, ...] | None = None
    row_unit: str = PATIENT

    def __post_init__(self) -> None:
        check_name("site name", self.name)
        check_name(f"site {self.name}: row unit", self.row_unit)
        if not isinstance(self.tensor, SparseTensor):
            raise DataError(f"site {self.name}: tensor must be a SparseTensor")
        lists = self.vocabularies
        if not isinstance(lists, Sequence) or not all(isinstance(v, Vocabulary) for v in lists):
            raise DataError(f"site {self.name}: vocabularies must be a list of Vocabulary objects")
        object.__setattr__(self, "vocabularies", tuple(lists))
        codes, sizes = tuple(map(len, self.vocabularies)), self.tensor.feature_shape
        if codes != sizes:
            raise DataError(f"site {self.name}: need vocabularies of {sizes} codes, got {codes}")
        if len({v.name for v in self.vocabularies}) != len(sizes):
            raise DataError(f"site {self.name}: vocabularies must have distinct names")
        object.__setattr__(self, "labels", self._checked_labels(self.labels))
        if self.patients is not None:
            object.__setattr__(self, "patients", self._checked_patients(self.patients))

    def __repr__(self) -> str:
        # Do not show identifiers, labels or cells, because a repr may end up in logs.
        return f"SiteData({self.name!r}, {self.tensor!r})"

    def __len__(self) -> int:
        return self.tensor.n_patients

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self.tensor.shape

    def __getitem__(self, rows: Any) -> SiteData:
        # scikit-learn splits data by indexing rows, so patients are indexed like an array's rows.
        chosen = patient_rows(rows, len(self))
        return replace(
            self,
            tensor=self.tensor.select_patients(chosen),
            labels={name: values[chosen] for name, values in self.labels.items()},
            patients=self.patients and tuple(self.patients[row] for row in chosen.tolist()),
        )

    def select_codes(self, kept: Sequence[NDArray[np.int32]]) -> SiteData:
        """Return a copy with only the codes at the positions `kept`.

        `kept` has an ascending array of positions for each mode. An empty `kept` keeps all codes.
        """
        if not kept:
            return self
        return replace(
            self,
            tensor=self.tensor.select_features(kept),
            vocabularies=tuple(
                vocabulary.select(positions.tolist())
                for vocabulary, positions in zip(self.vocabularies, kept, strict=True)
            ),
        )

    def save(self, path: str | Path) -> None:
        """Write an .npz file atomically. Only the file's owner can read the file."""
        arrays: dict[str, Any] = {
            "name": np.array(self.name),
            "row_unit": np.array(self.row_unit),
            "indices": self.tensor.indices,
            "values": self.tensor.values,
            "shape": np.array(self.tensor.shape),
            "vocabularies": np.array([v.to_json() for v in self.vocabularies]),
        }
        arrays |= {_LABEL + name: values for name, values in self.labels.items()}
        if self.patients is not None:
            arrays["patients"] = np.array(self.patients)
        with replacing(Path(path)) as file:
            np.savez_compressed(file, **arrays)

    def read(self) -> SiteData:
        """Return the object itself, for compatibility with `SiteFile`."""
        return self

    @cached_property
    def fingerprint(self) -> str:
        """The tensor's fingerprint."""
        return self.tensor.fingerprint()

    @classmethod
    def load(cls, path: str | Path) -> SiteData:
        """Read and validate a file that `save` wrote."""
        arrays = load_npz(path, ("name", "row_unit", "indices", "values", "shape", "vocabularies"))
        labels = {key.removeprefix(_LABEL): arrays[key] for key in arrays if key.startswith(_LABEL)}
        with naming(path, TypeError, ValueError):
            patients = tuple(arrays["patients"].tolist()) if "patients" in arrays else None
            tensor = SparseTensor.from_coo(
                arrays["indices"], arrays["values"], arrays["shape"].tolist()
            )
            name, unit = _stored_name(arrays, "name"), _stored_name(arrays, "row_unit")
            return cls(name, tensor, _vocabularies(arrays), labels, patients, unit)

    def _checked_labels(self, labels: object) -> dict[str, NDArray[np.int8]]:
        named = labels if isinstance(labels, Mapping) else {DIED: labels}
        kept = {}
        for name, values in named.items() if labels is not None else ():
            check_name(f"site {self.name}: label", name)
            given = np.asarray(values)
            if given.shape != (len(self),):
                raise DataError(
                    f"site {self.name}: labels must have shape ({len(self)},), one per patient; "
                    f"{name} has {given.shape}"
                )
            if given.dtype.kind not in "biuf" or not np.isin(given, (0, 1)).all():
                raise DataError(f"site {self.name}: labels must be 1 or 0; {name} has others")
            kept[name] = given.astype(np.int8)
            kept[name].flags.writeable = False
        return kept

    def _checked_patients(self, patients: tuple[str, ...]) -> tuple[str, ...]:
        ids = tuple(patients)
        if not all(isinstance(p, str) and p and p.isprintable() for p in ids):
            raise DataError(f"site {self.name}: patients must be printable text, not empty")
        if len(ids) != len(self) or len(set(ids)) != len(ids):
            raise DataError(
                f"site {self.name}: need a distinct identifier for each of {len(self)} patients, "
                f"got {len(set(ids))}"
            )
        return ids


@dataclass(frozen=True, eq=False, repr=False)
class Truth:
    """The phenotypes that were planted in artificial data.

    `factors` has one array of shape (codes, phenotypes) per feature mode. Each column has norm 1.
    `usage`, of shape (sites, phenotypes), says which phenotypes exist at each site.
    """

    factors: tuple[NDArray[np.float64], ...]
    usage: NDArray[np.bool_]

    def select_codes(self, kept: Sequence[NDArray[np.int32]]) -> Truth | None:
        """Select codes, and phenotypes that keep codes in every mode. If none does, return None."""
        parts = [factor[rows] for factor, rows in zip(self.factors, kept, strict=True)]
        norms = [np.linalg.norm(part, axis=0) for part in parts]
        alive = np.all([norm > 0 for norm in norms], axis=0)
        if not alive.any():
            return None
        factors = (part[:, alive] / norm[alive] for part, norm in zip(parts, norms, strict=True))
        return Truth(tuple(factors), self.usage[:, alive])


class SiteSummary(NamedTuple):
    """One site's entry in `Cohort.summary`. `labelled` counts the patients with each label."""

    site: str
    patients: int
    nonzeros: int
    labelled: dict[str, int]


@dataclass(frozen=True, eq=False, repr=False)
class Cohort:
    """The data of several sites, for simulations and tests only.

    All sites have the same vocabularies. Site names must be unique, ignoring case. `truth` contains
    the planted phenotypes of artificial data. `read_report` counts what the reader found, kept and
    left out, in tuples such as ``("patients", "kept", 100)``.
    """

    name: str
    sites: tuple[SiteData, ...]
    truth: Truth | None = None
    read_report: tuple[tuple[str, str, int], ...] = ()

    def __post_init__(self) -> None:
        check_name("cohort name", self.name)
        object.__setattr__(self, "sites", tuple(self.sites))
        if not self.sites or not all(isinstance(site, SiteData) for site in self.sites):
            raise DataError(f"cohort {self.name}: need at least one site, each a SiteData")
        names = [site.name.lower() for site in self.sites]
        if len(set(names)) != len(names):
            raise DataError(f"cohort {self.name}: site names must differ by more than their case")
        if _TRUTH in names:
            raise DataError(f"cohort {self.name}: a site named {_TRUTH!r} would overwrite a file")
        digests = [v.digest for v in self.vocabularies]
        for site in self.sites:
            if [v.digest for v in site.vocabularies] != digests:
                raise DataError(
                    f"cohort {self.name}: the vocabularies of site {site.name} differ from those "
                    f"of site {self.sites[0].name}"
                )

    def __repr__(self) -> str:
        lines = (f"  {where}: {what}: {count:,}" for where, what, count in self.read_report)
        return "\n".join([f"Cohort({self.name!r}, {plural(len(self.sites), 'site')})", *lines])

    @property
    def vocabularies(self) -> tuple[Vocabulary, ...]:
        """The vocabularies that all sites share, one per feature mode."""
        return self.sites[0].vocabularies

    @property
    def row_unit(self) -> str:
        """What each row represents, such as a patient (see `SiteData`)."""
        return self.sites[0].row_unit

    def __len__(self) -> int:
        return sum(map(len, self.sites))

    @property
    def shape(self) -> tuple[int, ...]:
        """Total number of patients at all sites, followed by the sizes of the feature modes."""
        return (len(self), *self.sites[0].tensor.feature_shape)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of all labels that at least one site has."""
        return tuple(dict.fromkeys(chain.from_iterable(site.labels for site in self.sites)))

    @property
    def patients(self) -> tuple[str, ...] | None:
        """Identifiers of all patients, site by site, or None if any site lacks identifiers."""
        named = [site.patients for site in self.sites if site.patients is not None]
        return tuple(chain(*named)) if len(named) == len(self.sites) else None

    def __getitem__(self, rows: Any) -> Cohort:
        # Patients are indexed as in `SiteData`. Rows must ascend, because the result lists patients
        # site by site, and other arrays indexed by the same rows must have the same order.
        if isinstance(rows, str):
            raise DataError(f"cohort {self.name}: rows are patients; for a site, use cohort.sites")
        chosen = patient_rows(rows, len(self))
        if (np.diff(chosen) <= 0).any():
            raise DataError(f"cohort {self.name}: rows must ascend, because sites stay together")
        ends = np.cumsum([len(site) for site in self.sites])
        homes = np.searchsorted(ends, chosen, side="right")
        left = np.unique(homes).tolist()
        parts = (chosen[homes == t] - (ends[t] - len(self.sites[t])) for t in left)
        sites = tuple(self.sites[t][part] for t, part in zip(left, parts, strict=True))
        truth = self.truth and replace(self.truth, usage=self.truth.usage[left])
        return Cohort(self.name, sites, truth)

    def summary(self) -> tuple[SiteSummary, ...]:
        """Return the numbers of patients, non-zero cells and labelled patients at each site."""
        lines = []
        for site in self.sites:
            labelled = {name: int(values.sum()) for name, values in site.labels.items()}
            lines.append(SiteSummary(site.name, len(site), site.tensor.nnz, labelled))
        return tuple(lines)

    def select_codes(self, kept: Sequence[NDArray[np.int32]]) -> Cohort:
        """Return a copy with only the codes at positions `kept` (see `SiteData`)."""
        if not kept:
            return self
        sites = tuple(site.select_codes(kept) for site in self.sites)
        truth = self.truth and self.truth.select_codes(kept)
        return Cohort(self.name, sites, truth, self.read_report)

    def save(self, folder: str | Path) -> None:
        """Write all files. Write ``cohort.json`` last, so a folder with this file is complete."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / COHORT).unlink(missing_ok=True)
        for site in self.sites:
            site.save(folder / f"{site.name}.npz")
        for vocabulary in self.vocabularies:
            vocabulary.save(folder / f"{vocabulary.name}.vocabulary.json")
        if self.truth is not None:
            arrays: dict[str, Any] = {"usage": self.truth.usage}
            arrays |= {f"factor{n}": factor for n, factor in enumerate(self.truth.factors, 1)}
            with replacing(folder / f"{_TRUTH}.npz") as file:
                np.savez_compressed(file, **arrays)
        digests = {v.name: v.digest for v in self.vocabularies}
        names = tuple(site.name for site in self.sites)
        content = _CohortFile(self.name, names, digests, self.truth is not None, self.read_report)
        with replacing(folder / COHORT) as file:
            file.write(json.dumps(asdict(content), indent=1, ensure_ascii=False).encode())

    @classmethod
    def load(cls, folder: str | Path) -> Cohort:
        """Read and validate a folder that `save` wrote."""
        folder = Path(folder)
        content = _read_cohort(folder / COHORT)
        # `SiteFile.read` caches the sites, so simulated clients share these sites.
        sites = tuple(open_site(path).read() for path in site_files(folder))
        truth = None
        with naming(folder / COHORT, KeyError, TypeError, ValueError):
            if content.truth:
                saved = load_npz(folder / f"{_TRUTH}.npz", ("usage", "factor1"))
                factors = tuple(saved[f"factor{n}"] for n in range(1, len(saved)))
                truth = Truth(factors, saved["usage"])
            cohort = cls(content.name, sites, truth, content.read_report)
        if content.vocabularies != {v.name: v.digest for v in cohort.vocabularies}:
            raise DataError(f"{folder}: the sites' vocabularies are not those of {COHORT}")
        return cohort


def cohort_files(folder: Path) -> list[Path]:
    """Return the paths of the files that `Cohort.save` wrote to a folder."""
    others = [f"{name}.vocabulary.json" for name in _read_cohort(folder / COHORT).vocabularies]
    paths = (*site_files(folder), *(folder / name for name in [*others, f"{_TRUTH}.npz", COHORT]))
    return [path for path in paths if path.parent == folder]  # a damaged file may name any path


def site_files(folder: str | Path) -> list[Path]:
    """Return the paths of the sites' data files, in the cohort's order."""
    path = Path(folder) / COHORT
    names = _read_cohort(path).sites
    for name in names:
        check_name(f"{path}: site name", name)
    return [path.with_name(f"{name}.npz") for name in names]


@dataclass(frozen=True)
class _CohortFile:
    """The content of ``cohort.json``. `vocabularies` maps each vocabulary's name to its digest."""

    name: str
    sites: tuple[str, ...]
    vocabularies: dict[str, str]
    truth: bool
    read_report: tuple[tuple[str, str, int], ...]


def _read_cohort(path: Path) -> _CohortFile:
    try:
        return parse_as(_CohortFile, from_json(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path}: no such file; is this a folder that dpfact data wrote?") from None
    except DataError as error:
        why = str(error)
    except (OSError, ValueError) as error:
        why = f"not readable as JSON ({type(error).__name__})"
    raise DataError(f"{path}: {why}; move the folder away, and run dpfact data again")


def _stored_name(arrays: Mapping[str, NDArray[Any]], key: str) -> str:
    text = arrays[key].item()
    check_name(key, text, quote=False)
    return str(text)


def _vocabularies(arrays: Mapping[str, NDArray[Any]]) -> tuple[Vocabulary, ...]:
    return tuple(map(Vocabulary.from_json, arrays["vocabularies"].tolist()))


@dataclass(frozen=True)
class SiteFile:
    """A site's data file. Only the method `read` loads patients' data."""

    path: Path
    name: str
    vocabularies: tuple[Vocabulary, ...]

    def read(self) -> SiteData:
        """Return the content, and cache it until the file's inode, time stamp or size changes."""
        try:
            status = self.path.stat()
        except OSError:
            raise DataError(f"{self.path}: no such file") from None
        return _load_version(self.path, status.st_ino, status.st_mtime_ns, status.st_size)


SiteSource = SiteData | SiteFile
"""A site whose method `read` returns the patients' data."""


def open_site(path: str | Path) -> SiteFile:
    """Open a site's data file without reading the patients' data."""
    arrays = load_npz(path, ("name", "vocabularies"), others=False)
    with naming(path, TypeError, ValueError):
        return SiteFile(Path(path), _stored_name(arrays, "name"), _vocabularies(arrays))


def forget_patients() -> None:
    """Drop all patients' data that this process has cached."""
    _load_version.cache_clear()


@lru_cache(maxsize=64)  # one process may simulate many sites
def _load_version(path: Path, *_: int) -> SiteData:
    return SiteData.load(path)
