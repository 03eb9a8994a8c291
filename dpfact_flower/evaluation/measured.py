"""Measures of a simulation, which has all sites' data and state on one machine.

Errors, AUC and phenotype tables are computed here, from files, after the rounds. No message
contains these results. Sites that finished no round are left out, and the summary names these
sites.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.errors import StateError
from dpfact_flower.evaluation.coherence import coherence
from dpfact_flower.evaluation.membership import scores
from dpfact_flower.evaluation.phenotypes import phenotype_table, site_usage
from dpfact_flower.evaluation.prediction import MOST_PREDICTED, predict_outcome
from dpfact_flower.evaluation.summary import (
    UNINFORMATIVE,
    Errors,
    GroupAUC,
    Measured,
    OutcomePrediction,
    RoundErrors,
    SiteFit,
)
from dpfact_flower.evaluation.tables import SharedPhenotypes
from dpfact_flower.machine.logs import ProgressCallback, no_progress
from dpfact_flower.machine.memory import give_back
from dpfact_flower.privacy.ledger import data_tag
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.site.round import scaled
from dpfact_flower.site.store import SiteStore
from dpfact_flower.solver.error import squared_error
from dpfact_flower.solver.exact import fitted_patients
from dpfact_flower.solver.losses import losses
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.cp import CPModel
from dpfact_flower.tensor.error import SquaredError
from dpfact_flower.tensor.match import factor_match_score

_MEASURING = "measuring"


def measure(
    coordinator: Coordinator,
    cohort: Cohort,
    sites_folder: Path,
    watch: ProgressCallback = no_progress,
) -> tuple[Measured, SharedPhenotypes | None]:
    """Return the measures for the summary, and the phenotype tables.

    The tables are None if they would describe noise.
    """
    watch(_MEASURING, 0.0)
    give_back()  # memory that the rounds used
    job, solver, features = coordinator.run.job, coordinator.solver, coordinator.factors
    selected = cohort.select_codes(coordinator.selection)
    loaded = []
    for whole, site in zip(cohort.sites, selected.sites, strict=True):
        tag = data_tag(sites_folder / whole.name, whole.tensor.fingerprint())
        store = SiteStore(sites_folder, whole.name, job, tag)
        if store.load() is not None:
            loaded.append((site, store))
    if not loaded:
        raise StateError(f"{sites_folder}: no site finished a round of this run")
    sites, stores = zip(*loaded, strict=True)

    def models() -> Iterator[tuple[SparseTensor, Factors]]:
        """Yield each site's tensor as it was factorised, and its factors, one site at a time."""
        for site, store in loaded:
            state = store.load()
            assert state is not None  # this state was loaded before
            yield scaled(site.tensor, solver), state.factors

    def fit(of: Factors) -> float:
        tensors = (tensor for tensor, _ in models())
        return shared_error(tensors, of, nonnegative=solver.nonnegative).fit

    memberships = [
        scores(site.tensor, features, nonnegative=solver.nonnegative).astype(np.float32)
        for site in sites
    ]
    # Sites with another loss did not minimise the squared error.
    errors = _errors(stores, sites, models()) if losses.find(solver.loss).is_squared else None
    fit_shared, fit_frequencies = fit(features), fit(code_frequencies(t for t, _ in models()))
    is_informative = fit_shared > fit_frequencies
    watch(_MEASURING, 0.3)
    some = _some(memberships, sites)
    predictions = {
        label: predict_outcome(*some, label) if is_informative else _unpredicted(sites)
        for label in cohort.labels
    }
    aucs = [prediction.overall.memberships for prediction in predictions.values()]
    measured = Measured(
        fms=factor_match_score(features, selected.truth.factors) if selected.truth else None,
        auc=aucs[0].mean if aucs and aucs[0] else None,
        predictions=predictions,
        sites_without_a_round=tuple(s.name for s in selected.sites if s not in sites),
        errors=errors,
        fit_shared=fit_shared,
        fit_frequencies=fit_frequencies,
        coherence=coherence(features, (site.tensor for site in sites)) if is_informative else None,
    )
    tables = None
    if is_informative:
        watch(_MEASURING, 0.8)
        give_back()
        own = [CPModel.of(*model).with_unit_features().factors[0] for _, model in models()]
        tables = SharedPhenotypes(
            phenotype_table(memberships, features, sites),
            site_usage(own, [site.name for site in sites]),
        )
    watch(_MEASURING, 1.0)
    return measured, tables


