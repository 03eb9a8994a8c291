"""Whether this site's ledger lacks rounds that the server has answers to.

A folder that is set back as a whole, from a backup say, has the budget of that time, and nothing in
it shows that. But the server knows which rounds of a job each site has answered, and says so with
every request. What it says proves nothing: a site that lacks such a round refuses everything, until
a person has looked.
"""

from __future__ import annotations

from pathlib import Path

from dpfact_flower.errors import StateError
from dpfact_flower.machine.files import replacing
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.wire.protocol import RoundRequest

_NOTE = "LEDGER-LACKS-ROUNDS.txt"
_TEXT = """The server says that this site has answered round {said} of job {job!r}. The ledger has
{found}. The folder may have been set back, and then what was spent since is not counted.
Restore the newest copy of the ledger. If there is none, lower max-epsilon by what was charged
since: the site's log and the centre (dpfact status) know it. Then delete this file, and ask the
centre for a new job. If nothing was set back, the server is wrong: ask the centre why.
"""


def set_back_faults(folder: Path) -> list[str]:
    """What a person has to look at, of a site's folder."""
    note = folder / _NOTE
    if not note.exists():
        return []
    return [
        f"{note}: the server has answers that the ledger does not know of; read this file: nothing "
        "is answered until it is deleted"
    ]


def check_not_set_back(request: RoundRequest, site: str, folder: Path) -> None:
    """Refuse where the server has answers that the ledger does not know of, and note it.

    Raises
    ------
    StateError
        If it has, or had in an earlier request.
    """
    said, job = request.answered.get(site, 0), request.job
    last = None
    if said and (folder / LEDGER).exists():
        with Ledger(folder, create=False) as ledger:
            last = ledger.last(job)
    if said > (last.round if last else 0):
        found = f"round {last.round} as its last" if last else "no round of it"
        with replacing(folder / _NOTE) as file:
            file.write(_TEXT.format(said=said, job=job, found=found).encode())
    for fault in set_back_faults(folder):
        raise StateError(fault)
