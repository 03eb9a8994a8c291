"""Systems for comparison with DPFact. Each fits a cohort within this process.

Every system starts from DPFact's initial factors, fits the same tensor and yields a `Snapshot` per
round. All systems are therefore measured in the same way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.server.rule import initial_factors
from dpfact_flower.settings import PrivacySettings, SolverSettings
from dpfact_flower.site.elastic import initial_state
from dpfact_flower.site.local_fit import scaled
from dpfact_flower.site.round import stream
from dpfact_flower.tensor import Factors, SparseTensor, SquaredError
from dpfact_flower.tensor.cp import CPModel
from dpfact_flower.wire.protocol import RoundRequest


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A system's state after a round, numbered from 1.

    `models` has each site's own model: a patient factor, and a factor per feature mode. The one
    model of a centralised system is split by site. `shared` has the feature factors that all sites
    share. `error`, the paper's accuracy measure, is the total error of the sites' own models on
    their own data. `seconds` is the computing time so far, summed over the sites and without
    measurements.
    """

    round: int
    models: tuple[Factors, ...]
    shared: Factors
    error: SquaredError
    seconds: float

    @classmethod
    def of(
        cls,
        number: int,
        models: Sequence[Factors],
        shared: Factors,
        tensors: Sequence[SparseTensor],
        seconds: float,
    ) -> "Snapshot":
        """Return a snapshot of models, measured on the tensors to which they were fitted."""
        errors = [
            CPModel.of(*model).squared_error(tensor)
            for model, tensor in zip(models, tensors, strict=True)
        ]
        return cls(number, tuple(models), shared, reduce(add, errors), seconds)


def pooled(cohort: Cohort) -> SparseTensor:
    """Return all sites' patients in one tensor, site by site."""
    return stacked([site.tensor for site in cohort.sites])


def stacked(tensors: Sequence[SparseTensor]) -> SparseTensor:
    """Return the patients of all tensors in one tensor, in order."""
    rows, shift = [], 0
    for tensor in tensors:
        indices = tensor.indices.astype(np.int64)
        indices[:, 0] += shift
        rows.append(indices)
        shift += tensor.n_patients
    values = np.concatenate([tensor.values for tensor in tensors])
    return SparseTensor.from_coo(np.concatenate(rows), values, (shift, *tensors[0].feature_shape))


def site_tensors(cohort: Cohort, solver: SolverSettings) -> list[SparseTensor]:
    """Return the tensors that the sites fit, scaled as `solver.scale` requires."""
    return [scaled(site.tensor, solver) for site in cohort.sites]


def start(cohort: Cohort, solver: SolverSettings, seed: int) -> list[Factors]:
    """Return each site's factors before DPFact's first round. The feature factors are public."""
    anchors = initial_factors(cohort.sites[0].tensor.feature_shape, solver.rank, seed)
    request = RoundRequest(
        job="start", round=1, rounds=1, seed=seed, solver=solver,
        privacy=PrivacySettings(privacy="none"), vocabulary="", anchors=anchors, rule="elastic",
    )  # fmt: skip
    return [
        initial_state(tensor, request, np.random.default_rng(stream(request, site.name))).factors
        for site, tensor in zip(cohort.sites, site_tensors(cohort, solver), strict=True)
    ]


def joined(factors: Sequence[Factors]) -> Factors:
    """Join several sites' models into one, with the first site's feature factors."""
    return (np.concatenate([own[0] for own in factors]), *factors[0][1:])


def by_site(model: Factors, cohort: Cohort) -> Iterator[Factors]:
    """Split a centralised model by site. Every part has all feature factors."""
    sizes = [site.tensor.n_patients for site in cohort.sites]
    for patients in np.split(model[0], np.cumsum(sizes)[:-1]):
        yield (patients, *model[1:])