def shared_error(
    tensors: Iterable[SparseTensor], features: Factors, *, nonnegative: bool = True
) -> SquaredError:
    """Return the squared error over all patients, each refitted to the shared features alone.

    A site's own model has feature factors of its own, so its fit can't be compared with that of a
    system whose sites share these factors. At sites with few patients, the fit of the site's own
    model is mostly chance. The `tensors` are scaled as the run scales them.
    """
    errors = []
    for tensor in tensors:
        patients = fitted_patients(tensor, features, nonnegative=nonnegative)
        errors.append(squared_error(tensor, (patients, *features)))
    return reduce(add, errors)


def code_frequencies(tensors: Iterable[SparseTensor]) -> Factors:
    """Return one component of norm 1 with every code's share in the data, a baseline model."""
    counts = (
        [
            np.bincount(tensor.indices[:, mode], tensor.values, minlength=size)
            for mode, size in enumerate(tensor.feature_shape, start=1)
        ]
        for tensor in tensors
    )
    sums = [reduce(add, of_mode) for of_mode in zip(*counts, strict=True)]
    tiny = np.finfo(float).tiny
    return tuple(
        (total / max(float(np.linalg.norm(total)), tiny)).astype(np.float32)[:, None]
        for total in sums
    )


def _some(
    memberships: Sequence[NDArray[np.float32]], sites: Sequence[SiteData]
) -> tuple[list[NDArray[np.float32]], list[SiteData]]:
    """Return all patients, or the same share of each site if they exceed `MOST_PREDICTED`."""
    share, rng = min(1.0, MOST_PREDICTED / sum(map(len, sites))), np.random.default_rng(0)
    if share == 1:
        return list(memberships), list(sites)
    rows = [np.sort(rng.permutation(n)[: math.ceil(share * n)]) for n in map(len, sites)]
    return (
        [own[chosen] for own, chosen in zip(memberships, rows, strict=True)],
        [site[chosen] for site, chosen in zip(sites, rows, strict=True)],
    )


def _unpredicted(sites: Sequence[SiteData]) -> OutcomePrediction:
    """Return a prediction without figures, because readers would trust an AUC of noise."""
    groups = tuple(GroupAUC(site.name, len(site), reason=UNINFORMATIVE) for site in sites)
    everybody = GroupAUC("overall", sum(map(len, sites)), reason=UNINFORMATIVE)
    return OutcomePrediction(everybody, groups, 0, 0.0)


def _errors(
    stores: Sequence[SiteStore], sites: Sequence[SiteData],
    models: Iterable[tuple[SparseTensor, Factors]],
) -> Errors | None:  # fmt: skip
    """Return the errors of the sites' own models after each round, pooled over all sites.

    This is the paper's measure. If the sites did not measure the last round's error over non-zeros,
    this error is computed from the `models`.
    """
    histories = [{m.round: m for m in store.history()} for store in stores]
    rounds = sorted(set.intersection(*(set(history) for history in histories)))
    if not rounds:
        return None
    pooled = {n: reduce(add, (history[n].error for history in histories)) for n in rounds}
    last = pooled[rounds[-1]]
    if last.nonzeros is None:
        of_models = reduce(add, (squared_error(*model) for model in models))
        last = replace(last, nonzeros=of_models.nonzeros)
    rmse = last.rmse
    assert rmse.nonzeros is not None  # measured by now
    return Errors(
        rmse=rmse.all_cells,
        fit=last.fit,
        rmse_nonzeros=rmse.nonzeros,
        rmse_authors=rmse.authors,
        error_by_round=tuple(
            RoundErrors(n, **asdict(error.rmse), fit=error.fit) for n, error in pooled.items()
        ),
        solver_seconds=sum(m.seconds for history in histories for m in history.values()),
        per_site_data=tuple(
            SiteFit(
                site.name,
                patients=site.tensor.n_patients,
                nonzeros=site.tensor.nnz,
                fit=history[rounds[-1]].error.fit,
            )
            for site, history in zip(sites, histories, strict=True)
        ),
    )
