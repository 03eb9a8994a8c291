"""One self-contained HTML page about a run, made from the files of its folder alone.

Phenotypes come first, each with its codes, its patients and its certainty. Sites, prediction, fit,
privacy and settings follow. If the model has learned nothing, the page says so and shows no
phenotypes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from dpfact_flower.errors import DataError
from dpfact_flower.evaluation import clinical
from dpfact_flower.evaluation.cards import cards, odds_reach, systems_of
from dpfact_flower.evaluation.formatting import outcome, ranges
from dpfact_flower.evaluation.headline import uninformative_message
from dpfact_flower.evaluation.membership import LEAST_SCORE
from dpfact_flower.evaluation.model import GlobalModel
from dpfact_flower.evaluation.page import belonging, figure, write_page
from dpfact_flower.evaluation.prediction import MOST_PREDICTED
from dpfact_flower.evaluation.prose import first_line
from dpfact_flower.evaluation.replication import read_replications
from dpfact_flower.evaluation.run_folder import (
    REPORT,
    read_config,
    read_names,
    read_phenotypes,
    read_summary,
)
from dpfact_flower.evaluation.summary import OutcomePrediction, SiteSpending, Summary
from dpfact_flower.evaluation.tables import SharedPhenotypes
from dpfact_flower.privacy.scope import NOT_COVERED
from dpfact_flower.server.history import RoundRecord, read_history
from dpfact_flower.settings import (
    AppSettings,
    PrivacySettings,
    RunSettings,
    SolverSettings,
    describe,
)

_MOST_CELLS = 3000
"""Largest number of cells, phenotypes times sites, that a page has room for."""


def write_report(folder: Path) -> Path:
    """Write ``report.html`` from the files of a finished run's folder. Only its owner can read it.

    The page of a deployed run leaves out measures that only the sites can make. A `DataError` names
    a file that is missing or damaged.
    """
    folder = Path(folder)
    with belonging(folder):
        return write_page(folder / REPORT, "report.html.j2", _content(folder))


def _content(folder: Path) -> dict[str, Any]:
    """Return the values that the template shows."""
    summary, config, model = read_summary(folder), read_config(folder), GlobalModel.read(folder)
    records, found = read_history(folder), read_phenotypes(folder)
    shared = found if isinstance(found, SharedPhenotypes) else None
    table = shared.table if shared else None
    measured = table.phenotypes if table else ()
    ranks = {summary.rank, model.rank} | ({len(measured)} if table else set())
    if len(ranks) > 1:
        raise DataError(f"{folder}: its files do not belong together: they have {ranks} phenotypes")
    replications = read_replications(folder, summary.rank)
    unit = f"{summary.row_unit}s"
    reviews = read_names(folder, summary.rank).reviewed
    own = cards(model, table, replications, reviews, unit)
    labels = list(dict.fromkeys(label for each in measured for label in each.outcomes))
    shares = [share for each in measured for share in each.by_site.values()]
    predictions = summary.measured.predictions if summary.measured else {}
    uninformative = uninformative_message(summary)
    return {
        "summary": summary,
        "first_line": first_line(table, summary.rank, [card.certainty for card in own], unit),
        "unit": unit,
        "cards": own,
        "legend": systems_of(own),
        "replications": replications,
        "table": table,
        "off": shared.usage.switched_off if shared else {},
        "largest": max((share for share in shares if isinstance(share, float)), default=0) or 1,
        "labels": labels,
        "reach": {
            label: odds_reach(each.outcomes[label] for each in measured if label in each.outcomes)
            for label in labels
        },
        "least_score": LEAST_SCORE,
        "most_cells": _MOST_CELLS,
        "most_predicted": MOST_PREDICTED,
        "predictions": predictions,
        "uninformative": uninformative,
        "clinical": ()
        if uninformative
        else clinical.clinical_measures(model.factors, model.vocabularies),
        "draws": clinical.DRAWS,
        "guarantees": _guarantees(summary),
        "not_covered": NOT_COVERED,
        "records": records,
        "failures": _failures(records),
        "arrivals": _arrivals(records),
        "missed": ranges(record.round for record in records if not record.updated),
        "codes": {vocabulary.name: len(vocabulary) for vocabulary in model.vocabularies},
        "settings": config["run-config"],
        "meanings": {
            row.key: row.help
            for kind in (AppSettings, RunSettings, SolverSettings, PrivacySettings)
            for row in describe(kind)
        },
        "versions": config["versions"],
        "figures": _figures(summary, records, predictions),
    }


def _guarantees(summary: Summary) -> list[tuple[SiteSpending, list[str]]]:
    """Return each distinct spending with the names of its sites."""
    rows: list[tuple[SiteSpending, list[str]]] = []
    for site, spent in summary.spent.per_site.items() if summary.spent else ():
        alike = next((sites for own, sites in rows if own == spent), None)
        if alike is None:
            rows.append((spent, [site]))
        else:
            alike.append(site)
    return rows


def _failures(records: Iterable[RoundRecord]) -> list[dict[str, str]]:
    """Return the failures by site and reason, with their rounds."""
    rounds: dict[tuple[str, str], list[int]] = {}
    for record in records:
        for failure in record.failures:
            rounds.setdefault((failure.who, failure.reason), []).append(record.round)
    return [
        {"who": who, "reason": reason, "rounds": ranges(numbers), "count": str(len(numbers))}
        for (who, reason), numbers in sorted(rounds.items())
    ]


def _arrivals(records: Iterable[RoundRecord]) -> list[tuple[str, int, float, int]]:
    """Return each site's number of asynchronous replies, and their mean and maximum staleness."""
    staleness: dict[str, list[int]] = {}
    for record in records:
        for arrival in record.arrivals:
            staleness.setdefault(arrival.site, []).append(arrival.staleness)
    return [(site, len(n), mean(n), max(n)) for site, n in sorted(staleness.items())]


def _figures(
    summary: Summary,
    records: Sequence[RoundRecord],
    predictions: Mapping[str, OutcomePrediction],
) -> dict[str, Any]:
    """Return inline SVG by name. Figures without values are left out."""
    from dpfact_flower.evaluation import plots  # noqa: PLC0415 - matplotlib is slow to import

    figures: dict[str, Any] = {"auc": {}}
    if summary.errors and len(summary.errors.error_by_round) > 1:
        panels = (
            partial(plots.errors, summary=summary, measure=measure) for measure in plots.ERRORS
        )
        label = "Error of the sites' models by round"
        figures["convergence"] = figure("convergence", label, 2.6, *panels)
    if records:
        draw = partial(plots.traffic, records=records)
        figures["traffic"] = figure("traffic", "Bytes sent by round", 2.1, draw)
    for number, (label, prediction) in enumerate(predictions.items()):
        groups = sum(bool(g.memberships) for g in (prediction.overall, *prediction.sites))
        if groups:
            title = f"AUC of predicting {outcome(label)}"
            draw = partial(plots.auc, prediction=prediction)
            figures["auc"][label] = figure(f"auc{number}", title, 1.3 + 0.36 * groups, draw)
    return figures
