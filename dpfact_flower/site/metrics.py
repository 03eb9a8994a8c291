"""A hospital's figures for its own monitoring, which never leave the hospital.

Refusals are counted by the error code that left the site. Only their number is kept, because a
server could fill the disk with a list. Refusals with the code "state" are not counted, because the
folder itself causes them. Nothing is counted while the site has no ledger.
"""

import json
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from dpfact_flower.data.site_data import open_site
from dpfact_flower.errors import StateError
from dpfact_flower.machine.files import check_own, replacing
from dpfact_flower.machine.parsed import from_json, parse_as
from dpfact_flower.machine.prometheus import Gauge
from dpfact_flower.privacy import account
from dpfact_flower.privacy.ledger import LEDGER, Ledger, LedgerRow
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.disclosure import PUBLIC_CODES
from dpfact_flower.site.lockout import failed_attempts

_REFUSALS = ".refusals.json"  # no job can have this name
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
    counts = dict.fromkeys(PUBLIC_CODES, 0) | refusals(folder)
    refused = [({"site": name, "code": code}, count) for code, count in sorted(counts.items())]
    why = "Requests that were refused or failed, by the reply's code."
    return [
        *(Gauge(f"site_{key}", text, [({"site": name}, value)])
          for key, (text, value) in figures.items()),
        Gauge("site_refusals_total", why, refused, "counter"),
    ]  # fmt: skip


def refusals(folder: Path) -> dict[str, int]:
    """Return the number of refusals by code, or nothing if the file is missing or damaged."""
    with suppress(OSError, ValueError):
        return parse_as(dict[str, int], from_json((folder / _REFUSALS).read_bytes()))
    return {}


def count_refusal(folder: Path, code: str) -> None:
    """Count a refusal in a site's folder, if the folder contains a ledger."""
    if code == StateError.code or not (folder / LEDGER).exists():
        return
    with suppress(OSError, StateError):
        for path in (folder.parent, folder):
            check_own(path)
        counts = refusals(folder)
        counts[code] = counts.get(code, 0) + 1
        with replacing(folder / _REFUSALS, durable=False) as file:
            file.write(json.dumps(counts).encode())
