"""One self-contained HTML page about a run, made from the files of its folder alone.

Phenotypes come first, each with its codes, whom it concerns and how sure it is; then sites,
prediction, fit, what was promised to the patients, and the settings. A model that has learned
nothing has no phenotypes to show: the page says so in place of all that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.cards import Card, cards, odds_reach, systems_of
from dpfact_flower.evaluation.formatting import outcome
from dpfact_flower.evaluation.headline import uninformative_message
from dpfact_flower.evaluation.membership import LEAST_SCORE
from dpfact_flower.evaluation.model import GlobalModel
from dpfact_flower.evaluation.page import belonging, check_libraries, render, svg
from dpfact_flower.evaluation.prediction import MOST_PREDICTED
from dpfact_flower.evaluation.prose import (
    certainty_sentence,
    first_line,
    paragraph,
    review_sentence,
)
from dpfact_flower.evaluation.replication import Replication, by_phenotype, read_replications
from dpfact_flower.evaluation.run_folder import (
    MODEL,
    PHENOTYPES,
    REPORT,
    SUMMARY,
    read_config,
    read_phenotypes,
    read_reviews,
    read_summary,
)
from dpfact_flower.evaluation.summary import OutcomePrediction, SiteSpending, Summary
from dpfact_flower.evaluation.tables import PhenotypeTable, SharedPhenotypes, SiteUsage
from dpfact_flower.machine.files import replacing
from dpfact_flower.privacy import SEEDED_CLAIM
from dpfact_flower.privacy.scope import NEIGHBOURS, NOT_COVERED, UNITS
from dpfact_flower.server.history import RoundRecord, read_history
from dpfact_flower.settings import (
    AppSettings,
    PrivacySettings,
    RunSettings,
    SolverSettings,
    describe,
)

_MOST_CELLS = 3000
"""Of phenotypes by sites, that a page has room for."""


def write_report(folder: Path) -> Path:
    """Write ``report.html`` from the files of a finished run's folder, for its owner alone.

    The page of a deployed run leaves out what only the sites can measure. A `DataError` names a
    file that is missing or damaged.
    """
    check_libraries()
    run = _read(Path(folder))
    with belonging(run.folder):
        page = render("report.html.j2", _content(run))
    with replacing(run.folder / REPORT) as file:
        file.write(page)
    return run.folder / REPORT


@dataclass(frozen=True)
class _Run:
    """The files of a run's folder, read; `table` and `usage` where patients were counted."""

    folder: Path
    summary: Summary
    table: PhenotypeTable | None
    usage: SiteUsage | None
    records: list[RoundRecord]
    codes: dict[str, int]
    settings: dict[str, Any]
    versions: dict[str, Any]
    cards: list[Card]
    replications: tuple[Replication, ...]

    @property
    def unit(self) -> str:
        """What a row of the data is, in the plural."""
        return f"{self.summary.row_unit}s"

    @property
    def predictions(self) -> dict[str, OutcomePrediction]:
        """By the outcome in words."""
        measured = self.summary.measured
        return {outcome(k): v for k, v in measured.predictions.items()} if measured else {}


def _read(folder: Path) -> _Run:
    summary, phenotypes = read_summary(folder), read_phenotypes(folder)
    config, model = read_config(folder), GlobalModel.read(folder)
    shared = phenotypes if isinstance(phenotypes, SharedPhenotypes) else None
    replications = read_replications(folder, summary.rank)
    measured = shared.table.phenotypes if shared else ()
    ranks = {SUMMARY: summary.rank, MODEL: model.rank}
    ranks |= {PHENOTYPES: len(measured)} if shared else {}
    if len(set(ranks.values())) > 1:
        found = ", ".join(f"{rank} phenotypes in {name}" for name, rank in ranks.items())
        raise DataError(f"{folder}: its files do not belong together: {found}")
    return _Run(
        folder,
        summary,
        shared.table if shared else None,
        shared.usage if shared else None,
        read_history(folder),
        {vocabulary.name: len(vocabulary) for vocabulary in model.vocabularies},
        config["run-config"],
        config["versions"],
        cards(model, measured, by_phenotype(replications)),
        replications,
    )


# --- What the template shows ----------------------------------------------------------------------


def _content(run: _Run) -> dict[str, Any]:
    summary, table = run.summary, run.table
    outcomes = list(dict.fromkeys(name for card in run.cards for name in card.outcomes))
    words = [card.certainty for card in run.cards]
    return {
        "summary": summary,
        "first_line": first_line(table, summary.rank, words, run.unit),
        "unit": run.unit,
        "paragraphs": _paragraphs(run),
        "least_score": LEAST_SCORE,
        "without": table.without if table else None,
        "site_shares": _site_shares(run.cards),
        "uninformative": uninformative_message(summary),
        "claim": _claim(summary.claim, run.settings),
        "guarantees": _guarantees(summary, run.settings),
        "units": UNITS,
        "neighbours": NEIGHBOURS,
        "not_covered": NOT_COVERED,
        "records": run.records,
        "failures": _failures(run.records),
        "arrivals": _arrivals(run.records),
        "missed": _ranges(record.round for record in run.records if not record.updated),
        "usage": _usage(run.usage) if run.usage else None,
        "cards": run.cards,
        "outcomes": outcomes,
        "rates": {outcome(k): rate for k, rate in table.rates.items()} if table else {},
        "reach": {name: odds_reach(run.cards, name) for name in outcomes},
        "legend": systems_of(run.cards),
        "replications": run.replications,
        "most_cells": _MOST_CELLS,
        "most_predicted": MOST_PREDICTED,
        "patients": table.patients if table else None,
        "predictions": run.predictions,
        "codes": run.codes,
        "settings": run.settings,
        "meanings": {
            row.key: row.help
            for kind in (AppSettings, RunSettings, SolverSettings, PrivacySettings)
            for row in describe(kind)
        },
        "versions": run.versions,
        "figures": _figures(run),
    }


