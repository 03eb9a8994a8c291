"""A hospital's figures for its own monitoring, which never leave the hospital."""

import time
from datetime import datetime
from pathlib import Path

from dpfact_flower.data.site_data import open_site
from dpfact_flower.machine.prometheus import Gauge
from dpfact_flower.privacy import account
from dpfact_flower.privacy.ledger import LEDGER, Ledger, LedgerRow
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.lockout import failed_attempts

ANSWERING = ".answering"
"""File in the state folder that exists while the site answers a message."""


def answering_seconds(state: Path) -> float:
    """Return the seconds since the site began to answer its current message, or 0 if it is idle."""
    try:
        return max(time.time() - (state / ANSWERING).stat().st_mtime, 0.0)
    except FileNotFoundError:
        return 0.0


def site_gauges(settings: SiteSettings) -> list[Gauge]:
    """Return the gauges of a site: its budget, its latest charge and its failures."""
    name = settings.site or open_site(settings.data_path).name
    folder = Path(settings.state_dir).expanduser() / name
    spent, last = 0.0, 0.0
    rows: tuple[LedgerRow, ...] = ()
    if (folder / LEDGER).exists():
        with Ledger(folder, create=False) as ledger:
            rows = ledger.rows()
    if charged := [row for row in rows if row.events]:
        events = [event for row in charged for event in row.events]
        spent = account(events, settings.budget_delta).headline.epsilon
        last = datetime.fromisoformat(charged[-1].recorded).timestamp()
    figures = {
        "epsilon_spent": ("Total over all jobs, composed at budget-delta; not the sum of the "
                          "jobs' epsilons.", spent),
        "epsilon_left": ("max-epsilon less epsilon_spent.", max(settings.max_epsilon - spent, 0.0)),
        "charged_seconds": ("Time of the latest charge, in seconds since 1970.", last),
        "releases": ("Rows of the ledger.", len(rows)),
        "failed_attempts": ("Rounds in a row that failed after reading patients; at 10, "
                            "the site stops until they are cleared.", failed_attempts(folder)),
        "answering_seconds": ("Seconds since the site began to answer the current message; 0 if "
                              "there is none.", answering_seconds(folder.parent)),
    }  # fmt: skip
    return [
        Gauge(f"site_{key}", text, [({"site": name}, value)])
        for key, (text, value) in figures.items()
    ]
