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
from dpfact_flower.evaluation.beside import Beside, found_again, read_beside
from dpfact_flower.evaluation.cards import Card, cards, odds_reach, systems_of
from dpfact_flower.evaluation.membership import LEAST_SCORE
from dpfact_flower.evaluation.names import read_names, read_reviews
from dpfact_flower.evaluation.nothing import nothing_learned
from dpfact_flower.evaluation.page import belonging, check_libraries, render, svg
from dpfact_flower.evaluation.prediction import MOST_PREDICTED
from dpfact_flower.evaluation.prose import certainty_words, first_line, paragraph, review_words
from dpfact_flower.evaluation.run_folder import (
    MODEL,
    REPORT,
    SUMMARY,
    read_config,
    read_model,
    read_phenotypes,
    read_summary,
)
from dpfact_flower.evaluation.summary import SiteSpending, Summary
from dpfact_flower.evaluation.tables import GlobalCodes, SharedPhenotypes, SiteUsage
from dpfact_flower.evaluation.words import outcome
from dpfact_flower.machine.files import replacing
from dpfact_flower.privacy import SEEDED_CLAIM
from dpfact_flower.privacy.scope import NEIGHBOURS, NOT_COVERED, UNITS
from dpfact_flower.server.history import Arrival, RoundRecord, read_history
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
    """Write ``report.html`` from the files of a run's folder.

    Parameters
    ----------
    folder : Path
        Of a finished run, simulated or deployed; what only the sites could measure is left out.

    Returns
    -------
    Path
        The report, readable by its owner alone.

    Raises
    ------
    DataError
        If a file of the folder is missing or damaged.
    MissingDependencyError
        If matplotlib or Jinja2 is not installed.
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
    """The files of a run's folder, read."""

    folder: Path
    summary: Summary
    phenotypes: SharedPhenotypes | GlobalCodes
    records: list[RoundRecord]
    codes: dict[str, int]
    settings: dict[str, Any]
    versions: dict[str, Any]
    names: Mapping[int, str]
    cards: list[Card]
    beside: tuple[Beside, ...]

    @property
    def unit(self) -> str:
        """What a row of the data is, in the plural."""
        return f"{self.summary.row_unit}s"

    @property
    def shared(self) -> SharedPhenotypes | None:
        """Tables over the patients of all sites, where they were available to be counted."""
        return self.phenotypes if isinstance(self.phenotypes, SharedPhenotypes) else None


def _read(folder: Path) -> _Run:
    summary, phenotypes = read_summary(folder), read_phenotypes(folder)
    config = read_config(folder)
    factors, vocabularies = read_model(folder)
    if factors[0].shape[1] != summary.rank:
        raise DataError(
            f"{folder}: its files do not belong together: {summary.rank} phenotypes in {SUMMARY}, "
            f"{factors[0].shape[1]} in {MODEL}"
        )
    names, others = read_names(folder, summary.rank), read_beside(folder, summary.rank)
    measured = phenotypes.table.phenotypes if isinstance(phenotypes, SharedPhenotypes) else ()
    return _Run(
        folder,
        summary,
        phenotypes,
        read_history(folder),
        {vocabulary.name: len(vocabulary) for vocabulary in vocabularies},
        config["run-config"],
        config["versions"],
        names,
        cards(folder, names, measured, found_again(others)),
        others,
    )


# --- What the template shows ----------------------------------------------------------------------