def _paragraphs(run: _Run) -> dict[int, list[str]]:
    """The sentences of each card, by its number."""
    reviews, table = read_reviews(run.folder, run.summary.rank), run.table
    return {
        card.number: [
            *(
                paragraph(card.measured, table.patients, table.rates, run.unit)
                if table and card.measured
                else [card.leading]
            ),
            certainty_sentence(card.replicates),
            review_sentence(reviews.get(card.number)),
        ]
        for card in run.cards
    }


def _site_shares(cards: Sequence[Card]) -> tuple[list[str], float]:
    """The sites whose shares are known, and the largest share of all, that shades begin from."""
    sites = list(cards[0].measured.by_site) if cards and cards[0].measured else []
    return sites, max((share for card in cards for share in card.patients.values()), default=1.0)


def _claim(claim: str, settings: Mapping[str, Any]) -> str:
    """Words that must accompany every epsilon: the claim, and that seeded noise voids it."""
    seeded = settings.get("noise-seed", -1) != -1
    return f"{SEEDED_CLAIM} ({claim})" if seeded and SEEDED_CLAIM not in claim else claim


@dataclass(frozen=True)
class _Guarantee:
    """The spending that some sites have in common, with the claim to print."""

    spent: SiteSpending
    sites: list[str]
    claim: str


def _guarantees(summary: Summary, settings: Mapping[str, Any]) -> list[_Guarantee]:
    """Each accountant's epsilon with its claim; sites that spent alike have one row."""
    rows: list[_Guarantee] = []
    for site, spent in summary.spent.per_site.items() if summary.spent else ():
        alike = next((row for row in rows if row.spent == spent), None)
        if alike:
            alike.sites.append(site)
        else:
            rows.append(_Guarantee(spent, [site], _claim(spent.claim, settings)))
    return rows


def _failures(records: Iterable[RoundRecord]) -> list[dict[str, str]]:
    """Who failed, why and in which rounds; one row for a failure that recurs."""
    rounds: dict[tuple[str, str], list[int]] = {}
    for record in records:
        for failure in record.failures:
            rounds.setdefault((failure.who, failure.reason), []).append(record.round)
    return [
        {"who": who, "reason": reason, "rounds": _ranges(numbers), "count": str(len(numbers))}
        for (who, reason), numbers in sorted(rounds.items())
    ]


def _arrivals(records: Iterable[RoundRecord]) -> list[tuple[str, int, float, int]]:
    """By site, of replies used on arrival: how many, staleness on average, at most."""
    staleness: dict[str, list[int]] = {}
    for record in records:
        for arrival in record.arrivals:
            staleness.setdefault(arrival.site, []).append(arrival.staleness)
    return [(site, len(n), mean(n), max(n)) for site, n in sorted(staleness.items())]


def _ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as text: ``1–3, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number <= runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def _usage(usage: SiteUsage) -> dict[str, Any]:
    """Which phenotypes each site has switched off, and at which sites each is off."""
    off: dict[str, tuple[int, str]] = {}
    off_at: dict[int, list[str]] = {}
    for site, row in zip(usage.sites, usage.off, strict=True):
        numbers = [number for number, is_off in enumerate(row, start=1) if is_off]
        off[site] = len(numbers), _ranges(numbers)
        for number in numbers:
            off_at.setdefault(number, []).append(site)
    return {"off": off, "off_at": off_at}


# --- Figures --------------------------------------------------------------------------------------


def _figures(run: _Run) -> dict[str, Any]:
    """Inline SVG by name; a figure without values is absent."""
    from dpfact_flower.evaluation import plots  # noqa: PLC0415 - matplotlib is slow to import

    summary, figures = run.summary, {}
    if summary.errors and len(summary.errors.error_by_round) > 1:
        label = "Error of the sites' models by round"
        figures["convergence"] = svg("convergence", lambda: plots.convergence(summary), label)
    if run.records:
        label = "Bytes sent by round"
        figures["traffic"] = svg("traffic", lambda: plots.traffic(run.records), label)
    auc = {
        name: svg(
            f"auc{number}",
            lambda prediction=prediction: plots.auc(prediction),  # type: ignore[misc]
            f"AUC of predicting {name}",
        )
        for number, (name, prediction) in enumerate(run.predictions.items())
        if any(group.memberships for group in (prediction.overall, *prediction.sites))
    }
    return figures | {"auc": auc}
