"""Create extreme patients and hostile requests, to test the sensitivity bounds of releases."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.audit.target import AuditTarget, Transcript, random_selection
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.privacy import replay
from dpfact_flower.tensor import SparseTensor

_MOST_CELLS = 40_000
"""Number of cells in a dense patient, enough to expose a norm that grows with this number."""


class Patient(NamedTuple):
    """One patient's non-zero tensor cells, each with its code indices and its value."""

    cells: NDArray[np.int64]
    values: NDArray[np.float64]


def site_of(name: str, vocabularies: Sequence[Vocabulary], patients: Sequence[Patient]) -> SiteData:
    """Return a site with the given patients (at least one)."""
    indices = [np.column_stack([np.full(len(p.cells), n), p.cells]) for n, p in enumerate(patients)]
    shape = (len(patients), *map(len, vocabularies))
    tensor = SparseTensor.from_coo(
        np.concatenate(indices), np.concatenate([p.values for p in patients]), shape
    )
    return SiteData(name, tensor, tuple(vocabularies))


def with_only(site: SiteData, patients: Sequence[Patient]) -> SiteData:
    """Return a copy of the site that contains only the given patients."""
    return site_of(site.name, site.vocabularies, patients)


def joined(site: SiteData, patients: Sequence[Patient], at: int = 0) -> SiteData:
    """Return a copy of the site with `patients` inserted at row `at`."""
    own = [patient_of(site, row) for row in range(site.tensor.n_patients)]
    return with_only(site, [*own[:at], *patients, *own[at:]])


def patient_of(site: SiteData, row: int) -> Patient:
    """Return the site's patient in the given row."""
    mine = site.tensor.indices[:, 0] == row
    return Patient(
        site.tensor.indices[mine, 1:].astype(np.int64), site.tensor.values[mine].astype(np.float64)
    )


def random_patients(sizes: Sequence[int], number: int, rng: np.random.Generator) -> list[Patient]:
    """Return `number` random patients, each with small counts in a few cells."""
    return [_some_cells(sizes, int(rng.integers(1, 9)), rng) for _ in range(number)]


def _some_cells(sizes: Sequence[int], number: int, rng: np.random.Generator) -> Patient:
    cells = np.unique(np.column_stack([rng.integers(0, s, number) for s in sizes]), axis=0)
    return Patient(cells, rng.integers(1, 6, len(cells)).astype(np.float64))


def empty(sizes: Sequence[int]) -> Patient:
    """Return a patient with no non-zero cells."""
    return Patient(np.empty((0, len(sizes)), np.int64), np.empty(0))


def _one_cell(site: SiteData, transcript: Transcript, rng: np.random.Generator) -> Patient:
    """Return a patient with one cell, made of each mode's largest-weight code in one phenotype."""
    column = int(rng.integers(transcript.anchors[0].shape[1]))
    kept = [int(np.argmax(np.abs(factor[:, column]))) for factor in transcript.anchors]
    return Patient(_in_vocabulary(np.array([kept]), transcript), np.array([1.0]))


def _aligned(site: SiteData, transcript: Transcript, rng: np.random.Generator) -> Patient:
    """Return a patient whose cell values are products of a phenotype's largest relative weights."""
    column = int(rng.integers(transcript.anchors[0].shape[1]))
    most = max(2, round(_MOST_CELLS ** (1 / len(transcript.anchors)) / 5))
    values, codes = np.ones(1), []
    for factor in transcript.anchors:
        weight = np.abs(factor[:, column].astype(np.float64))
        codes.append(np.argsort(-weight)[:most])
        shares = weight[codes[-1]] / max(weight.max(), 1e-300)
        values = np.multiply.outer(values, shares).ravel()
    return Patient(_in_vocabulary(_grid(codes), transcript), values)


def _dense(site: SiteData, transcript: Transcript, rng: np.random.Generator) -> Patient:
    sizes = site.tensor.feature_shape
    most = max(2, math.floor(_MOST_CELLS ** (1 / len(sizes))))
    cells = _grid([rng.permutation(size)[:most] for size in sizes])
    return Patient(cells, np.ones(len(cells)))


