"""Write one self-contained HTML page about a run, using only the files in the run folder.

The page begins with the phenotypes or, if the model is uninformative, with a warning.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dpfact_flower.data.code_names import BODY_SYSTEMS, body_systems
from dpfact_flower.evaluation import prose, run_folder
from dpfact_flower.evaluation.clinical import DRAWS, clinical_measures
from dpfact_flower.evaluation.comparison import FAIR
from dpfact_flower.evaluation.finished_run import FinishedRun
from dpfact_flower.evaluation.membership import LEAST_SCORE
from dpfact_flower.evaluation.page import belonging, figure, outcome, ranges, write_page
from dpfact_flower.evaluation.prediction import MOST_PREDICTED
from dpfact_flower.evaluation.summary import SiteSpending, Summary
from dpfact_flower.evaluation.survey import FEWEST
from dpfact_flower.evaluation.tables import pairs_of
from dpfact_flower.privacy.guarantee import delta_warning
from dpfact_flower.privacy.release import about_rows
from dpfact_flower.settings import (
    AppSettings,
    PrivacySettings,
    RunSettings,
    SolverSettings,
    describe,
)
from dpfact_flower.tensor.cp import alike

K = TypeVar("K", str, tuple[str, str])
_MOST_CELLS = 3000  # of a page's table: phenotypes times sites
_MOST_CODES = 16
"""Maximum number of codes that a phenotype's card lists for each mode."""
_LEAST = 0.03
"""Smallest weight that a card lists, as a share of the largest weight of the same mode. On NHDS and
Diabetes-130, codes of smaller weights were mostly noise."""
_MANY_LISTS = 60
"""Number of code lists (phenotypes times modes) above which each list is half as long."""


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write a run's report to `out` (by default ``report.html``), readable only by its owner.

    The report of a deployment omits all measures that need the sites' data.
    """
    with belonging(folder):
        content = _content(FinishedRun.read(folder))
        return write_page(out or folder / run_folder.REPORT, "report.html.j2", content)


def _content(run: FinishedRun) -> dict[str, Any]:
    model, summary, records, table = run.model, run.summary, run.records, run.tables.table
    phenotypes, unit = table.phenotypes if table else (), f"{summary.row_unit}s"
    content, uninformative = cards(run), run.uninformative
    labels = list(dict.fromkeys(label for each in phenotypes for label in each.outcomes))
    off = run.tables.usage.switched_off if run.tables.usage else {}
    sites = {s for each in phenotypes for s, own in each.by_site.items() if isinstance(own, float)}
    shares = [share for each in phenotypes for share in (each.prevalence, *each.by_site.values())]
    systems = {
        v.name: dict(zip(v.codes, body_systems(v.name, v.codes), strict=True))
        for v in model.vocabularies
    }
    present = {name for of_mode in systems.values() for name in of_mode.values()}
    return {
        "summary": summary,
        "first_line": prose.first_line(table, [card["certainty"] for card in content], unit),
        "unit": unit,
        "cards": content,
        "systems": systems,
        "legend": [name for name in BODY_SYSTEMS if name in present],
        "shown": 6,  # codes of each mode, before the reader unfolds the list
        "replications": run.replications,
        "fair": FAIR,
        "table": table,
        "off": {site: off[site] for site in off if site in sites},  # without small sites
        "largest": max((share for share in shares if isinstance(share, float)), default=0) or 1,
        "labels": labels,
        "least_score": LEAST_SCORE,
        "most_cells": _MOST_CELLS,
        "most_predicted": MOST_PREDICTED,
        "uninformative": uninformative,
        "clinical": () if uninformative else clinical_measures(model),
        "draws": DRAWS,
        "fewest_items": FEWEST,
        "guarantees": _guarantees(summary),
        "delta_warning": delta_warning,
        "records": records,
        "failures": _grouped(((f.who, f.reason), r.round) for r in records for f in r.failures),
        "arrivals": _grouped((a.site, a.staleness) for r in records for a in r.arrivals),
        "missed": ranges(record.round for record in records if not record.updated),
        "codes": {vocabulary.name: len(vocabulary) for vocabulary in model.vocabularies},
        "settings": run.settings,
        "meanings": {
            row.key: row.help
            for kind in (AppSettings, RunSettings, SolverSettings, PrivacySettings)
            for row in describe(kind)
        },
        "versions": run.versions,
        "figures": _figures(run),
    }


def _guarantees(summary: Summary) -> list[tuple[SiteSpending, list[str]]]:
    """Group sites with equal privacy costs. Return each group's `SiteSpending` and site names."""
    rows: dict[str, tuple[SiteSpending, list[str]]] = {}
    for site, spent in summary.spent.per_site.items() if summary.spent else ():
        rows.setdefault(repr(spent), (spent, []))[1].append(site)
    return list(rows.values())


