"""What the sites said before anybody paid, and whether a run may begin with that."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from dpfact_flower.errors import DataError, QuorumError, code_in, heard
from dpfact_flower.machine.files import replacing
from dpfact_flower.machine.parsed import from_json

_logger = logging.getLogger(__name__)
READINESS = "preflight.json"
_SLOW_SECONDS = 30.0
"""From here on Flower takes a process for dead, and starts another beside it."""
_CLOCK_SECONDS = 2.0
"""Flower ends a SuperNode whose clock is 5 s ahead."""
_MEANING = {
    "privacy-refused": "it does not take part in this mode or rule, or has too little budget or "
    "too few rounds left",
    "message": "it has other code lists, smaller limits, or other settings for this job",
    "settings": "its own settings do not work",
    "data": "its data file cannot be used",
    "state": "its folder, its ledger or its disk refuses, or too many rounds have failed there",
    "late": "it holds its replies for longer than round-timeout leaves",
    "internal": "an error that nobody foresaw, or another version of this package",
}


@dataclass(frozen=True)
class Readiness:
    """What a site said, or did not.

    Attributes
    ----------
    node : int
        Flower's number of its SuperNode.
    site : str
        Its name; empty where it is neither registered nor was heard.
    fault : str
        Why it would not answer a round; empty where it would.
    version : str
        Of this package there; empty where it was not said.
    seconds : float
        From the question to its answer.
    clock : float
        Seconds by which its clock is ahead at least; below 0: behind.
    """

    node: int
    site: str = ""
    fault: str = ""
    version: str = ""
    seconds: float = 0.0
    clock: float = 0.0

    def __post_init__(self) -> None:
        for name in ("site", "fault", "version"):
            object.__setattr__(self, name, heard(getattr(self, name)))

    @property
    def who(self) -> str:
        """The site's name and number, as far as they are known."""
        return f"{self.site} (node {self.node})" if self.site else f"node {self.node}"

    @property
    def words(self) -> str:
        """What is wrong, with what it means; empty where nothing is."""
        code = code_in(self.fault)
        meaning = f": {_MEANING[code]}; its own log says more" if code in _MEANING else ""
        return f"{self.who}: {self.fault.partition(' (')[0]}{meaning}" if self.fault else ""

    def warnings(self, version: str) -> list[str]:
        """What does not stop a run, and may stop it later."""
        found = []
        if self.version and self.version != version:
            found.append(f"{self.who} has version {self.version} of dpfact-flower, here {version}")
        if self.seconds > _SLOW_SECONDS:
            found.append(
                f"{self.who} took {self.seconds:.0f} s to answer a question that costs no "
                f"computing: its reply-after, or a machine on which, beyond {_SLOW_SECONDS:g} s, "
                "Flower starts processes twice"
            )
        if abs(self.clock) > _CLOCK_SECONDS:
            side = "ahead" if self.clock > 0 else "behind"
            found.append(f"{self.who}: its clock is {abs(self.clock):.0f} s {side}; use NTP")
        return found


def judge(
    found: Sequence[Readiness], *, version: str, quorum: int, leave_out: bool
) -> frozenset[int]:
    """Decide whether a run may begin.

    Parameters
    ----------
    found : sequence of Readiness
    version : str
        Of this package here.
    quorum : int
        Sites needed.
    leave_out : bool
        Whether it may begin without the sites that have a fault.

    Returns
    -------
    frozenset of int
        Nodes that are left out.

    Raises
    ------
    QuorumError
        Naming every fault, and the way out.
    """
    for each in found:
        for warning in each.warnings(version):
            _logger.warning("preflight: %s", warning)
    faulty = [each for each in found if each.fault]
    for each in faulty:
        _logger.error("preflight: %s", each.words)
    ready = len(found) - len(faulty)
    if faulty and not (leave_out and ready >= quorum):
        way = (
            f"{ready} site(s) are ready, the quorum (min-sites) is {quorum}"
            if leave_out
            else 'mend them, or set preflight = "leave-out" to begin without them'
        )
        raise QuorumError(
            f"nothing was asked and nobody paid: {'; '.join(each.words for each in faulty)}. {way}"
        )
    _logger.info("preflight: %d site(s) ready%s", ready, f", {len(faulty)} not" if faulty else "")
    return frozenset(each.node for each in faulty)


def write_readiness(folder: Path, found: Sequence[Readiness]) -> None:
    """Keep what the sites said in a run's folder."""
    with replacing(folder / READINESS, durable=False) as file:
        file.write(json.dumps([asdict(each) for each in found], indent=1).encode())


def read_readiness(folder: Path) -> list[Readiness]:
    """What `write_readiness` kept; empty where nothing was.

    Raises
    ------
    DataError
        If the file is damaged.
    """
    path = folder / READINESS
    try:
        return [Readiness(**each) for each in from_json(path.read_bytes())]
    except FileNotFoundError:
        return []
    except (OSError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged ({type(error).__name__})") from None