def _copy(site: SiteData, transcript: Transcript, rng: np.random.Generator) -> Patient:
    return patient_of(site, int(rng.integers(site.tensor.n_patients)))


def _million(site: SiteData, transcript: Transcript, rng: np.random.Generator) -> Patient:
    cells, values = _copy(site, transcript, rng)
    return Patient(cells, np.minimum(values * 1e6, 1e38))


def _extreme(site: SiteData, transcript: Transcript, rng: np.random.Generator) -> Patient:
    cells, _ = _some_cells(site.tensor.feature_shape, 6, rng)
    return Patient(cells, np.resize([1e38, 1e-38, 1.0], len(cells)))


CANARIES: dict[str, Callable[[SiteData, Transcript, np.random.Generator], Patient]] = {
    "one cell": _one_cell,
    "dense": _dense,
    "counts times a million": _million,
    "a phenotype itself": _aligned,
    "a copy of another": _copy,
    "extreme values": _extreme,
    "no cell": lambda site, transcript, rng: empty(site.tensor.feature_shape),
    "random": lambda site, transcript, rng: _some_cells(site.tensor.feature_shape, 8, rng),
}
"""Functions, keyed by name, that return a patient to add. Patients that reach bounds come first."""


def _in_vocabulary(kept: NDArray[np.int64], transcript: Transcript) -> NDArray[np.int64]:
    """Convert indices of selected codes into indices in the full code lists."""
    if not transcript.selection:
        return kept
    columns = [s[kept[:, mode]] for mode, s in enumerate(transcript.selection)]
    return np.column_stack(columns).astype(np.int64)


def _grid(codes: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    mesh = np.meshgrid(*codes, indexing="ij")
    return np.column_stack([axis.ravel() for axis in mesh]).astype(np.int64)


def _one_hot(shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float64]:
    factor = np.zeros(shape)
    factor[rng.integers(0, shape[0], shape[1]), np.arange(shape[1])] = 1
    return factor


FACTORS: dict[str, Callable[[tuple[int, int], np.random.Generator], NDArray[np.float64]]] = {
    "one code a phenotype": _one_hot,
    "non-negative": lambda shape, rng: rng.gamma(0.3, 1.0, shape),
    "of any sign": lambda shape, rng: rng.normal(size=shape),
    "huge": lambda shape, rng: 1e6 * rng.random(shape),
    "tiny": lambda shape, rng: 1e-6 * rng.random(shape),
    "sparse": lambda shape, rng: rng.normal(size=shape) * (rng.random(shape) < 0.1),
    "nothing": lambda shape, rng: np.zeros(shape),
    "mixed": lambda shape, rng: rng.normal(size=shape) * 10.0 ** rng.uniform(-6, 5, shape[1]),
}
"""Functions, keyed by name, that return global factors as a server might send them."""

STARTS: dict[str, Callable[[int, float, np.random.Generator], NDArray[np.float64]]] = {
    "large": lambda count, sigma, rng: np.full(count, 100 * sigma),
    "noise": lambda count, sigma, rng: sigma * rng.normal(size=count),
    "mixed": lambda count, sigma, rng: sigma * np.abs(rng.normal(size=count)) ** 6,
    "negative": lambda count, sigma, rng: -sigma * rng.random(count),
    "huge": lambda count, sigma, rng: np.full(count, 1e15),
}
"""Functions, keyed by name, that return values for a site's earlier release of co-occurrences."""


def hostile_transcript(target: AuditTarget, trial: int, rng: np.random.Generator) -> Transcript:
    """Return a trial's hostile requests, and a made-up earlier release of the site."""
    make = list(FACTORS.values())[trial // 2 % len(FACTORS)]
    start = list(STARTS.values())[(trial // 2 + trial // (2 * len(STARTS))) % len(STARTS)]
    planned = target.plan.start
    factors = [make((size, target.solver.rank), rng) for size in target.sizes]
    selection = random_selection(target, rng)
    released = start(planned.count, planned.sigma, rng)
    return target.transcript(
        tuple(np.clip(factor, -1e6, 1e6).astype(np.float32) for factor in factors),
        selection,
        {planned.round: replay([released.astype(np.float32)], [])},
        relative_l21=(target.solver.relative_l21 or 1.0) if trial % 2 else 0.0,
    )
