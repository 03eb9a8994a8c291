"""Summarise a run from the server's state and, in a simulation, from the sites' data.

In a simulation, one machine has all sites' data. After the last round, this module computes
reconstruction errors, AUCs and tables from the data, but never sends these results.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.data.site_data import PATIENT, Cohort, SiteData
from dpfact_flower.errors import StateError
from dpfact_flower.evaluation import prose
from dpfact_flower.evaluation.clinical import coherence
from dpfact_flower.evaluation.membership import scores
from dpfact_flower.evaluation.prediction import MOST_PREDICTED, predict_outcome
from dpfact_flower.evaluation.prevalence import phenotype_table, site_usage
from dpfact_flower.evaluation.summary import (
    Errors,
    Exchange,
    Measured,
    RoundErrors,
    RunSpending,
    SiteFit,
    SiteSpending,
    Summary,
)
from dpfact_flower.evaluation.tables import SharedPhenotypes
from dpfact_flower.machine.logs import ProgressCallback, no_progress
from dpfact_flower.machine.memory import give_back
from dpfact_flower.privacy import NO_CLAIM, ReleaseEvent, account
from dpfact_flower.privacy.ledger import LEDGER, Ledger, keyed_hash
from dpfact_flower.privacy.release import about_rows
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.site.local_fit import scaled
from dpfact_flower.site.store import SiteStore
from dpfact_flower.solver.exact import fitted_patients
from dpfact_flower.solver.losses import losses
from dpfact_flower.solver.mttkrp import squared_error
from dpfact_flower.tensor import Factors, SparseTensor, SquaredError
from dpfact_flower.tensor.cp import CPModel, factor_match_score, unit_columns


def summarise(
    coordinator: Coordinator,
    cohort: Cohort | None,
    sites_folder: Path,
    *,
    measured: bool = True,
    counted: bool = False,
    watch: ProgressCallback = no_progress,
) -> tuple[Summary, SharedPhenotypes]:
    """Return the contents of ``summary.json`` and ``phenotypes.json``.

    `cohort` is a simulation's data, and None in a deployment. If `measured` is false, the summary
    omits all measures. `counted` says whether the privacy plan uses the exact patient count.
    """
    given = ""  # text after a claim, about facts taken from the data without noise
    if cohort is not None and coordinator.privacy.privacy == "patient":
        given = prose.GIVEN_CODES_AND_NUMBER if counted else prose.GIVEN_CODES
    spent = _spent(coordinator, cohort, sites_folder, given)
    measures: Measured | None = None
    tables = SharedPhenotypes(None, None)
    if cohort is not None and measured:
        measures, tables = measure(coordinator, cohort, sites_folder, watch)
    records, solver = coordinator.records, coordinator.solver
    squared = losses.find(solver.loss).is_squared
    summary = Summary(
        name=cohort.name if cohort else coordinator.run.job,
        sites=len({site for record in records for site in record.sites}),
        rounds=sum(record.updated for record in records),
        rank=int(coordinator.factors[0].shape[1]),
        solver=solver.solver if squared else f"{solver.solver}, {solver.loss}",
        scale=solver.scale,
        privacy=coordinator.privacy.privacy,
        claim=spent.claim if spent else NO_CLAIM,
        spent=spent,
        exchange=_exchange(coordinator),
        measured=measures,
        row_unit=cohort.row_unit if cohort else PATIENT,
        false_discovery=coordinator.rule.false_discovery,
        read_report=tuple(
            (where, what, count and max(10, round(count, -1)))
            for where, what, count in (cohort.read_report if cohort else ())
        ),
    )
    return summary, tables


def _exchange(coordinator: Coordinator) -> Exchange:
    """Return the run's traffic, and the traffic of two published methods for the same replies.

    For each reply, the DPFact paper's method sends all feature factors to the site and back, as
    float64 values. TRIP (consensus ADMM) also sends one Lagrange multiplier per factor value.
    """
    records = coordinator.records
    replies = sum(len(record.arrivals or record.sites) for record in records)
    factors = 8 * coordinator.solver.rank * sum(len(factor) for factor in coordinator.factors)
    return Exchange(
        bytes_up=sum(record.bytes_up for record in records),
        bytes_down=sum(record.bytes_down for record in records),
        seconds=sum(record.seconds for record in records),
        bytes_paper=2 * factors * replies,
        bytes_trip=3 * factors * replies,
        failures=sum(len(record.failures) for record in records),
    )


def _spent(
    coordinator: Coordinator, cohort: Cohort | None, sites_folder: Path, given: str
) -> RunSpending | None:
    """Return each site's privacy cost and the largest cost, or None if the run adds no noise.

    Costs of different sites are not added up, because each patient is assumed to be at one site.
    """
    if coordinator.privacy.privacy == "none":
        return None
    events = (
        _planned(coordinator) if cohort is None else _recorded(coordinator, cohort, sites_folder)
    )
    delta = coordinator.privacy.delta
    row_unit = cohort.row_unit if cohort else PATIENT
    spent = {}
    for site, own in events.items():
        if own:
            cost = account(own, delta, second_opinions=True)
            spent[site] = replace(cost, claim=about_rows(cost.claim + given, row_unit))
    if not spent:
        raise StateError("no site's ledger holds a release of this run")
    worst = max(spent.values(), key=lambda cost: cost.rho)
    return RunSpending(
        **worst.to_dict(),
        unit_in_words=about_rows(prose.UNITS[worst.unit], row_unit),
        neighbours_in_words=about_rows(prose.NEIGHBOURS[worst.neighbours], row_unit),
        not_covered=prose.NOT_COVERED,
        per_site={
            site: SiteSpending(**cost.to_dict(), ledger=tuple(events[site]))
            for site, cost in spent.items()
        },
    )


def _recorded(
    coordinator: Coordinator, cohort: Cohort, sites_folder: Path
) -> dict[str, tuple[ReleaseEvent, ...]]:
    events = {}
    for site in cohort.sites:
        folder = sites_folder / site.name
        if (folder / LEDGER).exists():
            with Ledger(folder, create=False) as ledger:
                events[site.name] = ledger.events(coordinator.run.job)
    return events


def _planned(coordinator: Coordinator) -> dict[str, tuple[ReleaseEvent, ...]]:
    """Return the planned releases of each site that has been charged at least once.

    A round without a timely reply is included, because the site may have charged the round.
    """
    rounds = range(1, coordinator.asked_rounds + 1)
    sites = sorted({site for record in coordinator.records for site, *_ in record.answers})
    events = tuple(event for number in rounds for event in coordinator.rule.planned_events(number))
    return dict.fromkeys(sites, events)


def measure(
    coordinator: Coordinator, cohort: Cohort, sites_folder: Path, watch: ProgressCallback
) -> tuple[Measured, SharedPhenotypes]:
    """Return measures and phenotype tables. If the model is uninformative, the tables are empty."""
    watch("measuring", 0.0)
    give_back()  # memory used by the rounds
    solver, features = coordinator.solver, coordinator.factors
    selected = cohort.select_codes(coordinator.rule.selection)
    sites, stores = _finished(coordinator.run.job, cohort, selected, sites_folder)

    def tensors() -> Iterator[SparseTensor]:
        return (scaled(site.tensor, solver) for site in sites)

    def fit(of: Factors) -> float:
        return shared_error(tensors(), of, nonnegative=solver.nonnegative).fit

    # Sites with a different loss did not minimise the squared error.
    both = zip(tensors(), _models(stores), strict=True)
    measured = Measured(
        fms=factor_match_score(features, selected.truth.factors) if selected.truth else None,
        auc=None,
        predictions={},
        sites_without_a_round=tuple(s.name for s in selected.sites if s not in sites),
        errors=_errors(stores, sites, both) if losses.find(solver.loss).is_squared else None,
        fit_shared=fit(features),
        fit_frequencies=fit(code_frequencies(tensors())),
        coherence=None,
    )
    if measured.is_uninformative:  # an AUC computed from noise would mislead
        watch("measuring", 1.0)
        return measured, SharedPhenotypes(None, None)
    watch("measuring", 0.3)
    memberships = [
        scores(site.tensor, features, nonnegative=solver.nonnegative).astype(np.float32)
        for site in sites
    ]
    sample = _sampled(memberships, sites)
    predictions = {label: predict_outcome(*sample, label) for label in cohort.labels}
    aucs = [prediction.overall.memberships for prediction in predictions.values()]
    measured = replace(
        measured,
        auc=aucs[0].mean if aucs and aucs[0] else None,
        predictions=predictions,
        coherence=coherence(features, (site.tensor for site in sites)),
    )
    watch("measuring", 0.8)
    give_back()
    rank = features[0].shape[1]  # with `auto_rank`, a site's own model has more columns
    own = [CPModel.of(*m).with_unit_features().factors[0][:, :rank] for m in _models(stores)]
    table = phenotype_table(memberships, features, sites)
    usage = site_usage(own, [site.name for site in sites])
    watch("measuring", 1.0)
    return measured, SharedPhenotypes(table, usage)


def _finished(
    job: str, cohort: Cohort, selected: Cohort, sites_folder: Path
) -> tuple[list[SiteData], list[SiteStore]]:
    """Return the data (from `selected`) and the store of each site that finished a round."""
    sites, stores = [], []
    for whole, site in zip(cohort.sites, selected.sites, strict=True):
        tag = keyed_hash(sites_folder / whole.name, job, whole.tensor.fingerprint())
        store = SiteStore(sites_folder / whole.name, job, tag)
        if any(store.folder.glob("state-*.npz")):
            sites.append(site)
            stores.append(store)
    if not sites:
        raise StateError(f"{sites_folder}: no site finished a round of this run")
    return sites, stores


def _models(stores: Iterable[SiteStore]) -> Iterator[Factors]:
    for store in stores:
        state = store.load()
        assert state is not None  # `_finished` leaves out sites without a state
        yield state.factors


def shared_error(
    tensors: Iterable[SparseTensor], features: Factors, *, nonnegative: bool = True
) -> SquaredError:
    """Fit patient factors to the tensors for fixed `features`. Return the total squared error.

    The error is comparable with the errors of methods in which sites share all feature factors.
    """
    errors = []
    for tensor in tensors:
        patients = fitted_patients(tensor, features, nonnegative=nonnegative)
        errors.append(squared_error(tensor, (patients, *features)))
    return reduce(add, errors)


def code_frequencies(tensors: Iterable[SparseTensor]) -> Factors:
    """Return a baseline model of rank one: each mode's code frequencies, scaled to norm 1."""
    counts = (
        [
            np.bincount(tensor.indices[:, mode], tensor.values, minlength=size)
            for mode, size in enumerate(tensor.feature_shape, start=1)
        ]
        for tensor in tensors
    )
    sums = [reduce(add, of_mode) for of_mode in zip(*counts, strict=True)]
    return tuple(unit_columns(total[:, None]).astype(np.float32) for total in sums)


def _sampled(
    memberships: Sequence[NDArray[np.float32]], sites: Sequence[SiteData]
) -> tuple[list[NDArray[np.float32]], list[SiteData]]:
    """Sample about `MOST_PREDICTED` patients in proportion to the sites' sizes, or all if fewer."""
    share, rng = min(1.0, MOST_PREDICTED / sum(map(len, sites))), np.random.default_rng(0)
    if share == 1:
        return list(memberships), list(sites)
    rows = [np.sort(rng.permutation(n)[: math.ceil(share * n)]) for n in map(len, sites)]
    return (
        [own[chosen] for own, chosen in zip(memberships, rows, strict=True)],
        [site[chosen] for site, chosen in zip(sites, rows, strict=True)],
    )


def _errors(
    stores: Sequence[SiteStore], sites: Sequence[SiteData],
    models: Iterable[tuple[SparseTensor, Factors]],
) -> Errors | None:  # fmt: skip
    """Return the errors of the sites' own models after each round, pooled over all sites.

    Only rounds in which all sites took part are included. If a site did not measure the last
    round's error over non-zero cells, this error is computed from `models`.
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
        error_by_round=tuple(
            RoundErrors(n, *error.rmse, fit=error.fit) for n, error in pooled.items()
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