def _grouped(pairs: Iterable[tuple[K, int]]) -> list[tuple[K, list[int]]]:
    groups: dict[K, list[int]] = {}
    for key, number in pairs:
        groups.setdefault(key, []).append(number)
    return sorted(groups.items())


def _figures(run: FinishedRun) -> dict[str, Any]:
    """Draw each figure for which data exists. Return a mapping of figure names to inline SVG."""
    from dpfact_flower.evaluation import plots  # noqa: PLC0415 - matplotlib is slow to import

    figures: dict[str, Any] = {"auc": {}}
    summary, records = run.summary, run.records
    if summary.errors and len(summary.errors.error_by_round) > 1:
        panels = (partial(plots.errors, summary=summary, measure=name) for name in plots.ERRORS)
        label = "Error of the sites' models by round"
        figures["convergence"] = figure("convergence", label, 2.6, *panels)
    if records:
        draw = partial(plots.traffic, records=records)
        figures["traffic"] = figure("traffic", "Bytes sent by round", 2.1, draw)
    for number, (label, prediction) in enumerate(summary.predictions.items()):
        groups = sum(bool(g.memberships) for g in (prediction.overall, *prediction.sites))
        if groups:
            title = f"AUC of predicting {outcome(label)}"
            draw = partial(plots.auc, prediction=prediction)
            figures["auc"][label] = figure(f"auc{number}", title, 1.3 + 0.36 * groups, draw)
    return figures


def cards(run: FinishedRun) -> list[dict[str, Any]]:
    """Return the content of each phenotype's card.

    If a user has named a phenotype, the card shows the name above the title made from codes.
    """
    model, table, unit = run.model, run.tables.table, f"{run.summary.row_unit}s"
    most = _MOST_CODES // 2 if model.rank * len(model.vocabularies) > _MANY_LISTS else _MOST_CODES
    codes = model.codes_by_mode()
    made = prose.made_titles(codes)
    chances = dict(enumerate(model.false_discovery, start=1))
    same = alike(model.factors) if chances else None
    content = []
    for number, by_mode in codes.items():
        measured = table.phenotypes[number - 1] if table else None
        pairs = pairs_of(number, run.replications)
        chance, review = chances.get(number), run.reviewed.get(number)
        near = () if same is None else (1 + np.flatnonzero(same[number - 1])).tolist()
        about = prose.paragraph(measured, table, unit) if table and measured else None
        sentences = [
            *(about or [prose.leading_sentence(by_mode)]),
            about_rows(prose.certainty_sentence(pairs, chance, near), run.summary.row_unit),
            prose.review_sentence(review),
        ]
        named = model.names.get(number)
        content.append(
            {
                "number": number,
                "title": named or made[number],
                "made": made[number] if named else "",
                "text": " ".join(filter(None, sentences)),
                "codes": {
                    mode: prose.leading(rows, _LEAST)[:most] for mode, rows in by_mode.items()
                },
                "measured": measured,
                "certainty": prose.certainty(pairs, chance),
                "dropped": review is not None and review.verdict == "drop",
                "search": prose.search_words(
                    row.description for rows in by_mode.values() for row in prose.leading(rows)
                ),
            }
        )
    return content
