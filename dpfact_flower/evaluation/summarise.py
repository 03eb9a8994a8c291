"""The summary of a run: the server's knowledge and, in a simulation, the measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dpfact_flower.data.site_data import PATIENT, Cohort
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import StateError
from dpfact_flower.evaluation.measured import measure
from dpfact_flower.evaluation.phenotypes import top_codes
from dpfact_flower.evaluation.summary import (
    Exchange,
    Measured,
    RunSpending,
    SiteSpending,
    Summary,
)
from dpfact_flower.evaluation.tables import GlobalCodes, SharedPhenotypes
from dpfact_flower.machine.logs import ProgressCallback, no_progress
from dpfact_flower.privacy import NO_CLAIM, ReleaseEvent, account
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.privacy.scope import (
    GIVEN_CODES,
    GIVEN_CODES_AND_NUMBER,
    NEIGHBOURS,
    NOT_COVERED,
    UNITS,
    about_rows,
)
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.solver.losses import losses

PAPER_BYTES_PER_SECOND = 15e6
"""The paper's assumed transfer rate, 15 MB/s."""


def summarise(
    coordinator: Coordinator,
    vocabularies: Sequence[Vocabulary],
    cohort: Cohort | None,
    sites_folder: Path,
    *,
    measured: bool = True,
    counted: bool = False,
    watch: ProgressCallback = no_progress,
) -> tuple[Summary, SharedPhenotypes | GlobalCodes]:
    """Return the contents of ``summary.json`` and ``phenotypes.json``.

    `cohort` is the simulation's data, whose sites keep their state in `sites_folder`. In a
    deployment `cohort` is None. Without `measured`, a simulation's summary has no more than a
    deployment's. `counted` means that the run was planned with the simulation's exact number of
    patients.
    """
    given = ""  # facts taken from the data without noise, as text after a claim
    if cohort is not None and coordinator.privacy.privacy == "patient":
        given = GIVEN_CODES_AND_NUMBER if counted else GIVEN_CODES
    spent = _spent(coordinator, cohort, sites_folder, given)
    measures: Measured | None = None
    tables: SharedPhenotypes | None = None
    if cohort is not None and measured:
        measures, tables = measure(coordinator, cohort, sites_folder, watch)
    records, solver = coordinator.records, coordinator.solver
    squared = losses.find(solver.loss).is_squared
    summary = Summary(
        name=cohort.name if cohort else coordinator.run.job,
        sites=len({site for record in records for site in record.sites}),
        rounds=sum(record.updated for record in records),
        rank=solver.rank,
        solver=solver.solver if squared else f"{solver.solver}, {solver.loss}",
        scale=solver.scale,
        privacy=coordinator.privacy.privacy,
        claim=spent.claim if spent else NO_CLAIM,
        spent=spent,
        exchange=_exchange(coordinator),
        measured=measures,
        row_unit=cohort.row_unit if cohort else PATIENT,
        false_discovery=coordinator.false_discovery,
    )
    return summary, tables or _global_codes(coordinator, vocabularies)


def _exchange(coordinator: Coordinator) -> Exchange:
    """Return the traffic of the run, and that of as many rounds of the papers' schemes.

    In these schemes a site and the server each send all feature factors, as float64 and without
    overhead. In TRIP (consensus ADMM) a site also sends the multipliers of its constraints.
    """
    records = coordinator.records
    up = sum(record.bytes_up for record in records)
    down = sum(record.bytes_down for record in records)
    replies = sum(len(record.sites) for record in records)
    factors = 8 * coordinator.solver.rank * sum(len(factor) for factor in coordinator.factors)
    return Exchange(
        bytes_up=up,
        bytes_down=down,
        seconds=sum(record.seconds for record in records),
        bytes_paper=2 * factors * replies,
        bytes_trip=3 * factors * replies,
        transfer_seconds_at_15_MB_s=(up + down) / PAPER_BYTES_PER_SECOND,
        failures=sum(len(record.failures) for record in records),
    )


def _spent(
    coordinator: Coordinator, cohort: Cohort | None, sites_folder: Path, given: str
) -> RunSpending | None:
    """Return the largest spending of a site and that of every site, or None without noise.

    Sites hold different patients, so the run costs a patient only the spending of their own site.
    In a simulation the sites' own ledgers are read. A deployed server counts every round that it
    requested from a site, even if no reply came in time, because the site may have computed it.
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
            guarantee = account(own, delta, second_opinions=True)
            spent[site] = replace(guarantee, claim=about_rows(guarantee.claim + given, row_unit))
    if not spent:
        raise StateError("no site's ledger holds a release of this run")
    worst = max(spent.values(), key=lambda guarantee: guarantee.rho)
    return RunSpending(
        **worst.to_dict(),
        unit_in_words=about_rows(UNITS[worst.unit], row_unit),
        neighbours_in_words=about_rows(NEIGHBOURS[worst.neighbours], row_unit),
        not_covered=NOT_COVERED,
        per_site={
            site: SiteSpending(**guarantee.to_dict(), ledger=tuple(events[site]))
            for site, guarantee in spent.items()
        },
    )


def _recorded(
    coordinator: Coordinator, cohort: Cohort, sites_folder: Path
) -> dict[str, tuple[ReleaseEvent, ...]]:
    """Return the releases of this job in the sites' ledgers."""
    events = {}
    for site in cohort.sites:
        folder = sites_folder / site.name
        if (folder / LEDGER).exists():
            with Ledger(folder, create=False) as ledger:
                events[site.name] = ledger.events(coordinator.run.job)
    return events


def _planned(coordinator: Coordinator) -> dict[str, tuple[ReleaseEvent, ...]]:
    """Return the releases of all requested rounds, for every site that has replied."""
    rounds = range(1, coordinator.finished_rounds + 1)
    sites = sorted({site for record in coordinator.records for site in record.sites})
    events = tuple(event for number in rounds for event in coordinator.planned_events(number))
    return dict.fromkeys(sites, events)


def _global_codes(coordinator: Coordinator, vocabularies: Sequence[Vocabulary]) -> GlobalCodes:
    """Return the top codes of every phenotype, which the server knows without patients."""
    return GlobalCodes(
        {
            vocabulary.name: tuple(top_codes(vocabulary, factor))
            for vocabulary, factor in zip(vocabularies, coordinator.factors, strict=True)
        }
    )
