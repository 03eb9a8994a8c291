"""How often a site refused, by the code that left it: figures for the hospital's own monitoring.

They bound nothing and decide nothing. The file's size is bounded by the number of codes, so no
server can fill a disk with it. Nothing is written for a site that has answered nothing yet, nor
where the folder itself is what is wrong (code "state"): those refusals are in the log alone.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from dpfact_flower.errors import StateError
from dpfact_flower.machine.access import check_own
from dpfact_flower.machine.files import replacing
from dpfact_flower.machine.parsed import from_json
from dpfact_flower.privacy.ledger import LEDGER

_FILE = ".refusals.json"  # no job can have this name


def refusals(folder: Path) -> dict[str, int]:
    """Refusals since the count began, by code; none where there is no file, or a damaged one."""
    with suppress(OSError, ValueError):
        found = from_json((folder / _FILE).read_bytes())
        if isinstance(found, dict) and all(type(count) is int for count in found.values()):
            return found
    return {}


def count_refusal(folder: Path, code: str) -> None:
    """Count a refusal in a site's folder, where it has a ledger: it is about to leave in any case.

    Of two processes that count at once, one may be forgotten; an executor answers one message at a
    time.
    """
    if code == StateError.code or not (folder / LEDGER).exists():
        return
    with suppress(OSError, StateError):
        for path in (folder.parent, folder):
            check_own(path)
        counts = refusals(folder)
        counts[code] = counts.get(code, 0) + 1
        with replacing(folder / _FILE, durable=False) as file:
            file.write(json.dumps(counts).encode())