def _content(run: _Run) -> dict[str, Any]:
    summary, shared = run.summary, run.shared
    outcomes = list(dict.fromkeys(name for card in run.cards for name in card.outcomes))
    return {
        "summary": summary,
        "first_line": first_line(
            shared.table if shared else None,
            summary.rank,
            [card.certainty for card in run.cards],
            run.unit,
        ),
        "unit": run.unit,
        "paragraphs": _paragraphs(run),
        "least_score": LEAST_SCORE,
        "without": shared.table.without if shared else None,
        "site_shares": _site_shares(run.cards),
        "nothing": nothing_learned(summary),
        "claim": _claim(summary.claim, run.settings),
        "guarantees": _guarantees(summary, run.settings),
        "units": UNITS,
        "neighbours": NEIGHBOURS,
        "not_covered": NOT_COVERED,
        "records": run.records,
        "failures": _failures(run.records),
        "arrivals": _arrivals(run.records),
        "missed": _ranges(record.round for record in run.records if not record.updated),
        "usage": _usage(shared.usage) if shared else None,
        "cards": run.cards,
        "outcomes": outcomes,
        "rates": {
            outcome(label): rate for label, rate in (shared.table.rates if shared else {}).items()
        },
        "reach": {name: odds_reach(run.cards, name) for name in outcomes},
        "legend": systems_of(run.cards),
        "beside": run.beside,
        "most_cells": _MOST_CELLS,
        "most_predicted": MOST_PREDICTED,
        "patients": shared.table.patients if shared else None,
        "predictions": {
            outcome(label): found
            for label, found in (summary.measured.predictions if summary.measured else {}).items()
        },
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
    """What a card says of a phenotype, by its number."""
    reviews = read_reviews(run.folder, run.summary.rank)
    table = run.shared.table if run.shared else None
    return {
        card.number: [
            *(
                paragraph(card.measured, table.patients, table.rates, run.unit)
                if table and card.measured
                else [card.leading]
            ),
            certainty_words(card.found),
            review_words(reviews.get(card.number)),
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
    """What a group of sites that spent alike spent, with the claim to print."""

    spent: SiteSpending
    sites: list[str]
    claim: str


def _guarantees(summary: Summary, settings: Mapping[str, Any]) -> list[_Guarantee]:
    """What sites spent, each accountant's epsilon with its claim; sites that spent alike, once."""
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
        {"who": who, "reason": reason, "rounds": _ranges(found), "count": str(len(found))}
        for (who, reason), found in sorted(rounds.items())
    ]


def _arrivals(records: Iterable[RoundRecord]) -> list[tuple[str, int, float, int]]:
    """By site, of replies used on arrival: how many, staleness on average, at most."""
    found: dict[str, list[Arrival]] = {}
    for record in records:
        for each in record.arrivals:
            found.setdefault(each.site, []).append(each)
    return [
        (site, len(own), mean(e.staleness for e in own), max(e.staleness for e in own))
        for site, own in sorted(found.items())
    ]


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
    off = {
        site: [number for number, is_off in enumerate(row, start=1) if is_off]
        for site, row in zip(usage.sites, usage.off, strict=True)
    }
    off_at: dict[int, list[str]] = {}
    for site, numbers in off.items():
        for number in numbers:
            off_at.setdefault(number, []).append(site)
    return {
        "off": {site: (len(numbers), _ranges(numbers)) for site, numbers in off.items()},
        "off_at": off_at,
        "count": sum(map(len, off.values())),
    }


# --- Figures --------------------------------------------------------------------------------------


def _figures(run: _Run) -> dict[str, Any]:
    """Inline SVG by name; what the folder has no values for is absent."""
    from dpfact_flower.evaluation import plots  # noqa: PLC0415 - matplotlib is slow to import

    summary = run.summary
    figures = {}
    if summary.errors and len(summary.errors.error_by_round) > 1:
        label = "Error of the sites' models by round"
        figures["convergence"] = svg("convergence", lambda: plots.convergence(summary), label)
    if run.records:
        figures["traffic"] = svg(
            "traffic", lambda: plots.traffic(run.records), "Bytes sent by round"
        )
    return figures | {"auc": _auc_figures(summary)}


def _auc_figures(summary: Summary) -> dict[str, Any]:
    """A figure for each outcome of which any group of patients has an AUC."""
    from dpfact_flower.evaluation import plots  # noqa: PLC0415 - matplotlib is slow to import

    found = summary.measured.predictions if summary.measured else {}
    return {
        outcome(label): svg(
            f"auc{number}",
            lambda prediction=prediction: plots.auc(prediction),  # type: ignore[misc]
            f"AUC of predicting {outcome(label)}",
        )
        for number, (label, prediction) in enumerate(found.items())
        if any(group.memberships for group in (prediction.overall, *prediction.sites))
    }
