"""What sites said before anybody paid, whether a run may begin with that, and who they are.

Whoever registers a key at the SuperLink gives it the hospital's name, which Flower keeps beside the
key. A hospital that calls itself otherwise is refused: under another's name it would make that one
pay for replies that nobody can use. Where a key was registered without a name, a node has the name
that it gives first, for as long as the process lasts.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
_REGISTER = "register each key with its hospital's name: flwr supernode register --name"
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


def called(node: int, site: str) -> str:
    """A node as people read it: by its site's name, if that is known, and its number."""
    return f"{site} (node {node})" if site else f"node {node}"


@dataclass(frozen=True)
class Readiness:
    """What a site said, or did not; a text is empty where it was neither heard nor known.

    Attributes
    ----------
    node : int
        Flower's number of its SuperNode.
    fault : str
        Why it would not answer a round; empty where it would.
    version : str
        Of this package there.
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
    def message(self) -> str:
        """What is wrong, with what it means; empty where nothing is."""
        code = code_in(self.fault)
        meaning = f": {_MEANING[code]}; its own log says more" if code in _MEANING else ""
        name = called(self.node, self.site)
        return f"{name}: {self.fault.partition(' (')[0]}{meaning}" if self.fault else ""

    def warnings(self, version: str) -> list[str]:
        """What does not stop a run, and may stop it later."""
        warnings, name = [], called(self.node, self.site)
        if self.version and self.version != version:
            warnings.append(f"{name} has version {self.version} of dpfact-flower, here {version}")
        if self.seconds > _SLOW_SECONDS:
            warnings.append(
                f"{name} took {self.seconds:.0f} s to answer a question that costs no "
                f"computing: its reply-after, or a machine on which, beyond {_SLOW_SECONDS:g} s, "
                "Flower starts processes twice"
            )
        if abs(self.clock) > _CLOCK_SECONDS:
            side = "ahead" if self.clock > 0 else "behind"
            warnings.append(f"{name}: its clock is {abs(self.clock):.0f} s {side}; use NTP")
        return warnings


def judge(
    sites: Sequence[Readiness], *, version: str, quorum: int, leave_out: bool
) -> frozenset[int]:
    """Decide whether a run may begin, with `version` of this package here; nodes left out of it.

    A `QuorumError` names every fault, and the way out, unless `leave_out` and the quorum is ready.
    """
    for warning in (warning for readiness in sites for warning in readiness.warnings(version)):
        _logger.warning("preflight: %s", warning)
    faulty = [readiness for readiness in sites if readiness.fault]
    for readiness in faulty:
        _logger.error("preflight: %s", readiness.message)
    ready = len(sites) - len(faulty)
    if faulty and not (leave_out and ready >= quorum):
        way = (
            f"{ready} site(s) are ready, the quorum (min-sites) is {quorum}"
            if leave_out
            else 'correct this, or set preflight = "leave-out" to begin without them'
        )
        faults = "; ".join(readiness.message for readiness in faulty)
        raise QuorumError(f"the run did not begin and nothing was charged: {faults}. {way}")
    _logger.info("preflight: %d site(s) ready%s", ready, f", {len(faulty)} not" if faulty else "")
    return frozenset(readiness.node for readiness in faulty)


def write_readiness(folder: Path, sites: Sequence[Readiness]) -> None:
    """Keep what the sites said in a run's folder."""
    with replacing(folder / READINESS, durable=False) as file:
        file.write(json.dumps([asdict(readiness) for readiness in sites], indent=1).encode())


def read_readiness(folder: Path) -> list[Readiness]:
    """What `write_readiness` kept; empty where nothing was. A `DataError` if it is damaged."""
    path = folder / READINESS
    try:
        return [Readiness(**fields) for fields in from_json(path.read_bytes())]
    except FileNotFoundError:
        return []
    except (OSError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged ({type(error).__name__})") from None


class SiteNames:
    """Names of a run's nodes: registered ones, which the caller keeps up to date, or else heard."""

    def __init__(self) -> None:
        self.registered: Mapping[int, str] = {}
        self._said: dict[int, str] = {}

    def of(self, node: int) -> str:
        """The site that a node is; empty where that is not known."""
        return self.registered.get(node) or self._said.get(node, "")

    def refusal(self, node: int, site: str, connected: Collection[int]) -> str:
        """Why a node may not call itself so beside these others; empty, and noted, if it may."""
        if fault := self._fault(node, site, {other: self.of(other) for other in connected}):
            return fault
        self._said = {other: name for other, name in self._said.items() if name != site}
        self._said[node] = site  # a site that came back without a key has a new number
        return ""

    def checked(self, sites: Sequence[Readiness], *, warn: bool = True) -> list[Readiness]:
        """What sites said before anybody paid, with a fault where a name is not theirs alone.

        In a simulation no name is registered, and there is nothing to `warn` of.
        """
        claims = {readiness.node: readiness.site for readiness in sites if readiness.site}
        named = []
        for readiness in sites:
            fault = readiness.fault or self._fault(readiness.node, readiness.site, claims)
            site = self.of(readiness.node) if fault else readiness.site
            named.append(replace(readiness, site=site, fault=fault))
        self._said |= {
            readiness.node: readiness.site
            for readiness in named
            if readiness.site and not readiness.fault
        }
        free = [readiness for readiness in sites if readiness.node not in self.registered]
        if free and warn:
            _logger.warning(
                "preflight: %d of %d SuperNodes have no registered name, so their site names "
                "are not tied to their keys; %s", len(free), len(sites), _REGISTER,
            )  # fmt: skip
        return named

    def _fault(self, node: int, site: str, claims: Mapping[int, str]) -> str:
        registered, before = self.registered.get(node), self._said.get(node)
        if registered and site and registered != site:
            return f"calls itself {site!r}, and its key is registered as {registered!r}"
        if not registered and before and site and before != site:
            return f"calls itself {site!r}, and called itself {before!r} before; {_REGISTER}"
        for other in sorted({*claims, *self.registered} - {node}):
            other_name = self.registered.get(other)
            counts = other_name and other in claims if registered else other_name or other in claims
            if site and counts and (other_name or claims[other]) == site:
                return f"calls itself {site!r}, as node {other} does; {_REGISTER}"
        return ""
