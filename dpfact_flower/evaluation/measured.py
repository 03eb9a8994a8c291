"""What a simulation can measure, since all sites' data and state are on one machine.

Errors, AUC and phenotype tables are computed here, from files, after the rounds; none of it was
in a message. Sites that finished no round are left out, and named.
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
from dpfact_flower.evaluation.membership import scores
from dpfact_flower.evaluation.nothing import NOTHING
from dpfact_flower.evaluation.phenotypes import phenotype_table, site_usage
from dpfact_flower.evaluation.prediction import MOST_PREDICTED, predict_outcome
from dpfact_flower.evaluation.shared import code_frequencies, shared_error
from dpfact_flower.evaluation.summary import (
    Errors,
    GroupAUC,
    Measured,
    OutcomePrediction,
    RoundErrors,
    SiteFit,
)
from dpfact_flower.evaluation.tables import SharedPhenotypes
from dpfact_flower.machine.memory import give_back
from dpfact_flower.machine.watch import Watch, unwatched
from dpfact_flower.privacy.ledger import data_tag
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.site.round import scaled
from dpfact_flower.site.store import SiteStore
from dpfact_flower.solver.error import squared_error
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.cp import CPModel
from dpfact_flower.tensor.match import factor_match_score

_MEASURING = "measuring"


def site_stores(coordinator: Coordinator, cohort: Cohort, sites_folder: Path) -> list[SiteStore]:
    """Where the simulated sites keep this run's state, in the cohort's order."""
    return [
        SiteStore(
            sites_folder, site.name, coordinator.run.job,
            data_tag(sites_folder / site.name, site.tensor.fingerprint()),
        )
        for site in cohort.sites
    ]  # fmt: skip


def measure(
    coordinator: Coordinator, cohort: Cohort, sites_folder: Path, watch: Watch = unwatched
) -> tuple[Measured, SharedPhenotypes | None]:
    """The summary's part of it, and tables of phenotypes, None where they would describe noise.

    `watch` is told of progress.

    Raises
    ------
    StateError
        If no site finished a round.
    """
    watch(_MEASURING, 0.0)
    give_back()  # of what the rounds took
    stores = site_stores(coordinator, cohort, sites_folder)
    cohort = cohort.select_codes(coordinator.selection)
    loaded = [
        (site, store)
        for site, store in zip(cohort.sites, stores, strict=True)
        if store.load() is not None
    ]
    if not loaded:
        raise StateError(f"{sites_folder}: no site finished a round of this run")
    sites = [site for site, _ in loaded]
    features, nonnegative = coordinator.factors, coordinator.solver.nonnegative

    def models() -> Iterator[tuple[SparseTensor, Factors]]:
        """Each site's tensor as it was factorised, and its factors: of one site at a time."""
        for site, store in loaded:
            state = store.load()
            assert state is not None  # it was there a moment ago
            yield scaled(site.tensor, coordinator.solver), state.factors

    def fit(of: Factors) -> float:
        return shared_error((tensor for tensor, _ in models()), of, nonnegative=nonnegative).fit

    memberships = [
        scores(site.tensor, features, nonnegative=nonnegative).astype(np.float32) for site in sites
    ]
    shared, plain = fit(features), fit(code_frequencies(tensor for tensor, _ in models()))
    nothing = shared <= plain
    watch(_MEASURING, 0.3)
    some = _some(memberships, sites)
    predictions = {
        label: _unpredicted(sites) if nothing else predict_outcome(*some, label)
        for label in cohort.labels
    }
    watch(_MEASURING, 0.8)
    give_back()
    first = next(iter(predictions.values()), None)
    auc = first.overall.memberships if first else None
    measured = Measured(
        fms=_match(coordinator, cohort),
        auc=auc.mean if auc else None,
        predictions=predictions,
        sites_without_a_round=tuple(site.name for site in cohort.sites if site not in sites),
        errors=_errors([store for _, store in loaded], sites, models()),
        fit_shared=shared,
        fit_frequencies=plain,
    )
    own = (CPModel.of(*model).with_unit_features().factors[0] for _, model in models())
    tables = (
        None
        if nothing
        else SharedPhenotypes(
            phenotype_table(memberships, features, sites),
            site_usage(list(own), [site.name for site in sites]),
        )
    )
    watch(_MEASURING, 1.0)
    return measured, tables


def _some(
    memberships: Sequence[NDArray[np.float32]], sites: Sequence[SiteData]
) -> tuple[list[NDArray[np.float32]], list[SiteData]]:
    """All patients; or where they are too many so many of them, the same share of each site."""
    share, rng = min(1.0, MOST_PREDICTED / sum(map(len, sites))), np.random.default_rng(0)
    if share == 1:
        return list(memberships), list(sites)
    rows = [np.sort(rng.permutation(n)[: math.ceil(share * n)]) for n in map(len, sites)]
    return (
        [own[chosen] for own, chosen in zip(memberships, rows, strict=True)],
        [site[chosen] for site, chosen in zip(sites, rows, strict=True)],
    )


def _unpredicted(sites: Sequence[SiteData]) -> OutcomePrediction:
    """No figures: an AUC of noise would be read as one of phenotypes."""
    groups = tuple(GroupAUC(site.name, site.tensor.n_patients, reason=NOTHING) for site in sites)
    patients = sum(group.patients for group in groups)
    return OutcomePrediction(GroupAUC("overall", patients, reason=NOTHING), groups, 0, 0.0)


def _errors(
    stores: Sequence[SiteStore], sites: Sequence[SiteData],
    models: Iterable[tuple[SparseTensor, Factors]],
) -> Errors | None:  # fmt: skip
    """Errors of the sites' own models after each round: the paper's measure, over all sites.

    Sites may not have measured the last round's error over non-zeros; their `models` tell it.
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


def _match(coordinator: Coordinator, cohort: Cohort) -> float | None:
    if cohort.truth is None:
        return None
    return factor_match_score(coordinator.factors, cohort.truth.factors)
