"""A hospital's own figures, for its own monitoring: they stay in the house."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

from dpfact_flower.data.site_data import open_site
from dpfact_flower.machine.prometheus import Gauge, gauge
from dpfact_flower.privacy import account
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.disclosure import PUBLIC_CODES
from dpfact_flower.site.looks import looks
from dpfact_flower.site.refusals import refusals

ANSWERING = ".answering"
"""File in the state folder that is as old as the message that is being answered."""


def answering_seconds(state: Path) -> float:
    """How long the message that is being answered has been; 0 where none is."""
    try:
        return max(time.time() - (state / ANSWERING).stat().st_mtime, 0.0)
    except FileNotFoundError:
        return 0.0


def site_gauges(settings: SiteSettings) -> list[Gauge]:
    """What a hospital wants to be told of: what is left, when it was charged, what fails.

    Raises
    ------
    DataError
        If the data file has the name, and cannot be opened.
    StateError
        If the ledger is damaged.
    """
    name = settings.site or open_site(settings.data_path).name
    folder = Path(settings.state_dir).expanduser() / name
    spent, last, rows = 0.0, 0.0, 0
    if (folder / LEDGER).exists():
        with Ledger(folder, create=False) as ledger:
            found = ledger.rows()
        rows = len(found)
        charged = [row for row in found if row.events]
        if charged:
            events = [event for row in charged for event in row.events]
            spent = account(events, settings.budget_delta).headline.epsilon
            last = datetime.fromisoformat(charged[-1].recorded).timestamp()
    refused = refusals(folder)
    left = max(settings.max_epsilon - spent, 0.0)
    return [
        gauge("site_epsilon_spent", "Epsilon at budget-delta, over all jobs.", spent, site=name),
        gauge("site_epsilon_left", "What max-epsilon leaves.", left, site=name),
        gauge("site_charged_seconds", "When the latest charge was, since 1970.", last, site=name),
        gauge("site_releases", "Rows of the ledger.", rows, site=name),
        gauge("site_failed_looks", "Rounds in a row that failed after patients were read; 10 "
              "close the site until somebody has looked.", looks(folder), site=name),
        gauge("site_answering_seconds", "How long the message that is being answered has been; 0 "
              "where none is.", answering_seconds(folder.parent), site=name),
        Gauge("site_refusals_total", "Requests that were refused or failed, by the code that left.",
              tuple(((("site", name), ("code", code)), float(refused.get(code, 0)))
                    for code in sorted({*PUBLIC_CODES, *refused})), "counter"),
    ]  # fmt: skip
